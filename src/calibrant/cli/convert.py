"""`calibrant convert IN OUT`: predictions from one file format to another."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from calibrant.cli import options
from calibrant.cli.terminal import answer, progress_bar
from calibrant.data import open_parts, write_predictions


@options.reads_predictions
def convert(
    source: options.Source,
    target: Annotated[str, typer.Argument(metavar="OUT", help="File to write; its suffix says the format.")],
    *,
    said: dict[str, Any],
    as_json: options.AsJson = False,
) -> None:
    """Convert predictions between .npz, .npy, .parquet, .safetensors, .csv and .csv.gz; pickles are only read.

    A file of several parts (val and test) is converted as a whole to .npz or .safetensors.
    """
    with progress_bar(quiet=as_json):
        parts = open_parts(source, **said)
        files = [str(file) for file in write_predictions(parts, target)]
    described = {
        name: {"n": part.n, "n_classes": part.n_classes, "kind": part.kind, "dtype": str(part.dtype)}
        for name, part in parts.items()
    }
    lines = [
        f"{name + ': ' if name else ''}{part.n} rows × {part.n_classes} classes, {part.kind}"
        for name, part in parts.items()
    ]
    answer(as_json, {"files": files, "parts": described}, [*lines, "wrote " + ", ".join(files)])
