"""Clusters of very unequal size: what merging finds, and when it is chosen."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch

from commands import selex
from conftest import blobs, half_labelled
from selex import ClusterConfig, SemiSupervisedKMeans, fit_clusters, hssk, split_accuracy
from selex.cluster.distributed.group import ALONE
from selex.cluster.holdout.label_counts import alike, differ, follow, smaller
from selex.cluster.holdout.select import Selection, _best, _Data, _sizes_differ, _tried, select
from selex.cluster.search import searched
from selex.cluster.search.smoothed import graph_of, nodes_of
from selex.cluster.search.unequal import Parts, _Merging, merge_to_k, starting_clusters
from test_swaps import problem_of

SIZES = (300, 150, 60, 30, 12, 300, 120, 40, 15, 8)  # five known


def tail(sizes=SIZES, seed=0):
    """Categories that overlap a little, on a sphere, half of the rows of the first five labelled."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(len(sizes)), sizes)
    x = rng.standard_normal((len(sizes), 8))[truth] + 0.75 * rng.standard_normal((len(truth), 8))
    return x / np.linalg.norm(x, axis=1, keepdims=True), truth, half_labelled(truth, 5)


def parts(links, sizes, means=None):
    """The first two are known, with no label but one."""
    means = np.zeros((len(sizes), 1)) if means is None else means
    near = np.zeros((2, len(sizes)))
    return Parts(np.array(links, dtype=float), np.array(sizes), means, np.array(sizes, dtype=float), near, np.ones(2))


def novel(truth, labels, found):
    free = labels < 0
    return split_accuracy(truth[free], np.asarray(found)[free], truth[free] < 5).novel


def test_large_categories_stay_whole_that_swaps_cut():
    """On average over draws: in some of them others than the large ones are mistaken."""
    gains = []
    for seed in range(6):
        x, truth, labels = tail(seed=seed)
        problem = problem_of(x, labels, 10, n_init=3)
        found, swaps = (searched(problem, way, np.random.default_rng(0)) for way in ("unequal", "swaps"))
        gains.append(novel(truth, labels, found.labels) - novel(truth, labels, swaps.labels))
        assert found.n_clusters == 10
        assert (found.labels.numpy()[labels >= 0] == labels[labels >= 0]).all()
    assert np.mean(gains) > 0.25


def test_clusters_with_most_links_are_merged_but_known_ones_never():
    links = np.array([[9, 8, 3, 0, 0], [8, 9, 0, 0, 0], [3, 0, 9, 2, 0], [0, 0, 2, 9, 1], [0, 0, 0, 1, 9]], dtype=float)
    of = parts(links, [10, 10, 5, 5, 1])
    assert merge_to_k(of, 5).tolist() == [0, 1, 2, 3, 4]
    assert merge_to_k(of, 4).tolist() == [0, 1, 2, 3, 3]  # all links of the smallest lead there
    assert merge_to_k(of, 3).tolist() == [0, 1, 0, 2, 2]
    assert merge_to_k(of, 2).tolist() == [0, 1, 0, 0, 0]
    assert (of.links == links).all()


def test_clusters_without_links_are_merged_with_near_ones():
    means, links = np.array([[0.0], [9.0], [1.0], [8.0], [4.9], [20.0]]), np.zeros((6, 6))
    assert merge_to_k(parts(links, [20] * 6, means), 3).tolist() == [0, 1, 0, 1, 1, 2]
    links[4, 5] = links[5, 4] = 0.1
    assert merge_to_k(parts(links, [20] * 6, means), 3).tolist() == [0, 1, 0, 1, 2, 2]


@pytest.mark.parametrize(
    ("near", "of", "others", "found"),
    [
        (10, 20, 1, 0),
        (4, 20, 1, 0),
        (1, 20, 1, 2),  # too few to be chance: merged last of all
        (10, 20, 3, 0),
        (3, 20, 3, 2),  # may be chance, but the links with the novel cluster are nearly as many
        (20, 20, 6, 2),  # more than expected do not make links count more
        (150, 400, 1, 0),  # not chance, but enough
        (120, 400, 1, 2),
    ],
)
def test_links_count_as_far_as_labelled_rows_are_near(near, of, others, found):
    """A known category has twenty free rows, and as many are in a cluster with five links to it and some to a third.

    Half of its labelled rows would be near that cluster if it were a part of it.
    """
    links = np.zeros((4, 4))
    links[0, 2] = links[2, 0] = 5
    links[2, 3] = links[3, 2] = others
    given = parts(links, [40, 40, 20, 20])._replace(free=np.full(4, 20.0), labelled=np.array([of, 20.0]))
    given.near[0, 2] = near
    assert merge_to_k(given, 3).tolist() == {0: [0, 1, 0, 2], 2: [0, 1, 2, 2]}[found]


def test_a_merged_cluster_is_tied_to_others_as_if_it_had_been_one_from_the_start():
    rng, m = np.random.default_rng(0), 8
    links = rng.random((m, m))
    of = parts(links + links.T, rng.integers(1, 9, m), rng.random((m, 3)))
    of = of._replace(near=rng.integers(0, 9, (2, m)).astype(float), labelled=np.array([60.0, 30.0]))
    merging = _Merging(Parts(*(part.copy() for part in of)))
    for _ in range(5):
        merging.merge()
        left, number = np.unique(merging.found, return_inverse=True)
        into = (number == np.arange(len(left))[:, None]).astype(float)
        sizes = into @ of.sizes
        means = into @ (of.sizes[:, None] * of.means) / sizes[:, None]
        whole = Parts(into @ of.links @ into.T, sizes, means, into @ of.free, of.near @ into.T, of.labelled)
        assert (merging.ties == merging.ties.T).all()
        assert np.allclose(merging.ties[np.ix_(left, left)], _Merging(whole).ties)


def test_labelled_rows_are_near_their_own_part():
    """Two parts of a known category with ten labels each, one without, and a novel category next to the last."""
    rng = np.random.default_rng(0)
    where = np.repeat([[0, 0], [6, 0], [0, 6]], 30, axis=0) + rng.standard_normal((90, 2))
    labels = np.full(90, -1)
    labels[[*range(10), *range(30, 40)]] = 0
    problem = problem_of(where, labels, 4)
    nodes = nodes_of(problem, np.random.default_rng(0))
    graph = graph_of(problem, nodes)
    near = torch.from_numpy(graph.near.toarray()[0])[graph.place[nodes.of]]
    assert [float(near[part].sum().round()) for part in (slice(10, 30), slice(40, 60), slice(60, 90))] == [10, 10, 0]


def test_more_categories_than_clusters_are_merged_among_each_other():
    """Far apart, so that none has a neighbour in another: no known category takes in all that are too many."""
    x, truth = blobs(20, 30, spread=0.2, dims=16)
    found = hssk(x, half_labelled(truth, 10), 16, n_levels=1, search="unequal", rng=0).levels[0]
    assert found.n_clusters == 16
    assert all(len(np.unique(truth[np.asarray(found.labels) == number])) <= 2 for number in range(16))


@pytest.mark.parametrize(("n_free", "found"), [(1000, 50), (45, 18), (12, 10)])
def test_clusters_to_merge_have_a_few_nodes_each(n_free, found):
    assert starting_clusters(10, 3, n_free) == found


def test_new_rows_are_sorted_as_those_of_the_run():
    x, _, labels = tail()
    found = fit_clusters(x, labels, ClusterConfig(categories=10, search="unequal", levels=1))
    assert (found.selection.search, found.selection.refine) == ("unequal", "none")
    free = labels < 0
    assert (
        found.assigner(found.transform(x[free])).labels == np.asarray(found.labels)[free]
    ).mean() > 0.99  # but rows that repair


def test_the_order_of_rows_does_not_matter():
    x, _, labels = tail()
    order = np.random.default_rng(0).permutation(len(x))
    found, again = (
        hssk(*given, 10, n_levels=1, search="unequal", rng=0) for given in ((x, labels), (x[order], labels[order]))
    )
    assert again.levels[0].labels.tolist() == found.levels[0].labels[order].tolist()


def test_rows_that_are_all_one_are_left_as_they_are():
    labels = np.repeat([0, 1, -1], [3, 3, 14])
    found = hssk(np.ones((20, 4)), labels, 4, n_levels=1, search="unequal", rng=0).levels[0]
    assert found.labels[:6].tolist() == labels[:6].tolist()


@pytest.mark.parametrize(
    ("counts", "so"),
    [([90, 40, 12, 5], True), ([30, 33, 27, 30], False), ([9, 5, 7, 3, 6, 8], False), ([90, 4], False)],
)
def test_numbers_of_labels_differ_by_more_than_chance(counts, so):
    assert differ(np.array(counts)) is so


@pytest.mark.parametrize(("drawn", "so"), [("binomial", True), ("poisson", False), ("given", False), ("few", False)])
def test_numbers_of_labels_differ_as_little_as_a_draw_from_equal_categories(drawn, so):
    rng = np.random.default_rng(0)
    ways = {"binomial": rng.binomial(30, 0.5, 100), "poisson": rng.poisson(15, 100), "given": np.full(100, 15)}
    assert alike({**ways, "few": np.array([15, 14, 16])}[drawn], 30) is so


def chosen(x, labels, k=10):
    return fit_clusters(x, labels, ClusterConfig(categories=k, levels=1), calibrate=False).selection.search


def test_it_is_chosen_where_labels_and_sizes_differ():
    drawn = [tail(seed=seed) for seed in range(6)]
    assert [chosen(x, labels) for x, _, labels in drawn].count("unequal") >= 4


@pytest.mark.parametrize("most", [10, 10_000])
def test_it_is_tried_with_so_many_rows_at_most(monkeypatch, most):
    x, _, labels = tail()
    given = []
    monkeypatch.setattr("selex.cluster.pipeline.MOST_TO_SMOOTH", most)
    monkeypatch.setattr(
        "selex.cluster.pipeline.select", lambda *_, **how: given.append(how["search"]) or Selection(False, "none")
    )
    chosen(x, labels)
    assert given == [("swaps",) if most == 10 else ("swaps", "smoothed", "unequal")]


def test_what_is_chosen_is_the_same_from_everywhere(tmp_path):
    x, _, labels = tail(seed=3)
    order = np.random.default_rng(1).permutation(len(x))
    found = fit_clusters(x, labels, ClusterConfig(categories=10, levels=1), rng=3)
    assert found.selection.search == "unequal"
    model = SemiSupervisedKMeans(10, random_state=3).fit(x[order], labels[order])
    assert model.search_ == "unequal"
    assert model.labels_.tolist() == found.labels[order].tolist()
    np.save(tmp_path / "features.npy", x)
    with (tmp_path / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("row", "label"), *((row, labels[row]) for row in np.flatnonzero(labels >= 0))])
    arguments = ("features.npy", "--labels", "labels.csv", "--categories", 10, "--seed", 3)
    done = selex("cluster", *arguments, "--out", "clusters.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "search: unequal (auto)\n" in done.stdout
    with (tmp_path / "clusters.csv").open(newline="") as file:
        assert [int(row["level_1"]) for row in csv.DictReader(file)] == found.labels.tolist()


@pytest.mark.parametrize("seed", [1, 3])
def test_labels_that_differ_in_number_alone_do_not_mislead(seed):
    x, _, labels = tail([100] * 10, seed)
    for category, kept in enumerate((50, 30, 16, 8, 4)):
        labels[np.flatnonzero(labels == category)[kept:]] = -1
    assert differ(np.bincount(labels[labels >= 0]))
    assert chosen(x, labels) != "unequal"


@pytest.mark.parametrize("seed", [1, 3])
def test_whether_sizes_follow_numbers_of_labels(seed):
    """They do where categories differ in size, and not where some of equal size only have more labels."""
    for sizes, so in ((SIZES, True), ([100] * 10, False)):
        x, _, labels = tail(sizes, seed)
        for category, kept in enumerate((50, 30, 16, 8, 4)):
            labels[np.flatnonzero(labels == category)[kept:]] = -1
        problem = problem_of(x, labels, 10)
        assert follow(problem, searched(problem, "swaps", np.random.default_rng(0))) is so


HIDDEN = (40, 40, 40, 40, 40, 600, 300, 150, 60, 30)  # known ones are alike: numbers of labels do not show the others


@pytest.mark.parametrize("seed", range(3))
def test_whether_known_clusters_are_much_smaller_than_novel_ones(seed):
    for sizes, so in ((HIDDEN, True), ([100] * 10, False)):
        x, _, labels = tail(sizes, seed)
        assert not differ(np.bincount(labels[labels >= 0]))
        problem = problem_of(x, labels, 10)
        assert smaller(problem, searched(problem, "unequal", np.random.default_rng(0))) is so


ALL = ("swaps", "smoothed", "unequal")


@pytest.mark.parametrize(
    ("sizes", "labelled", "order"),
    [
        (SIZES, None, ("unequal", "swaps", "smoothed")),  # labels and sizes differ
        (HIDDEN, None, ("unequal", "swaps", "smoothed")),  # sizes do
        ([100] * 10, None, ("swaps", "smoothed")),  # neither does
        ([100] * 10, (50, 30, 16, 8, 4), ALL),  # labels do: nothing is told of sizes
    ],
)
def test_searches_are_tried_in_the_order_that_sizes_tell(monkeypatch, sizes, labelled, order):
    x, _, labels = tail(sizes, 1)
    for category, kept in enumerate(labelled or ()):
        labels[np.flatnonzero(labels == category)[kept:]] = -1
    orders = []

    def spy(data, steps, searches, *rest):
        orders.append(tuple(searches))
        return _tried(data, steps, searches, *rest)

    monkeypatch.setattr("selex.cluster.holdout.select._tried", spy)
    select(x, labels, 10, search=ALL, refine=("proportional", "none"), rng=0)
    assert orders == [order]


def test_a_known_category_that_took_in_a_novel_one_does_not_hide_that_sizes_follow():
    """Clusters as they are, but for the known category with fewest labels, which holds the largest novel one too."""
    x, truth, labels = tail()
    problem = problem_of(x, labels, 10)
    start = problem.solve(np.random.default_rng(0))
    for into in (5, 4):
        found = replace(start, labels=torch.from_numpy(np.where(truth == 5, into, truth)))
        assert follow(problem, found)


@pytest.mark.parametrize(("behind", "sizes_differ", "found"), [(1.8, True, 0), (1.8, False, 1), (2.2, True, 1)])
def test_it_may_be_further_behind_where_sizes_follow_labels(behind, sizes_differ, found):
    ways = [Selection(False, "none", search) for search in ("unequal", "swaps")]
    ahead = np.tile([-1.0, 1.0], 8) + behind / 4  # of sixteen categories: so many standard errors
    data = _Data(None, np.repeat([0, 1, 2, 3, -1], [90, 40, 12, 5, 153]), 10, 0.5, True, 1 << 30)
    assert _best({ways[0]: [np.zeros(16)], ways[1]: [ahead]}, data, ALONE, sizes_differ) == ways[found]


def test_it_is_enough_that_sizes_follow_labels_in_one_of_two_searches(monkeypatch):
    """As where the other cut large categories, or let a known one take in a novel one."""
    x, _, labels = tail()
    data = _Data(x, labels, 10, 0.5, True, 1 << 30)
    for said, told in (([False, True], True), ([True], True), ([False, False], None)):
        answers = iter(said)
        monkeypatch.setattr("selex.cluster.holdout.select.follow", lambda *_, answers=answers: next(answers))
        assert _sizes_differ(data, ALONE, np.random.default_rng(0)) is told
        assert not list(answers)


@pytest.mark.parametrize("follows", [True, False])
def test_where_held_out_labels_tell_nothing_numbers_of_labels_do(monkeypatch, follows):
    x, _, labels = tail()
    monkeypatch.setattr("selex.cluster.holdout.select.follow", lambda *_: follows)
    how = {"search": ("swaps", "unequal"), "refine": ("proportional", "none"), "rng": 0}
    for known in (2, 3):  # too few categories
        assert select(x, np.where(labels < known, labels, -1), 10, **how).search == "swaps"
    some = np.flatnonzero(labels >= 0)[::10]
    few = np.full_like(labels, -1)
    few[some] = labels[some]
    assert 0 < (few >= 0).sum() < 40
    found = select(x, few, 10, **how)
    assert (found.search, found.refine) == (("unequal", "none") if follows else ("swaps", "proportional"))
