"""The fit data of a binary problem: one score per row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from calibrant.core.rows import PerRow, Rows


@dataclass(frozen=True)
class BinaryRows(PerRow):
    """Checked scores (n,), the logits of the positive class; labels (n,) of 0 and 1; weights, groups (n,) or None."""

    scores: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None = None
    groups: np.ndarray | None = None

    def matrix(self) -> Rows:
        """The same rows as two-class logits [0, z]."""
        return Rows(two_columns(self.scores), self.labels, self.weights, self.groups)


def given_values(rows: Rows | BinaryRows) -> np.ndarray:
    """The logits (n×K) or the scores (n,) of rows."""
    return rows.scores if isinstance(rows, BinaryRows) else rows.logits


def has_one_score(rows: Any) -> TypeGuard[BinaryRows]:
    """Whether rows, in memory or on disk, have one score each."""
    return isinstance(rows, BinaryRows) or getattr(rows, "one_score", False)


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
