"""What to look at next: how fast images get their right names, by the order in which suggestions are taken.

The simulated person of `decisions.py` takes the review page's suggestions one after another. They name a category if
half of it is one class; merge it with another category of that class; split a category if half of a part is another
class, and name such parts; move doubtful images that belong to the other category; and move images with a wrong label.
A wrong suggestion also costs a decision, and is not made again.

`expected` takes the suggestion with the largest expected gain per decision, as the page does; `largest` the one about
the largest category; `random` any; `names, largest` only names the largest unnamed category. Shown is the share of all
images whose category bears the name of their class after each number of decisions, mean over seeds of the first
clustering. For each kind of suggestion, in the order of the page, the rows *of which* compare how many images it was
expected to settle, how many the page said it would, how many it then settled, and how often that was more than said, by
a tenth and by more than one image. Some labels are wrong from the start. Nothing is reclustered in between.
`--categories` sets K to more or fewer categories than there are.
"""

from __future__ import annotations

import argparse
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from common import save
from decisions import Data, Person, Run, read
from selex.review.core.mixed import Mixture, mixture
from selex.review.core.overview import parts_of
from selex.review.core.state import State
from selex.review.core.suggest import Idea, all_ideas

AT = (0, 10, 25, 50, 100, 150, 200)
Choose = Callable[[State, list[Idea], np.random.Generator], Idea | None]


def expected(state: State, found: list[Idea], rng: np.random.Generator) -> Idea | None:
    """What promises most for a decision."""
    return max(found, key=lambda idea: idea.gain / idea.decisions, default=None)


def largest(state: State, found: list[Idea], rng: np.random.Generator) -> Idea | None:
    """What is about the largest category."""
    sizes = state.sizes()
    return max(found, key=lambda idea: sizes[idea.categories[0]], default=None)


def names_only(state: State, found: list[Idea], rng: np.random.Generator) -> Idea | None:
    """The largest category without a name."""
    return largest(state, [idea for idea in found if idea.kind == "name"], rng)


def anything(state: State, found: list[Idea], rng: np.random.Generator) -> Idea | None:
    """Any."""
    return found[rng.integers(len(found))] if found else None


ORDERS: dict[str, Choose] = {"expected": expected, "largest": largest, "names, largest": names_only, "random": anything}


class Reviewer(Person):
    """A person who takes suggestions."""

    def __init__(self, data: Data, state: State) -> None:
        super().__init__(data, state)
        self.dismissed: set[tuple[str, tuple[int, ...]]] = set()
        self.checked: set[int] = set()
        self.mixtures: dict[bytes, Mixture] = {}

    def look(self, rows: np.ndarray) -> Mixture:
        """Into how many parts rows fall; worked out once."""
        key = rows.tobytes()
        if key not in self.mixtures:
            self.mixtures[key] = mixture(self.data.features, rows, self.data.labels)
        return self.mixtures[key]

    def ideas(self) -> list[Idea]:
        """Suggestions that were not turned down; to confirm gives no image a name."""
        found = [idea for idea in all_ideas(self.state, self.checked, self.look) if idea.kind != "confirm"]
        return [idea for idea in found if (idea.kind, idea.categories) not in self.dismissed]

    def take(self, idea: Idea) -> None:
        """Decide what a suggestion asks; a look that comes to nothing counts as a decision."""
        before = self.decisions
        getattr(self, f"take_{idea.kind}")(idea)
        self.dismissed.add((idea.kind, idea.categories))
        self.decisions = max(self.decisions, before + 1)

    def take_name(self, idea: Idea) -> None:
        """Name a category of which half is one class."""
        if self.seen(idea.categories[0])[1] >= 0.5:
            self.name(idea.categories[0])

    def take_merge(self, idea: Idea) -> None:
        """Merge what is one class; else name what has no name."""
        named, other = idea.categories
        if self.seen(named)[0] == self.seen(other)[0]:
            self.decide("merge", categories=(named, other))
        elif self.seen(other)[1] >= 0.5:
            self.name(other)

    def take_split(self, idea: Idea) -> None:
        """Split where a new part is for the most part of another class than the name says, and name such parts."""
        (category,), first = idea.categories, len(self.state.names)
        rows = np.flatnonzero(self.state.category == category)
        parts = parts_of(self.data.features, rows, idea.parts or 2, rows[~self.data.free[rows]])[1:]
        counts = [np.bincount(self.data.truth[part]) for part in parts]
        clear = [2 * one.max() >= one.sum() and f"class {one.argmax()}" for one in counts]
        if any(name and name != self.state.names[category] for name in clear):
            self.decide("split", category=category, parts=tuple(tuple(part.tolist()) for part in parts))
            for part, name in enumerate(clear, first):
                if name:
                    self.name(part)

    def take_doubtful(self, idea: Idea) -> None:
        """Move those that belong to the other category."""
        other = idea.categories[1]
        rows = [row for row in idea.rows if f"class {self.data.truth[row]}" == self.state.names[other]]
        if rows:
            self.decide("move", rows=tuple(rows), category=other)

    def take_labels(self, idea: Idea) -> None:
        """Move those whose label is wrong to where they belong, one by one."""
        for row in idea.rows:
            there = self.called(f"class {self.data.truth[row]}")
            self.checked.add(row)
            if there not in (None, int(self.state.category[row])):
                self.decide("move", rows=(row,), category=there)
            else:
                self.decisions += 1


def right(data: Data, state: State) -> int:
    """Images whose category has the name of their class."""
    called = np.array(state.names)[state.category]
    return int((called == np.char.add("class ", data.truth.astype(str))).sum())


def replay(run: Run, order: str, seed: int) -> tuple[list[float], dict[str, np.ndarray]]:
    """Percent of images with their right name after so many decisions; what each kind promised, did, and how often."""
    person, rng = Reviewer(run.data, State(run.results)), np.random.default_rng(seed)
    curve, kinds = [(0, right(run.data, person.state))], defaultdict[str, np.ndarray](lambda: np.zeros(5))
    while person.decisions < AT[-1]:
        idea = ORDERS[order](person.state, person.ideas(), rng)
        if idea is None:
            break
        person.take(idea)
        curve.append((person.decisions, right(run.data, person.state)))
        settled = curve[-1][1] - curve[-2][1]
        kinds[idea.kind] += [idea.gain, idea.images, settled, 1, settled > max(1.1 * idea.images, idea.images + 1)]
    decisions, counts = np.array(curve).T
    at = np.searchsorted(decisions, AT, side="right") - 1
    return [100 * count / len(run.data.truth) for count in counts[at]], kinds


def with_wrong_labels(data: Data, share: float) -> Data:
    """The same with some labels of other categories."""
    rng, labels = np.random.default_rng(0), data.labels.copy()
    rows = rng.permutation(np.flatnonzero(~data.free))[: int(share * (~data.free).sum())]
    labels[rows] = (labels[rows] + rng.integers(1, labels.max() + 1, len(rows))) % (labels.max() + 1)
    return replace(data, labels=labels)


def main(options: argparse.Namespace) -> None:
    warnings.simplefilter("ignore")
    data = with_wrong_labels(read(options.features, options.key), options.wrong)
    runs = [Run(data, options.refine, seed, options.categories) for seed in range(options.seeds)]
    results: list[dict[str, object]] = []
    for order in ORDERS:
        done = [replay(run, order, seed) for seed, run in enumerate(runs)]
        points = zip(AT, np.mean([curve for curve, _ in done], axis=0), strict=True)
        results.append({"order": order, "seeds": len(runs), **{f"after {at}": round(share, 1) for at, share in points}})
        if order == "expected":
            kinds = list(dict.fromkeys(kind for _, one in done for kind in one))
            sums = {kind: np.sum([one[kind] for _, one in done if kind in one], axis=0) for kind in kinds}
    for kind, (gain, said, settled, often, more) in sums.items():
        counts = {"expected": round(gain, 1), "said": int(said), "settled": int(settled), "times": int(often)}
        counts["more than said"] = int(more)
        results.append({"order": f"of which: {kind}", "seeds": len(runs), **counts})
    save(f"suggestions_{options.name}", results, options.out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path, nargs="?", help="an .npz with features, truth and labels (-1: none)")
    parser.add_argument("--key", default="center", help="name of the feature array in the file")
    parser.add_argument("--refine", default="proportional", help="as `discover` selected it")
    parser.add_argument("--wrong", type=float, default=0.02, help="share of labels that are wrong from the start")
    parser.add_argument("--categories", type=int, help="default: the number of classes")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--name", default="digits", help="name of the results")
    parser.add_argument("--out", type=Path)
    main(parser.parse_args())
