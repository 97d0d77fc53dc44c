"""The command line: a command is a plain function that reads, calls the library and writes."""

from selex.cli import bench, data, features, photos, results, settings
from selex.cli.app import MORE, app, main

app.command("config", rich_help_panel=MORE)(settings.show_config)
app.add_typer(data.weights_app, name="weights", rich_help_panel=MORE)
app.add_typer(data.data_app, name="data", rich_help_panel=MORE)
app.add_typer(bench.app, name="bench", rich_help_panel=MORE)

__all__ = ["app", "features", "main", "photos", "results", "settings"]
