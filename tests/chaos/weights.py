"""Weight files: pickles that would run something, headers that lie, shapes that do not fit; a fetch that is cut off."""

from __future__ import annotations

import http.server
import json
import os
import pickle
import random
import struct
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from chaos import lab as worlds
from chaos.cases import Plan, Tries, case
from chaos.damage import delete, empty, flip, scramble, truncate
from chaos.disk import Command, killed_at_random, killed_at_writes
from chaos.lab import PIXELS, Lab
from layouts_for_tests import small_vit

DATA = random.Random(0).randbytes(300_000)


class Payload:
    """What a hostile pickle is: something that is called when it is read."""

    def __init__(self, call: Callable[..., object], *arguments: object) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call, self.arguments


CALLS = {
    "system": (os.system, "touch canary"),
    "open": (open, "canary", "w"),
    "exec": (exec, "open('canary', 'w')"),
    "eval": (eval, "open('canary', 'w')"),
    "mkdir": (os.mkdir, "canary"),
    "import": (__import__, "canary"),
}


def _zip(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def _safetensors(path: Path, header: object, data: bytes = b"", length: int | None = None) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)


def hostile(folder: Path) -> Iterator[Path]:
    """One file after the other."""
    state = small_vit(image=32).state_dict()
    for name, call in CALLS.items():
        held = {**state, "x": Payload(*call)}
        torch.save(held, folder / f"{name}.pt")
        torch.save(held, folder / f"{name}-legacy.pth", _use_new_zipfile_serialization=False)
        (folder / f"{name}-plain.pth").write_bytes(pickle.dumps(held["x"], protocol=2))
        (folder / f"{name}.safetensors").write_bytes(pickle.dumps(held["x"]))
    one = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    headers: dict[str, object] = {
        "nothing": {},
        "text": b"not json",
        "list": [],
        "deep": b"[" * 100_000,
        "negative": {"a": one | {"shape": [-1]}},
        "overlap": {"a": one, "b": one},
        "beyond": {"a": one | {"data_offsets": [0, 2**60]}},
        "huge": {"a": one | {"shape": [2**40, 2**40]}},
        "kind": {"a": one | {"dtype": "Q9"}},
        "hole": {"a": one | {"data_offsets": [4, 12]}},
        "fine": {"a": one},
    }
    _safetensors(folder / "header-length.safetensors", {}, length=2**63)
    for name, header in headers.items():
        _safetensors(folder / f"header-{name}.safetensors", header, bytes(12 if name == "hole" else 8))
    shapes = {
        "scalar": {key: torch.zeros(()) for key in state},
        "empty": {key: torch.zeros(0) for key in state},
        "transposed": {
            key: value.flip(0).mT.contiguous() if value.ndim == 2 else value for key, value in state.items()
        },
        "integers": {key: torch.zeros(value.shape, dtype=torch.int8) for key, value in state.items()},
        "other": {"a": torch.zeros(3)},
        "half": dict(list(state.items())[: len(state) // 2]),
        "wide": {key: torch.zeros(*(2 * side for side in value.shape)) for key, value in state.items()},
    }
    for name, held in shapes.items():
        save_file({key: value.contiguous() for key, value in held.items()}, folder / f"shape-{name}.safetensors")
        torch.save(held, folder / f"shape-{name}.pth")
    for name, thing in {"none": None, "list": [1], "text": "x", "nested": {"model": {"model": {"a": 1}}}}.items():
        torch.save(thing, folder / f"holds-{name}.pth")
    _zip(folder / "bomb.pth", {"archive/data.pkl": b"\x80\x02}q\x00." + bytes(200_000_000)})
    _zip(folder / "no-pickle.pth", {"archive/version": b"3"})
    for suffix in (".pth", ".safetensors", ".bin", ""):
        (folder / f"empty{suffix}").write_bytes(b"")
        (folder / f"noise{suffix}").write_bytes(random.Random(1).randbytes(5000))
    yield from sorted(folder.iterdir())
    yield from map(Path, ("/etc/passwd", "/dev/zero", "/dev/null", "/proc/self/mem", "photos", "nowhere"))


@case("weights", "hostile and unfit files")
def unfit(lab: Lab, plan: Plan) -> Tries:
    """None is run, none is loaded by mistake: one line, exit code 2."""
    folder = lab.base / "hostile"
    folder.mkdir(exist_ok=True)
    pairs = [(path, way) for path in hostile(folder) for way in ("file", "weights")]
    for path, way in plan.some(pairs, few=5):
        lab.restore(worlds.photos)
        chosen = (
            ["--backbone", f"file:{path}"]
            if way == "file"
            else ["--backbone", "dinov2-vits14", "--set", f"features.weights={path}"]
        )
        done = lab.selex("discover", "photos", *PIXELS, *chosen, "--out", "run")
        ran = "it was run" if (lab.home / "canary").exists() else ""
        taken = "it was taken for weights" if done.code == 0 else ""
        advice = "repeats the advice to load it unsafely" if "weights_only" in done.err else ""
        lost = ran or done.trouble or taken or advice
        yield lost and f"{way} {path.name}: {lost}"


@contextmanager
def place() -> Iterator[str]:
    """An address to fetch from."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(DATA)))
            self.end_headers()
            self.wfile.write(DATA if self.command == "GET" else b"")

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/given.pth"
    finally:
        server.shutdown()
        server.server_close()


def fetch() -> None:
    """`selex weights fetch`, of a backbone that is at the address in the environment."""
    import hashlib

    from selex.cli import main
    from selex.models import BACKBONES
    from selex.models.registry import UrlFile

    source = UrlFile(os.environ["CHAOS_ADDRESS"], hashlib.sha256(DATA).hexdigest())
    BACKBONES["tiny-vit"] = replace(BACKBONES["tiny-vit"], sources=(source,))
    main()


def command(address: str) -> Command:
    """What is killed."""
    return Command(worlds.photos, ("weights", "fetch", "tiny-vit"), "chaos.weights:fetch", {"CHAOS_ADDRESS": address})


@case("killed at a write", "weights fetch")
def at_writes(lab: Lab, plan: Plan) -> Tries:
    with place() as address:
        yield from killed_at_writes(lab, plan, "weights fetch", command(address))


@case("killed at a random moment", "weights fetch")
def at_random(lab: Lab, plan: Plan) -> Tries:
    with place() as address:
        yield from killed_at_random(lab, plan, "weights fetch", command(address))


@case("damage", "the folder of weights")
def damaged(lab: Lab, plan: Plan) -> Tries:
    """`weights verify` names the file; `weights fetch` names it, or fetches it anew."""
    rng = random.Random(plan.seed)
    with place() as address:
        get = command(address)
        verify = replace(get, arguments=("weights", "verify"))
        for damage in plan.some([truncate, flip, empty, delete, scramble] * 4, few=2):
            lab.restore(worlds.photos)
            assert get.run(lab).code == 0
            (path,) = [one for one in (lab.world / "cache").rglob("*.pth") if one.read_bytes() == DATA]
            damage(path, rng)
            told, again = verify.run(lab), get.run(lab)
            quiet = "" if path.name in told.err or damage is delete else "weights verify does not name it"
            taken = "" if again.code or path.read_bytes() == DATA else "it is taken for what it was"
            lost = told.trouble or again.trouble or quiet or taken
            yield lost and f"{path.name}, {damage.__name__}: {lost}"
