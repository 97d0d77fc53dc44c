"""The command line: a command is a plain function that reads, calls the library and writes."""

from selex.cli import bench, data, features, photos, results, settings
from selex.cli.app import app, main

app.add_typer(data.weights_app, name="weights")
app.add_typer(data.data_app, name="data")
app.add_typer(bench.app, name="bench")

__all__ = ["app", "features", "main", "photos", "results", "settings"]
