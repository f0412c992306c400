"""`calibrant convert IN OUT`: predictions from one file format to another."""

from __future__ import annotations

import json

import typer

from calibrant.cli import inputs
from calibrant.cli.plain import say


def convert(
    source: str = typer.Argument(..., metavar="IN", help="File, folder or embedded name; file#part picks one part."),
    target: str = typer.Argument(..., metavar="OUT", help="File to write; its suffix says the format."),
    *,
    kind: str = inputs.KIND,
    task: str = inputs.TASK,
    scores: str = inputs.SCORES,
    labels: str = inputs.LABELS,
    weights: str = inputs.WEIGHTS,
    class_names: str = inputs.CLASS_NAMES,
    ignore_index: int = inputs.IGNORE_INDEX,
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Convert predictions between .npz, .npy, .parquet, .safetensors, .csv and .csv.gz; pickles are only read.

    A file of several parts (val and test) is converted as a whole to .npz or .safetensors.
    """
    from calibrant.cli.bar import progress_bar
    from calibrant.data import open_parts, write_predictions

    with progress_bar(quiet=as_json):
        said = inputs.described(kind, task, scores, labels, weights, class_names, ignore_index)
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
