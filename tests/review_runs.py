"""Runs to review, without a network: their results are made up."""

import json

import numpy as np
from PIL import Image

from selex.config import Config
from selex.runs.run import Run
from selex.runs.writer import write_run


def labels_by_file(labels):
    """The label that decisions give to each file."""
    return {photo.file: name for photo, name in labels.decided.items()}


def aside_files(labels):
    """The files that decisions leave out."""
    return {photo.file for photo in labels.left_out}


def made_up_run(folder, photos, files, category, n_known, names, seed=0, dims=8):
    """A finished run in `folder`: features near one direction for each category, a third of known rows labelled."""
    rng = np.random.default_rng(seed)
    category, count = np.asarray(category), len(names)
    features = (3 * np.eye(max(count, dims))[category][:, : max(count, dims)]).astype(np.float32)
    features += rng.normal(0, 0.5, features.shape).astype(np.float32)
    columns = {
        "file": list(files),
        "cluster": category.tolist(),
        "category": [names[number] for number in category],
        "known": [int(number < n_known) for number in category],
        "labelled": [int(number < n_known and row % 3 == 0) for row, number in enumerate(category)],
        "confidence": rng.uniform(0.2, 1, len(files)).round(3).tolist(),
        "runner_up": [names[(number + 1) % count] for number in category],
        "distance": rng.uniform(0, 1, len(files)).tolist(),
        "level_1": category.tolist(),
        "level_2": (category >= n_known).astype(int).tolist(),
    }
    sizes = np.bincount(category, minlength=count).tolist()
    parents = [int(number >= n_known) for number in range(count)]
    levels = [
        {"n_known": n_known, "sizes": sizes, "parents": parents},
        {"n_known": 1, "sizes": [sum(sizes[:n_known]), sum(sizes[n_known:])], "parents": None},
    ]
    tree = {"names": list(names), "levels": levels, "estimate": None, "curve": None, "last_number": 0}
    config = Config.of(str(photos), categories=count, backbone="pixels")
    with write_run(folder, config, str(photos)) as run:
        np.save(run.features, features)
        run.features.with_name(run.features.name + ".json").write_text(json.dumps({}))
        run.publish(config, str(photos), [columns], tree, [], lambda model: None)
    return Run.open(folder)


def small_run(folder, n=40, count=5, n_known=2, images=False):
    """`n` rows in `count` categories; `folder/photos` has the images if they are asked for."""
    rng = np.random.default_rng(1)
    category = np.concatenate([np.arange(count), rng.integers(0, count, n - count)])
    files = [f"{row:03d}.png" for row in range(n)]
    (folder / "photos").mkdir(parents=True)
    for row, file in enumerate(files if images else []):
        Image.new("L", (8, 8), int(category[row] * 50)).save(folder / "photos" / file)
    names = [f"known-{i}" for i in range(n_known)] + [f"novel-{i + 1}" for i in range(count - n_known)]
    return made_up_run(folder / "run", folder / "photos", files, category, n_known, names)
