"""Run `selex` as a process of its own, quickly: forked from a server that has the heavy imports done."""

import importlib
import json
import multiprocessing
import os
import resource
import signal
import socket
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from selex.checksums import file_digest, stamped

Done = namedtuple("Done", "returncode stdout stderr")
OURS = ("SELEX_", "HF_")  # variables that a command gets as they are when it is started

SERVER = multiprocessing.get_context("forkserver")
LAZY = ["typer._adapters", "pyarrow.dataset", "pyarrow.parquet"]  # what others import late; skipped where not there
SERVER.set_forkserver_preload(["selex.discovery", "selex.cli", "selex.models", "selex.report.html", "commands", *LAZY])


def selex(*arguments, cwd, kill=None, interrupt=None, file_limit=None, environment=None, timeout=120):
    """Run a command and wait for it.

    `kill` and `interrupt` are ("module:name", n): the process gets SIGKILL or SIGINT at the n-th call of that function.
    """
    stop = _stop(kill, interrupt)
    process = start(*arguments, cwd=cwd, stop=stop, file_limit=file_limit, environment=environment)
    return _wait(process, cwd, timeout)


def several(*arguments, cwd, kill=None, slurm=False, timeout=120):
    """Run a command in two processes that know of each other, as `torchrun` or `srun` do; `kill` is the first one's."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    stops = (_stop(kill, None), None)
    started = []
    for rank in (0, 1):
        own = address | (_srun(rank) if slurm else _torchrun(rank))
        given = [str(argument).format(rank=rank) for argument in arguments]
        started.append(start(*given, cwd=cwd, stop=stops[rank], environment=own, streams=f".{rank}"))
    first = _wait(started[0], cwd, timeout, ".0")
    if first.returncode:
        started[1].join(60)
        started[1].terminate()  # as those who started it do when one of the two fails
    return first, _wait(started[1], cwd, timeout, ".1")


def _torchrun(rank):
    sizes = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "1", "GROUP_RANK": "0"}
    return sizes | {"RANK": str(rank), "LOCAL_RANK": str(rank), "TORCHELASTIC_RUN_ID": "test"}


def _srun(rank):
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "train", "SLURM_NODELIST": "127.0.0.1", "SLURM_NODEID": "0"}
    sizes = {"SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_NNODES": "1"}
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "127.0.0.1"}
    return job | sizes | step | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}


def _wait(process, cwd, timeout, streams=""):
    process.join(timeout)
    assert process.exitcode is not None, "still running"
    out, err = (Path(cwd) / f"{name}{streams}" for name in (".stdout", ".stderr"))
    done = Done(process.exitcode, out.read_text(), err.read_text())
    out.unlink()
    err.unlink()
    return done


def _stop(kill, interrupt):
    if kill:
        return (*kill, int(signal.SIGKILL))
    return (*interrupt, int(signal.SIGINT)) if interrupt else None


def start(*arguments, cwd, stop=None, file_limit=None, environment=None, streams=""):
    environment = (environment or {}) | {key: value for key, value in os.environ.items() if key.startswith(OURS)}
    request = json.dumps([[str(part) for part in arguments], str(cwd), environment, stop, file_limit, streams])
    process = SERVER.Process(target=_run, args=(request,))
    process.start()
    return process


def _run(request):
    arguments, cwd, environment, stop, file_limit, streams = json.loads(request)
    os.chdir(cwd)
    for stale in [key for key in os.environ if key.startswith(OURS)]:  # of the moment when the server was started
        del os.environ[stale]
    os.environ.update(environment)
    for stream, name in ((1, ".stdout"), (2, ".stderr")):
        os.dup2(os.open(name + streams, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    sys.argv = ["selex", *arguments]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if file_limit:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    if stop:
        _stop_at(*stop)
    from selex import progress
    from selex.cli import main

    progress.SECONDS_A_LINE = float("inf")  # how slow a machine is shows in no test
    main()


def _stop_at(place, call, number):
    """Send ourselves a signal at a call of a function, before it does anything."""
    module, _, path = place.partition(":")
    *parts, name = path.split(".")
    owner = importlib.import_module(module)
    for part in parts:
        owner = getattr(owner, part)
    real, calls = getattr(owner, name), []

    def counted(*args, **kwargs):
        calls.append(1)
        if len(calls) == call:
            os.kill(os.getpid(), number)
        return real(*args, **kwargs)

    setattr(owner, name, counted)


def digit_photos(folder, per_digit=12, n_known=3, digits=5):
    """Handwritten digits as PNG files: a third of each known digit in a folder that names it, the rest unlabelled.

    Returns the true digit of each file.
    """
    source, truth = load_digits(), {}
    for digit in range(digits):
        for position, row in enumerate(np.flatnonzero(source.target == digit)[:per_digit]):
            labelled = digit < n_known and position % 3 == 0
            name = f"{'digit ' + str(digit) if labelled else 'unlabelled'}/{row:04d}.png"
            truth[name] = digit
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((255 - source.images[row] * 15.9375).astype(np.uint8)).save(folder / name)
    return truth


def discovered_digits(home):
    """A folder with photos of digits and a run of them."""
    digit_photos(home / "photos", per_digit=30)
    base = ("discover", "photos", "--backbone", "pixels", "--categories", 5, "--out", "run", "--store", "store")
    done = selex(*base, cwd=home)
    assert done.returncode == 0, done.stderr
    return home


def reseal(folder, **changes):
    """Let a run whose files a test has changed be what its `config.json` describes; `changes` are to that itself."""
    record = json.loads((folder / "config.json").read_text()) | changes
    names = [name for name in record["files"] if (folder / name).exists()]
    record["files"] = {name: file_digest(folder / name) for name in names}
    (folder / "config.json").write_text(stamped({key: value for key, value in record.items() if key != "sha256"}))


def contents(folder):
    """Every file below a folder with its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def refused(message, *arguments, cwd, **more):
    """One line on standard error, exit code 2, and no file or folder that was not there before."""
    before, folders = contents(cwd), set(cwd.rglob("*"))
    done = selex(*arguments, cwd=cwd, **more)
    assert done.returncode == 2, done
    lines = [line for line in done.stderr.splitlines() if not line.startswith("note:")]
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    assert message in lines[0], lines[0]
    assert contents(cwd) == before
    assert set(cwd.rglob("*")) == folders
    return done
