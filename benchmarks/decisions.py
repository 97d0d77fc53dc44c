"""Do decisions help? A simulated person decides, the run is reclustered, and accuracy is compared.

Rows are features with their true classes; without arguments, scikit-learn's handwritten digits. The person knows the
true class of every image.

- `names` names the N largest novel categories after the majority of their images, or merges them into the category that
  has that name already.
- `names, 5 % wrong` picks a random wrong name one time in twenty. When a name would merge two categories, the page
  shows both and asks, and the person looks again: nineteen times in twenty the answer is right. After a no they
  name the category once more. `not asked` leaves this question out, as when a program makes the decisions.
- `look-alikes` makes the mistakes that are hardest to notice: the wrong name is the class of the most similar other
  category. A person who confuses one in five also answers one question in five wrong.
- `corrects` goes through the N least confident categories. It names those with at least 70 % of one class. Others it
  splits in two as the page suggests, if each part has at least 70 % of one class, and names the parts. Of the eight
  least confident images it moves those whose class has a named category.

The run is then reclustered, starting from its clusters as `selex recluster` does, and for comparison from scratch with
the same decisions as plain labels, as it used to.

All, Known and Novel are over the images that had no label at first. `elsewhere` is the accuracy on those in categories
that no decision concerned; `right name` is the share of images whose category bears the name of their class. Because
one matching is made over all images, Novel can drop although no image of a novel class is worse off: matchings with the
same All can differ in Novel, and where Known gains, the best matching may cost Novel. `novel, ties` gives the lowest
and the highest Novel among the matchings with the best All; `novel, alone` matches clusters on images of novel classes
only. Means are over seeds of the first clustering and over simulated persons, each of whom makes different mistakes
(reclustering from scratch only for those who make none). K is given, and features are not adapted.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from common import RESULTS, save
from minima import digits
from selex import ClusterConfig, fit_clusters, split_accuracy
from selex.cluster.pipeline import FittedClusters
from selex.data.table import ImageTable
from selex.metrics import matched
from selex.review.core.decisions import Decision
from selex.review.core.overview import parts_of
from selex.review.core.state import CONFIRMED, UNDECIDED, State
from selex.runs.earlier import Earlier
from selex.runs.predictor import Model
from selex.runs.results import Results, mean_direction
from selex.types import Refinement

COUNTS = (0, 5, 10, 20, 50)
PURE = 0.7
LOOKED_AT = 8


@dataclass(frozen=True)
class Data:
    """Features, the class of every row, and the label of some, -1 elsewhere."""

    features: np.ndarray
    truth: np.ndarray
    labels: np.ndarray

    @property
    def free(self) -> np.ndarray:
        """Rows without a label."""
        return self.labels < 0

    @property
    def known(self) -> np.ndarray:
        """Whether the class of each row has labels."""
        return np.isin(self.truth, np.unique(self.truth[~self.free]))


def read(path: Path | None, key: str) -> Data:
    """Features of a file, with `truth` and `labels`; or the digits, half of them known and half of those labelled."""
    if path is None:
        features, columns = digits()
        truth = np.unique(columns["class"], return_inverse=True)[1]
        some = np.random.default_rng(0).random(len(truth)) < 0.5
        return Data(features, truth, np.where((truth < 5) & some, truth, -1))
    with np.load(path) as stored:
        features, truth, labels = (stored[name] for name in (key, "truth", "labels"))
    features = features.astype(np.float32)
    return Data(features / np.linalg.norm(features, axis=1, keepdims=True), truth, labels)


class Run:
    """A run without a folder: what was found, as results that decisions stand on."""

    def __init__(self, data: Data, refine: Refinement, seed: int, count: int | None = None) -> None:
        self.data, count = data, count or len(np.unique(data.truth))
        self.config = ClusterConfig(categories=count, levels=1, adapt="off", search="swaps", refine=refine)
        found = fit_clusters(data.features, data.labels, self.config, rng=seed)
        names = [f"class {np.bincount(data.truth[data.labels == c]).argmax()}" for c in range(data.labels.max() + 1)]
        self.take(found, data.labels, names, 0)

    def take(self, found: FittedClusters, labels: np.ndarray, names: list[str], last: int) -> None:
        """What was found is what there is now; clusters without a name get one."""
        base, judged = found.hierarchy.levels[0], found.assignment
        assert judged is not None
        assert found.assigner is not None
        names = [*names, *(f"novel-{last + n + 1}" for n in range(base.n_clusters - len(names)))]
        self.selection, self.last = found.selection, last + base.n_clusters
        self.model = Model(found.assigner, names, base.n_known, "", None, "", 0, 0, maps=found.maps)
        files = [str(row) for row in range(len(labels))]
        self.results = Results(
            files,
            names,
            base.n_known,
            np.asarray(base.labels).astype(np.int32),
            labels >= 0,
            judged.confidence.astype(np.float64),
            judged.runner_up.astype(np.int32),
        )

    def resumed(self, state: State) -> tuple[FittedClusters, ImageTable, list[str]]:
        """Clusters after decisions, continued from where they were; the labels, and the names of all categories."""
        table = labelled(state)
        earlier = Earlier.standing(self.model, self.selection, self.results, state.category, state.names)
        start = earlier.start(table)
        found = fit_clusters(self.data.features, table.labels, self.config, start=start)
        free = np.flatnonzero(~table.labelled)
        rest = list(dict.fromkeys(state.names[c] for c in state.category[free]))
        return found, table, list(dict.fromkeys([*table.categories, *rest]))

    def from_nothing(self, state: State, seed: int) -> np.ndarray:
        """Clusters with decisions as plain labels."""
        config = ClusterConfig(**{**vars(self.config), "categories": len(np.unique(state.category))})
        return np.asarray(
            fit_clusters(self.data.features, labelled(state).labels, config, rng=seed, calibrate=False).labels
        )


def labelled(state: State) -> ImageTable:
    """The images, with confirmed ones labelled by the name of their category."""
    held = state.mark == CONFIRMED
    known = np.unique(state.category[held])
    labels = np.where(held, np.searchsorted(known, state.category), -1)
    return ImageTable(list(state.results.files), labels, [state.names[c] for c in known])


class Person:
    """Knows the truth and makes decisions on a state; now and then a wrong one."""

    def __init__(
        self, data: Data, state: State, wrong: float = 0.0, seed: int = 0, asked: bool = True, confuses: bool = False
    ) -> None:
        self.data, self.state, self.wrong, self.asked, self.confuses = data, state, wrong, asked, confuses
        self.rng = np.random.default_rng(seed)
        self.decisions = self.questions = self.wrong_merges = 0

    def decide(self, kind: str, **fields: object) -> None:
        """Make a decision."""
        self.state.apply(Decision(kind, **fields))  # type: ignore[arg-type]
        self.decisions += 1

    def seen(self, category: int) -> tuple[int, float]:
        """The class that most images of a category are of, and their share."""
        counts = np.bincount(self.data.truth[self.state.category == category])
        return int(counts.argmax()), float(counts.max() / max(1, counts.sum()))

    def called(self, name: str) -> int | None:
        """The category of a name."""
        there = set(np.unique(self.state.category).tolist())
        return next((c for c, other in enumerate(self.state.names) if other == name and c in there), None)

    def name(self, category: int) -> None:
        """Give a category the name of most of its images; or merge it with the one that has it. Twice at most."""
        for _ in range(2):
            one = self.seen(category)[0]
            if self.rng.random() < self.wrong:
                one = self.mistaken(category, one)
            if self.call(category, f"class {one}"):
                return

    def mistaken(self, category: int, one: int) -> int:
        """Another class than the right one: any, or that of the category which looks most like this one."""
        if not self.confuses:
            return int(self.rng.choice(np.setdiff1d(np.unique(self.data.truth), [one])))
        live, means = self.means()
        nearest = live[np.argsort(-(means[live] @ means[category]))].tolist()
        return next((self.seen(c)[0] for c in nearest if self.seen(c)[0] != one), one)

    def means(self) -> tuple[np.ndarray, np.ndarray]:
        """The categories that have images, and unit means of all."""
        live = np.unique(self.state.category)
        means = np.zeros((len(self.state.names), self.data.features.shape[1]), dtype=np.float32)
        for c in live.tolist():
            means[c] = mean_direction(self.data.features, np.flatnonzero(self.state.category == c))
        return live, means

    def call(self, category: int, name: str) -> bool:
        """Give a category this name; or merge it with the one that has it, unless asked and thinking better of it."""
        there = self.called(name)
        if self.state.known(category) or there == category:
            return True
        if there is None:
            self.decide("name", category=category, name=name)
            return True
        if not self.agrees(there, category):
            return False
        self.wrong_merges += self.seen(there)[0] != self.seen(category)[0]
        self.decide("merge", categories=(there, category))
        return True

    def agrees(self, there: int, category: int) -> bool:
        """Whether two are to be one; asked, the answer is right but for as many mistakes as in names."""
        if not self.asked:
            return True
        self.questions += 1
        same = self.seen(there)[0] == self.seen(category)[0]
        return bool(same != (self.rng.random() < self.wrong))

    def correct(self, category: int) -> None:
        """Name a category that is of one class; split another where that makes two that are; move what is wrong."""
        for part in [category] if self.seen(category)[1] >= PURE else self.split(category):
            self.name(part)
        self.move_doubtful(category)

    def move_doubtful(self, category: int) -> None:
        """Of the least sure images of a category, move those to where they belong whose class has a category."""
        there = (self.state.category == category) & (self.state.mark == UNDECIDED)
        rows = np.flatnonzero(there)[np.argsort(self.state.results.confidence[there], kind="stable")][:LOOKED_AT]
        for one in np.unique(self.data.truth[rows]).tolist():
            home = self.called(f"class {one}")
            if home not in (None, category):
                self.decide("move", rows=tuple(rows[self.data.truth[rows] == one].tolist()), category=home)

    def split(self, category: int) -> list[int]:
        """Split a category in two as the page proposes it, if each part is of one class; the parts."""
        rows = np.flatnonzero(self.state.category == category)
        if len(rows) < 4:
            return []
        parts = parts_of(self.data.features, rows, 2, rows[~self.data.free[rows]])
        own = [np.bincount(self.data.truth[part]) for part in parts]
        pure = all(one.max() >= PURE * one.sum() for one in own)
        if len(parts) < 2 or not pure or own[0].argmax() == own[1].argmax():
            return []
        self.decide("split", category=category, parts=(tuple(parts[1].tolist()),))
        return [category, len(self.state.names) - 1]


def largest(results: Results, count: int) -> list[int]:
    sizes = np.bincount(results.category, minlength=len(results.names))
    return [int(c) for c in np.argsort(-sizes, kind="stable") if c >= results.n_known][:count]


def least_sure(results: Results, count: int) -> list[int]:
    sizes = np.maximum(np.bincount(results.category, minlength=len(results.names)), 1)
    mean = np.bincount(results.category, results.confidence, minlength=len(results.names)) / sizes
    return [int(c) for c in np.argsort(mean, kind="stable")][:count]


class Way(NamedTuple):
    """Which categories a person looks at, what they do with each, and how they go wrong."""

    choose: Callable[[Results, int], list[int]]
    act: Callable[[Person, int], None]
    wrong: float = 0.0
    asked: bool = True
    confuses: bool = False


WAYS = {
    "names": Way(largest, Person.name),
    "names, 5 % wrong": Way(largest, Person.name, 0.05),
    "names, 5 % wrong, not asked": Way(largest, Person.name, 0.05, asked=False),
    "names, 5 % look-alikes": Way(largest, Person.name, 0.05, confuses=True),
    "names, 5 % look-alikes, not asked": Way(largest, Person.name, 0.05, asked=False, confuses=True),
    "names, 20 % look-alikes": Way(largest, Person.name, 0.2, confuses=True),
    "corrects": Way(least_sure, Person.correct),
}


def scores(data: Data, clusters: np.ndarray, elsewhere: np.ndarray) -> list[float]:
    """All, Known and Novel of the rows without a label, and the accuracy of some of them, in percent."""
    free, truth = data.free, data.truth
    hit = np.zeros(len(free), dtype=bool)
    hit[free] = matched(truth[free], clusters[free])
    parts = split_accuracy(truth[free], clusters[free], data.known[free])
    return [100 * score for score in (*parts, hit[elsewhere].mean())]


def novel(data: Data, clusters: np.ndarray) -> list[float]:
    """The least and the most that Novel is among matchings of the best All, and Novel matched alone, in percent."""
    truth, clusters, novel = data.truth[data.free], clusters[data.free], ~data.known[data.free]
    classes, own = np.unique(truth, return_inverse=True)
    columns = np.unique(clusters, return_inverse=True)[1]
    counts = np.zeros((2, len(classes), columns.max() + 1), dtype=np.int64)
    np.add.at(counts, (novel.astype(int), own, columns), 1)
    found = []
    for sign in (-1, 1):  # All counts more than any number of novel rows
        rows, partners = linear_sum_assignment(counts.sum(0) * (len(truth) + 1) + sign * counts[1], maximize=True)
        found.append(counts[1, rows, partners].sum() / novel.sum())
    return [100 * share for share in (*found, matched(truth[novel], clusters[novel]).mean())]


def right(data: Data, clusters: np.ndarray, names: list[str]) -> float:
    """Share of the rows without a label whose category has the name of their class, in percent."""
    called = np.array(names)[clusters[data.free]]
    return 100 * float((called == np.char.add("class ", data.truth[data.free].astype(str))).mean())


def review(run: Run, way: str, count: int, seed: int, number: int) -> dict[str, list[float]]:
    """Accuracies before, after, and for who makes no mistakes from nothing."""
    how = WAYS[way]
    person = Person(run.data, State(run.results), how.wrong, seed + 1000 * number, how.asked, how.confuses)
    for category in how.choose(run.results, count):
        if (person.state.category == category).any():
            how.act(person, category)
    state, before = person.state, run.results.category
    decided = (state.mark == CONFIRMED) & run.data.free | (state.category != before)
    touched = np.unique([*before[decided], *state.category[decided]])
    elsewhere = run.data.free & ~np.isin(before, touched)
    found, _, names = run.resumed(state)
    again = np.asarray(found.labels)
    ways = {"before": before, "after": again}
    if not how.wrong:
        ways["labels"] = run.from_nothing(state, seed) if count else before
    return {
        "decisions": [person.decisions],
        "categories": [len(np.unique(state.category))],
        "merges": [person.questions, person.wrong_merges],
        "right": [right(run.data, before, run.results.names), right(run.data, again, names)],
        "novel": [*novel(run.data, before), *novel(run.data, again)],
        **{name: scores(run.data, clusters, elsewhere) for name, clusters in ways.items()},
    }


def row(way: str, count: int, runs: list[dict[str, list[float]]]) -> dict[str, object]:
    """The mean over seeds, as a line of the table."""
    mean = {key: np.mean([one[key] for one in runs], axis=0) for key in runs[0]}
    ties, plain = mean["novel"], mean.get("labels")

    def text(values: np.ndarray, between: str = " / ") -> str:
        return between.join(f"{value:.1f}" for value in values)

    return {
        "person": way,
        "N": count,
        "reviews": len(runs),
        "decisions": round(float(mean["decisions"][0]), 1),
        "categories": round(float(mean["categories"][0]), 1),
        "asked": round(float(mean["merges"][0]), 1),
        "wrong merges": round(float(mean["merges"][1]), 1),
        "before": text(mean["before"][:3]),
        "clustered again": text(mean["after"][:3]),
        "novel, ties": f"{text(ties[:2], '–')} → {text(ties[3:5], '–')}",
        "novel, alone": text(ties[2::3], " → "),
        "as plain labels": "" if plain is None else text(plain[:3]),
        "elsewhere": text(np.array([mean["before"][3], mean["after"][3]]), " → "),
        "elsewhere, plain": "" if plain is None else text(plain[3:]),
        "right name": text(mean["right"], " → "),
    }


def main(options: argparse.Namespace) -> None:
    warnings.simplefilter("ignore")
    data = read(options.features, options.key)
    path = (options.out or RESULTS) / f"decisions_{options.name}.json"
    runs = [Run(data, options.refine, seed) for seed in range(options.seeds)]
    results = json.loads(path.read_text())["results"] if path.exists() else []
    for way in WAYS:
        for count in [count for count in COUNTS if count <= len(largest(runs[0].results, max(COUNTS)))]:
            if (way, count) not in [(one["person"], one["N"]) for one in results]:
                persons = range(options.persons if WAYS[way].wrong and count else 1)
                found = [review(run, way, count, seed, one) for seed, run in enumerate(runs) for one in persons]
                results.append(row(way, count, found))
                print(results[-1], flush=True)
                save(f"decisions_{options.name}", results, options.out, quiet=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path, nargs="?", help="an .npz with features, truth and labels (-1: none)")
    parser.add_argument("--key", default="center", help="name of the feature array in the file")
    parser.add_argument("--refine", default="proportional", help="as `discover` selected it")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--persons", type=int, default=20, help="simulated persons per seed, for those who make mistakes"
    )
    parser.add_argument("--name", default="digits", help="name of the results")
    parser.add_argument("--out", type=Path)
    main(parser.parse_args())
