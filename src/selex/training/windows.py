"""The order in which an epoch sees images, for a store that is larger than memory: window by window."""

from __future__ import annotations

from typing import Any

import numpy as np

from selex.data.crops import AnyImages, HostImages, scales

Array = np.ndarray[Any, Any]

PIECE = 256
"""Images of the table, one after the other, that are read together."""


class Windows:
    """What was drawn for an epoch, reordered so that a part of all images is in use at a time.

    Images are in pieces of `PIECE`, which are shuffled for every epoch and then joined to windows of so many images.
    What was drawn of the first window comes first, in the random order it was drawn in, then what was drawn of the
    second. While a window is in use, the system is told to read the next, and that the last is not needed any more.
    """

    def __init__(self, images: AnyImages, window: int | None) -> None:
        self.size = window
        self.stores = [part.store for part in scales(images) if isinstance(part, HostImages)]
        self.of = np.zeros(len(images), dtype=np.int64)  # the window of each image
        self.needed = range(0)

    def ordered(self, drawn: Array, rng: np.random.Generator) -> Array:
        """The rows drawn for an epoch, window by window."""
        if not self.size:
            return drawn
        piece = np.arange(len(self.of)) // PIECE
        turn = rng.permutation(int(piece[-1]) + 1)
        self._advise(np.arange(len(self.of)), needed=False)  # all were read, to be clustered
        self.of, self.needed = turn[piece] // max(1, self.size // PIECE), range(0)
        return drawn[np.argsort(self.of[drawn], kind="stable")]

    def read_ahead(self, rows: Array) -> None:
        """Before a batch: the windows it is of are needed, and the next one; those before them are not any more."""
        if not self.size:
            return
        needed = range(int(self.of[rows[0]]), int(self.of[rows[-1]]) + 2)
        for windows, still in ((set(self.needed) - set(needed), False), (set(needed) - set(self.needed), True)):
            for window in sorted(windows):
                self._advise(np.flatnonzero(self.of == window), still)
        self.needed = needed

    def _advise(self, rows: Array, needed: bool) -> None:
        for store in self.stores if len(rows) else ():
            store.advise(rows, needed)
