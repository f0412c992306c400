"""Pickles of arrays and tensors (`.p`, `.pkl`, `.pickle`), read without ever running what they name.

Layouts: a dictionary with the names that `.npz` files use, or of such dictionaries by part; a list of dictionaries, one
per batch; `(logits, labels)`; and, as published with many papers, `((val_logits, val_labels), (test_logits,
test_labels))`, whose parts are `#val` and `#test` (three pairs: `#train`, `#val`, `#test`). A tuple or a single array
has no names: by convention it holds logits, unless `kind=` says otherwise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.data.fields import ArrayField, Field, Wanted
from calibrant.data.limits import reading
from calibrant.data.tensors import Tensor
from calibrant.data.unpickling import TROUBLE, load

SPLITS = {1: ("",), 2: ("val", "test"), 3: ("train", "val", "test")}
ROOM_PER_BYTE = 8
"""Bytes of array that a byte of the file may become: two bytes hold a small integer, which takes eight in an array."""


def fields(path: Path, wanted: Wanted) -> dict[str, Field]:
    """The arrays of the pickle under the names of their layout."""
    return named_fields(load_arrays(path), path, wanted)


def load_arrays(path: Path) -> Any:
    """The arrays, tensors, tuples, lists and dictionaries of a pickle; nothing in it is executed.

    >>> import pickle, tempfile
    >>> file = Path(tempfile.mkdtemp()) / "two.p"
    >>> _ = file.write_bytes(pickle.dumps((np.array([[2.0, 1.0]]), np.array([0]))))
    >>> load_arrays(file)
    (array([[2., 1.]]), array([0]))
    """
    with reading(path, "pickle of arrays", TROUBLE), path.open("rb") as file:
        return load(file, path.stat().st_size)


def named_fields(content: Any, path: Path, wanted: Wanted) -> dict[str, Field]:
    """The arrays of a container under the names of its layout."""
    _refuse_repetition(content, path)
    kind = wanted.kind or "logits"
    named = content if isinstance(content, dict) else _name(content, kind, path)
    found: dict[str, Field] = {}
    for key, value in named.items():
        inside = value.items() if isinstance(value, dict) else [("", value)]
        for word, item in inside:
            name = "_".join(part for part in (key, word) if part)
            field = _field(item, f"{path}: {name}")
            if field is not None:
                found[name] = field
    return found


def _name(content: Any, kind: str, path: Path) -> dict[str, Any]:
    if _is_array(content):
        return {kind: content}
    if isinstance(content, (tuple, list)) and content:
        if all(isinstance(item, dict) for item in content):
            return _joined(list(content), path)
        if len(content) in (2, 3) and _is_array(content[0]):
            return dict(zip((kind, "labels", "weights"), content, strict=False))
        pairs = [pair for pair in content if isinstance(pair, (tuple, list)) and len(pair) in (2, 3)]
        if len(pairs) == len(content) and len(pairs) in SPLITS:
            return {
                f"{split}_{word}" if split else word: array
                for split, pair in zip(SPLITS[len(pairs)], pairs, strict=True)
                for word, array in zip((kind, "labels", "weights"), pair, strict=False)
            }
    raise InputError(
        f"{path} holds {_describe(content)}, but a pickle must hold a dictionary of arrays, (logits, labels) "
        "or ((val_logits, val_labels), (test_logits, test_labels))"
    )


def _joined(batches: list[dict[str, Any]], path: Path) -> dict[str, Any]:
    """The arrays of batches, one after another."""
    keys = [key for key, value in batches[0].items() if _is_array(value)]
    try:
        return {key: np.concatenate([np.atleast_1d(_read(batch[key])) for batch in batches]) for key in keys}
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path} holds {len(batches)} batches that do not fit together: {error}") from error


def _is_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, Tensor))


def _read(value: Any) -> np.ndarray:
    return value.read() if isinstance(value, Tensor) else np.asarray(value)


def _describe(content: Any, depth: int = 0) -> str:
    if _is_array(content):
        return f"an array of shape {content.shape}"
    if isinstance(content, (tuple, list)) and depth < 2:
        inside = ", ".join(_describe(item, depth + 1) for item in content[:4])
        return f"a {type(content).__name__} of {len(content)} ({inside}{', ...' if len(content) > 4 else ''})"
    return f"a {type(content).__name__}"


def _field(value: Any, called: str) -> Field | None:
    if isinstance(value, Tensor):
        return value.field(called)
    if isinstance(value, (list, tuple)):
        try:
            value = np.array(value)
        except (ValueError, OverflowError, TypeError):
            return None  # ragged or mixed: not an array, so not a field
    return ArrayField(value) if isinstance(value, np.ndarray) else None


def _refuse_repetition(content: Any, path: Path) -> None:
    """Raise if the content, with every reference to it spelled out, would take far more room than the file."""
    room = most = ROOM_PER_BYTE * path.stat().st_size + 2**20
    waiting = [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, (list, tuple, dict)):
            room -= 8 * len(value)
            if room >= 0:  # no more is taken in than there is room for
                waiting.extend(value.values() if isinstance(value, dict) else value)
        elif _is_array(value):
            room -= value.nbytes
        elif isinstance(value, str):
            room -= 4 * len(value)
        if room < 0:
            raise InputError(f"{path} repeats its content to over {most} bytes: save plain arrays")
