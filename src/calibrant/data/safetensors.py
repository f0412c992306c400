"""`.safetensors`: the same names as in `.npz`; class names are a JSON list in the metadata under `class_names`.

The format is a length, a JSON header and raw bytes, so it is read here without its package: tensors stay on disk and
are mapped.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.core.atomic import atomic_write
from calibrant.core.errors import InputError
from calibrant.data.fields import CLASS_NAMES, ArrayField, BrokenField, Field, Header, Wanted
from calibrant.data.limits import MAX_TEXT_BYTES
from calibrant.data.npy import score_word, stored_shape, vectors
from calibrant.data.predictions import Predictions
from calibrant.data.raw import BFLOAT16, RawField

DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": BFLOAT16,
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
METADATA = "__metadata__"


def fields(path: Path, wanted: Wanted) -> dict[str, Field]:
    """Every tensor of the file, unread."""
    header, start = _header(path)
    metadata = header.pop(METADATA, {})
    found: dict[str, Field] = {}
    for name, entry in header.items():
        try:
            found[name] = _field(path, name, entry, start)
        except InputError as error:
            found[name] = BrokenField(error)
    if isinstance(metadata, dict) and CLASS_NAMES in metadata:
        found[CLASS_NAMES] = names_field(metadata[CLASS_NAMES], f"{path}: {CLASS_NAMES}")
    return found


def names_field(text: Any, called: str) -> ArrayField:
    """Class names from a JSON list of texts."""
    try:
        names = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{called} is not a JSON list of texts") from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{called} is not a JSON list of texts")
    return ArrayField(np.array(names, dtype=str))


def _header(path: Path) -> tuple[dict[str, Any], int]:
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if len(start) < 8:
            raise InputError(
                f"{path} has {size} bytes, but a safetensors file has at least 8: it is empty or truncated"
            )
        length = int.from_bytes(start, "little")
        if length > MAX_TEXT_BYTES or length > size - 8:
            raise InputError(
                f"{path}: the safetensors header claims {length} bytes, but {size - 8} follow "
                f"(and at most {MAX_TEXT_BYTES} are read): the file is truncated or of another format"
            )
        text = file.read(length)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: the safetensors header is not JSON: {text[:40]!r}") from error
    if not isinstance(header, dict):
        raise InputError(f"{path}: the safetensors header is a {type(header).__name__}, not an object")
    return header, 8 + length


def _field(path: Path, name: str, entry: Any, start: int) -> RawField:
    called = f"{path}: {name}"
    try:
        word, shape, (first, last) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{called} lacks dtype, shape or data_offsets in the safetensors header") from error
    if not isinstance(word, str) or word not in DTYPES:
        raise InputError(f"{called} has dtype {str(word)[:20]}, but only {', '.join(DTYPES)} are read")
    if any(type(number) is not int or number < 0 for number in (*shape, first, last)) or len(shape) > 32:
        raise InputError(f"{called}: the safetensors header claims shape {str(shape)[:60]} at {first}..{last}")
    header = Header(shape, DTYPES[word])
    if last - first != header.nbytes:
        raise InputError(f"{called} spans {last - first} bytes, but shape {shape} of {word} needs {header.nbytes}")
    return RawField(path, start + first, header, called)


def write(parts: dict[str, Predictions], path: Path) -> list[Path]:
    """Write all parts, each under its prefix."""
    words = {dtype: word for word, dtype in DTYPES.items()}
    header: dict[str, Any] = {}
    end = 0
    arrays: list[Predictions | np.ndarray] = []
    for split, predictions in parts.items():
        prefix = f"{split}_" if split else ""
        entries: dict[str, Any] = {score_word(predictions): predictions, **vectors(predictions)}
        if entries.pop(CLASS_NAMES, None) is not None:
            header[METADATA] = {CLASS_NAMES: json.dumps(predictions.class_names)}
        for name, array in entries.items():
            if array.dtype not in words:
                raise InputError(f"{path}: {name} holds texts, which safetensors cannot: write .npz, .parquet or .csv")
            shape = stored_shape(array) if isinstance(array, Predictions) else array.shape
            nbytes = int(np.prod(shape)) * array.dtype.itemsize
            header[prefix + name] = {
                "dtype": words[array.dtype],
                "shape": list(shape),
                "data_offsets": [end, end + nbytes],
            }
            end += nbytes
            arrays.append(array)
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)  # the tensors begin on a 64-byte border
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays:
            for block in array.chunks() if isinstance(array, Predictions) else (array,):
                values = block.values if isinstance(block, Predictions) else block
                file.write(np.ascontiguousarray(values).data)
    return [path]
