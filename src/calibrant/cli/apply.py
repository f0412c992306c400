"""`calibrant apply cal.safetensors FILE -o out.npz`: calibrate predictions of any size, chunk by chunk."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from calibrant.cli.verbs import Fields, answer, progress_bar, verb
from calibrant.core.atomic import check_replaceable
from calibrant.core.errors import InputError
from calibrant.data import Predictions, open_parts, open_predictions, write_predictions
from calibrant.data.opening import suffix_of
from calibrant.data.write import TEXT, rewrite
from calibrant.shipping.apply import calibrate_predictions
from calibrant.shipping.artifact import is_artifact, read_artifact

DIGITS = 7
"""Of calibrated numbers in text: as many as float32 holds."""


def is_replaceable_by_predictions(path: Path) -> bool:
    """Return whether a file is neither an artifact nor a file of tensors without predictions, such as weights."""
    if suffix_of(path) != ".safetensors":
        return not is_artifact(path)
    try:
        return not is_artifact(path) and bool(open_parts(path, require_labels=None))
    except InputError:
        return False


def open_as_fitted(file: str, reading: Mapping[str, Any] | None, given: Fields) -> dict[str, Predictions]:
    """Open the parts of a file as the fit data were read, or by the names of its columns; labels may be missing."""
    fitted = given | {word: value for word, value in (reading or {}).get("options", {}).items() if given[word] is None}
    for how in (fitted, given) if fitted != given else (given,):
        for labels in (True, None):
            with suppress(InputError):
                return open_parts(file, **how, require_labels=labels)
    return open_parts(file, **given, require_labels=None)  # raises the error


@verb
def apply(
    artifact: str,
    file: str,
    *,
    output: str,
    probabilities: bool = False,
    logits: bool = False,
    said: Fields,
    groups: str | None = None,
    spreadsheet_safe: bool = False,
    as_json: bool = False,
) -> None:
    """Apply a saved calibrator to a file of predictions; a file of several parts is calibrated as a whole.

    The kind of the values stays what it was. Other columns and the order of rows stay too; a table written in the
    format of FILE keeps its layout.

    Parameters
    ----------
    file : Predictions; labels are kept where there are any, and may be missing.
    output : File to write; its suffix says the format.
    probabilities : Write probabilities, whatever FILE holds.
    logits : Write logits, whatever FILE holds.
    """
    if probabilities and logits:
        raise InputError("--probabilities and --logits exclude each other: give one of them")
    check_replaceable(output, is_replaceable_by_predictions, "a file of predictions")
    found = read_artifact(artifact)
    calibrator = found.calibrator
    digits = DIGITS if suffix_of(Path(output)) in TEXT else 0
    kind = "probabilities" if probabilities else "logits" if logits else None
    with progress_bar(as_json):
        # every row is calibrated, also one that --ignore-index would leave out
        how = {**said, "by": groups, "guard": False, "ignore_index": None}
        opened = open_as_fitted(file, found.reading, how)
        given, calibrated = {}, {}
        for name, part in opened.items():
            one = part
            # two columns become one score where the calibrator was fitted on one; a method around a network has no
            # task: it is refused later, in a line of its own
            if part.task == "multiclass" and part.n_classes == 2 and calibrator.task_ == "binary":
                one = open_predictions(part, task="binary")
            # the columns in the artifact's order
            given[name] = one if found.schema is None else one.aligned(found.schema, "the artifact")
            calibrated[name] = calibrate_predictions(calibrator, given[name], kind or part.kind, digits)
        only, written = given.get(""), []
        if only is not None and only.task == opened[""].task:
            written = rewrite(only, calibrated[""], Path(file), Path(output), spreadsheet_safe=spreadsheet_safe)
        written = written or write_predictions(calibrated, output, spreadsheet_safe=spreadsheet_safe)
    parts, method = {name: part.n for name, part in given.items()}, found.method
    files, n, kind = list(map(str, written)), sum(parts.values()), next(iter(calibrated.values())).kind
    notes = list(dict.fromkeys(note for part in given.values() for note in part.notes))
    done = f"{n} rows calibrated by {method}, written as {kind}: {', '.join(files)}"
    facts = {"files": files, "n": n, "method": method, "kind": kind, "parts": parts, "notes": notes}
    answer(as_json, facts, [done, *(f"note: {note}" for note in notes)])
