"""What a run costs: operations and memory."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from selex.config import Config
from selex.features.prepare import load_backbone_for
from selex.training.fit import make_method


def flops(config: Config, n_categories: int, n_known: int) -> int:
    """Operations of one image in two views, forward and backward, counted without doing them; those of losses aside."""
    backbone, config = load_backbone_for(config, "cpu")
    method = make_method(config, backbone, n_categories, n_known).to("meta")
    size = config.train.view_size or backbone.crop
    views = torch.zeros(2, 3, size, size, device="meta")
    with FlopCounterMode(display=False) as counter:
        trunk = method.trunk.to("meta")
        encoded = method.encode((trunk if size == backbone.crop else trunk.resized(size))(views))
        torch.autograd.backward([part.sum() for part in encoded if part.requires_grad])
    return int(counter.get_total_flops())


def device_name(device: str) -> str:
    """What a device is called."""
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else "CPU"


def reset_memory(device: str) -> None:
    """Begin to measure."""
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def memory(device: str) -> float | None:
    """The most memory of a GPU that was used since, in GB."""
    return round(torch.cuda.max_memory_allocated(device) / 1e9, 2) if torch.device(device).type == "cuda" else None
