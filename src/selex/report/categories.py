"""The categories of a run as a person judges them: confidence, what to look at, which labels look wrong; their tree."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from scipy.special import expit

from selex.data.clusters import DOUBTFUL
from selex.report.facts import Facts, Ints
from selex.runs.results import mean_direction, most_alike

MOST_TYPICAL, MOST_BORDERLINE = 8, 4


@dataclass(frozen=True)
class CategoryCard:
    """One category, for a card."""

    number: int  # its number in the clusters table
    name: str
    known: bool
    size: int  # images
    labelled: int  # how many of them came with their label
    confidence: float  # mean confidence of its images
    loo_confidence: float  # the same, each image judged as if it had not helped to make the centre
    doubtful: int  # how many images are as likely to be something else
    outside: int  # how many are farther from the centre than is usual for it
    like: int | None  # the category most like it, None where there is no other
    typical: list[int]  # rows to look at, nearest to the centre first
    borderline: list[int]  # unlabelled rows to look at, least confident first
    errors: int  # how many of its labels look wrong


@dataclass(frozen=True)
class LabelError:
    """A labelled image that is nearer to another category than to its own."""

    row: int  # the image
    label: int  # number of the category that its label says
    suggested: int  # number of the category that is nearer
    odds: float  # probability of the suggested category, when the two are compared


def find_categories(facts: Facts, errors: list[LabelError]) -> list[CategoryCard]:
    """Every category that has an image, in the order of the clusters table."""
    wrong = Counter(error.label for error in errors)
    filled = [number for number, size in enumerate(facts.sizes.tolist()) if size]
    like = _most_alike(facts, filled)
    return [_category(facts, number, wrong[number], like.get(number)) for number in filled]


def _most_alike(facts: Facts, filled: list[int]) -> dict[int, int]:
    """Of each category the one most like it, as the review page has it: by the cosine of mean features."""
    if len(filled) < 2:
        return {}
    means = np.zeros((len(facts.sizes), facts.features.shape[1]), dtype=np.float32)
    for number in filled:
        means[number] = mean_direction(facts.features, facts.members[number])
    return {number: most_alike(means, number, np.array(filled), 1)[0][0] for number in filled}


def novel_by_confidence(categories: list[CategoryCard]) -> list[CategoryCard]:
    """New categories, the one with the highest confidence first."""
    new = [category for category in categories if not category.known]
    return sorted(new, key=lambda category: (-category.loo_confidence, -category.size, category.number))


def find_label_errors(facts: Facts) -> list[LabelError]:
    """Labelled rows whose next best category is nearer than their own, the clearest first.

    A wrong label draws its category's centre towards the image, so each image is judged as if it had not helped to
    make that centre. An image alone in its category says all that is known about it and is never listed.
    """
    judged = facts.labelled & (facts.runner_up >= 0) & np.isfinite(facts.loo_penalty)
    rows = np.flatnonzero(judged & (facts.loo_penalty > facts.log_odds_margin))
    behind = facts.loo_penalty[rows] - facts.log_odds_margin[rows]
    order = np.argsort(-behind, kind="stable")
    return [
        LabelError(row, int(facts.category[row]), int(facts.runner_up[row]), float(odds))
        for row, odds in zip(rows[order].tolist(), expit(behind[order]), strict=True)
    ]


def _category(facts: Facts, number: int, errors: int, like: int | None) -> CategoryCard:
    rows = facts.members[number]
    typical, borderline = _examples(facts, rows)
    distances, confidence = facts.distance[rows], facts.confidence[rows]
    return CategoryCard(
        number=number,
        name=facts.names[number],
        known=number < facts.n_known,
        size=len(rows),
        labelled=int(facts.labelled[rows].sum()),
        confidence=float(confidence.mean()),
        loo_confidence=float(facts.loo_confidence[rows].mean()),
        doubtful=int((confidence < DOUBTFUL).sum()),
        outside=int((distances > facts.model.assigner.reach[number]).sum()),
        like=like,
        typical=typical,
        borderline=borderline,
        errors=errors,
    )


def _examples(facts: Facts, rows: Ints) -> tuple[list[int], list[int]]:
    """Rows nearest to the centre, and of the others that are not labelled the least confident."""
    near = rows[np.argsort(facts.distance[rows], kind="stable")]
    typical, rest = near[:MOST_TYPICAL], near[MOST_TYPICAL:]
    free = rest[~facts.labelled[rest]]  # a labelled image that is far away is a matter of its label
    borderline = free[np.argsort(facts.confidence[free], kind="stable")][:MOST_BORDERLINE]
    return typical.tolist(), borderline.tolist()


@dataclass
class Node:
    """A group of categories, or a category where `category` says which."""

    children: list[Node] = field(default_factory=list)  # what is below it, the largest first
    category: CategoryCard | None = None  # the category that a leaf is
    images: int = 0  # how many images the categories below have
    known: int = 0  # how many known categories are below
    new: int = 0  # how many new ones are below

    @property
    def leaves(self) -> list[CategoryCard]:
        """The categories below, in the order of the tree."""
        if self.category:
            return [self.category]
        return [leaf for child in self.children for leaf in child.leaves]


def build_tree(facts: Facts, categories: list[CategoryCard]) -> Node | None:
    """The root of the tree; None where there is nothing to group.

    A cluster hangs below the cluster of the next level that most of its images are in, as `hierarchy.json` says.
    """
    levels = facts.tree["levels"]
    if len(levels) < 2 or len(categories) < 2:
        return None
    nodes = {
        each.number: Node(category=each, images=each.size, known=int(each.known), new=int(not each.known))
        for each in categories
    }
    for level, coarser in pairwise(levels):
        above = {number: Node() for number in range(len(coarser["sizes"]))}
        for number, node in nodes.items():
            above[level["parents"][number]].children.append(node)
        nodes = {number: _summed(node) for number, node in above.items() if node.children}
    return _summed(Node(children=list(nodes.values())))


def _summed(node: Node) -> Node:
    """The node with its counts, its children sorted; a group of one is that one."""
    if len(node.children) == 1:
        return node.children[0]
    node.children.sort(key=lambda child: -child.images)
    for name in ("images", "known", "new"):
        setattr(node, name, sum(getattr(child, name) for child in node.children))
    return node
