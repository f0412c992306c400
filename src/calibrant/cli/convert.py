"""`calibrant convert IN OUT`: predictions from one file format to another."""

from calibrant.cli.apply import is_replaceable_by_predictions
from calibrant.cli.verbs import Fields, answer, progress_bar, verb
from calibrant.core.atomic import check_replaceable
from calibrant.data import open_parts, write_predictions


@verb
def convert(file: str, out: str, *, said: Fields, spreadsheet_safe: bool = False, as_json: bool = False) -> None:
    """Convert predictions between .npz, .npy, .parquet, .safetensors, .csv and .csv.gz; pickles are only read.

    A file of several parts (val and test) is converted as a whole to .npz or .safetensors.

    Parameters
    ----------
    out : File to write; its suffix says the format.
    """
    check_replaceable(out, is_replaceable_by_predictions, "a file of predictions")
    with progress_bar(as_json):
        parts = open_parts(file, **said)
        files = [str(written) for written in write_predictions(parts, out, spreadsheet_safe=spreadsheet_safe)]
    described, lines = {}, []
    for name, part in parts.items():
        described[name] = {"n": part.n, "n_classes": part.n_classes, "kind": part.kind, "dtype": str(part.dtype)}
        lines.append(f"{name + ': ' if name else ''}{part.n} rows × {part.n_classes} classes, {part.kind}")
    answer(as_json, {"files": files, "parts": described}, [*lines, f"wrote {', '.join(files)}"])
