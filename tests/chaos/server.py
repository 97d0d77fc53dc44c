"""The review page, or `selex serve`, as a process, and a client of it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

from chaos.lab import Lab
from chaos.warm import Done, Fault

GONE = (OSError, http.client.HTTPException)


WORDS = {"review": ("--port", "0", "--no-browser"), "serve": ("--port", "0", "--device", "cpu")}
ALIVE = {"review": "/api/standing", "serve": "/healthz"}
"""What each answers at any time."""


class Server:
    """`selex review run`, or `selex serve run`, started and waited for; use it in a `with`."""

    def __init__(self, lab: Lab, folder: str = "run", fault: Fault | None = None, command: str = "review") -> None:
        self.child = lab.start(command, folder, *WORDS[command], fault=fault)
        self.port, self.alive = 0, ALIVE[command]
        end = time.monotonic() + 60
        while not self.port and time.monotonic() < end and not self.child.ended:
            found = re.search(
                r"(?:review|serving): http://[^:]+:(\d+)/", self.child.streams.with_suffix(".out").read_text()
            )
            self.port = int(found[1]) if found else 0
            time.sleep(0.01)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def memory(self) -> int:
        """Resident bytes."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    @property
    def handles(self) -> int:
        """Open files and sockets."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def stop(self) -> Done:
        """Ctrl-C."""
        if not self.child.ended:
            os.kill(self.pid, signal.SIGINT)
        return self.child.wait(60)

    def ask(self, path: str, body: Any = None, timeout: float = 20) -> tuple[int, Any]:
        """Status and answer; whatever stands for a lost connection is raised as it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            method, data = ("GET", None) if body is None else ("POST", json.dumps(body))
            connection.request(method, path, data, {"Content-Type": "application/json"} if data else {})
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if path.startswith("/api/") else text
        finally:
            connection.close()

    @property
    def version(self) -> str:
        return self.ask("/api/standing")[1]["version"]
