"""What `make` would do on a fresh machine."""

import shutil
import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(
    not (ROOT / "Makefile").exists() or not shutil.which("make") or bool(shutil.which("nvidia-smi")),
    reason="needs make and no NVIDIA driver, in a checkout",
)


def setup(index):
    """The commands that make an environment, and what is said on standard error."""
    target = [f"BIN={ROOT}/no-such/bin", f"READY={ROOT}/no-such/ready", f"{ROOT}/no-such/ready"]
    done = subprocess.run(
        ["make", "-n", f"TORCH_INDEX={index}", *target],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    [install] = [line for line in done.stdout.splitlines() if "--editable" in line]
    assert "--constraint constraints.txt" in install
    return install, done.stderr


@pytest.fixture
def index(tmp_path):
    """The address of an index of packages that has torch."""
    (tmp_path / "torch").mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_torch_comes_from_the_index_for_cpus(index):
    install, said = setup(index)
    assert f"--extra-index-url {index} --editable" in install
    assert said == ""


def test_an_index_that_cannot_be_reached_is_named_and_left_out():
    install, said = setup("http://127.0.0.1:9/cpu")
    assert "index-url" not in install
    assert said.startswith("note: http://127.0.0.1:9/cpu cannot be reached: torch comes from the usual index")


def test_no_index_is_asked_unless_wanted():
    install, said = setup("")
    assert "index-url" not in install
    assert said == ""


@pytest.mark.parametrize("target", ["test", "coverage"])
def test_a_fixed_number_of_processes_shares_the_tests(target):
    for given, expected in (((), "2"), (("WORKERS=5",), "5")):
        line = ["make", "-n", "TORCH_INDEX=", f"BIN={ROOT}/no-such/bin", *given, target]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
        [command] = [line for line in done.stdout.splitlines() if "-m pytest" in line]
        assert f" --numprocesses {expected} " in command
