"""Labels that training does not see: they compare it with its start and the mean of both, and the best is kept."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from commands import digit_photos
from selex.cluster.holdout.select import Selection
from selex.cluster.holdout.split import kept_from_training
from selex.config import Config
from selex.discovery import discover
from selex.discovery_training import Training, compare
from selex.report.html import write_report
from selex.runs.earlier import _selection
from selex.runs.predictor import load
from selex.runs.run import last_training
from selex.training.checkpoint import Checkpoints
from selex.training.fit import Seen


@pytest.mark.parametrize("share", [0.1, 0.2, 0.5])
def test_of_each_category_a_share_is_hidden_and_of_the_categories_half_as_many(share):
    labels = np.repeat(np.arange(40), 50)
    labels[::2] = -1
    held_out = kept_from_training(labels, share)
    assert not held_out[labels == -1].any()
    whole = [category for category in range(40) if held_out[labels == category].all()]
    assert len(whole) == round(40 * share / 2)
    for category in set(range(40)) - set(whole):
        assert held_out[labels == category].sum() == pytest.approx(25 * share, abs=1)


@pytest.mark.parametrize(("n_known", "many"), [(4, 0), (5, 1), (19, 1), (98, 5)])
def test_with_few_categories_one_is_still_hidden_as_a_whole(n_known, many):
    labels = np.repeat(np.arange(n_known), 30)
    held_out = kept_from_training(labels, 0.1)
    assert sum(held_out[labels == category].all() for category in range(n_known)) == many


def test_few_labels_are_all_shown():
    labels = np.array([0, 0, 0, 1, 1, 1, *[-1] * 50])
    assert not kept_from_training(labels, 0.2).any()
    assert not kept_from_training(np.full(9, -1), 0.2).any()
    assert not kept_from_training(np.repeat(np.arange(40), 50), 0.0).any()


def test_what_training_sees_is_numbered_anew():
    labels = np.repeat(np.arange(20), 10)
    seen = Seen.of(Config.of(method="selex", holdout=0.2), labels)
    assert seen.n_known == 18
    assert (seen.labels[seen.held_out] == -1).all()
    assert sorted(set(seen.labels[~seen.held_out].tolist())) == list(range(18))
    shown = Seen.of(Config.of(method="simgcd", holdout=0.2), labels)
    assert not shown.held_out.any()
    assert (shown.labels == labels).all()


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """360 digits of six kinds, a third of the first four labelled: 80 labels, of which 16 and more are held out."""
    folder = tmp_path_factory.mktemp("digits")
    digit_photos(folder / "photos", per_digit=90, n_known=4, digits=6)
    return folder


def trained(photos, name, of="photos", **settings):
    """A run of a tiny network, trained for a moment, and what was told of it."""
    told, asked = [], {"method": "selex", "backbone": "tiny-vit", "categories": 6, "epochs": 2, "batch": 32}
    config = Config.of(str(photos / of), **{**asked, "trained_blocks": None, "size": 32, **settings})
    run = discover(config, photos / name, store=photos / f"store of {of}", tell=told.append)
    return run, told


def last(run, step):
    return [entry for entry in run.metrics if entry.get("step") == step][-1]


def ruined(train):
    """Training whose network sees nothing any more: its last bias outweighs every image, halved too."""

    def worse(self, *args, **options):
        method = train(self, *args, **options)
        with torch.no_grad():
            self.job.backbone.network.norm.bias.fill_(1e9)
        return method

    return worse


def test_training_that_costs_is_undone(photos, monkeypatch):
    monkeypatch.setattr(Training, "_train", ruined(Training._train))
    run, told = trained(photos, "ruined")
    kept = last(run, "kept")
    assert kept["kept"] == "untrained"
    assert kept["untrained"] > kept["trained"]
    frozen, _ = trained(photos, "frozen", method="frozen")
    assert np.array_equal(run.embeddings, frozen.embeddings)
    assert not load(run.folder).trained
    selected = _selection(run)
    assert selected.settings == {name: kept[name] for name in ("adapt", "search", "refine")}
    assert any("untrained network kept" in line for line in told)
    assert "untrained network" in write_report(run, photos / "report.html").read_text()
    rows = [row for row, file in enumerate(run.clusters["file"].to_pylist()) if file.startswith("unlabelled")][:9]
    found = run.clusters.take(rows).to_pydict()
    again = load(run.folder).predict([str(photos / "photos" / file) for file in found["file"]])
    assert list(again["category"]) == found["category"]


def test_training_that_pays_is_kept_and_its_ending_chosen_by_labels_it_did_not_see(photos):
    run, told = trained(photos, "better", lr=0.03, epochs=3, temperature=0.1, head_dim=256)
    kept = last(run, "kept")
    assert kept["kept"] == max(("trained", "averaged"), key=kept.get)
    assert kept[kept["kept"]] >= kept["untrained"]
    assert load(run.folder).trained
    assert any(line.startswith("refine: ") for line in told)


def halfway(photos, monkeypatch, better, name=""):
    """A run where the network with this name is said to do better on held-out labels."""

    said = {"kept": better, "untrained": 0.1, "trained": 0.2, "averaged": 0.3}
    monkeypatch.setattr("selex.discovery_training.compare", lambda ways, tell: (better, said))
    return trained(photos, name or better, lr=0.03)[0]


def test_averaged_weights_are_the_mean_of_both(photos, monkeypatch):
    runs = {name: halfway(photos, monkeypatch, name) for name in ("untrained", "trained", "averaged")}
    of = {name: weights(run) for name, run in runs.items()}
    changed = [key for key, value in of["trained"].items() if not torch.equal(value, of["untrained"][key])]
    assert len(changed) > 5
    for key in changed:
        assert torch.allclose(of["averaged"][key], (of["trained"][key] + of["untrained"][key]) / 2, atol=1e-6)
    assert not np.allclose(runs["averaged"].embeddings, runs["trained"].embeddings, atol=1e-3)
    rows = [row for row, file in enumerate(runs["averaged"].clusters["file"].to_pylist()) if "unlabelled" in file][:9]
    found = runs["averaged"].clusters.take(rows).to_pydict()
    again = load(runs["averaged"].folder).predict([str(photos / "photos" / file) for file in found["file"]])
    assert list(again["category"]) == found["category"]


def weights(run):
    return load(run.folder).load_backbone("cpu").network.state_dict()


def test_the_network_that_is_kept_has_seen_every_label(photos, monkeypatch):
    """That of training without held-out labels, which took no part in choosing it."""
    run, (whole, _) = halfway(photos, monkeypatch, "trained", "seen"), trained(photos, "whole", lr=0.03, holdout=0.0)
    for name, tensor in weights(whole).items():
        assert torch.equal(weights(run)[name], tensor), name
    epochs = [(entry["epoch"], entry.get("again")) for entry in run.metrics if entry["step"] == "epoch"]
    assert epochs == [(0, None), (1, None), (0, True), (1, True)]
    assert [entry["epoch"] for entry in last_training(run.metrics)] == [0, 1]
    assert load(run.folder).assigner.calibration != load(whole.folder).assigner.calibration


@pytest.mark.filterwarnings("ignore:every row is labelled", "ignore:every photo is in a sub-folder")
@pytest.mark.parametrize("better", ["trained", "averaged"])
def test_where_every_image_has_a_label_the_first_training_is_kept(photos, monkeypatch, better):
    said = {"kept": better, "untrained": 0.1, "trained": 0.2, "averaged": 0.3}
    monkeypatch.setattr("selex.discovery_training.compare", lambda ways, tell: (better, said))
    folder = photos / f"all {better}"
    for name, digit in digit_photos(folder, per_digit=30, n_known=4, digits=4).items():
        (folder / name).rename(folder / f"digit {digit}" / name.split("/")[1])
    run, told = trained(photos, f"every {better}", f"all {better}", categories=4, epochs=1, lr=0.03)
    assert "training again, with all labels" not in told
    assert len(run.clusters) == 120
    rows = list(range(0, 120, 15))
    found = run.clusters.take(rows).to_pydict()
    again = load(run.folder).predict([str(folder / file) for file in found["file"]])
    assert list(again["category"]) == found["category"]


@pytest.mark.parametrize("again", [False, True], ids=["first training", "second training"])
def test_what_was_cut_off_goes_on_in_the_training_it_was_in(photos, monkeypatch, again):
    undisturbed, save = halfway(photos, monkeypatch, "averaged", f"whole {again}"), Checkpoints.save

    def cut_off(self, epoch, state):
        save(self, epoch, state)
        if (self.name == "checkpoint-again") == again:
            self.wait()
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "save", cut_off)
        with pytest.raises(KeyboardInterrupt):
            trained(photos, f"cut {again}", lr=0.03)
    run, _ = trained(photos, f"cut {again}", lr=0.03)
    epochs = [entry["epoch"] for entry in run.metrics if entry["step"] == "epoch"]
    assert epochs == [0, 1, 0, 1]  # none twice
    assert np.array_equal(run.embeddings, undisturbed.embeddings)
    assert run.clusters.equals(undisturbed.clusters)


LOSSES = {
    "chance": ([0.05, -0.02, *[0.0] * 18], "trained"),  # in two categories of twenty
    "one row": ([0.03, *[0.0] * 19], "trained"),
    "clear": ([0.0015] * 20, "untrained"),  # as much in all, from each of them
}


@pytest.mark.parametrize(("lost", "kept"), LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("averaged", [-0.1, 0.001])
def test_training_is_undone_if_hidden_labels_are_clearly_against_it(lost, kept, averaged):
    """The better of trained and averaged weights is kept, unless the start is ahead by more than chance."""
    told = []
    before, ahead = np.full(20, 0.04), averaged > 0
    right = {"untrained": before, "trained": before - lost, "averaged": before - lost + averaged}
    ways = {name: SimpleNamespace(selection=Selection(False, "none", right=tuple(row))) for name, row in right.items()}
    expected = "averaged" if ahead and kept == "trained" else kept
    found, logged = compare(ways, told.append)
    assert found == logged["kept"] == expected
    shown = (logged[name] for name in ("untrained", "trained", "averaged"))
    assert tuple(shown) == pytest.approx((0.8, 0.77, 0.77 + 20 * averaged))
    assert told[0].endswith(f"{expected} network kept")
    assert ("within chance" in told[0]) == (expected != "untrained")


def test_the_paper_holds_nothing_out(photos):
    run, _ = trained(photos, "all-shown", holdout=0.0, epochs=1)
    assert not [entry for entry in run.metrics if entry.get("step") == "kept"]
    assert last(run, "cluster")["refine"] == "none"
    assert Config.of(preset="paper").train.holdout == 0
