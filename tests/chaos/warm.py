"""`selex` as processes of its own, many a second: forked from one that has the imports done and faults preloaded."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

COUNT, KILL, FAIL_ONCE, FAIL_FROM = 1, 2, 3, 4
HERE = Path(__file__).parent


class Done(NamedTuple):
    """How a process ended: its exit code (negative: the signal), its streams, its peak memory in bytes."""

    code: int
    out: str
    err: str
    peak: int

    @property
    def trouble(self) -> str:
        """What a user should not have seen: anything but success, or one line and exit code 2."""
        lines = [line for line in self.err.splitlines() if not line.startswith("note:")]
        if "Traceback" in self.err or self.code not in (0, 2):
            return f"exit code {self.code}: {' / '.join(self.err.splitlines()[-1:])}"
        if self.code == 2 and (len(lines) != 1 or not lines[0].startswith("error: ")):
            return f"exit code 2 with {len(lines)} lines: {' / '.join(lines)[:300]}"
        return ""


@dataclass(frozen=True)
class Fault:
    """What goes wrong, at which operation, below which folder; `journal` is the file that keeps what was done."""

    folder: Path
    kind: int = COUNT
    at: int = 0
    error: int = 0
    journal: Path | None = None

    def arm(self) -> None:
        """From now on, in this process."""
        log, copies = -1, Path()
        if self.journal:
            copies = self.journal.with_suffix(".copies")
            copies.mkdir(exist_ok=True)
            log = os.open(self.journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        arm = ctypes.CDLL(None).faults_arm
        arm.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p]
        arm(self.kind, self.at, self.error, os.fsencode(self.folder), log, os.fsencode(copies))


def build(folder: Path) -> Path:
    """The library that makes faults, compiled."""
    library = folder / "faults.so"
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, HERE / "faults.c", "-ldl"], check=True)
    return library


@dataclass
class Child:
    """A process that was started."""

    warm: Warm
    pid: int
    streams: Path
    done: Done | None = None

    def wait(self, timeout: float = 120) -> Done:
        """Until it ends; one that does not is killed, and its exit code is that of a timeout."""
        if self.done is None:
            code, peak = self.warm._ask(do="wait", pid=self.pid, timeout=timeout)
            out, err = (self.streams.with_suffix(name).read_text(errors="replace") for name in (".out", ".err"))
            self.done = Done(code, out, err, peak)
        return self.done

    @property
    def ended(self) -> bool:
        """Whether it has; a process that has ended waits for us as a zombie."""
        status = Path(f"/proc/{self.pid}/stat")
        return not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"

    def kill(self) -> None:
        """At once, as a power cut would."""
        os.kill(self.pid, signal.SIGKILL)


@dataclass
class Warm:
    """The process that others are forked from."""

    folder: Path
    started: int = 0
    _process: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        environment = os.environ | {"LD_PRELOAD": str(build(self.folder)), "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment["HF_HUB_OFFLINE"] = "1"
        command = [sys.executable, "-m", "chaos.warm"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

    def start(self, *arguments, cwd, fault=None, environment=None, call="selex.cli:main") -> Child:
        """A command, or whatever function is named; it finds the arguments in `sys.argv`."""
        self.started += 1
        streams = self.folder / f"streams-{self.started}"
        named = (
            None if fault is None else [str(fault.folder), fault.kind, fault.at, fault.error, str(fault.journal or "")]
        )
        for name in (".out", ".err"):
            streams.with_suffix(name).touch()
        words = [os.fsdecode(part) for part in arguments]
        pid = self._ask(do="start", arguments=words, cwd=str(cwd), fault=named, environment=environment or {},
                        call=call, streams=str(streams))  # fmt: skip
        return Child(self, pid, streams)

    def run(self, *arguments, timeout=120, **more) -> Done:
        """Start a command and wait for it."""
        return self.start(*arguments, **more).wait(timeout)

    def close(self) -> None:
        """End it."""
        with self._process:
            self._process.stdin.close()

    def _ask(self, **request):
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def _serve() -> None:
    """Answer requests until there are none."""
    _import_all()
    for line in sys.stdin:
        request = json.loads(line)
        answer = {"start": _start, "wait": _wait}[request.pop("do")](**request)
        sys.__stdout__.write(json.dumps(answer) + "\n")
        sys.__stdout__.flush()


def _import_all() -> None:
    import importlib
    import pkgutil

    import pyarrow.dataset
    import pyarrow.parquet  # noqa: F401

    import selex

    for module in pkgutil.walk_packages(selex.__path__, "selex."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def _start(arguments, cwd, fault, environment, call, streams) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.chdir(cwd)
        os.environ.update(environment)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for stream, name in ((1, ".out"), (2, ".err")):
            os.dup2(os.open(streams + name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), stream)
        sys.argv = ["selex", *arguments]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if fault:
            folder, kind, at, error, journal = fault
            Fault(Path(folder), kind, at, error, Path(journal) if journal else None).arm()
        _end(_call(call))
    finally:
        os._exit(70)


def _call(name: str) -> int:
    """Run a function as the main program would: what it raises is what a user sees."""
    import importlib
    import traceback

    module, _, function = name.partition(":")
    try:
        getattr(importlib.import_module(module), function)()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _end(code: int) -> None:
    """Leave as an interpreter does, with what is registered for the end, but without the modules of the parent."""
    import atexit
    import threading

    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _wait(pid, timeout) -> tuple[int, int]:
    end = time.monotonic() + timeout
    while True:
        found, status, used = os.wait4(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status), used.ru_maxrss * 1024
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            os.wait4(pid, 0)
            return 124, 0
        time.sleep(0.002)


if __name__ == "__main__":
    _serve()
