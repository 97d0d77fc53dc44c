"""The loop: what a step does, what is drawn, stored losses of short trainings, and what is refused."""

import gc
import json
import logging
import os
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from selex.cluster import balance
from selex.errors import InputError
from selex.training.batches import Batches, sample_epoch
from selex.training.checkpoint import Checkpoints
from selex.training.devices import Graph, deterministic, start_fabric
from selex.training.loop import Callbacks, check_trainable, cosine_lr
from selex.training.methods import Task
from selex.training.steps import Steps
from training_for_tests import TRAINED, batch, digit_data, fit, loop, small, weights, without_times

GOLDEN = Path(__file__).parent / "golden"
UPDATE = "SELEX_UPDATE_GOLDEN"  # set it to write the stored losses anew, after a change that is meant to change them
STORED = {name: (name, {}) for name in TRAINED} | {
    "selex-published": ("selex", {"published": True}),
    "selex-radii": ("selex", {"targets": "radii", "interval": 2}),
    "selex-view-bank": ("selex", {"view_bank": 2, "refresh": 0.5}),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return digit_data(tmp_path_factory.mktemp("digits"))


@pytest.mark.parametrize("name", STORED)
def test_losses_of_a_short_training_are_those_stored(name, data):
    method, settings = STORED[name]
    history = without_times(fit(small(method, lr=0.003, **settings), data))
    path = GOLDEN / f"{name}.json"
    if UPDATE in os.environ:
        path.write_text(json.dumps(history, indent=1) + "\n")
    for found, stored in zip(history, json.loads(path.read_text()), strict=True):
        for part in ("step", "smallest", "median", "largest"):
            assert found.pop(part, None) == stored.pop(part, None)
        assert found == pytest.approx(stored, rel=1e-4)  # processors differ


def test_a_step_is_plain_gradient_descent(data):
    """Momentum 0.9 and weight decay, written out."""
    method = small("gcd", lr=0.01, weight_decay=0.01)
    parts = loop(method, data)
    given = batch(data, method)
    expected, speed = weights(method), {}
    for _ in range(3):
        losses = small("gcd")
        losses.load_state_dict(expected | {k: v for k, v in method.state_dict().items() if k not in expected})
        losses(given)["loss"].backward()
        for key, tensor in losses.named_parameters():
            if tensor.grad is not None:
                change = tensor.grad + 0.01 * expected[key]
                speed[key] = change if key not in speed else 0.9 * speed[key] + change
                expected[key] = expected[key] - 0.01 * speed[key]
        parts.steps.step(given)
    for key, tensor in method.named_parameters():
        assert torch.allclose(tensor, expected[key], atol=1e-6), key


def test_the_rate_falls_as_a_cosine_to_a_thousandth(data):
    parts = loop(small("gcd", epochs=200, lr=0.1), data)
    assert cosine_lr(parts.settings, 0) == pytest.approx(0.1)
    assert cosine_lr(parts.settings, 100) == pytest.approx(0.1 * (1 + 1e-3) / 2)
    assert cosine_lr(parts.settings, 200) == pytest.approx(1e-4)
    rates = [cosine_lr(parts.settings, epoch) for epoch in range(200)]
    assert rates == sorted(rates, reverse=True)


def test_weight_decay_and_momentum(data):
    for published in (False, True):  # the script that its README starts has them too
        group = loop(small("selex", published=published), data).steps.optimizer.param_groups[0]
        assert (group["weight_decay"], group["momentum"]) == (1e-4, 0.9)


def test_only_what_is_trained_is_optimised_and_kept(data, tmp_path):
    method = small("selex", epochs=1, trained_blocks=1)
    keep = Checkpoints(tmp_path, {})
    fit(method, data, checkpoints=keep)
    trained = {key for key, tensor in method.named_parameters() if tensor.requires_grad}
    state = keep.latest()
    assert set(state["method"]) == trained | {"level_labels"}  # its own buffer beside
    assert all(key.startswith(("head.", "tail.blocks.0.")) for key in trained)
    assert len(state["optimizer"]) == len(trained)
    parts = loop(method, data)
    optimised = parts.steps.optimizer.param_groups[0]["params"]
    assert [id(tensor) for tensor in optimised] == [id(tensor) for tensor in parts.steps.trained]


def test_labelled_rows_are_drawn_more_often():
    """Labelled rows weigh 1, unlabelled ones n_labelled / N."""
    labels = np.array([0] * 30 + [-1] * 170)
    seen = sum(np.bincount(sample_epoch(labels, np.random.default_rng(seed)), minlength=200) for seed in range(400))
    weights = np.where(labels >= 0, 1, 30 / 200)
    expected = 400 * 200 * weights / weights.sum()
    chi_square = ((seen - expected) ** 2 / expected).sum()
    assert 130 < chi_square < 280  # 199 degrees of freedom: 199 ± 20
    assert seen[:30].sum() / seen.sum() == pytest.approx(30 / 55.5, abs=0.01)
    even = np.bincount(sample_epoch(np.full(50, -1), np.random.default_rng(0)), minlength=50)
    assert even.sum() == 50


def test_batches_of_an_epoch(data):
    parts = loop(small("gcd", batch=16), data)
    one, same, other = (list(parts.batches.epoch(epoch)) for epoch in (0, 0, 1))
    assert len(one) == 3  # of 60 images; the rest is left out
    assert all(len(part.states) == 32 and len(part.rows) == 16 for part in one)
    assert torch.equal(one[1].states, same[1].states)
    assert not torch.equal(one[1].rows, other[1].rows)
    for part in one:
        assert torch.equal(part.labels, torch.as_tensor(data.labels)[part.rows])
        first, second = part.states.chunk(2)
        assert not torch.equal(first, second)


def test_one_seed_one_training(data):
    first, same, other = (small("selex", epochs=1) for _ in range(3))
    history = [without_times(fit(method, data, seed)) for method, seed in ((first, 3), (same, 3), (other, 4))]
    assert history[0] == history[1] != history[2]
    for key, tensor in weights(first).items():
        assert torch.equal(tensor, weights(same)[key])


def test_who_watches_is_told_of_every_epoch(data):
    entries, scored = [], []
    watch = Callbacks(entries.append, lambda clusters: scored.append(clusters) or {"all": np.float64(0.5)})
    history = fit(small("selex"), data, callbacks=watch)
    assert entries == history
    assert [entry["epoch"] for entry in entries] == [0, 1]
    assert all(len(clusters) == 60 for clusters in scored)
    for entry in entries:
        assert {
            "loss",
            "use",
            "sse",
            "lr",
            "smallest",
            "median",
            "largest",
            "agreement",
            "all",
            "prepared",
            "seconds",
        } <= set(entry)
        assert type(entry["all"]) is float  # what a checkpoint can hold
        assert 0 <= entry["agreement"] <= 1
    assert "changed" not in entries[0]
    assert 0 <= entries[1]["changed"] <= 1


def test_what_cannot_be_trained_on(data):
    with pytest.raises(InputError, match=r"a batch of 61 is larger than the 60 images: set train.batch to at most 60"):
        check_trainable(small("gcd", batch=61), data)
    with pytest.raises(InputError, match="a batch needs at least 2 images"):
        check_trainable(small("gcd", batch=1), data)
    with pytest.raises(InputError, match="every image is labelled, so there is nothing to discover"):
        check_trainable(small("gcd"), replace(data, labels=np.zeros(60, dtype=int)))
    with pytest.raises(InputError, match=r"a batch of 15 cannot be divided among 2 processes: set train.batch=14"):
        check_trainable(small("gcd", batch=15), data, processes=2)
    check_trainable(small("gcd", batch=60), data)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"),
    ],
)
def test_a_device_that_is_too_small(error, data, monkeypatch):
    def full(*_):
        raise error

    monkeypatch.setattr(Steps, "step", full)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (300 << 20, 16 << 30))
    with pytest.raises(InputError, match=r"cpu has too little memory for this training: set train.micro_batch=4 "):
        fit(small("gcd"), data)


@pytest.mark.parametrize("said", ["cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", "mat1 and mat2 cannot be multiplied"])
def test_an_error_that_has_nothing_to_do_with_memory_is_not_hidden(said, data, monkeypatch):
    def broken(*_):
        raise RuntimeError(said)

    monkeypatch.setattr(Steps, "step", broken)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (9 << 30, 16 << 30))
    with pytest.raises(RuntimeError, match=said):
        fit(small("gcd"), data)


class Broken(torch.nn.Module):
    """Gives what is not a number from its n-th call on."""

    def __init__(self, inner, calls):
        super().__init__()
        self.inner, self.left = inner, calls

    def forward(self, x):
        self.left -= 1
        return self.inner(x) * (float("nan") if self.left < 0 else 1.0)


def test_a_loss_that_is_not_a_number(data, tmp_path):
    method = small("gcd", epochs=3)
    method.head = Broken(method.head, 4)  # three steps an epoch
    with pytest.raises(InputError) as caught:
        fit(method, data, checkpoints=Checkpoints(tmp_path, {}))
    message = str(caught.value)
    assert message.startswith("the loss is nan in epoch 1, step 1 (batch of ")
    assert sum(name in message for name in data.files) in (1, 2, 3)
    assert f"the last good checkpoint is {tmp_path / 'checkpoint-00000.pt'}" in message
    assert message.endswith("try a smaller train.lr")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-00000.pt"]


def test_weights_that_are_not_numbers_are_not_kept(data, tmp_path):
    """A last step with a finite loss and an infinite gradient."""
    method = small("gcd", epochs=3)
    calls = []
    method.head.directions.register_hook(lambda grad: calls.append(1) or (grad / 0 if len(calls) == 6 else grad))
    with pytest.raises(
        InputError, match=r"weights are not finite after epoch 1; the last good checkpoint is .*00000.pt"
    ):
        fit(method, data, checkpoints=Checkpoints(tmp_path, {}))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-00000.pt"]


def test_features_that_are_not_numbers(data):
    method = small("gcd")
    method.tail = Broken(method.tail, 0)
    with pytest.raises(InputError, match="features are not finite before epoch 0; no checkpoint is kept"):
        fit(method, data)


TORCHRUN = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "1", "RANK": "0"}
ALLOCATION = {"SLURM_NTASKS": "4", "SLURM_JOB_ID": "7", "SLURM_NNODES": "2", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        TORCHRUN,
        TORCHRUN | {"TORCHELASTIC_RUN_ID": "x", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"},
        ALLOCATION,  # a script or shell inside an allocation of four tasks
        ALLOCATION | {"SLURM_JOB_NAME": "interactive", "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"},
    ],
    ids=str,
)
def test_one_process_alone(environment, monkeypatch, caplog, capfd):
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    with caplog.at_level(logging.INFO):
        fabric = start_fabric("cpu")
    assert (fabric.world_size, fabric.global_rank, fabric.device.type) == (1, 0, "cpu")
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


def test_a_cluster_that_was_asked_in_a_way_that_does_not_work(monkeypatch):
    for name in TORCHRUN | {"GROUP_RANK": "", "MASTER_ADDR": "", "MASTER_PORT": "", "TORCHELASTIC_RUN_ID": ""}:
        monkeypatch.setenv(name, "")  # so that what is set below is gone after the test
        monkeypatch.delenv(name)
    for key, value in (ALLOCATION | {"SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_NUM_NODES": "2"}).items():
        monkeypatch.setenv(key, value)
    with pytest.raises(InputError, match=r"cannot train with 3 processes on 2 nodes: .*--ntasks-per-node"):
        start_fabric("cpu")


def test_deterministic_is_asked_for_inside_and_not_after():
    with deterministic():
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    with deterministic():
        pass
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    assert torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]


def test_what_deterministic_need_is_there_before_any_product_on_a_gpu():
    """Torch looks at it once, at the first product: that of features may come before training in one process."""
    code = "import os, selex; print(os.environ['CUBLAS_WORKSPACE_CONFIG'])"
    environment = {key: value for key, value in os.environ.items() if key != "CUBLAS_WORKSPACE_CONFIG"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == ":4096:8\n"


def test_training_holds_on_to_nothing(data, monkeypatch):
    """Kept states may be a third of a GPU's memory: what comes next cannot wait for Python to find a cycle."""
    held = []
    real = Batches._states_of
    monkeypatch.setattr(
        Batches,
        "_states_of",
        lambda self, *about: held.append(weakref.ref(states := real(self, *about))) or states,
    )
    gc.disable()
    try:
        fit(small("selex", epochs=1, view_bank=2), data)
        assert [states() for states in held] == [None, None]
    finally:
        gc.enable()


def test_work_is_recorded_on_the_device_of_its_tensors(monkeypatch):
    """Not on the current one, which is another where a second GPU was asked for: nothing would be recorded."""
    asked = []

    def stream(*device):
        asked.append(device)
        raise InterruptedError

    monkeypatch.setattr(torch.cuda, "Stream", stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    here = torch.device("cpu")
    for record in (lambda: Graph(dict)(torch.ones(2)), lambda: balance._Recorded(8, 2, here)):
        with pytest.raises(InterruptedError):
            record()
    assert asked == [(here,), (here,)]


class Recorded:
    """Stands for a step that was recorded: it counts how often it would be recorded anew."""

    def __init__(self):
        self.forgotten = 0

    def forget(self):
        self.forgotten += 1


WAYS = [
    ("selex", {}, 1),
    ("selex", {"targets": "radii", "task": Task(5, 3, whiten=0.5)}, 1),
    ("selex", {"prototypes": 0.35, "task": Task(5, 3, whiten=0.5), "interval": 2}, 1),
    ("gcd", {}, 0),
    ("simgcd", {"epochs": 12}, 1),  # its temperature changes in each of the first three
]


@pytest.mark.parametrize(("name", "settings", "recordings"), WAYS, ids=str)
def test_a_recorded_step_finds_new_pseudo_labels_where_the_old_ones_were(data, name, settings, recordings):
    plain, kept = (loop(small(name, **settings), data) for _ in range(2))
    kept.steps.graph, places = Recorded(), []
    for epoch in range(4):
        for parts in (plain, kept):
            with torch.no_grad():  # as if it had been trained
                for parameter in parts.steps.trained:
                    parameter.mul_(1 + 0.3 * epoch)
            parts.prepare(epoch)
        fresh, put = plain.method.own_buffers(), kept.method.own_buffers()
        assert fresh.keys() == put.keys()
        assert all(torch.equal(fresh[key], put[key]) for key in fresh)
        places.append({key: put[key].data_ptr() for key in fresh})
    assert all(place == places[0] for place in places)
    assert kept.steps.graph.forgotten == recordings
