"""Small trainings: handwritten digits, a tiny transformer, a small head."""

from dataclasses import replace

import numpy as np
import torch

from commands import digit_photos
from selex.config import PAPER
from selex.data.crops import HostImages, TwoScaleImages
from selex.data.store import ImageStore
from selex.data.table import read_table
from selex.models import load_backbone
from selex.training.batches import Data
from selex.training.devices import start_fabric
from selex.training.loop import Loop, train
from selex.training.methods import METHODS, Batch, Task

CROP = 28
TASK = Task(5, 3)
TRAINED = list(METHODS)


def digit_data(folder):
    """60 digits of five kinds, a third of those of the first three labelled."""
    digit_photos(folder / "photos")
    store = ImageStore.build(read_table(folder / "photos"), folder / "store", size=32)
    return Data(HostImages(store), store.table.labels, list(store.table.files), CROP)


def seen_twice(data, box=(0.2, 0.1, 0.8, 0.7)):
    """The same images, looked at a second time: each cut to the same box."""
    whole = data.images.store
    boxes = np.tile(box, (len(whole), 1))
    close = ImageStore.build(whole.table, whole.table.root + "-closer", size=whole.size, boxes=boxes)
    return replace(data, images=TwoScaleImages(data.images, HostImages(close)))


def small(name, backbone=None, task=TASK, **settings):
    """A method on a tiny backbone."""
    chosen = {"epochs": 2, "batch": 16, "head_dim": 64, "lr": 0.03, "trained_blocks": 1, **settings}
    torch.manual_seed(0)
    return METHODS[name](backbone or load_backbone("tiny-vit"), task, replace(PAPER.train, method=name, **chosen))


def fit(method, data, seed=0, **more):
    return train(method, data, seed, fabric=start_fabric("cpu"), **more)


def loop(method, data, seed=0):
    """The parts of a training, before its first step."""
    return Loop(method, data, seed, start_fabric("cpu"))


def batch(data, method, size=16, seed=0):
    """A batch of random views of random images, the first of them labelled."""
    images = loop(method, data, seed)
    generator = torch.Generator().manual_seed(seed)
    labelled = torch.from_numpy(np.flatnonzero(np.asarray(data.labels) >= 0))
    others = torch.randperm(len(data.labels), generator=generator)[: size - 4]
    rows = torch.cat([labelled[:4], others])
    states = images.batches.new_views(rows, generator, slice(None))
    return Batch(states, rows, torch.as_tensor(data.labels)[rows])


def prepared(name, data, **settings):
    """A method that is ready for its first epoch."""
    method = small(name, **settings)
    loop(method, data).prepare(0)
    return method


def weights(method):
    return {name: tensor.detach().clone() for name, tensor in method.named_parameters()}


def without_times(history):
    """Metrics of epochs without what differs from run to run."""
    return [
        {key: value for key, value in entry.items() if key not in ("prepared", "seconds", "time")} for entry in history
    ]
