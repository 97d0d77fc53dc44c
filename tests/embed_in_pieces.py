"""Run as a program: embed slowly made images into a file, one line on standard output after each batch read."""

from __future__ import annotations

import sys
import time

import torch

from selex.features import embed as embedding
from selex.models import load_backbone

ROWS, BATCH = 40, 4


class Noise:
    """Images made of their row number, the same in every process; each batch takes `pause` seconds to read."""

    key = "noise"

    def __init__(self, rows=ROWS, pause=0.0):
        self.rows, self.pause, self.read = rows, pause, []

    def __len__(self):
        return self.rows

    def centre_crops(self, rows, crop):
        self.read.append(rows)
        time.sleep(self.pause)
        return torch.stack([self.image(int(row), crop) for row in rows])

    @staticmethod
    def image(row, crop):
        generator = torch.Generator().manual_seed(row)
        return torch.randint(0, 256, (3, crop, crop), dtype=torch.uint8, generator=generator)


class Telling(Noise):
    """Says how far it is."""

    def centre_crops(self, rows, crop):
        crops = super().centre_crops(rows, crop)
        print(rows[0], flush=True)
        return crops


if __name__ == "__main__":
    embedding.SAVE_EVERY = 0.0
    backbone = load_backbone(f"file:{sys.argv[1]}")
    embedding.embed(backbone, Telling(pause=0.05), sys.argv[2], device="cpu", batch_size=BATCH)
