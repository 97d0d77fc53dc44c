"""Names that a novel category could have: of a word list by a text-image model, of file names, of what it is like.

They are suggestions, and nothing is named by them. The model needs open_clip or transformers, whichever is installed.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from selex.data.decode import Unreadable, decode
from selex.errors import InputError
from selex.io import atomic_path, check_regular
from selex.runs.results import Results, directions
from selex.runs.run import Run

Array = np.ndarray[Any, Any]

FILE = "suggested-names.json"
"""Where `selex names` keeps what a text-image model said, in the run folder."""

_SHARE, _LIFT = 0.5, 3.0  # of a category's files so many have the words, and so many times as often as others
_COMMON = 0.5  # a word that so many other files have says nothing of a category
_LONGEST = 12  # words of a name
_MOST, _SOME = 20_000, 2_000  # files whose names are looked at, of all and of a category; of more every second, ...
_PLAIN = {
    *("img", "dsc", "dscn", "dscf", "dcim", "pxl", "mvimg", "gopr", "dji", "cimg", "imag", "pict", "sunp"),
    *("rcnx", "sam", "canon", "nikon", "msdcf", "olymp", "pana", "image", "images", "photo", "photos", "pic"),
    *("picture", "vid", "scan", "screenshot", "screen", "shot", "whatsapp", "wa", "at", "am", "pm", "copy"),
    *("day", "week", "month", "batch", "inbox", "import", "upload", "uploads", "download", "downloads"),
    *("camera", "new", "edited", "hdr", "jpg", "jpeg", "png", "heic", "tif", "tiff", "webp", "unlabelled"),
}
_WORDS = re.compile(r"(?<![^\W_])\d*([^\W\d_](?:['’]?[^\W\d_])+)\d*(?![^\W_])")  # heron12 and o'brien, not a1b2


@dataclass(frozen=True)
class Suggested:
    """A name, where it comes from, and how much speaks for it, from 0 to 1."""

    name: str
    source: str
    score: float


def from_files(files: Sequence[str], rows: Array, everywhere: Counter[str]) -> list[Suggested]:
    """Names that most files of a category have, of words that few others do; `everywhere` is from `count_words`."""
    some = np.sort(rows)[:: -(-len(rows) // _SOME)]
    texts = [word_lists(files[row]) for row in some.tolist()]
    times, others = len(rows) / len(some), max(1, len(files) - len(rows))
    inside = Counter(word for lists in texts for word in set().union(*lists))
    elsewhere = {word: max(0.0, everywhere[word] - times * count) / others for word, count in inside.items()}
    rare = {word: share for word, share in elsewhere.items() if share <= _COMMON}
    counts = Counter(name for lists in texts for name in _phrases(lists, rare))
    found = {name: count for name, count in counts.items() if _is_theirs(name, count, len(some), rare)}
    kept = [name for name in found if not any(_says_more(other, name, found) for other in found)]
    kept.sort(key=lambda name: (-found[name], -len(name), name))
    return [Suggested(" ".join(name), "file names", found[name] / len(some)) for name in kept]


def _is_theirs(name: tuple[str, ...], count: int, files: int, elsewhere: dict[str, float]) -> bool:
    """Whether enough files have these words, and few others one of them; two letters are no name."""
    often = count >= max(2, _SHARE * files) and count / files >= _LIFT * min(elsewhere[word] for word in name)
    return often and len(" ".join(name).encode()) > 2


def _phrases(lists: Sequence[Sequence[str]], rare: dict[str, float]) -> set[tuple[str, ...]]:
    """Words that follow each other, common ones left out."""
    kept = [[word for word in words if word in rare] for words in lists]
    ends = range(1, _LONGEST + 1)
    return {tuple(words[i : i + n]) for words in kept for i in range(len(words)) for n in ends if i + n <= len(words)}


def _says_more(other: tuple[str, ...], name: tuple[str, ...], counts: dict[tuple[str, ...], int]) -> bool:
    """Whether another name has all of this one and more, in nearly as many files."""
    inside = any(other[i : i + len(name)] == name for i in range(len(other) - len(name) + 1))
    return inside and len(other) > len(name) and counts[other] >= 0.9 * counts[name]


def count_words(files: Sequence[str]) -> Counter[str]:
    """How many file names have each word; of many files some are looked at, and stand for all."""
    step = -(-len(files) // _MOST)
    counts = Counter(word for file in files[::step] for word in words_of(file))
    return Counter({word: step * count for word, count in counts.items()})


def words_of(file: str) -> set[str]:
    """The words of a file's name and of the folder that it is in."""
    return set().union(*word_lists(file))


def word_lists(file: str) -> list[list[str]]:
    """The words of the folder that a file is in and of its name, in order, without what cameras and programs write."""
    parts = unicodedata.normalize("NFC", file).casefold().split("/")[-2:]
    parts[-1] = parts[-1].rpartition(".")[0]
    return [[word for word in _WORDS.findall(part) if word not in _PLAIN] for part in parts]


def write_suggested(folder: Path, results: Results, model: str, names: dict[str, list[tuple[str, float]]]) -> Path:
    """Keep what a model said of the categories of these results."""
    path = folder / FILE
    with atomic_path(path) as partial:
        partial.write_text(json.dumps({"results": results.digest, "model": model, "names": names}, indent=1))
    return path


def read_suggested(folder: Path, results: Results) -> dict[str, list[Suggested]]:
    """What a model said of these results, by category; nothing where it was about others, or cannot be read."""
    try:
        record = json.loads((folder / FILE).read_text())
        if record["results"] != results.digest:
            return {}
        return {
            category: [Suggested(str(word), "word list", float(score)) for word, score in found]
            for category, found in record["names"].items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


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
    place = run.places()
    texts = directions(model.embed_texts([f"a photo of {word}" for word in words]))
    novel = [number for number in np.unique(results.category).tolist() if number >= results.n_known]
    found = {}
    for done, number in enumerate(novel):
        rows = np.flatnonzero(results.category == number)
        typical = rows[np.argsort(-results.confidence[rows], kind="stable")][:PHOTOS]
        paths = place([results.files[row] for row in typical.tolist()])
        photos = [image for path in paths if (image := _photo(path)) is not None]
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
    return getattr(found, "pooler_output", found).numpy()


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
