"""The server on this machine, with the limits of that of the review page."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from selex.review.server.serve import LOOPBACK, address_of, door_for, listen, server_of
from selex.runs.predictor import load
from selex.runs.sorter import Sorter
from selex.serve.app import create_app


def serve(
    folder: Path,
    *,
    host: str = LOOPBACK,
    port: int = 8770,
    device: str = "cpu",
    tell: Callable[[str], None] = lambda line: None,
) -> None:
    """Sort images for whoever sends them, until Ctrl-C.

    Args:
        folder: a finished run.
        host: where to listen; anything but this machine itself needs a token, which the address shown has.
        port: 0 takes any that is free.
        device: where the backbone runs.
        tell: called with what a person should know.
    """
    with listen(host, port) as listener:
        sorter = Sorter(load(folder), device)
        door = door_for(host, listener.getsockname()[1])
        tell(f"serving: {address_of(host, door)}")
        tell("POST an image to /predict; /openapi.json describes the rest. Ctrl-C ends the server.")
        server = server_of(create_app(sorter, door))
        with suppress(KeyboardInterrupt), warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"PIL\.")  # of odd metadata and large images: we have our limits
            server.run(sockets=[listener])  # raises KeyboardInterrupt again once it has ended in good order
        sorter.close()
