"""Suggested names: by a stand-in for a text-image model, by file names, by what a category is like."""

import json
import random
import sys
import unicodedata
import uuid
from collections import Counter
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from commands import refused, selex
from review_runs import made_up_run
from selex.errors import InputError
from selex.review.core.names import (
    FILE,
    count_words,
    from_files,
    load_text_image_model,
    read_suggested,
    read_words,
    suggest_names,
    words_of,
    write_suggested,
)
from selex.review.core.session import Review
from selex.review.server.views import Views
from selex.runs.results import Results

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (20, 40, 230), "grey": (128, 128, 128)}


class StandIn:
    """A space of colours: photos are their mean, texts the colour that they name."""

    def embed_images(self, images):
        return np.stack([np.asarray(image, dtype=np.float32).mean((0, 1)) for image in images])

    def embed_texts(self, texts):
        return np.array([COLOURS[text.rpartition(" ")[2]] for text in texts], dtype=np.float32)


@pytest.fixture
def run(tmp_path):
    """Two novel categories of plain colours, and a known one; files of the first novel one are called so."""
    files, category = [], []
    for number, (name, colour) in enumerate((("cat", "grey"), ("apple_red", "red"), ("x", "blue"))):
        for image in range(6):
            files.append(f"{name}{image}.png")
            category.append(number)
            (tmp_path / "photos").mkdir(exist_ok=True)
            Image.new("RGB", (20, 20), COLOURS[colour]).save(tmp_path / "photos" / files[-1])
    return made_up_run(tmp_path / "run", tmp_path / "photos", files, category, 1, ["cat", "novel-1", "novel-2"])


def test_the_words_that_suit_best_come_first_with_their_probability(run):
    told = []
    found = suggest_names(run, list(COLOURS), StandIn(), lambda *at: told.append(at))
    assert {name: best[0][0] for name, best in found.items()} == {"novel-1": "red", "novel-2": "blue"}
    assert all(0.5 < best[0][1] <= 1 and len(best) == 3 for best in found.values())
    assert told == [(1, 2), (2, 2)]


def test_the_page_offers_them_for_these_results_only(run):
    results = Results.read(run)
    write_suggested(run.folder, results, "stand-in", suggest_names(run, list(COLOURS), StandIn()))
    views = Views(Review(run.folder))
    first, second = views.category(1).suggested, views.category(2).suggested
    assert [(one.name, one.source) for one in first if one.source != "word list"] == [
        ("apple red", "file names"),
        ("like cat", "most similar known category"),
    ]
    assert (first[0].name, second[0].name, second[0].source) == ("red", "blue", "word list")
    assert views.category(0).suggested == [], "it has a name"
    record = json.loads((run.folder / FILE).read_text())
    for other in ({**record, "results": "others"}, {"names": 3}, []):
        (run.folder / FILE).write_text(json.dumps(other))
        assert read_suggested(run.folder, results) == {}


def test_words_of_file_names_are_those_that_others_do_not_have():
    files = (
        [f"birds/robin_{i}.jpg" for i in range(4)] + [f"birds/wren{i}.jpg" for i in range(4)] + ["birds/IMG_1.jpg"] * 8
    )
    everywhere = Counter(word for file in files for word in words_of(file))
    assert [one.name for one in from_files(files, np.arange(4), everywhere)] == ["robin"], "all are in birds"
    assert from_files(files, np.arange(8, 16), everywhere) == []
    assert from_files(files, np.array([0]), everywhere) == [], "one file is no evidence"


CAMERAS = [
    *(f"DSC_{i:04d}.jpg" for i in range(12, 16)),
    *(f"DCIM/100CANON/IMG_{i}.JPG" for i in range(2034, 2038)),
    *(f"WhatsApp Image 2024-03-{i} at 10.11.{i} AM.jpeg" for i in range(10, 14)),
    *(f"IMG-2024010{i}-WA000{i}.jpg" for i in range(4)),
    *(f"week 3/P10100{i}.jpg" for i in range(4)),
    *(f"PXL_20240102_10{i}455.jpg" for i in range(4)),
    *(f"{uuid.UUID(int=random.Random(i).getrandbits(128))}.jpg" for i in range(4)),
    *(f"{random.Random(i).getrandbits(128):032x}.jpg" for i in range(4)),
]


@pytest.mark.parametrize(
    "names",
    [
        [f"great-blue-heron_{i:04d}.jpg" for i in range(8)],
        [f"IMG great blue heron {i}.jpg" for i in range(8)],
        [f"Great_Blue_Heron_{i:04d}_{7 * i}.jpg" for i in range(8)],
        [f"004.Great_Blue_Heron/DSC_{i:04d}.jpg" for i in range(8)],
        [f"great blue heron/great_blue_heron{i}.jpg" for i in range(8)],
        [f"day {i}/great blue heron ({i}) - Copy.png" for i in range(8)],
        [f"great blue heron {i}.jpg" for i in range(5)] + CAMERAS[:3],
    ],
)
def test_a_name_of_several_words_is_suggested_whole(names):
    others = [f"{kind} {i}.jpg" for kind in ("little blue heron", "great egret", "grey heron") for i in range(8)]
    files = [*names, *others, *CAMERAS]
    found = from_files(files, np.arange(8), count_words(files))
    assert found[0].name == "great blue heron"
    assert not any("heron" in one.name for one in found[1:]), "no part of it beside it"


def test_what_cameras_and_programs_write_is_no_name():
    files = [*CAMERAS, *(f"great blue heron {i}.jpg" for i in range(4))]
    everywhere = count_words(files)
    for first in range(0, len(CAMERAS), 4):
        assert from_files(files, np.arange(first, first + 4), everywhere) == [], CAMERAS[first]


def test_what_all_files_share_is_left_out_and_what_some_say_comes_second():
    files = [f"Norway trip/{kind} Norway {i}.jpg" for kind in ("grey heron", "great blue heron") for i in range(4)]
    files += [f"Norway trip/wren Norway {i}.jpg" for i in range(40)]
    found = from_files(files, np.arange(8), count_words(files))
    assert [(one.name, one.score) for one in found][:2] == [("heron", 1.0), ("great blue heron", 0.5)]
    nfd = [unicodedata.normalize("NFD", f"mésange_bleue_{i}.jpg") for i in range(4)]
    nfd.extend(f"O'Brien's {i}.jpg" for i in "ab")
    assert from_files(nfd, np.arange(4), count_words(nfd))[0].name == "mésange bleue"
    assert from_files(nfd, np.array([4, 5]), count_words(nfd))[0].name == "o'brien's"


def stand_in_package(made):
    """What `open_clip` has that we use; pictures are their colour, texts the colour that they name."""
    package, model = ModuleType("open_clip"), StandIn()

    class Network:
        def eval(self):
            return self

        def encode_image(self, images):
            return images

        def encode_text(self, texts):
            return torch.tensor(model.embed_texts(texts))

    def create(kind, pretrained):
        made.append((kind, pretrained))
        return Network(), None, lambda image: torch.tensor(model.embed_images([image])[0])

    package.create_model_and_transforms = create  # type: ignore[attr-defined]
    package.get_tokenizer = lambda kind: lambda texts: texts  # type: ignore[attr-defined]
    return package


def test_open_clip_is_used_where_it_is_installed(run, monkeypatch):
    made = []
    monkeypatch.setitem(sys.modules, "open_clip", stand_in_package(made))
    found = suggest_names(run, list(COLOURS), load_text_image_model("ViT-L-14/openai"))
    assert made == [("ViT-L-14", "openai")]
    assert found["novel-2"][0][0] == "blue"


@pytest.mark.parametrize("answer", [lambda rows: rows, lambda rows: SimpleNamespace(pooler_output=rows)])
def test_transformers_of_either_kind_of_answer(run, monkeypatch, answer):
    model = StandIn()

    class Network:
        eval = from_pretrained = classmethod(lambda cls, *name: cls())

        def get_image_features(self, images):
            return answer(torch.tensor(model.embed_images(images)))

        def get_text_features(self, text):
            return answer(torch.tensor(model.embed_texts(text)))

    def process(return_tensors, padding=False, **given):
        return given

    package = SimpleNamespace(CLIPModel=Network, CLIPProcessor=SimpleNamespace(from_pretrained=lambda name: process))
    monkeypatch.setitem(sys.modules, "open_clip", None)
    monkeypatch.setitem(sys.modules, "transformers", package)
    assert suggest_names(run, list(COLOURS), load_text_image_model())["novel-2"][0][0] == "blue"


def test_without_a_model_or_a_word_list_it_is_one_line(run, monkeypatch, tmp_path):
    for package in ("open_clip", "transformers"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=r"pip install 'selex\[names\]'"):
        load_text_image_model()
    (tmp_path / "one.txt").write_text("\ufeffrobin\n\n  robin \n")
    for file in ("one.txt", "none.txt"):
        with pytest.raises(InputError, match=file):
            read_words(str(tmp_path / file))
    (tmp_path / "two.txt").write_text("blue  tit\nwren\nblue tit\n")
    assert read_words(str(tmp_path / "two.txt")) == ["blue tit", "wren"]
    refused("one.txt: has 1 words", "names", "run", "--names", "one.txt", cwd=tmp_path)
    refused("/dev/zero: is a device", "names", "run", "--names", "/dev/zero", cwd=tmp_path)


def test_the_command_writes_them_beside_the_results(run, monkeypatch, tmp_path):
    (tmp_path / "words.txt").write_text("\n".join(COLOURS))
    monkeypatch.setattr("selex.review.core.names.load_text_image_model", lambda name: StandIn())
    from selex.cli.results import names

    names(run.folder, tmp_path / "words.txt", None)
    assert read_suggested(run.folder, Results.read(run))["novel-1"][0].name == "red"
    assert selex("info", "run", cwd=tmp_path).returncode == 0
