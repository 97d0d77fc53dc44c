import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import blobs, half_labelled
from reference import blocking_pairs
from reference import bssk as plain_bssk
from reference import draw_apart as plain_draw_apart
from selex import InputError, Note, Variant, bssk, published, split_accuracy
from selex.cluster import kmeans
from selex.cluster.kmeans import Problem, Settings, distances_to_own, prepare
from selex.cluster.rows import Rows


def scattered(seed, n=60, d=4, n_known=3, k=6):
    """Rows without structure, some labelled: nothing about them is easy."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, d))
    known = np.where(rng.random(n) < 0.3, rng.integers(0, n_known, n), -1)
    known[: 2 * n_known] = [*range(n_known)] * 2
    return x, known, n_known, k


def from_centers(x, known, n_known, k, centers, n_iter=4, **settings):
    """Stages 2 and 3 from given centres: labels and centres."""
    rows, labels, _ = prepare(x, known, 1 << 30)
    problem = Problem(rows, labels, n_known, k - n_known, Settings(n_iter=n_iter, **settings))
    middle, _ = problem.refine(torch.from_numpy(centers) - rows.shift)
    final, free, _ = problem.finish(middle)
    everywhere = labels.clone()
    everywhere[problem.free_index] = free
    return everywhere.numpy(), (final + rows.shift).numpy()


@given(st.integers(0, 2**32))
def test_from_the_same_centres_as_plain_loops(seed):
    x, known, n_known, k = scattered(seed)
    rng = np.random.default_rng(seed + 1)
    centers = np.stack([x[known == j].mean(0) for j in range(n_known)] + list(x[rng.choice(60, k - n_known, False)]))
    labels, final = from_centers(x, known, n_known, k, centers)
    expected, expected_centers = plain_bssk(x, known, n_known, k, centers, n_iter=4)
    assert labels.tolist() == expected.tolist()
    np.testing.assert_allclose(final, expected_centers, atol=1e-12)


@given(st.integers(0, 2**32), st.booleans())
def test_a_permutation_of_rows_permutes_labels_and_nothing_else(seed, balanced):
    x, known, n_known, k = scattered(seed)
    centers = np.concatenate([x[:n_known], x[30 : 30 + k - n_known]])
    order = np.random.default_rng(seed).permutation(len(x))
    labels, final = from_centers(x, known, n_known, k, centers, balanced=balanced)
    permuted, permuted_final = from_centers(x[order], known[order], n_known, k, centers, balanced=balanced)
    assert permuted.tolist() == labels[order].tolist()
    np.testing.assert_allclose(permuted_final, final, atol=1e-12)


@given(st.integers(0, 2**32), st.booleans())
def test_labelled_rows_never_move_and_no_cluster_is_empty(seed, balanced):
    x, known, _, k = scattered(seed)
    level = bssk(x, known, k, balanced=balanced, rng=seed)
    held = known >= 0
    assert level.labels[held].tolist() == known[held].tolist()
    assert set(level.labels.tolist()) == set(range(k))
    assert np.isfinite(level.centers).all()
    assert level.inertia == pytest.approx(float((distances_to_own(x, level) ** 2).sum()))


def test_blobs_are_found_exactly_whatever_the_seed():
    x, truth = blobs(12, 20)
    known = half_labelled(truth, 5)
    for seed in range(10):
        level = bssk(x, known, 12, rng=seed)
        assert split_accuracy(truth, level.labels, truth < 5).all == 1
        assert level.labels[truth < 5].tolist() == truth[truth < 5].tolist()  # known clusters carry their category's id


def test_the_same_seed_gives_the_same_result_and_another_seed_another():
    x, known, _, k = scattered(0, n=300, k=20)
    first, again, other = (bssk(x, known, k, rng=seed) for seed in (1, 1, 2))
    assert first.labels.tolist() == again.labels.tolist()
    assert first.centers.tobytes() == again.centers.tobytes()
    assert first.labels.tolist() != other.labels.tolist()


def test_one_thread_and_two_agree_bit_for_bit():
    x, truth = blobs(30, 100, spread=2.0, dims=64)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(bssk(x.astype(np.float32), half_labelled(truth, 10), 30, rng=0))
    assert results[0].labels.tolist() == results[1].labels.tolist()
    assert results[0].centers.tobytes() == results[1].centers.tobytes()


def test_restarts_keep_the_lowest_inertia():
    x, known, _, k = scattered(3, n=200, k=15)
    rng = np.random.default_rng(5)
    single = [bssk(x, known, k, rng=rng).inertia for _ in range(8)]
    assert bssk(x, known, k, n_init=8, rng=np.random.default_rng(5)).inertia == pytest.approx(min(single))


@given(st.integers(0, 2**32))
def test_every_assignment_of_the_balanced_stage_is_a_stable_matching_within_capacity(seed):
    x, known, n_known, k = scattered(seed, n=60)
    rows, labels, _ = prepare(x, known, 1 << 30)
    problem = Problem(rows, labels, n_known, k - n_known, Settings())
    assert problem.size == 10
    assert problem.capacity.tolist() == [max(0, 10 - int((known == j).sum())) for j in range(k)]
    centers = problem.seed(np.random.default_rng(seed))
    matched, _ = problem._assign(centers, 1)
    assert (torch.bincount(matched, minlength=k) <= problem.capacity).all()
    free = x[problem.free_index.numpy()]
    distance = ((free[:, None] - (centers + rows.shift).numpy()) ** 2).sum(2)
    assert not blocking_pairs(distance.tolist(), problem.capacity.tolist(), matched.tolist())


@given(st.integers(0, 2**32))
def test_seeds_are_known_means_and_rows_drawn_apart_by_the_cluster_size(seed):
    x, known, n_known, k = scattered(seed, n=60)
    rows, labels, _ = prepare(x, known, 1 << 30)
    seeds = Problem(rows, labels, n_known, k - n_known, Settings()).seed(np.random.default_rng(5)) + rows.shift
    means = [x[known == j].mean(0) for j in range(n_known)]
    np.testing.assert_allclose(seeds[:n_known], means, atol=1e-12)
    free = np.flatnonzero(known == -1)
    free = free[rows.at(torch.from_numpy(free)).by_content()]
    order = free[np.random.default_rng(5).permutation(len(free))]
    drawn = plain_draw_apart(x, means, order.tolist(), k - n_known, size=10)
    np.testing.assert_allclose(seeds[n_known : n_known + len(drawn)], x[drawn], atol=1e-12)
    assert len(np.unique(seeds.numpy(), axis=0)) == k


def test_without_balance_nothing_is_drawn_apart_and_when_nobody_is_left_the_rest_is_spread(monkeypatch):
    x, known, _, k = scattered(0, n=60)
    calls = []
    for name in ("draw_apart", "draw_spread"):
        original = getattr(kmeans, name)
        monkeypatch.setattr(kmeans, name, lambda *a, name=name, original=original: calls.append(name) or original(*a))
    bssk(x, known, k, balanced=False, rng=0)
    assert calls == ["draw_spread"]
    calls.clear()
    bssk(np.concatenate([np.zeros((50, 2)), np.eye(2)]), None, 4, rng=0)  # the first draw bars nearly everybody
    assert calls == ["draw_apart", "draw_spread"]


def test_no_block_is_larger_than_the_memory_budget_allows(monkeypatch):
    x, known, _, k = scattered(1, n=400, k=12)
    budget, widest = 8192, []
    original = kmeans.Rows.take

    def spy(self, index):
        values = original(self, index)
        widest.append(values.numel() * values.element_size())
        return values

    monkeypatch.setattr(kmeans.Rows, "take", spy)
    bssk(x, known, k, rng=0, memory=budget)
    assert max(widest) <= budget < x.nbytes
    assert min(len(x), budget // (4 * len(x) * 8)) < 12  # so few that distances to all centres never fit at once


def test_labels_of_any_whole_type():
    x, truth = blobs(4, 10)
    expected = bssk(x, half_labelled(truth, 2), 4, rng=0).labels.tolist()
    for kind in (np.int8, np.dtype(">i4"), np.int64):
        assert bssk(x, half_labelled(truth, 2).astype(kind), 4, rng=0).labels.tolist() == expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("memory", [1 << 30, 100_000])
def test_a_gpu_gives_the_labels_of_a_cpu_and_the_same_ones_again(kind, memory):
    x, truth = blobs(24, 40, spread=0.5, dims=32)
    data, known = torch.from_numpy(x).to(kind), half_labelled(truth, 12)
    on_cpu = bssk(data, known, 24, rng=0, memory=memory)
    first, again = (bssk(data.cuda(), known, 24, rng=0, memory=memory) for _ in range(2))
    assert first.labels.device.type == "cuda"
    assert first.labels.tolist() == again.labels.tolist() == on_cpu.labels.tolist()
    assert torch.equal(first.centers, again.centers)


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int16", "uint8", "uint16", "bool", ">f8"])
def test_number_types(kind, tmp_path):
    x, truth = blobs(6, 10, dims=8, seed=1)
    x = (x * 100).astype(kind) if kind != "bool" else np.eye(6)[truth].astype(bool)
    x = x if kind != "uint16" else x.byteswap().view(x.dtype.newbyteorder())  # big-endian, as some files are
    level = bssk(x, half_labelled(truth, 3), 6, rng=0)
    assert level.centers.dtype == (np.float64 if kind in ("float64", ">f8") else np.float32)
    assert split_accuracy(truth, level.labels, truth < 3).all == 1


def test_numpy_torch_memory_mapped_read_only_and_reversed_agree(tmp_path):
    x, truth = blobs(8, 25, spread=1.5, dims=12)
    x, known = x.astype(np.float32), half_labelled(truth, 4)
    expected = bssk(x, known, 8, rng=0)
    np.save(tmp_path / "x.npy", x)
    frozen = x.copy()
    frozen.flags.writeable = False
    backwards = np.ascontiguousarray(x[::-1])[::-1]
    for data in (np.load(tmp_path / "x.npy", mmap_mode="r"), frozen, backwards, torch.from_numpy(x), x.tolist()):
        level = bssk(data, known, 8, rng=0)
        assert np.asarray(level.labels).tolist() == expected.labels.tolist()
        assert isinstance(level.labels, torch.Tensor) == isinstance(data, torch.Tensor)
    assert bssk(torch.from_numpy(x), torch.from_numpy(known), 8, rng=0).centers.dtype == torch.float32


def test_a_small_memory_budget_changes_time_not_results():
    x, known, _, k = scattered(1, n=200, k=12)
    expected, tight = bssk(x, known, k, rng=0), bssk(x, known, k, rng=0, memory=4096)
    assert tight.labels.tolist() == expected.labels.tolist()
    np.testing.assert_allclose(tight.centers, expected.centers)


def test_far_from_the_origin_float32_keeps_its_digits():
    x, truth = blobs(6, 20, spread=0.1)
    level = bssk((x + 1000).astype(np.float32), half_labelled(truth, 3), 6, rng=0)
    assert split_accuracy(truth, level.labels, truth < 3).all == 1


@given(st.integers(0, 2**32), st.booleans(), st.sampled_from([np.float32, np.float64]))
def test_every_row_twice_is_no_trouble(seed, balanced, kind):
    x = np.repeat(np.random.default_rng(seed).standard_normal((10, 48)).astype(kind), 2, axis=0)
    level = bssk(x, None, 15, balanced=balanced, rng=seed)
    assert set(level.labels.tolist()) == set(range(15))
    assert np.isfinite(level.centers).all()


def test_inertia_of_tight_clusters_keeps_its_digits_in_float32():
    x, truth = blobs(10, 20, spread=1e-4, dims=64)
    level = bssk(x.astype(np.float32), half_labelled(truth, 5), 10, rng=0)
    exact = ((x.astype(np.float32).astype(np.float64) - level.centers[level.labels]) ** 2).sum()
    assert level.inertia == pytest.approx(exact, rel=0.05)


def test_duplicates_leave_no_cluster_empty_and_nothing_nan():
    x = np.repeat([[0.0, 0], [1, 1]], 10, axis=0)
    for balanced in (True, False):
        level = bssk(x, None, 7, balanced=balanced, rng=0)
        assert set(level.labels.tolist()) == set(range(7))
        assert np.isfinite(level.centers).all()


def test_unusual_but_allowed_input_works_with_a_note():
    x, truth = blobs(4, 10)
    none = np.full(40, -1)
    with pytest.warns(Note, match="no row is labelled"):
        assert split_accuracy(truth, bssk(x, none, 4, rng=0).labels, truth < 2).all == 1
    with pytest.warns(Note, match="every row is labelled"):
        level = bssk(x, truth, 6, rng=0)
    assert level.labels.tolist() == truth.tolist()
    assert level.n_clusters == 4
    single = np.where(np.isin(np.arange(40), [np.flatnonzero(truth == j)[0] for j in range(2)]), truth, -1)
    with pytest.warns(Note, match="2 of 2 known categories have a single labelled row"):
        assert split_accuracy(truth, bssk(x, single, 4, rng=0).labels, truth < 2).all == 1
    few = np.where(np.arange(40) < 38, truth, -1)
    with pytest.warns(Note, match="2 unlabelled rows cannot fill 5 novel clusters"):
        assert bssk(x, few, 9, rng=0).n_clusters == 6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bssk(x, None, 4, rng=0)  # nobody asked for labels: nothing to note


def test_one_row_one_cluster():
    level = bssk([[1.0, 2.0]], None, 1, rng=0)
    assert level.labels.tolist() == [0]
    assert level.centers.tolist() == [[1.0, 2.0]]


BAD = np.zeros((6, 2))


@pytest.mark.parametrize(
    ("data", "labels", "k", "message"),
    [
        (np.where(np.arange(12).reshape(6, 2) == 7, np.nan, 0), None, 2, "NaN: row 3, column 1"),
        (np.where(np.arange(12).reshape(6, 2) == 4, -np.inf, 0), None, 2, "infinity: row 2, column 0"),
        (
            np.where(np.arange(12).reshape(6, 2) == 4, 1e30, 0).astype(np.float32),
            None,
            2,
            "too large to square, 1e[+]30: row 2",
        ),
        (np.zeros(6), None, 2, "rows × dimensions"),
        (np.zeros((0, 2)), None, 1, "empty: 0 rows"),
        (np.zeros((3, 2), complex), None, 1, "real numbers"),
        (np.array([["a"]]), None, 1, "real numbers"),
        (torch.zeros(3, 2, dtype=torch.complex64), None, 1, "real numbers"),
        (BAD, [0, 1, 2, -1, -1, -1], 2, "2 clusters for 3 known categories: ask for at least 3"),
        (BAD, None, 7, "7 clusters for 6 rows: ask for at most 6"),
        (BAD, None, 0, "at least 1"),
        (BAD, [0, -1], 2, r"shape \(2,\) for 6 rows"),
        (BAD, [0.5] * 6, 2, "whole numbers"),
        (BAD, [0, 2, -1, -1, -1, -1], 4, "category 1 has no labelled row"),
        (BAD, [0, -3, -1, -1, -1, -1], 4, "label -3 in row 1"),
        (BAD, [0, 10**13, -1, -1, -1, -1], 4, "label 10000000000000 in row 1"),
        (BAD, ["a", None, "b", "a", "b", "a"], 4, "whole numbers"),
    ],
)
@pytest.mark.filterwarnings("ignore::selex.errors.Note")
def test_bad_input_is_one_clear_line(data, labels, k, message):
    with pytest.raises(InputError, match=message) as caught:
        bssk(data, labels, k)
    assert "\n" not in str(caught.value)


def test_bad_settings():
    for settings, message in (({"n_iter": 0}, "n_iter"), ({"n_init": 0}, "n_init")):
        with pytest.raises(InputError, match=message):
            bssk(BAD, None, 2, **settings)
    with pytest.raises(InputError, match="seeding must be 'apart' or 'spread', not 'far'"):
        Variant(seeding="far")


def test_each_published_difference_changes_what_it_says(monkeypatch):
    x, known, n_known, k = scattered(2, n=240, k=12)
    rows, labels, _ = prepare(x, known, 1 << 30)

    def problem(**variant):
        return Problem(rows, labels, n_known, k - n_known, Settings(variant=Variant(**variant)))

    paper = problem()
    spread = problem(seeding="spread")
    assert not torch.equal(paper.seed(np.random.default_rng(0)), spread.seed(np.random.default_rng(0)))
    centers = paper.seed(np.random.default_rng(0))
    growing = problem(balancing="growing")
    stable_sizes = torch.bincount(paper._assign(centers, 1)[0], minlength=k)
    swept_sizes = torch.bincount(growing._assign(centers, 1)[0], minlength=k)
    sweeps = []
    original = kmeans.sweep
    monkeypatch.setattr(kmeans, "sweep", lambda *a: sweeps.append(1) or original(*a))
    growing.refine(centers)
    assert len(sweeps) == sum(range(10))  # none, one, two, …, nine
    assert (stable_sizes <= paper.capacity).all()
    assert (swept_sizes > paper.capacity).any()


def test_published_switches_on_every_difference():
    differs = [getattr(published(), name) != getattr(Variant(), name) for name in Variant.__dataclass_fields__]
    assert len(differs) == 5
    assert all(differs)


def test_unbalanced_follows_long_tails():
    rng = np.random.default_rng(0)
    sizes = [300, 60, 30, 15]
    truth = np.repeat(range(4), sizes)
    x = rng.standard_normal((4, 8))[truth] * 4 + rng.normal(0, 0.3, (len(truth), 8))
    known = half_labelled(truth, 2)
    level = bssk(x, known, 4, balanced=False, n_init=5, rng=0)
    assert split_accuracy(truth, level.labels, truth < 2).all == 1


def test_rows_subset_of_a_subset():
    rows = Rows(np.arange(20.0).reshape(10, 2), memory=1)
    view = rows.at(torch.tensor([7, 3, 5])).at(torch.tensor([2, 0]))
    assert (view.take(slice(None)) + rows.shift).tolist() == [[10, 11], [14, 15]]
    assert view.norms.tolist() == pytest.approx((view.take(slice(None)) ** 2).sum(1).tolist())
