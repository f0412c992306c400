"""The fit data of a binary problem: one score per row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.core.arrays import as_array, check_labels
from calibrant.core.errors import InputError
from calibrant.core.rows import Rows


@dataclass(frozen=True)
class BinaryRows:
    """Checked scores (n,), the logits of the positive class; labels (n,) of 0 and 1; weights, groups (n,) or None."""

    scores: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None = None
    groups: np.ndarray | None = None

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.scores)

    @property
    def total_weight(self) -> float:
        """Sum of the weights; n where there are none."""
        return float(self.n) if self.weights is None else float(self.weights.sum())

    def take(self, index: np.ndarray | slice) -> BinaryRows:
        """The rows at these places."""
        weights, groups = (None if column is None else column[index] for column in (self.weights, self.groups))
        return BinaryRows(self.scores[index], self.labels[index], weights, groups)

    def matrix(self) -> Rows:
        """The same rows as two-class logits [0, z]."""
        return Rows(two_columns(self.scores), self.labels, self.weights, self.groups)


def given_values(rows: Rows | BinaryRows) -> np.ndarray:
    """The logits (n×K) or the scores (n,) of rows."""
    return rows.scores if isinstance(rows, BinaryRows) else rows.logits


def two_columns(scores: np.ndarray) -> np.ndarray:
    """The matrix [0, z] (n×2) of scores (n,)."""
    return np.stack([np.zeros_like(scores), scores], axis=1)


def is_one_column(values: Any) -> bool:
    """Whether an array or list has the shape (n,) or (n, 1): one score per row."""
    try:
        shape = tuple(values.shape) if hasattr(values, "shape") else np.shape(values)
    except (ValueError, TypeError):
        return False
    return len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)


def check_binary_labels(labels: Any, n_rows: int, name: str = "labels") -> np.ndarray:
    """Labels 0 and 1, one per row, as int64; booleans and whole floats are accepted."""
    array = as_array(labels, name)
    if array.dtype.kind == "f" and np.isin(array, (0.0, 1.0)).all():
        array = array.astype(np.int64)
    checked = check_labels(array.astype(np.int64) if array.dtype == bool else array, n_rows, 1 << 62, name, "scores")
    if checked.max() > 1:
        raise InputError(
            f"{name} reach {checked.max()}, but scores with 1 feature(s) need labels 0 and 1: "
            "give a matrix (n, K) of logits for K classes"
        )
    return checked
