"""`calibrant apply cal.safetensors FILE -o out.npz`: calibrate predictions of any size, chunk by chunk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from calibrant.cli import inputs
from calibrant.cli.bar import progress_bar
from calibrant.cli.plain import say
from calibrant.core.errors import InputError


@inputs.reads_predictions
def apply(
    artifact: str = typer.Argument(..., metavar="ARTIFACT", help="A saved calibrator, such as cal.safetensors."),
    file: str = typer.Argument(..., metavar="FILE", help="Predictions; labels are kept where there are any."),
    *,
    output: str = typer.Option(..., "--output", "-o", help="File to write; its suffix says the format."),
    probabilities: bool = typer.Option(False, "--probabilities", help="Write probabilities, whatever FILE holds."),
    logits: bool = typer.Option(False, "--logits", help="Write logits, whatever FILE holds."),
    said: dict[str, Any],
    groups: str = inputs.GROUPS,
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Apply a saved calibrator to a file of predictions; a file of several parts is calibrated as a whole.

    The kind of the values stays what it was. Other columns and the order of rows stay too; a table written in the
    format of FILE keeps its layout.
    """
    from calibrant.data import write_predictions
    from calibrant.data.rewrite import can_rewrite, rewrite
    from calibrant.shipping.apply import calibrate_predictions
    from calibrant.shipping.artifact import read_artifact

    if probabilities and logits:
        raise InputError("--probabilities and --logits exclude each other: give one of them")
    found = read_artifact(artifact)
    calibrator = found.calibrator
    told = "probabilities" if probabilities else ("logits" if logits else None)
    with progress_bar(quiet=as_json):
        opened = _open(file, {**said, "by": groups})
        given = {name: _as_fitted(part, found) for name, part in opened.items()}
        calibrated = {
            name: calibrate_predictions(calibrator, part, told or opened[name].kind) for name, part in given.items()
        }
        only = given.get("")
        if only is not None and can_rewrite(only, Path(file), Path(output)) and only.task == opened[""].task:
            files = [str(rewrite(only, calibrated[""], Path(file), Path(output)))]
        else:
            files = [str(written) for written in write_predictions(calibrated, output)]
    result_kind = next(iter(calibrated.values())).kind
    rows = sum(part.n for part in given.values())
    notes = list(dict.fromkeys(note for part in given.values() for note in part.notes))
    if as_json:
        described = {"files": files, "n": rows, "method": type(calibrator).__name__, "kind": result_kind}
        typer.echo(json.dumps({**described, "parts": {name: part.n for name, part in given.items()}, "notes": notes}))
        return
    say(f"{rows} rows calibrated by {type(calibrator).__name__}, written as {result_kind}: {', '.join(files)}")
    for note in notes:
        say(f"note: {note}")


def _as_fitted(part: Any, artifact: Any) -> Any:
    """The columns in the artifact's order; two columns become one score where the calibrator was fitted on one."""
    from calibrant.data import as_predictions

    two = part.task == "multiclass" and part.n_classes == 2
    if two and getattr(artifact.calibrator, "task_", "multiclass") == "binary":
        part = as_predictions(part, task="binary")
    return part if artifact.schema is None else part.aligned(artifact.schema, "the artifact")


def _open(file: str, said: dict[str, Any]) -> dict[str, Any]:
    """Every part of a file; labels may be missing."""
    from calibrant.data import open_parts, open_predictions

    try:
        return open_parts(file, guard=False, **said)
    except InputError:
        # one part without labels opens this way, and everything else that is wrong is said this way
        return {"": open_predictions(file, require_labels=False, guard=False, **said)}
