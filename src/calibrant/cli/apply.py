"""`calibrant apply cal.safetensors FILE -o out.npz`: calibrate predictions of any size, chunk by chunk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from calibrant.cli import options
from calibrant.cli.terminal import answer, progress_bar
from calibrant.core.errors import InputError
from calibrant.data import Predictions, as_predictions, open_parts, open_predictions, write_predictions
from calibrant.data.write import rewrite
from calibrant.shipping.apply import calibrate_predictions
from calibrant.shipping.artifact import Artifact, read_artifact


@options.verb
def apply(
    artifact: str,
    file: str,
    *,
    output: str,
    probabilities: bool = False,
    logits: bool = False,
    said: dict[str, Any],
    groups: str | None = None,
    as_json: bool = False,
) -> None:
    """Apply a saved calibrator to a file of predictions; a file of several parts is calibrated as a whole.

    The kind of the values stays what it was. Other columns and the order of rows stay too; a table written in the
    format of FILE keeps its layout.

    Parameters
    ----------
    file : Predictions; labels are kept where there are any.
    output : File to write; its suffix says the format.
    probabilities : Write probabilities, whatever FILE holds.
    logits : Write logits, whatever FILE holds.
    """
    if probabilities and logits:
        raise InputError("--probabilities and --logits exclude each other: give one of them")
    found = read_artifact(artifact)
    kind = "probabilities" if probabilities else "logits" if logits else None
    with progress_bar(quiet=as_json):
        how = {**said, "by": groups, "guard": False}
        try:
            opened = open_parts(file, **how)
        except InputError:
            # one part without labels opens this way, and everything else that is wrong is said this way
            opened = {"": open_predictions(file, require_labels=False, **how)}
        given = {name: _as_fitted(part, found) for name, part in opened.items()}
        calibrated = {
            name: calibrate_predictions(found.calibrator, part, kind or opened[name].kind)
            for name, part in given.items()
        }
        only, written = given.get(""), []
        if only is not None and only.task == opened[""].task:
            written = rewrite(only, calibrated[""], Path(file), Path(output))
        written = written or write_predictions(calibrated, output)
    rows = {name: part.n for name, part in given.items()}
    facts: dict[str, Any] = {
        "files": [str(one) for one in written],
        "n": sum(rows.values()),
        "method": found.method,
        "kind": next(iter(calibrated.values())).kind,
        "parts": rows,
        "notes": list(dict.fromkeys(note for part in given.values() for note in part.notes)),
    }
    done = f"{facts['n']} rows calibrated by {facts['method']}, written as {facts['kind']}"
    answer(as_json, facts, [f"{done}: {', '.join(facts['files'])}", *(f"note: {note}" for note in facts["notes"])])


def _as_fitted(part: Predictions, artifact: Artifact) -> Predictions:
    """The columns in the artifact's order; two columns become one score where the calibrator was fitted on one."""
    # a method around a network has no task: it is refused later, in a line of its own
    if part.task == "multiclass" and part.n_classes == 2 and artifact.calibrator.task_ == "binary":
        part = as_predictions(part, task="binary")
    return part if artifact.schema is None else part.aligned(artifact.schema, "the artifact")
