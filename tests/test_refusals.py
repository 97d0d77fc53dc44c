"""What the system or a number does not allow: one line and exit code 2, never a traceback."""

import os
import subprocess
import sys

import pytest

from commands import refused, selex
from review_runs import small_run

LONG, HUGE = "x" * 300, "9" * 5000
DISCOVER = ("discover", "photos", "--backbone", "tiny-vit", "--categories", 5, "--out", "run")
TRAIN = (*DISCOVER, "--method", "selex", "--set", "train.batch=16", "--epochs", 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("discover", "photos", "--categories", HUGE), "cluster.categories must be a whole number"),
        (("discover", "photos", "--seed", 10**30), "seed is too large"),
        (("discover", "photos", "--epochs", 10**30), "train.epochs is too large"),
        (("discover", "photos", "--device", "meta"), "--device meta"),
        (("discover", "photos", "--set", "train.lr=1e308"), "train.lr is too large: 1e+308"),
        (("discover", "photos", "--set", f"train.micro_batch={10**30}"), "train.micro_batch is too large"),
        (("discover", "photos", "--set", f"train.view_bank={10**30}"), "train.view_bank is too large"),
        ((*TRAIN, "--set", f"train.view_bank={10**11}"), "more than there is: set a smaller train.view_bank"),
        (("discover", LONG), LONG),
        (("discover", "photos", "--out", LONG), LONG),
        (("discover", "photos", "--labels", LONG), LONG),
        (("discover", "photos", "--set", f"features.weights={LONG}"), LONG),
        (("discover", "photos", "--store", LONG, "--backbone", "pixels"), LONG),
        (("info", LONG), f"{LONG}: File name too long"),
        (("predict", LONG, "photos"), f"{LONG}: File name too long"),
        (("review", LONG), f"{LONG}: File name too long"),
        (("export", "run", "--to", "csv", "--out", LONG), f"{LONG}: File name too long"),
        (("export", "run", "--to", "folders", "--out", LONG), LONG),
        (("report", "run", "--out", LONG), f"{LONG}: File name too long"),
    ],
    ids=lambda value: " ".join(map(str, value))[:40] if isinstance(value, tuple) else "",
)
def test_names_and_numbers_that_are_too_much(place, arguments, message):
    if "run" in arguments[1:2]:
        small_run(place / "made")
        (place / "made" / "run").rename(place / "run")
    refused(message, *arguments, cwd=place)


def test_a_host_that_is_no_name(tmp_path):
    small_run(tmp_path)
    selex("export", "run", "--to", "csv", "--out", "a.csv", cwd=tmp_path)
    for host in ("evil..", LONG):
        done = selex("review", "run", "--no-browser", "--host", host, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (2, f"error: --host {host}: not a host name\n")


def command(*arguments, **more):
    """As a shell starts it."""
    return subprocess.run(
        [sys.executable, "-m", "selex", *map(str, arguments)], stderr=subprocess.PIPE, text=True, timeout=120, **more
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_standard_output(tmp_path, unbuffered):
    small_run(tmp_path)
    with open("/dev/full", "w") as full:
        done = command("info", "run", cwd=tmp_path, stdout=full, env=os.environ | {"PYTHONUNBUFFERED": unbuffered})
    assert (done.returncode, done.stderr) == (2, "error: standard output: No space left on device\n")


def test_a_reader_that_goes_away(place):
    reader, writer = os.pipe()
    os.close(reader)
    done = command(*DISCOVER, cwd=place, stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (2, "error: standard output: Broken pipe\n")
    assert selex(*DISCOVER, cwd=place).returncode == 0, "and the same command resumes"


def test_the_first_line_is_all_that_somebody_wants(tmp_path):
    small_run(tmp_path)
    words = [sys.executable, "-m", "selex", "info", "run"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as process:
        assert os.read(process.stdout.fileno(), 6) == b"photos"
        process.stdout.close()
        assert (process.wait(), process.stderr.read()) == (0, b"")


def test_errors_that_nobody_can_be_told(tmp_path):
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "selex", "info", "nowhere"], cwd=tmp_path, stderr=full)
    assert done.returncode == 2


def test_a_working_folder_that_is_gone(tmp_path):
    begin = "import os, sys; os.rmdir(os.getcwd()); sys.argv[1:] = ['discover', 'photos']"
    code = f"{begin}; from selex.__main__ import main; main()"
    gone = tmp_path / "gone"
    gone.mkdir()
    done = subprocess.run([sys.executable, "-c", code], cwd=gone, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: the folder this was started in no longer exists; change to another\n"


def test_control_c_while_the_command_line_is_built(tmp_path):
    done = selex("info", "run", cwd=tmp_path, interrupt=("typer.main:get_command", 1))
    assert (done.returncode, done.stderr) == (130, "stopped; nothing was written\n")


def test_control_c_while_modules_are_imported(tmp_path):
    code = """
import signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that runs us in the background has it ignored

class Impatient:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Impatient())
from selex.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "stopped; nothing was written\n")


def test_control_c_while_compiled_code_imports(tmp_path):
    """As torch and numpy do while they are loaded: `python -m` then ends by the signal, unless it is told not to."""
    (tmp_path / "begin.py").write_text("""
import ctypes, sys

class Compiled:
    def find_spec(self, name, path=None, target=None):
        if name == "selex.data.features":
            run = ctypes.pythonapi.PyRun_String
            run.restype = ctypes.py_object
            run(b"raise KeyboardInterrupt", 257, ctypes.py_object({}), ctypes.py_object({}))

sys.meta_path.insert(0, Compiled())
from selex.__main__ import main
main()
""")
    command = [sys.executable, "-m", "begin", "cluster", "features.npy"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "stopped; nothing was written\n")
