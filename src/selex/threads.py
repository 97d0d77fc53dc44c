"""As many threads as work is worth: on a busy machine they wait for each other longer than small work takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

PER_THREAD = 2_000_000
"""Numbers that an operation goes through, for a thread to be worth its while."""


@contextmanager
def threads_for(numbers: int) -> Iterator[None]:
    """At most as many of torch's threads as operations on so many numbers are worth, as long as this lasts."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, min(before, numbers // PER_THREAD)))
    try:
        yield
    finally:
        torch.set_num_threads(before)
