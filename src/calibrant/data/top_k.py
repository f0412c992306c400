"""Predictions of which only the k largest logits of each row are stored: K = 128,000 classes cost k columns.

Keys of the files (`.npz`, `.safetensors`, `.parquet`; with a prefix for parts): `values` (n×k, the largest logits),
`indices` (n×k, their classes), `rest` (n,: log Σ exp of all other logits), `n_classes` (K; a column of it in parquet),
`labels`, and, where labels may lie outside the k, `label_values` (n,: the logit of the label).

Such a file fixes every probability at temperature 1. At another temperature the rest is known up to the bounds of
`core.top_k_bounds`, which every result at that temperature carries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from calibrant.core.arrays import check_labels, check_matrix_shape, check_weights
from calibrant.core.errors import InputError
from calibrant.core.top_k_bounds import TopRows, log_masses
from calibrant.data.predictions import Predictions
from calibrant.data.source import ArraySource, Source, ViewSource
from calibrant.kernels.rows import RowColumns

KIND = "top_k"
TOLERANCE = 1e-2
"""How far (in logits) `rest` may exceed what the smallest stored logit allows: float16 rounding, not another order."""


class TopKPredictions(Predictions):
    """The k largest logits of n rows, their classes, and the log-sum-exp of the rest.

    `logits` and `probabilities` would have K columns and are refused; `row_columns` gives confidence, prediction,
    correctness and NLL of each row, exactly.

    Examples
    --------
    >>> logits = np.array([[3.0, 1.0, 0.0, -1.0], [0.0, 2.0, 1.0, 1.0]])
    >>> top = TopKPredictions.from_logits(logits, np.array([0, 2]), k=2)
    >>> top.n_classes, top.k
    (4, 2)
    >>> bool(np.allclose(top.row_columns().confidence, (np.exp(logits).T / np.exp(logits).sum(axis=1)).max(axis=0)))
    True
    """

    def __init__(
        self,
        source: Source,
        n_classes: int,
        labels: np.ndarray | None,
        weights: np.ndarray | None = None,
        class_names: Sequence[str] | None = None,
        *,
        checked: bool = False,
    ) -> None:
        self._set(source, KIND, labels, weights, class_names, field="values", checked=checked)
        self._n_classes = n_classes

    @classmethod
    def from_arrays(  # type: ignore[override]
        cls,
        *,
        values: Any,
        indices: Any,
        rest: Any,
        n_classes: int,
        labels: Any = None,
        label_values: Any = None,
        weights: Any = None,
        class_names: Sequence[str] | None = None,
        name: str = "",
    ) -> TopKPredictions:
        """Check arrays in memory and join them."""
        values, indices = np.asarray(values), np.asarray(indices)
        called = f"{name}: " if name else ""
        if values.shape != indices.shape or values.ndim != 2 or values.shape[1] < 1:
            raise InputError(f"{called}values has shape {values.shape} and indices {indices.shape}: give both (n, k)")
        check_matrix_shape((values.shape[0], max(2, values.shape[1])), values.dtype, f"{called}values")
        n_rows, k = values.shape
        if not k <= n_classes:
            raise InputError(f"{called}values has {k} columns, but n_classes is {n_classes}")
        rest = _one_per_row(rest, n_rows, f"{called}rest")
        own = None if label_values is None else _one_per_row(label_values, n_rows, f"{called}label_values")
        if labels is not None:
            labels = check_labels(labels, n_rows, n_classes, f"{called}labels", "n_classes")
        block = pack(values, indices, rest, own)
        check_block(block, n_classes, called, 0)
        weights = check_weights(weights, n_rows, f"{called}weights")
        return cls(ArraySource(block, name), n_classes, labels, weights, class_names, checked=True)

    @classmethod
    def from_logits(cls, logits: np.ndarray, labels: np.ndarray, *, k: int) -> TopKPredictions:
        """Keep the k largest of full logits (n×K), and the logit of every label."""
        wide = np.asarray(logits, dtype=np.float64)
        indices = np.argsort(-wide, axis=1, kind="stable")[:, :k]
        values = np.take_along_axis(wide, indices, axis=1)
        others = wide.copy()
        np.put_along_axis(others, indices, -np.inf, axis=1)
        with np.errstate(divide="ignore"):
            peak = values[:, :1]
            rest = np.log(np.exp(others - peak).sum(axis=1)) + peak[:, 0]
        own = wide[np.arange(len(wide)), labels]
        return cls.from_arrays(
            values=values, indices=indices, rest=rest, n_classes=wide.shape[1], labels=labels, label_values=own
        )

    @property
    def n_classes(self) -> int:
        """Number of classes K, stored or not."""
        return self._n_classes

    @property
    def k(self) -> int:
        """Number of stored logits per row."""
        return (self.source.shape[1] - 2) // 2

    @property
    def logits(self) -> np.ndarray:
        """Refused: K columns were never stored."""
        raise self.refusal("the logits of all classes")

    @property
    def probabilities(self) -> np.ndarray:
        """Refused: K columns were never stored."""
        raise self.refusal("the probabilities of all classes")

    def refusal(self, what: str) -> InputError:
        """The error that says that the stored columns do not allow something."""
        where = self.name or "these predictions"
        return InputError(
            f"{where} has only the {self.k} largest of {self.n_classes} logits per row: too few for {what}"
        )

    def row_columns(self) -> RowColumns:
        """Confidence, prediction, correctness and NLL of each row (n,), exact; nothing else is known."""
        labels = self._labels if self._labels is not None else np.zeros(self.n, dtype=np.int64)
        return columns_of(self.values, labels, self.n_classes)

    def at_temperature(self, temperature: float) -> TopKPredictions:
        """The predictions scaled by 1/T, the rest in the middle of its bounds, computed when they are read."""
        source = ScaledSource(self.source, 1.0 / temperature, self.n_classes, self._labels)
        return self.with_source(source, checked=True)

    def arrays(self) -> dict[str, np.ndarray]:
        """What a file of these predictions holds, by key."""
        values, indices, rest, label_values = unpack(self.values)
        found = {"values": values, "indices": indices, "rest": rest, "n_classes": np.array([self.n_classes])}
        if self.has_labels:
            found["labels"] = self.labels
        if np.isfinite(label_values).any():
            found["label_values"] = label_values
        if self.weights is not None:
            found["weights"] = self.weights
        return found

    def check_block(self, block: np.ndarray, first: int) -> None:
        """Raise unless packed rows are finite, name distinct classes and leave a possible rest."""
        called, row = self.called(first)
        check_block(block, self.n_classes, called.removesuffix("values"), row)

    def _chunk_rows(self) -> int:
        return max(1, 2**23 // self.source.shape[1])


class TopKSource(Source):
    """Rows of (values | indices | rest | label_values), float64, from the arrays of a file."""

    def __init__(self, values: Source, indices: Source, rest: np.ndarray, label_values: np.ndarray | None) -> None:
        self.name = values.name
        self.shape = (values.shape[0], 2 * values.shape[1] + 2)
        self.dtype = np.dtype(np.float64)
        self._values, self._indices, self._rest, self._label_values = values, indices, rest, label_values

    def blocks(self, start: int, stop: int, rows: int) -> Iterator[np.ndarray]:
        """Blocks of both matrices, side by side."""
        done = start
        both = zip(self._values.blocks(start, stop, rows), self._indices.blocks(start, stop, rows), strict=True)
        for values, indices in both:
            own = slice(done, done + len(values))
            yield pack(
                values, indices, self._rest[own], None if self._label_values is None else self._label_values[own]
            )
            done += len(values)

    def cuts(self, rows: int) -> list[int]:
        """Those of the values."""
        return self._values.cuts(rows)


class ScaledSource(ViewSource):
    """Top-k rows at another temperature; the rest is such that log-masses lie in the middle of their bounds."""

    def __init__(self, source: Source, inverse: float, n_classes: int, labels: np.ndarray | None) -> None:
        super().__init__(source, source.shape)
        self._inverse, self._n_classes, self._labels = inverse, n_classes, labels

    def blocks(self, start: int, stop: int, rows: int) -> Iterator[np.ndarray]:
        """Scaled blocks."""
        done = start
        for block in self._source.blocks(start, stop, rows):
            labels = None if self._labels is None else self._labels[done : done + len(block)]
            yield scaled(block, labels, self._inverse, self._n_classes)
            done += len(block)


def pack(values: np.ndarray, indices: np.ndarray, rest: np.ndarray, label_values: np.ndarray | None) -> np.ndarray:
    """One float64 matrix (n×(2k+2)): class numbers stay exact in it, and every reader of blocks can carry it."""
    n_rows, k = values.shape
    block = np.empty((n_rows, 2 * k + 2))
    block[:, :k], block[:, k : 2 * k] = values, indices
    block[:, -2], block[:, -1] = rest, np.nan if label_values is None else label_values
    return block


def unpack(block: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Values, indices (int64), rest and label values of packed rows."""
    k = (block.shape[1] - 2) // 2
    return block[:, :k], block[:, k : 2 * k].astype(np.int64), block[:, -2], block[:, -1]


def check_block(block: np.ndarray, n_classes: int, called: str, first_row: int) -> None:
    """Raise unless packed rows are finite, name distinct classes and leave a possible rest."""
    values, indices, rest, _ = unpack(block)
    k = values.shape[1]
    bad = ~np.isfinite(values).all(axis=1) | np.isnan(rest) | np.isposinf(rest)
    if bad.any():
        raise InputError(f"{called}values or rest is not finite in row {first_row + int(bad.argmax())}")
    ordered = np.sort(indices, axis=1)
    bad = (ordered[:, 0] < 0) | (ordered[:, -1] >= n_classes) | (np.diff(ordered, axis=1) == 0).any(axis=1)
    if bad.any():
        row = int(bad.argmax())
        raise InputError(
            f"{called}indices of row {first_row + row} go from {ordered[row, 0]} to {ordered[row, -1]}: give distinct "
            f"classes 0..{n_classes - 1}"
        )
    with np.errstate(divide="ignore"):
        most = values.min(axis=1) + np.log(float(n_classes - k))
    bad = rest > most + TOLERANCE
    if bad.any():
        row = int(bad.argmax())
        raise InputError(
            f"{called}rest is {rest[row]:.6g} in row {first_row + row}, but {n_classes - k} classes below the smallest "
            f"stored value reach at most {most[row]:.6g}: store the k largest logits, and the log-sum-exp of all others"
        )


def top_rows(block: np.ndarray, labels: np.ndarray | None, n_classes: int) -> TopRows:
    """What `core.top_k_bounds` needs of packed rows."""
    values, indices, rest, label_values = unpack(block)
    peak = values.max(axis=1)
    stored = values - peak[:, None]
    lowest, rest = stored.min(axis=1), rest - peak
    n_rest = np.full(len(block), float(n_classes - values.shape[1]))
    if labels is None:
        nothing = np.full(len(block), np.nan)
        return TopRows(stored, rest, lowest, n_rest, nothing, np.zeros(len(block), dtype=bool))
    hit = indices == labels[:, None]
    inside = hit.any(axis=1)
    own = np.where(inside, stored[np.arange(len(block)), hit.argmax(axis=1)], label_values - peak)
    apart = ~inside & np.isfinite(own)
    # a label whose logit is known is no longer part of the unknown rest
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.minimum(np.exp(np.where(apart, own, -np.inf) - rest), 1.0)
        rest = np.where(apart, rest + np.log1p(-share), rest)
    n_rest = n_rest - apart
    with np.errstate(divide="ignore"):
        rest = np.where(n_rest > 0, np.minimum(rest, lowest + np.log(np.maximum(n_rest, 0))), -np.inf)
    return TopRows(stored, rest, lowest, n_rest, own, apart)


def columns_of(block: np.ndarray, labels: np.ndarray, n_classes: int) -> RowColumns:
    """Exact columns of packed rows at temperature 1; NLL is NaN where the label's logit is not known."""
    values, indices, rest, _ = unpack(block)
    rows = top_rows(block, labels, n_classes)
    log_mass = np.logaddexp(np.log(np.exp(rows.stored).sum(axis=1)), rest - values.max(axis=1))
    winner = indices[np.arange(len(block)), values.argmax(axis=1)]
    nothing = np.empty(0)
    return RowColumns(np.exp(-log_mass), winner, winner == labels, log_mass - rows.label, nothing, nothing)


def scaled(block: np.ndarray, labels: np.ndarray | None, inverse: float, n_classes: int) -> np.ndarray:
    """Packed rows at another temperature."""
    values, indices, _, label_values = unpack(block)
    rows = top_rows(block, labels, n_classes)
    low, high = log_masses(rows, inverse)
    stored = np.log(np.exp(inverse * rows.stored).sum(axis=1))
    with np.errstate(divide="ignore"):
        rest = 0.5 * (low + high) + np.log(-np.expm1(np.minimum(stored - 0.5 * (low + high), 0.0)))
    return pack(inverse * values, indices, rest + inverse * values.max(axis=1), inverse * label_values)


def assemble_top_k(  # noqa: PLR0917
    fields: Mapping[str, Any], name: str, prefix: str, labels: Any, weights: Any, class_names: Any
) -> TopKPredictions:
    """Join the arrays of a file; labels and weights have passed their gate."""
    missing = [key for key in ("rest", "n_classes") if prefix + key not in fields]
    if missing:
        raise InputError(f"{name} has {prefix}values and {prefix}indices, but no {prefix}{missing[0]}: add it")
    values, indices = fields[f"{prefix}values"], fields[f"{prefix}indices"]
    if values.shape != indices.shape or len(values.shape) != 2:
        raise InputError(f"{name}: values has shape {values.shape} and indices {indices.shape}: give both (n, k)")
    n_classes = known_classes(fields, name, prefix)
    rest = _one_per_row(fields[f"{prefix}rest"].read(), values.shape[0], f"{name}: {prefix}rest")
    own = fields.get(f"{prefix}label_values")
    if own is not None:
        own = _one_per_row(own.read(), values.shape[0], f"{name}: {prefix}label_values")
    source = TopKSource(values.source(name), indices.source(name), rest, own)
    return TopKPredictions(source, n_classes, labels, weights, class_names)


def known_classes(fields: Mapping[str, Any], name: str, prefix: str) -> int:
    """K as the file gives it."""
    given = np.unique(fields[f"{prefix}n_classes"].read())
    k = fields[f"{prefix}values"].shape[1]
    if len(given) != 1 or given.dtype.kind not in "iu" or not max(2, k) <= given[0] <= 2**31:
        raise InputError(f"{name}: n_classes is {str(given)[:40]}, but one whole number of at least {k} is needed")
    return int(given[0])


def _one_per_row(array: Any, n_rows: int, called: str) -> np.ndarray:
    found = np.asarray(array)
    if found.shape not in ((n_rows,), (n_rows, 1)) or found.dtype.kind not in "fiu":
        raise InputError(f"{called} has shape {found.shape} and dtype {found.dtype}: give {n_rows} numbers")
    return found.reshape(n_rows).astype(np.float64)
