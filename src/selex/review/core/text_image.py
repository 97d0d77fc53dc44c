"""Text-image models: which words of a list suit photos. Needs open_clip or transformers, whichever is installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from selex.data.decode import Unreadable, decode
from selex.errors import InputError
from selex.io import check_regular
from selex.runs.results import Results, directions
from selex.runs.run import Run

Array = np.ndarray[Any, Any]

PHOTOS, WORDS = 12, 3
"""Photos of a category that are looked at, its most confident ones, and words that are kept."""

_SHARPNESS = 100.0  # what CLIP multiplies cosines by before they become probabilities
_SIDE = 336  # shorter side of the photos that a model is given


class TextImageModel(Protocol):
    """Photos and texts as vectors of one space."""

    def embed_images(self, images: Sequence[Image.Image]) -> Array:
        """A row for each image."""

    def embed_texts(self, texts: Sequence[str]) -> Array:
        """A row for each text."""


def suggest_names(
    run: Run,
    words: Sequence[str],
    model: TextImageModel,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, list[tuple[str, float]]]:
    """The words that suit each novel category best, with the probability of each among all words."""
    results = Results.read(run)
    paths = run.image_paths(results.files)
    texts = directions(model.embed_texts([f"a photo of {word}" for word in words]))
    novel = [number for number in np.unique(results.category).tolist() if number >= results.n_known]
    found = {}
    for done, number in enumerate(novel):
        rows = np.flatnonzero(results.category == number)
        typical = rows[np.argsort(-results.confidence[rows], kind="stable")][:PHOTOS]
        photos = [image for row in typical.tolist() if (image := _photo(paths[row])) is not None]
        if photos:
            found[results.names[number]] = _best(words, texts, directions(model.embed_images(photos)))
        progress(done + 1, len(novel))
    return found


def _best(words: Sequence[str], texts: Array, images: Array) -> list[tuple[str, float]]:
    """The words nearest to the mean of some photos."""
    scores = _SHARPNESS * (texts @ directions(images.mean(axis=0, keepdims=True))[0]).astype(np.float64)
    odds = np.exp(scores - scores.max())
    odds /= odds.sum()
    return [(words[i], round(float(odds[i]), 4)) for i in np.argsort(-odds, kind="stable")[:WORDS]]


def _photo(path: str) -> Image.Image | None:
    try:
        return Image.fromarray(decode(path, _SIDE))
    except Unreadable:
        return None


def load_text_image_model(name: str | None = None) -> TextImageModel:
    """A model of open_clip, `ViT-B-32/laion2b_s34b_b79k`, or of transformers, `openai/clip-vit-base-patch32`."""
    for make in (_OpenClip, _Transformers):
        try:
            return make(name)
        except ModuleNotFoundError:
            continue
        except Exception as error:  # whatever a model that cannot be fetched, or is none, meets
            raise InputError(f"the text-image model {name or 'by default'} cannot be loaded ({error})") from None
    raise InputError("names from a word list need open_clip or transformers: pip install 'selex[names]'")


class _OpenClip:
    def __init__(self, name: str | None) -> None:
        import open_clip

        kind, _, weights = (name or "ViT-B-32/laion2b_s34b_b79k").partition("/")
        self._model, _, self._prepare = open_clip.create_model_and_transforms(kind, pretrained=weights or None)
        self._model.eval()
        self._tokenize = open_clip.get_tokenizer(kind)

    def embed_images(self, images: Sequence[Image.Image]) -> Array:
        import torch

        with torch.no_grad():
            found: Array = self._model.encode_image(torch.stack([self._prepare(image) for image in images])).numpy()
        return found

    def embed_texts(self, texts: Sequence[str]) -> Array:
        import torch

        with torch.no_grad():
            found: Array = self._model.encode_text(self._tokenize(list(texts))).numpy()
        return found


class _Transformers:
    def __init__(self, name: str | None) -> None:
        import transformers

        name = name or "openai/clip-vit-base-patch32"
        self._model = transformers.CLIPModel.from_pretrained(name).eval()
        self._processor = transformers.CLIPProcessor.from_pretrained(name)

    def embed_images(self, images: Sequence[Image.Image]) -> Array:
        import torch

        with torch.no_grad():
            given = self._processor(images=list(images), return_tensors="pt")
            return _vectors(self._model.get_image_features(**given))

    def embed_texts(self, texts: Sequence[str]) -> Array:
        import torch

        with torch.no_grad():
            given = self._processor(text=list(texts), return_tensors="pt", padding=True)
            return _vectors(self._model.get_text_features(**given))


def _vectors(found: Any) -> Array:
    """What transformers 4 gives as a tensor, and 5 as a part of a record."""
    rows: Array = getattr(found, "pooler_output", found).numpy()
    return rows


def read_words(path: str) -> list[str]:
    """The words of a file, one to a line; empty lines do not count, and a word counts once."""
    check_regular(Path(path))
    try:
        with open(path, encoding="utf-8-sig") as file:
            lines = [" ".join(line.split()) for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as lines of text ({error})") from None
    words = list(dict.fromkeys(filter(None, lines)))
    if len(words) < 2:
        raise InputError(f"{path}: has {len(words)} words; give at least two")
    return words
