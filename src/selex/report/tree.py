"""The levels of abstraction as a tree: coarse groups, finer groups, categories."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from selex.report.categories import Category
from selex.report.facts import Facts


@dataclass
class Node:
    """A group of categories, or a category where `category` says which.

    Attributes:
        children: what is below it, the largest first.
        category: the category that a leaf is.
        images: how many images the categories below have.
        known: how many known categories are below.
        new: how many new ones are below.
    """

    children: list[Node] = field(default_factory=list)
    category: Category | None = None
    images: int = 0
    known: int = 0
    new: int = 0

    @property
    def leaves(self) -> list[Category]:
        """The categories below, in the order of the tree."""
        if self.category:
            return [self.category]
        return [leaf for child in self.children for leaf in child.leaves]


def build_tree(facts: Facts, categories: list[Category]) -> Node | None:
    """The root of the tree; None where there is nothing to group.

    A cluster hangs below the cluster of the next level that most of its images are in, as `hierarchy.json` says.
    """
    levels = facts.tree["levels"]
    if len(levels) < 2 or len(categories) < 2:
        return None
    nodes = {category.number: _leaf(category) for category in categories}
    for level, coarser in pairwise(levels):
        above = {number: Node() for number in range(len(coarser["sizes"]))}
        for number, node in nodes.items():
            above[level["parents"][number]].children.append(node)
        nodes = {number: _summed(node) for number, node in above.items() if node.children}
    return _summed(Node(children=list(nodes.values())))


def _leaf(category: Category) -> Node:
    return Node(category=category, images=category.size, known=int(category.known), new=int(not category.known))


def _summed(node: Node) -> Node:
    """The node with its counts, its children sorted; a group of one is that one."""
    if len(node.children) == 1:
        return node.children[0]
    node.children.sort(key=lambda child: -child.images)
    for name in ("images", "known", "new"):
        setattr(node, name, sum(getattr(child, name) for child in node.children))
    return node
