"""`Predictions`: what a classifier said about n rows, and what was true."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from calibrant.core import progress
from calibrant.core.arrays import check_labels, check_matrix, check_values, check_weights
from calibrant.core.errors import InputError
from calibrant.core.rows import Rows
from calibrant.core.softmax import log_probabilities, softmax
from calibrant.data.source import ArraySource, SliceSource, Source

KINDS = ("logits", "probabilities")

CHUNK_BYTES = 64 * 2**20
"""Bytes of values in one chunk at most (one row, where a row is larger)."""


class Predictions:
    """Logits or probabilities of n rows and K classes, with labels, perhaps weights and class names.

    The values may live in a file larger than memory: they are read when asked for, `chunks` never holds more than
    about 64 MB of them, and a large uncompressed file is memory-mapped by `logits`. Every value is checked when it
    is read: finite logits, or probabilities whose rows sum to one. Build it with `open_predictions` or
    `Predictions.from_arrays`.

    Parameters
    ----------
    source : Source
        The n×K values.
    kind : {"logits", "probabilities"}
        What the values are; never guessed.
    labels : ndarray of int64, shape (n,), or None
        Checked class indices.
    weights : ndarray of float64, shape (n,), or None
        Checked weights.
    class_names : sequence of str, length K, or None
        Names of the columns.
    field : str
        What the values are called in the file, for error messages.
    checked : bool
        Are the values known to be good?

    Attributes
    ----------
    skipped : tuple of str
        Why parts of a folder or pattern were left out, where that was asked for.

    Examples
    --------
    >>> import numpy as np
    >>> p = Predictions.from_arrays(probabilities=np.array([[0.75, 0.25], [0.5, 0.5]]), labels=np.array([0, 1]))
    >>> p.kind, p.n, p.n_classes
    ('probabilities', 2, 2)
    >>> float(np.exp(p[:1].logits[0, 0]).round(12))
    0.75
    """

    def __init__(
        self,
        source: Source,
        kind: str,
        labels: np.ndarray | None,
        weights: np.ndarray | None = None,
        class_names: Sequence[str] | None = None,
        *,
        field: str = "",
        checked: bool = False,
    ) -> None:
        self.source = source
        self.kind = kind
        self.class_names = None if class_names is None else tuple(class_names)
        self.weights = weights
        self.field = field or kind
        self.skipped: tuple[str, ...] = ()
        self._labels = labels
        self._checked = checked
        self._values: np.ndarray | None = None
        self._converted: np.ndarray | None = None

    @classmethod
    def from_arrays(
        cls,
        *,
        logits: Any = None,
        probabilities: Any = None,
        labels: Any = None,
        weights: Any = None,
        class_names: Sequence[str] | None = None,
        name: str = "",
    ) -> Predictions:
        """Check arrays in memory and join them; give either logits or probabilities, (n, K), and labels (n,)."""
        if (logits is None) == (probabilities is None):
            raise InputError("give either logits or probabilities, and not both")
        kind = "probabilities" if logits is None else "logits"
        prefix = f"{name}: " if name else ""
        values = check_matrix(probabilities if logits is None else logits, prefix + kind)
        check_values(values, from_logits=kind == "logits", name=prefix + kind)
        n_rows, n_classes = values.shape
        if labels is not None:
            labels = check_labels(labels, n_rows, n_classes, f"{prefix}labels", kind)
        weights = check_weights(weights, n_rows, f"{prefix}weights")
        if class_names is not None and len(class_names) != n_classes:
            raise InputError(f"{prefix}class_names has {len(class_names)} names, but {kind} has {n_classes} columns")
        return cls(ArraySource(values, name), kind, labels, weights, class_names, checked=True)

    @property
    def name(self) -> str:
        """Where the values came from; empty for arrays in memory."""
        return self.source.name

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.source.shape[0]

    @property
    def n_classes(self) -> int:
        """Number of classes K."""
        return self.source.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values: float32 or float64."""
        return self.source.dtype

    @property
    def has_labels(self) -> bool:
        """Are there labels?"""
        return self._labels is not None

    @property
    def labels(self) -> np.ndarray:
        """Class indices (n,), int64; an InputError where there are none."""
        if self._labels is None:
            raise InputError(f"{self.name or 'these predictions'} has no labels, and this needs them")
        return self._labels

    @property
    def values(self) -> np.ndarray:
        """The values (n, K) as they are stored, float16 widened; a map of a large uncompressed file."""
        if self._values is None:
            self._values = self._load()
        return self._values

    @property
    def logits(self) -> np.ndarray:
        """Logits (n, K); of probabilities, their logarithms."""
        return self.values if self.kind == "logits" else self._convert()

    @property
    def probabilities(self) -> np.ndarray:
        """Probabilities (n, K); of logits, their softmax."""
        return self.values if self.kind == "probabilities" else self._convert()

    def chunks(self, rows: int | None = None) -> Iterator[Predictions]:
        """Consecutive parts in memory, of `rows` rows or about 64 MB each, with their values checked."""
        rows = self._chunk_rows() if rows is None else int(rows)
        if rows < 1:
            raise InputError(f"a chunk needs at least 1 row, got {rows}")
        start = 0
        for block in self._checked_blocks(rows):
            yield self._part(ArraySource(block, self.name), slice(start, start + len(block)), checked=True)
            start += len(block)

    def rows(self) -> Rows:
        """Everything in memory, as calibrators take it."""
        return Rows(self.logits, self.labels, self.weights)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: Any) -> Predictions:
        """Rows by slice, number, numbers or mask; a plain slice is not read until its values are asked for."""
        if isinstance(index, (int, np.integer)):
            place = range(self.n)[index]
            index = slice(place, place + 1)
        if isinstance(index, slice):
            start, stop, step = index.indices(self.n)
            if step == 1:
                self._refuse_empty(max(stop - start, 0))
                return self._part(SliceSource(self.source, start, stop), slice(start, stop), checked=self._checked)
            index = np.arange(start, stop, step)
        index = np.asarray(index)
        if index.dtype == bool:
            if index.shape != (self.n,):
                raise IndexError(f"a mask of shape {index.shape} cannot pick from {self.n} rows")
            index = np.flatnonzero(index)
        self._refuse_empty(index.size)
        return self._part(ArraySource(self.values[index], self.name), index, checked=True)

    def __repr__(self) -> str:
        where = f" of {self.name}" if self.name else ""
        extras = "" if self.weights is None else ", weighted"
        return f"<Predictions{where}: {self.n} rows × {self.n_classes} classes, {self.kind}, {self.dtype}{extras}>"

    def _part(self, source: Source, index: slice | np.ndarray, checked: bool) -> Predictions:
        labels = None if self._labels is None else self._labels[index]
        weights = None if self.weights is None else self.weights[index]
        return Predictions(source, self.kind, labels, weights, self.class_names, field=self.field, checked=checked)

    def _refuse_empty(self, selected: int) -> None:
        if selected == 0:
            raise InputError(f"the selection holds 0 of the {self.n} rows, while a minimum of 1 is required")

    def _chunk_rows(self) -> int:
        return max(1, CHUNK_BYTES // (self.n_classes * self.dtype.itemsize))

    def _checked_blocks(self, rows: int) -> Iterator[np.ndarray]:
        done = 0
        for block in self.source.blocks(0, self.n, rows):
            if not self._checked:
                name, first_row = self.source.locate(done)
                called = f"{name}: {self.field}" if name else self.field
                self._check_block(block, called, first_row)
            yield block
            done += len(block)
            if done > rows:
                progress.step(f"reading {self.name}", done, self.n)
        self._checked = True

    def _check_block(self, block: np.ndarray, called: str, first_row: int) -> None:
        check_values(block, from_logits=self.kind == "logits", name=called, first_row=first_row)

    def _load(self) -> np.ndarray:
        whole = self.source.whole()
        if whole is not None and (isinstance(self.source, ArraySource) or whole.nbytes > CHUNK_BYTES):
            for _ in () if self._checked else self._checked_blocks(self._chunk_rows()):
                pass
            return whole
        values = np.empty(self.source.shape, self.dtype)
        done = 0
        for block in self._checked_blocks(self._chunk_rows()):
            values[done : done + len(block)] = block
            done += len(block)
        return values

    def _convert(self) -> np.ndarray:
        if self._converted is not None:
            return self._converted
        converted = softmax(self.values) if self.kind == "logits" else log_probabilities(self.values)
        if converted.nbytes <= CHUNK_BYTES:
            # small enough to keep: callers ask again and again
            self._converted = converted
        return converted
