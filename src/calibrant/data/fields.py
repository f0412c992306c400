"""From the named arrays of a file to `Predictions`: one set of names and one wording for all formats.

Every format is read by a function `fields(path)` that returns its arrays as `Field`s, unread. Which of them are the
logits, the labels and the weights is decided here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from calibrant.core.arrays import check_labels, check_matrix_shape, check_weights
from calibrant.core.errors import InputError
from calibrant.data.limits import MAX_TEXT_BYTES, check_counts
from calibrant.data.predictions import KINDS, Predictions
from calibrant.data.source import ArraySource, Source
from calibrant.data.top_k import assemble_top_k, known_classes

LABELS = ("labels", "label")
WEIGHTS = ("weights", "weight", "sample_weight")
CLASS_NAMES = "class_names"


@dataclass(frozen=True)
class Header:
    """What a file says about an array before its numbers."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes the numbers take; whole-number arithmetic, since a header may claim anything."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def order(self) -> Literal["C", "F"]:
        """Row-major or column-major."""
        return "F" if self.fortran else "C"


class Field(ABC):
    """One named array of a file, not yet read."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @abstractmethod
    def read(self) -> np.ndarray:
        """The whole array."""

    @abstractmethod
    def source(self, name: str) -> Source:
        """The rows of a matrix, to be read in blocks."""

    @property
    def nbytes(self) -> int:
        """Bytes the array will take."""
        return math.prod(self.shape) * self.dtype.itemsize


class ArrayField(Field):
    """An array that is already in memory."""

    def __init__(self, array: np.ndarray) -> None:
        self._array, self.shape, self.dtype = array, array.shape, array.dtype

    def read(self) -> np.ndarray:
        """The array."""
        return self._array

    def source(self, name: str) -> Source:
        """Its rows."""
        return ArraySource(self._array, name)


class BrokenField(Field):
    """An array that cannot be read; its error comes up when the array is needed, and not before.

    A file may hold more than predictions: what nobody asks for need not be readable.
    """

    def __init__(self, error: InputError) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "dtype"):
            raise self._error
        raise AttributeError(name)

    def read(self) -> np.ndarray:
        """Raise."""
        raise self._error

    def source(self, name: str) -> Source:
        """Raise."""
        raise self._error


def split_names(fields: Mapping[str, Field]) -> list[str]:
    """The prefixes that `file#prefix` can pick, and "" if the file has plain `logits` or `probabilities`."""
    found = []
    for key in fields:
        for kind in KINDS:
            if key == kind:
                found.append("")
            elif key.endswith("_" + kind):
                found.append(key[: -len(kind) - 1])
    return sorted(set(found))


def assemble(
    fields: Mapping[str, Field],
    name: str,
    split: str = "",
    *,
    kind: str | None = None,
    labels: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    class_names: list[str] | None = None,
    require_labels: bool = True,
) -> Predictions:
    """Check the arrays that belong together and join them; `labels` and the rest replace those of the file."""
    prefix = f"{split}_" if split else ""
    top_k = kind is None and f"{prefix}values" in fields and f"{prefix}indices" in fields
    matrix_key, kind = (f"{prefix}values", "top_k") if top_k else _matrix_key(fields, name, split, kind)
    matrix = fields[matrix_key]
    called = f"{name}: {matrix_key}"
    if not top_k:
        check_matrix_shape(matrix.shape, matrix.dtype, called)
        check_counts(matrix.shape, called)
    n_rows, n_classes = matrix.shape[0], known_classes(fields, name, prefix) if top_k else matrix.shape[1]
    if labels is None:
        label_key = _label_key(fields, split)
        if label_key is not None:
            labels = _vector(fields[label_key], n_rows, f"{name}: {label_key}", matrix_key)
        elif require_labels:
            raise InputError(f"{name} has no {prefix}labels, only {_listing(fields)}: add them, or give labels=")
    else:
        label_key = "labels"
    if labels is not None:
        labels = check_labels(labels, n_rows, n_classes, f"{name}: {label_key}", matrix_key)
    weight_key = next((prefix + word for word in WEIGHTS if prefix + word in fields), None)
    if weights is None and weight_key is not None:
        weights = _vector(fields[weight_key], n_rows, f"{name}: {weight_key}", matrix_key)
    weights = check_weights(weights, n_rows, f"{name}: {weight_key or 'weights'}")
    if class_names is None:
        name_key = next((key for key in (prefix + CLASS_NAMES, CLASS_NAMES) if key in fields), None)
        class_names = None if name_key is None else _names(fields[name_key], f"{name}: {name_key}")
    if class_names is not None and len(class_names) != n_classes:
        raise InputError(
            f"{name}: {CLASS_NAMES} has {len(class_names)} names, but {matrix_key} has {n_classes} columns"
        )
    if top_k:
        return assemble_top_k(fields, name, prefix, labels, weights, class_names)
    return Predictions(matrix.source(name), kind, labels, weights, class_names, field=matrix_key)


def check_kind(kind: str | None) -> None:
    """Raise for a kind that does not exist."""
    if kind is not None and kind not in KINDS:
        raise InputError(f'kind must be "logits" or "probabilities", got {kind!r}')


def _matrix_key(fields: Mapping[str, Field], name: str, split: str, kind: str | None) -> tuple[str, str]:
    check_kind(kind)
    prefix = f"{split}_" if split else ""
    present = [word for word in KINDS if prefix + word in fields]
    if kind is None and len(present) == 2:
        raise InputError(f"{name} has both {prefix}logits and {prefix}probabilities: choose one with kind= or --kind")
    chosen = kind if kind is not None else (present[0] if present else "")
    if chosen in present:
        return prefix + chosen, chosen
    if split in fields:  # a matrix under a bare name, such as shift_noise_3: the caller must say what it holds
        if kind is None:
            raise InputError(f'{name}: {split} does not say what it holds: give kind="logits" or kind="probabilities"')
        return split, kind
    wanted = f"{prefix}{kind}" if kind else f"{prefix}logits or {prefix}probabilities"
    splits = [word for word in split_names(fields) if word and word != split]
    remedy = f"pick a part with {name.partition('#')[0]}#{splits[0]}" if splits else "give the n×K matrix that name"
    remedy += f" (parts: {', '.join(splits)})" if len(splits) > 1 else ""
    raise InputError(f"{name} has no {wanted}, only {_listing(fields)}: {remedy}")


def _label_key(fields: Mapping[str, Field], split: str) -> str | None:
    """`val_labels` for `val`; for `shift_noise_3` also `shift_noise_labels` and `shift_labels`."""
    words = split.split("_") if split else []
    for length in range(len(words), -1, -1):
        if length == 0 and words:
            return None  # labels without the prefix belong to the arrays without it
        for label in LABELS:
            key = "_".join([*words[:length], label])
            if key in fields:
                return key
    return None


def _vector(field: Field, n_rows: int, called: str, against: str) -> np.ndarray:
    """One number a row, read only after its length is known to fit."""
    if field.dtype.kind not in "fiub":
        check_weights(np.empty(0, field.dtype), 0, called)
    if field.shape not in ((n_rows,), (n_rows, 1)):
        if len(field.shape) == 1:
            raise InputError(f"{called} has {field.shape[0]} rows, but {against} has {n_rows}")
        raise InputError(f"{called} has shape {field.shape}, but {against} has {n_rows} rows: give one number a row")
    return field.read().reshape(n_rows)


def _names(field: Field, called: str) -> list[str]:
    if field.dtype.kind not in "US" or len(field.shape) != 1:
        raise InputError(f"{called} must be a list of texts, got dtype {field.dtype} of shape {field.shape}")
    if field.nbytes > MAX_TEXT_BYTES:
        raise InputError(f"{called} takes {field.nbytes} bytes, but at most {MAX_TEXT_BYTES} are read")
    try:
        return [item.decode() if isinstance(item, bytes) else str(item) for item in field.read().tolist()]
    except UnicodeDecodeError as error:
        raise InputError(f"{called} is not UTF-8 text: {error}") from error


def _listing(fields: Mapping[str, Field], most: int = 12) -> str:
    keys = sorted(fields)
    text = ", ".join(keys[:most]) or "nothing"
    return text if len(keys) <= most else f"{text} and {len(keys) - most} more"
