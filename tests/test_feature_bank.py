"""What is kept behind the frozen blocks, and that what a bank holds depends on nothing but the seed and the epoch."""

import math

import numpy as np
import pytest
import torch

from selex.data.crops import AugmentConfig, CropParams
from selex.errors import InputError
from selex.models import load_backbone
from selex.models.trunk import split_backbone
from selex.training import batches
from selex.training.batches import FeatureBank, TrunkFeatures, fits_in_memory, generator_of, pad_rows
from training_for_tests import CROP, digit_data, loop, small


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return digit_data(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="module")
def made(data):
    trunk, _ = split_backbone(load_backbone("tiny-vit"), 1)
    return TrunkFeatures(trunk, data.images, CROP, torch.device("cpu"), chunk=16)


def bank(made, views=3, refresh=0.2, seed=7):
    return FeatureBank(made, views, refresh, AugmentConfig(), seed)


def test_centres_are_those_of_the_trunk_and_kept(made, data, monkeypatch):
    expected = made.trunk(data.images.centre_crops(np.arange(60), CROP))
    for _ in range(2):
        assert torch.allclose(torch.cat(list(made.centres())), expected, atol=1e-5)
    fresh = TrunkFeatures(made.trunk, data.images, CROP, made.device, 16)
    monkeypatch.setattr(batches, "fits_in_memory", lambda *_: False)
    assert torch.allclose(torch.cat(list(fresh.centres())), expected, atol=1e-5)
    assert fresh._kept is None


def test_centres_that_were_not_read_to_the_end_are_not_kept(made, data):
    fresh = TrunkFeatures(made.trunk, data.images, CROP, made.device, 16)
    next(fresh.centres())
    assert fresh._kept is None
    assert len(torch.cat(list(fresh.centres()))) == 60


def test_augmented_features_are_other_views_each_epoch(made):
    one, same, other = (
        torch.cat(list(made.augmented(generator_of(0, 5, epoch), AugmentConfig()))) for epoch in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.allclose(one, other)
    assert len(one) == 60
    assert not torch.allclose(one, torch.cat(list(made.centres())))


def test_a_bank_built_late_is_the_bank(made):
    step_by_step, late = bank(made), bank(made)
    for epoch in range(6):
        step_by_step.refresh(epoch)
    late.refresh(5)
    assert torch.equal(step_by_step.bank, late.bank)
    other = bank(made, seed=8)
    other.refresh(5)
    assert not torch.equal(other.bank, late.bank)


@pytest.mark.parametrize("refresh", [0.0, 0.05, 0.2, 0.5, 1.0])
def test_so_much_of_a_bank_is_refreshed(made, refresh, monkeypatch):
    held = bank(made, refresh=refresh)
    wanted = math.ceil(refresh * held.n_chunks)
    held.refresh(0)
    for epoch in range(1, 7):
        before, rounds = held.bank.clone(), held.rounds
        held.refresh(epoch)
        new = np.flatnonzero(held.rounds != rounds)
        assert len(new) == wanted
        changed = (held.bank != before).flatten(1).any(1).split(16)
        assert [number for number, rows in enumerate(changed) if rows.any()] == new.tolist()
    assert held.rounds.max() - held.rounds.min() <= 1  # all in turn
    assert np.array_equal(held.rounds, held._rounds(6))


def test_each_entry_is_a_view_of_its_image(made, data):
    """Entry by entry: view s of image i is number s · 60 + i, in the place that its chunk's generator drew."""
    held = bank(made)
    held.refresh(0)
    for slot, row in ((0, 0), (0, 59), (1, 3), (2, 40), (2, 59)):
        chunk, position = divmod(slot * 60 + row, 16)
        last = min(16, 180 - chunk * 16)
        place = CropParams.draw(last, AugmentConfig(), generator_of(7, 2, chunk, 0))[position : position + 1]
        expected = made.trunk(data.images.crops(torch.tensor([row]), place, CROP))
        assert torch.allclose(held.pick(torch.tensor([row]), torch.tensor([slot])), expected, atol=1e-5)


@pytest.mark.parametrize("views", [2, 3, 5])
def test_a_step_has_two_different_views_of_each_image(data, views):
    method = small("gcd", view_bank=views, trained_blocks=2)
    parts = loop(method, data)
    parts.prepare(0)
    picked = []
    parts.batches.bank.pick = lambda rows, slots: picked.append((rows, slots)) or torch.zeros(len(rows), 1)
    for _ in parts.batches.epoch(0):
        rows, slots = picked[-1]
        (a, b), (first, second) = rows.chunk(2), slots.chunk(2)
        assert torch.equal(a, b)
        assert (first != second).all()
        assert slots.max() < views
    assert len(picked) == 3
    assert torch.cat([slots for _, slots in picked]).unique().tolist() == list(range(views))


def test_a_bank_that_does_not_fit(made, monkeypatch):
    monkeypatch.setattr(batches, "_free_memory", lambda: 100_000)
    with pytest.raises(
        InputError, match=r"a bank of 3 views of 60 images takes .* GiB, more than there is: set a smaller"
    ):
        bank(made).refresh(0)


def test_room(monkeypatch):
    monkeypatch.setattr(batches, "_free_memory", lambda: 1000)
    assert fits_in_memory(299, torch.device("cpu"))
    assert not fits_in_memory(301, torch.device("cpu"))
    monkeypatch.undo()
    assert 0 < batches._free_memory() < 2**50


def test_filled():
    rows = torch.arange(6.0).view(3, 2)
    assert torch.equal(pad_rows(rows, 3), rows)
    assert torch.equal(pad_rows(rows, 2), rows)
    assert pad_rows(rows, 5)[:, 1].tolist() == [1, 3, 5, 5, 5]


def test_generators_differ_in_every_number():
    drawn = [torch.rand(4, generator=generator_of(*n)) for n in ((0, 1), (1, 0), (0, 1, 1), (2**31, 1), (0, 1))]
    assert torch.equal(drawn[0], drawn[4])
    assert len({tuple(values.tolist()) for values in drawn[:4]}) == 4
