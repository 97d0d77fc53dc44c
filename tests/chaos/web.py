"""The review page, `selex serve` and whoever comes: random requests, smuggled bodies, dawdling clients, crowds."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import Counter
from contextlib import suppress

from chaos import lab as worlds
from chaos.cases import Plan, Tries, case
from chaos.lab import Lab
from chaos.server import GONE, Server

MB = 1 << 20
_LEAST = 2
PAGES = ("/", "/category/1", "/images", "/image/3", "/next", "/history", "/api/categories", "/api/images?page=2",
         "/api/suggestions", "/api/standing", "/api/rows", "/api/categories/2/parts?parts=3")  # fmt: skip


@case("web", "schemathesis, every route", "schemathesis, every route of serve")
def schema(lab: Lab, plan: Plan, name: str) -> Tries:
    """Requests made of the OpenAPI description, and ones that it does not allow: no answer is a 5xx."""
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings

    lab.restore(worlds.reviewed)
    with Server(lab, command=_command(name)) as server:
        described = schemathesis.openapi.from_url(f"http://127.0.0.1:{server.port}/openapi.json")
        answers: list[str] = []
        asked = []
        for found in described.get_all_operations():
            operation = found.ok()
            asked.append(operation)
            if (operation.method.upper(), operation.path) == ("POST", "/api/recluster"):
                continue  # starts a clustering; the case of re-clustering has it

            @settings(max_examples=plan.count(60, few=4), database=None, derandomize=True, deadline=None,
                      suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate])  # fmt: skip
            @given(request=operation.as_strategy())
            def ask(request: schemathesis.Case) -> None:
                if plan.late and len(answers) >= _LEAST * len(asked):
                    return
                answer = request.call(timeout=60)
                answers.append(
                    f"{request.method} {request.path}: {answer.status_code}" if answer.status_code >= 500 else ""
                )

            ask()
        yield from answers
        yield "" if server.ask(server.alive)[0] == 200 else "the page is gone"


def _command(name: str) -> str:
    return "serve" if name.endswith("serve") else "review"


def _head(*lines: str, path: str = "/api/decisions") -> bytes:
    first = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1:PORT", "Content-Type: application/json"]
    return "\r\n".join([*first, *lines, "", ""]).encode()


CHUNK = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
BODIES = {
    "a length and chunks": _head("Content-Length: 5", "Transfer-Encoding: chunked") + CHUNK * 640,
    "chunks alone": _head("Transfer-Encoding: chunked") + CHUNK * 640,
    "a long body": _head(f"Content-Length: {40 * MB}") + b"x" * 40 * MB,
    "two lengths": _head("Content-Length: 5", "Content-Length: 50000000") + b"x" * 10 * MB,
    "a negative length": _head("Content-Length: -1") + b"x" * MB,
    "a length of 5,000 digits": _head("Content-Length: " + "9" * 5000) + b"x" * MB,
    "a length that is no number": _head("Content-Length: \N{SUPERSCRIPT TWO}") + b"x" * 10,
    "a chunk of a wrong size": _head("Transfer-Encoding: chunked") + b"FFFFFFFFFFFFFFFF\r\n" + b"x" * MB,
    "chunks within chunks": _head("Transfer-Encoding: chunked, chunked") + CHUNK * 16,
    "a space before the colon": _head("Content-Length : 5", "Transfer-Encoding : chunked") + CHUNK * 16,
    "ten megabytes of headers": _head(*[f"X-{number}: {'y' * 1000}" for number in range(10_000)]),
    "one endless header": _head("X: " + "y" * 10 * MB),
    "no HTTP at all": b"\x16\x03\x01\x02\x00" + b"\x00" * 4096,
    "zeros": b"\x00" * MB,
    "a path of a megabyte": _head(path="/" + "a" * MB),
    "another request inside": _head("Content-Length: 2") + b"{}" + _head("Content-Length: 999999999") + b"x" * MB,
}


def _send(port: int, data: bytes, seconds: float = 8) -> bytes:
    """What a server answers to raw bytes; nothing where it hangs up."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        with suppress(OSError):  # it has heard enough
            connection.sendall(data.replace(b"PORT", str(port).encode()))
        try:
            return connection.recv(4096)
        except OSError:
            return b""


@case("web", "smuggled and oversized bodies", "smuggled and oversized bodies to serve")
def smuggled(lab: Lab, plan: Plan, name: str) -> Tries:
    lab.restore(worlds.reviewed)
    command = _command(name)
    with Server(lab, command=command) as server:
        server.ask(server.alive)
        before = server.memory
        for name in plan.some(list(BODIES), few=4):
            data = BODIES[name].replace(b"/api/decisions", b"/predict/batch") if command == "serve" else BODIES[name]
            answer = _send(server.port, data)
            status = answer.split(b" ")[1:2]
            lost = ["a 5xx"] if status and status[0].startswith(b"5") else []
            lost += [f"{(server.memory - before) // MB} MB more memory"] if server.memory - before > 64 * MB else []
            lost += [] if server.ask(server.alive)[0] == 200 else ["the page is gone"]
            yield f"{name}: {', '.join(lost)}" if lost else ""


@case("web", "clients that dawdle")
def slow(lab: Lab, plan: Plan) -> Tries:
    """Connections that say half a sentence; meanwhile the page answers others."""
    lab.restore(worlds.reviewed)
    count = plan.count(1500, few=100)
    with Server(lab) as server:
        idle = []
        try:
            for number in range(count):
                try:
                    idle.append(socket.create_connection(("127.0.0.1", server.port), timeout=2))
                    idle[-1].sendall((b"G", b"GET / HT", _head("Content-Length: 9") + b"{")[number % 3])
                except OSError:  # sent away at the door: as good
                    continue
            for _ in range(5):
                yield _answers(server, f"with {count} connections that wait")
        finally:
            for connection in idle:
                connection.close()
        yield _answers(server, "after they are gone")


def _answers(server: Server, when: str) -> str:
    try:
        status, _ = server.ask("/api/standing", timeout=15)
    except GONE as error:
        return f"{when}: no answer ({error})"
    return "" if status == 200 else f"{when}: {status}"


@case("web", "a crowd: 200 clients for a minute")
def crowd(lab: Lab, plan: Plan) -> Tries:
    """Each asks for one page after another and now and then decides something: no 5xx, memory flat."""
    lab.restore(worlds.reviewed)
    clients, seconds = (12, 4.0) if plan.short else (200, 60.0)
    found: Counter[str] = Counter()
    with Server(lab) as server:
        end = time.monotonic() + seconds
        threads = [threading.Thread(target=_visit, args=(server, number, end, found)) for number in range(clients)]
        for thread in threads:
            thread.start()
        time.sleep(seconds / 2)
        half, handles = server.memory, server.handles
        for thread in threads:
            thread.join()
        grown = server.memory - half
        yield from [""] * found["answers"]
        yield from (f"{what}: {count} times" for what, count in found.items() if what != "answers")
        yield f"memory grew by {grown // MB} MB in the second half" if grown > 32 * MB else ""
        yield f"{server.handles} handles are open, {handles} before" if server.handles > handles + 16 else ""


def _visit(server: Server, number: int, end: float, found: Counter[str]) -> None:
    rng = random.Random(number)
    while time.monotonic() < end:
        try:
            if rng.random() < 0.05:
                decision = {"kind": "confirm", "rows": [rng.randrange(40)]}
                status, _ = server.ask("/api/decisions", {"version": server.version, **decision}, timeout=60)
            else:
                status, _ = server.ask(rng.choice(PAGES), timeout=60)
        except GONE as error:
            found[f"a lost connection ({type(error).__name__})"] += 1
            continue
        found["answers" if status < 500 else f"status {status}"] += 1


@case("soak", "pages")
def soak(lab: Lab, plan: Plan) -> Tries:
    """2,000 pages, one after the other: memory and handles as after the first hundred."""
    lab.restore(worlds.reviewed)
    count, rng = plan.count(2000, few=60), random.Random(plan.seed)
    with Server(lab) as server:
        for number in range(count):
            status, _ = server.ask(rng.choice(PAGES))
            yield "" if status == 200 else f"status {status}"
            if number == count // 4:
                memory, handles = server.memory, server.handles
        grown = server.memory - memory
        yield f"memory grew by {grown // MB} MB" if grown > 16 * MB else ""
        yield f"{server.handles} handles are open, {handles} before" if server.handles > handles + 4 else ""
