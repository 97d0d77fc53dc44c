"""Clients that send too much, too slowly or nothing at all, over real sockets."""

import asyncio
import contextlib
import http.client
import json
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from review_runs import small_run
from selex.review.core.session import Review
from selex.review.server import serve as serving
from selex.review.server.app import create_app
from selex.review.server.guard import LARGEST_BODY, Door
from selex.review.server.serve import listen, server_of

DECISION = json.dumps({"version": "1.0", "kind": "confirm", "category": 0}).encode()
POST = b"POST /api/decisions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"


@pytest.fixture
def patience():
    return 0.5


@pytest.fixture
def server(tmp_path, monkeypatch, patience):
    """A server in a thread, with little patience."""
    monkeypatch.setattr(serving, "SECONDS", patience)
    review, listener = Review(small_run(tmp_path, images=True).folder), listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    server = server_of(create_app(review, Door(port)))
    server.port = port  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    yield server
    server.should_exit = True
    thread.join(60)
    assert not thread.is_alive(), "a connection keeps the server from ending"
    listener.close()
    review.ledger.close()


@pytest.fixture
def port(server):
    return server.port


@pytest.fixture
def process(tmp_path):
    """`selex review` as users run it, with as many open files as is usual."""
    small_run(tmp_path, images=True)
    command = [sys.executable, "-m", "selex", "review", "run", "--no-browser", "--port", "0"]
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))  # noqa: E731
    server = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, preexec_fn=limit)
    assert server.stdout.readline() == "reading run: 40 images\n", "before anything that takes long"
    server.port = int(re.search(r":(\d+)/", server.stdout.readline())[1])  # type: ignore[attr-defined]
    yield server
    server.send_signal(signal.SIGINT)
    assert server.wait(60) == 0
    server.stdout.close()


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def standing(port):
    """The version, from a client that behaves and waits less long than the page would for others."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=15)) as client:
        client.request("GET", "/api/standing")
        return json.load(client.getresponse())["version"]


def status_of(connection):
    return int(connection.recv(100).split()[1])


def closed_after(connection):
    """Seconds until the other side has closed a connection."""
    begin = time.perf_counter()
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(1 << 16):
            pass
    return time.perf_counter() - begin


def until(true, seconds):
    """Wait for something."""
    end = time.perf_counter() + seconds
    while not true():
        assert time.perf_counter() < end
        time.sleep(0.02)


def peak(process):
    """The most memory a process had, in MB."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())[1]) / 1024


@pytest.mark.parametrize("said", [b"Content-Length: 5\r\n", b""])
def test_of_a_body_in_chunks_no_more_is_kept_than_may_be_sent(process, said):
    before = peak(process)
    chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    with connect(process.port) as connection:
        connection.sendall(POST % process.port + said + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(100):
            connection.sendall(chunk)
        connection.sendall(b"0\r\n\r\n")
        assert status_of(connection) == 413
    assert peak(process) - before < 40
    assert standing(process.port) == "1.0"


def test_bytes_are_counted_whatever_was_said(tmp_path):
    """Behind a server that does not hold a body to its Content-Length."""
    app = create_app(Review(small_run(tmp_path).folder), Door(80))
    headers = {b"host": b"127.0.0.1", b"content-type": b"application/json", b"content-length": b"5"}
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/api/decisions",
        "query_string": b"",
        "headers": [*headers.items()],
    }
    given, answers = [], []

    async def receive():
        given.append(1 << 20)
        return {"type": "http.request", "body": b" " * (1 << 20), "more_body": len(given) < 40}

    async def send(message):
        answers.append(message)

    asyncio.run(app(scope, receive, send))
    assert [answer["status"] for answer in answers if "status" in answer] == [413]
    said = b"".join(answer.get("body", b"") for answer in answers)
    assert said == b"refused: the body is too large: send at most 8 MB\n"
    assert len(given) == 40, "the rest is read, and dropped"


@pytest.mark.parametrize("length", [b"9" * 5000, b"-1", b"%d" % (LARGEST_BODY + 1), b"5, 6", b"\xb2"])
def test_lengths_that_are_none(port, length):
    with connect(port) as connection:
        connection.sendall(POST % port + b"Content-Length: " + length + b"\r\n\r\n")
        assert status_of(connection) in (400, 411, 413)
    assert standing(port) == "1.0"


SLOW = {
    "nothing": b"",
    "half a header": b"GET / HTTP/1.1\r\nHost: 127.0",
    "half a body": POST + b"Content-Length: 100\r\n\r\n{",
    "a header after an answer": b"GET /api/standing HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\nGET",
}


@pytest.mark.parametrize("sent", SLOW.values(), ids=SLOW)
def test_what_does_not_come_is_not_waited_for(port, sent):
    with connect(port) as connection:
        connection.sendall(sent % port if b"%d" in sent else sent)
        assert closed_after(connection) > 0.2


@pytest.mark.parametrize("sent", [b"", POST + b"Content-Length: 100\r\n\r\n"], ids=["header", "body"])
def test_a_byte_now_and_then_gains_no_time(port, sent):
    with connect(port) as connection:
        connection.sendall(sent % port if sent else b"G")
        begin = time.perf_counter()
        with contextlib.suppress(OSError):
            while time.perf_counter() < begin + 60 and not select.select([connection], [], [], 0.1)[0]:
                connection.sendall(b" ")
        assert time.perf_counter() - begin < 60


def test_answers_that_are_not_taken_are_given_up(server):
    """Far more is asked for on one connection than what the network itself holds, and nothing is read."""
    request, begin = b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % server.port, time.perf_counter()
    with connect(server.port) as connection:
        connection.sendall(request * 1000)
        until(lambda: server.server_state.connections, 60)
        until(lambda: not server.server_state.connections, 60)
    assert server.server_state.total_requests < 1000
    assert time.perf_counter() - begin > 0.5
    assert standing(server.port) == "1.0"


@pytest.mark.parametrize("patience", [60])
def test_a_decision_sent_slowly_but_in_time_is_made(port):
    request = POST % port + b"Content-Length: %d\r\n\r\n" % len(DECISION) + DECISION
    with connect(port) as connection:
        for place in range(0, len(request), 60):
            connection.sendall(request[place : place + 60])
            time.sleep(0.02)
        assert status_of(connection) == 200
    assert standing(port) == "1.1"


def test_half_open_connections_do_not_silence_the_page(process):
    with contextlib.ExitStack() as held:
        for _ in range(1100):
            connection = held.enter_context(connect(process.port))
            connection.sendall(b"GET / HTTP/1.1\r\nHost: 127")
        assert standing(process.port) == "1.0"
    assert standing(process.port) == "1.0"


def test_ctrl_c_while_the_page_reclusters_says_what_is_kept(process, tmp_path):
    def post(path, body):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", process.port, timeout=60)) as client:
            client.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            assert client.getresponse().status == 200

    post("/api/decisions", json.loads(DECISION))
    before = (tmp_path / "run" / "clusters.parquet").read_bytes()
    post("/api/recluster", {})
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    *_, stopped, ended = process.stdout.read().splitlines()
    assert stopped == (
        "Reclustering was stopped: categories are as they were, and finished images, features and epochs are kept. "
        "`selex recluster run` resumes from there."
    )
    assert ended == "The server has ended. Every decision is saved."
    assert (tmp_path / "run" / "clusters.parquet").read_bytes() == before
    done = subprocess.run([sys.executable, "-m", "selex", "recluster", "run"], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr
