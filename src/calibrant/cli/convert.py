"""`calibrant convert IN OUT`: predictions from one file format to another."""

from __future__ import annotations

import json
from typing import Any

import typer

from calibrant.cli import inputs
from calibrant.cli.bar import progress_bar
from calibrant.cli.plain import say


@inputs.reads_predictions
def convert(
    source: str = typer.Argument(..., metavar="IN", help="File, folder or embedded name; file#part picks one part."),
    target: str = typer.Argument(..., metavar="OUT", help="File to write; its suffix says the format."),
    *,
    said: dict[str, Any],
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Convert predictions between .npz, .npy, .parquet, .safetensors, .csv and .csv.gz; pickles are only read.

    A file of several parts (val and test) is converted as a whole to .npz or .safetensors.
    """
    from calibrant.data import open_parts, write_predictions

    with progress_bar(quiet=as_json):
        parts = open_parts(source, **said)
        files = [str(file) for file in write_predictions(parts, target)]
    if as_json:
        described = {
            name: {"n": part.n, "n_classes": part.n_classes, "kind": part.kind, "dtype": str(part.dtype)}
            for name, part in parts.items()
        }
        typer.echo(json.dumps({"files": files, "parts": described}))
        return
    for name, part in parts.items():
        say(f"{name + ': ' if name else ''}{part.n} rows × {part.n_classes} classes, {part.kind}")
    say("wrote " + ", ".join(files))
