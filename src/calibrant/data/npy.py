"""`.npy`: a pair of files, the matrix and its labels side by side.

`val_logits.npy` (or `val_probabilities.npy`) finds `val_labels.npy`, and, where they exist, `val_weights.npy` and
`val_class_names.npy`; `logits.npy` finds `labels.npy`. `val.npy` stands for such a pair when no file of that name
exists. A matrix of another name needs `kind=`, and its labels are `NAME_labels.npy` beside it or `labels=`.
"""

from __future__ import annotations

import ast
import io
import re
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np

from calibrant.core.atomic import atomic_write
from calibrant.core.errors import InputError
from calibrant.core.schema import KINDS
from calibrant.data.fields import CLASS_NAMES, CORRECT, LABEL_SHARES, LABELS, WEIGHTS, Field, Header, Wanted
from calibrant.data.predictions import Predictions
from calibrant.data.raw import RawField

SINGLE = {("binary", "probabilities"): "probability", ("pairs", "probabilities"): "confidence"}
"""What files call one score per row, by task and kind; logits keep their name."""

COMPANIONS = (*LABELS, *WEIGHTS, CLASS_NAMES, CORRECT, LABEL_SHARES, "clusters", "group")
"""Files beside a matrix that belong to it."""

MAGIC = b"\x93NUMPY"
MAX_HEADER = 10_000
PLAIN_DTYPE = re.compile(r"[<>|=]?([fiub?])(1|2|4|8|16)?|[<>|=]?[US]\d{1,8}")


def fields(path: Path, wanted: Wanted) -> dict[str, Field]:
    """The matrix at `path` and the files beside it that belong to it."""
    path = matrix_path(path)
    kind, word = wanted.kind, _kind_word(path.stem)
    if word is None and is_companion(path):
        raise InputError(f"{path} is the companion of a matrix: open the file of the logits or probabilities")
    if word is None and kind is None:
        raise InputError(
            f'{path} does not say what it holds: give kind="logits" or kind="probabilities" (--kind), '
            f"or call the file {path.stem}_logits.npy"
        )
    found: dict[str, Field] = {word or kind or "": array_field(path)}
    for companion, name in companions(path.stem).items():
        beside = path.with_name(name)
        if beside.is_file():
            found[companion] = array_field(beside)
    return found


def companions(stem: str) -> dict[str, str]:
    """What may lie beside a matrix whose file has this name without `.npy`, and the names of those files."""
    word = _kind_word(stem)
    prefix = stem[: -len(word)] if word else f"{stem}_"
    return {companion: f"{prefix}{companion}.npy" for companion in COMPANIONS}


def matrix_path(path: Path) -> Path:
    """The file itself, or the one of a pair that `NAME.npy` stands for."""
    if not path.exists():
        for kind in (*KINDS, *SINGLE.values()):
            beside = path.with_name(f"{path.stem}_{kind}.npy")
            if beside.is_file():
                return beside
    return path


def is_companion(path: Path) -> bool:
    """Is this the labels, weights or class names of another file?"""
    return _kind_word(path.stem) is None and any(
        path.stem == word or path.stem.endswith(f"_{word}") for word in COMPANIONS
    )


def array_field(path: Path) -> RawField:
    """The array of one `.npy` file, unread."""
    with path.open("rb") as file:
        header = read_header(file, str(path))
        return RawField(path, file.tell(), header, str(path))


def read_header(file: IO[bytes], called: str) -> Header:
    """Shape, order and dtype of an array in the npy format; leaves the file at the first byte of the data."""
    start = file.read(8)
    if not start:
        raise InputError(f"{called} is empty (0 bytes): it is not an npy array")
    if len(start) < 8 or start[:6] != MAGIC:
        raise InputError(f"{called} is not an npy array: it begins with {start[:6]!r}, not {MAGIC!r}")
    width = {1: 2, 2: 4, 3: 4}.get(start[6])
    if width is None:
        raise InputError(f"{called} is npy version {start[6]}.{start[7]}, but only 1.0 to 3.0 are read")
    size = int.from_bytes(file.read(width), "little")
    if size > MAX_HEADER:
        raise InputError(f"{called}: the npy header claims {size} bytes, but at most {MAX_HEADER} are read")
    text = file.read(size)
    if len(text) < size:
        raise InputError(f"{called}: the npy header has {len(text)} of {size} bytes: the file is truncated")
    return _parse_header(text, called)


def _parse_header(text: bytes, called: str) -> Header:
    try:
        # literal_eval builds constants only; npy headers are defined as Python literals
        header = ast.literal_eval(text.decode("utf-8", "replace").strip())
        descr, fortran, shape = header["descr"], header["fortran_order"], header["shape"]
        sides = tuple(int(side) for side in shape)
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError, OverflowError) as error:
        raise InputError(f"{called}: the npy header is damaged: {text[:60]!r}") from error
    if any(isinstance(side, bool) or not isinstance(side, int) or side < 0 for side in shape) or len(sides) > 32:
        raise InputError(f"{called}: the npy header claims the shape {str(shape)[:60]}")
    return Header(sides, plain_dtype(descr, called), bool(fortran))


def plain_dtype(word: Any, called: str) -> np.dtype[Any]:
    """The dtype that a file names, if it is one of plain numbers or texts."""
    if isinstance(word, str) and "O" in word:
        raise InputError(
            f"{called} is an object array, which can run code when read: save plain numbers (dtype object)"
        )
    try:
        if isinstance(word, str) and PLAIN_DTYPE.fullmatch(word):
            return np.dtype(word)
    except TypeError:
        pass  # such as a float of one byte
    shown = f"dtype {word[:60]}" if isinstance(word, str) else "a dtype of several fields"
    raise InputError(f"{called} has {shown}, but only plain numbers and texts are read")


def header_bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """The npy header of a row-major array, padded to 64 bytes."""
    stream = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def write(parts: dict[str, Predictions], path: Path) -> list[Path]:
    """Write the matrix and, beside it, its labels, weights and class names; return the files."""
    (predictions,) = parts.values()
    stem = path.stem
    word = _kind_word(stem)
    prefix = stem[: -len(word)] if word else f"{stem}_"
    own = score_word(predictions)
    if word not in (None, own, predictions.kind):
        raise InputError(f"{path} says {word}, but {predictions.name or 'the input'} holds {predictions.kind}")
    columns = vectors(predictions)
    files = [path.with_name(f"{prefix}{name}.npy") for name in (word or own, *columns)]
    with ExitStack() as stack:
        # all names appear together, after every byte is on disk
        temporaries = [stack.enter_context(atomic_write(file)) for file in files]
        with temporaries[0].open("wb") as file:
            write_matrix(predictions, file)
        for temporary, array in zip(temporaries[1:], columns.values(), strict=True):
            with temporary.open("wb") as file:
                file.write(header_bytes(array.shape, array.dtype) + array.tobytes())
    return files


def write_matrix(predictions: Predictions, file: IO[bytes]) -> None:
    """The values in the npy format, chunk by chunk."""
    file.write(header_bytes(stored_shape(predictions), predictions.dtype))
    for chunk in predictions.chunks():
        file.write(np.ascontiguousarray(chunk.values).data)


def vectors(predictions: Predictions) -> dict[str, np.ndarray]:
    """Everything but the matrix, by the names that files use."""
    found: dict[str, np.ndarray] = {}
    if predictions.label_shares is not None:
        found[LABEL_SHARES] = np.ascontiguousarray(predictions.label_shares)
    elif predictions.has_labels:
        key = CORRECT if predictions.task == "pairs" else "labels"
        found[key] = np.ascontiguousarray(predictions.labels)
    if predictions.weights is not None:
        found["weights"] = np.ascontiguousarray(predictions.weights)
    if predictions.class_names is not None:
        found[CLASS_NAMES] = np.array(predictions.class_names, dtype=str)
    if predictions.clusters is not None:
        found["clusters"] = np.ascontiguousarray(predictions.clusters)
    others = {**predictions.groups, **{name: field.read() for name, field in predictions.extras.items()}}
    for name, column in others.items():
        if name not in found and name != predictions.kind and column.dtype.kind != "O":
            found[name] = np.ascontiguousarray(column)
    return found


def score_word(predictions: Predictions) -> str:
    """What files call the scores: the kind, or the word for one score per row."""
    return SINGLE.get((predictions.task, predictions.kind), predictions.kind)


def stored_shape(predictions: Predictions) -> tuple[int, ...]:
    """The shape of the scores in a file: (n,) for one score per row."""
    return (predictions.n,) if predictions.flat else predictions.source.shape


def _kind_word(stem: str) -> str | None:
    words = (*KINDS, *SINGLE.values())
    return next((word for word in words if stem == word or stem.endswith(f"_{word}")), None)
