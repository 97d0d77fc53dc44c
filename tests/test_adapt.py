import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from selex.cluster.adapt import adapt, positives, weighted_contrastive
from selex.cluster.whiten import fit_whitener
from selex.errors import InputError
from selex.losses.gcd import supervised_contrastive


def noisy_categories(seed=0, n=12, k=8, signal=4, noise=12):
    """Categories that differ in a few directions and vary widely in others, which categories do not share."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(k), n)
    centers = rng.normal(size=(k, signal)) * 2.2
    x = np.concatenate(
        [centers[truth] + rng.normal(size=(len(truth), signal)), rng.normal(size=(len(truth), noise))], 1
    )
    labels = np.where((truth < k // 2) & (rng.random(len(truth)) < 0.5), truth, -1)
    return (
        normalize(torch.from_numpy(x @ np.linalg.qr(rng.normal(size=(signal + noise,) * 2))[0]).float(), dim=1),
        labels,
        truth,
    )


def contrast(rows, truth):
    """By how much the cosines of two rows of one category are above those of others."""
    cosines, same = (rows @ rows.T).numpy(), truth[:, None] == truth
    return cosines[same].mean() - cosines[~same].mean()


def test_categories_nobody_labelled_stand_out_more_on_the_map():
    rows, labels, truth = noisy_categories()
    novel = truth >= 4
    mapped = adapt(rows, labels, 8, rng=0)(rows)
    assert contrast(mapped[novel], truth[novel]) > 1.2 * contrast(rows[novel], truth[novel])


def test_rows_that_can_only_be_read_are_no_matter(short, recwarn):
    rows, labels, _ = noisy_categories()
    mapped = rows.numpy().copy()
    mapped.flags.writeable = False
    assert torch.equal(torch.as_tensor(adapt(mapped, labels, 8, rng=0)(rows)), adapt(rows, labels, 8, rng=0)(rows))
    assert not recwarn


def test_map_after_whitening_is_one_map(short):
    rows, labels, _ = noisy_categories()
    whitener = fit_whitener(rows, labels, 0.5)
    both = adapt(rows, labels, 8, whitener, rng=0)
    after = adapt(whitener(rows), labels, 8, rng=0)
    torch.testing.assert_close(both(rows), after(whitener(rows)), atol=1e-4, rtol=1e-4)


def test_arrays_and_tensors_and_the_same_seed_give_the_same_map(short):
    rows, labels, _ = noisy_categories()
    first, second = adapt(rows, labels, 8, rng=3), adapt(rows.numpy(), labels, 8, rng=3)
    assert torch.equal(first.matrix, second.matrix)
    assert not torch.equal(first.matrix, adapt(rows, labels, 8, rng=4).matrix)


def test_rows_in_another_order_give_the_same_map(short):
    rows, labels, _ = noisy_categories()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    assert torch.equal(adapt(rows, labels, 8, rng=0).matrix, adapt(rows[order], labels[order], 8, rng=0).matrix)


def test_progress_counts_every_epoch_of_both_rounds(short):
    rows, labels, _ = noisy_categories()
    seen = []
    adapt(rows, labels, 8, rng=0, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(done, 4) for done in range(4)]


def test_positives_are_pairs_that_most_runs_put_together():
    runs = torch.tensor([[0, 0, 1, 2]] * 7 + [[0, 1, 1, 2]] * 3)
    expected = [[1.0, 0.7, 0.0, 0.0], [0.7, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
    torch.testing.assert_close(positives(runs, runs, 0.7), torch.tensor(expected))


def test_weighted_contrastive_is_its_formula_in_plain_loops():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(6, 4))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    weights = rng.random((6, 6)) * (rng.random((6, 6)) < 0.5)
    weights[5] = 0  # no positive: adds nothing
    total = 0.0
    for i in range(6):
        others = [j for j in range(6) if j != i]
        log_sum = np.log(sum(np.exp(z[i] @ z[j] / 0.3) for j in others))
        mass = sum(weights[i, j] for j in others)
        if mass:
            total -= sum(weights[i, j] * (z[i] @ z[j] / 0.3 - log_sum) for j in others) / mass
    found = weighted_contrastive(torch.from_numpy(z), torch.from_numpy(weights), 0.3)
    assert float(found) == pytest.approx(total / 6, rel=1e-6)


def test_weights_of_one_are_the_supervised_contrastive_loss():
    rows = normalize(torch.randn(12, 5, generator=torch.Generator().manual_seed(0)), dim=1)
    labels = torch.arange(12) % 4
    same = (labels[:, None] == labels).float()
    expected = supervised_contrastive(rows, labels, 0.2, "cosine")
    torch.testing.assert_close(weighted_contrastive(rows, same, 0.2), expected)


def test_weights_of_another_shape_are_refused():
    with pytest.raises(InputError, match="weights must be 3 × 3"):
        weighted_contrastive(torch.eye(3), torch.ones(2, 3), 0.1)
