"""A model that waits for images: those that come at the same time go through the network together."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from selex.data.decode import Pixels, Unreadable, check_sent, decode
from selex.data.store import ImageStore
from selex.features.attention_crop import attention_boxes, saliency
from selex.runs.predictor import Model

BATCH = 32
"""Images that go through the network at a time, at most."""

DECODING = 4
"""Images that are decoded at a time, at most: each may take some 100 MB while it is."""

Row = dict[str, Any]
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Waiting:
    """An image, as a file and decoded, and who waits for its prediction."""

    file: bytes
    pixels: Pixels
    answer: Future[tuple[Row, Array]] = field(default_factory=Future)


class Sorter:
    """Sorts images for many threads, with one network in one thread of its own. Nothing is written to disk."""

    def __init__(self, model: Model, device: str | torch.device = "cpu") -> None:
        self.model, self.device = model, torch.device(device)
        self.backbone = model.load_backbone(device)
        self.eye = saliency(model.untrained(self.backbone, device)) if model.attention_crop else None
        self._decoding = threading.BoundedSemaphore(DECODING)
        self._queue: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def sort(self, files: Sequence[bytes]) -> list[Row]:
        """Predictions for image files, as `Model.predict` makes them; raises `Unreadable` for what is no image."""
        return [row for row, _ in self.look(files)]

    def look(self, files: Sequence[bytes]) -> list[tuple[Row, Array]]:
        """The same with the feature of each image, as those of the run's own images are: before `maps`."""
        waiting = []
        for work in (check_sent, lambda file: waiting.append(Waiting(file, self._decoded(file)))):
            for number, file in enumerate(files):
                try:
                    work(file)
                except Unreadable as error:
                    which = f"image {number}: " if len(files) > 1 else ""
                    raise Unreadable(f"{which}{error.reason}", error.passing) from None
        for image in waiting:
            self._queue.put(image)
        return [image.answer.result() for image in waiting]

    def _decoded(self, file: bytes) -> Pixels:
        with self._decoding:
            return decode(file, self.model.size)

    def close(self) -> None:
        """Sort what is waiting, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while batch := list(self._batch()):
            try:
                rows = self._sorted(batch)
            except Exception as error:  # whoever waits has to be told
                for image in batch:
                    image.answer.set_exception(error)
            else:
                for image, row in zip(batch, rows, strict=True):
                    image.answer.set_result(row)

    def _batch(self) -> Iterator[Waiting]:
        """The next image, and those that came meanwhile; nothing at the end."""
        for number in range(BATCH):
            try:
                image = self._queue.get(block=number == 0)
            except queue.Empty:
                return
            if image is None:
                if number:
                    self._queue.put(None)  # for the next batch, which is the end
                return
            yield image

    def _sorted(self, batch: list[Waiting]) -> list[tuple[Row, Array]]:
        images = ImageStore.in_memory([image.pixels for image in batch], self.model.size)
        cut = self._cut(batch, images) if self.eye else None
        features = self.model.embed(self.backbone, images, cut, device=self.device)
        columns = self.model.describe([""] * len(batch), self.model.assigner(self.model.maps.transform(features)))
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return list(zip(rows, np.asarray(features), strict=True))

    def _cut(self, batch: list[Waiting], images: ImageStore) -> ImageStore:
        """The images cut to what the network looks at, from their files, as `crop_to_attention` does."""
        assert self.eye is not None
        boxes: list[Any] = np.asarray(attention_boxes(self.eye, images, device=self.device)).tolist()
        size = self.model.size
        parts = [decode(image.file, size, tuple(box)) for image, box in zip(batch, boxes, strict=True)]
        return ImageStore.in_memory(parts, size)
