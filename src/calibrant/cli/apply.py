"""`calibrant apply cal.safetensors FILE -o out.npz`: calibrate predictions of any size, chunk by chunk."""

from __future__ import annotations

import json
from typing import Any

import typer


def apply(
    artifact: str = typer.Argument(..., metavar="ARTIFACT", help="A saved calibrator, such as cal.safetensors."),
    file: str = typer.Argument(..., metavar="FILE", help="Predictions; labels are kept where there are any."),
    *,
    output: str = typer.Option(..., "--output", "-o", help="File to write; its suffix says the format."),
    probabilities: bool = typer.Option(False, "--probabilities", help="Write probabilities instead of logits."),
    kind: str = typer.Option(None, "--kind", help="What the values of FILE are: logits or probabilities."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Apply a saved calibrator to a file of predictions; a file of several parts is calibrated as a whole."""
    from calibrant.cli.bar import progress_bar
    from calibrant.data import write_predictions
    from calibrant.shipping.apply import calibrate_predictions
    from calibrant.shipping.artifact import load

    calibrator = load(artifact)
    result_kind = "probabilities" if probabilities else "logits"
    with progress_bar(quiet=as_json):
        parts = _open(file, kind)
        calibrated = {name: calibrate_predictions(calibrator, part, result_kind) for name, part in parts.items()}
        files = [str(written) for written in write_predictions(calibrated, output)]
    rows = sum(part.n for part in parts.values())
    if as_json:
        described = {"files": files, "n": rows, "method": type(calibrator).__name__, "kind": result_kind}
        typer.echo(json.dumps({**described, "parts": {name: part.n for name, part in parts.items()}}))
        return
    typer.echo(f"{rows} rows calibrated by {type(calibrator).__name__}, written as {result_kind}: {', '.join(files)}")


def _open(file: str, kind: str | None) -> dict[str, Any]:
    """Every part of a file; labels are welcome but not needed."""
    from calibrant.core.errors import InputError
    from calibrant.data import open_parts, open_predictions

    try:
        return open_parts(file, kind=kind, guard=False)
    except InputError:
        # one part without labels opens this way, and everything else that is wrong is said this way
        return {"": open_predictions(file, kind=kind, require_labels=False, guard=False)}
