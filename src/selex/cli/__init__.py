"""The command line: a command is a plain function that reads, calls the library and writes."""

from selex.cli import features, photos, weights
from selex.cli.app import app, main

app.add_typer(weights.app, name="weights")

__all__ = ["app", "features", "main", "photos"]
