"""The fit data of a multi-label problem: one score and one label 0/1 per row and label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.core.arrays import check_real, widen
from calibrant.core.errors import InputError
from calibrant.core.rows import PerRow, Rows


@dataclass(frozen=True)
class MultilabelRows(PerRow):
    """Checked scores (n×L), labels (n×L) of 0 and 1, weights (n,) or None."""

    scores: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None = None

    @property
    def n_labels(self) -> int:
        """Number of labels."""
        return self.scores.shape[1]

    def matrix(self) -> Rows:
        """Scores beside labels (n×2L) with the place of the largest score: what tells rows apart.

        The order of the labels does not matter to a hash of it.
        """
        values = np.column_stack([self.scores, self.labels.astype(self.scores.dtype)])
        return Rows(values, self.scores.argmax(axis=1), self.weights)

    def some_labels(self, most: int) -> MultilabelRows:
        """At most this many labels, taken evenly in the order of how often they occur; all where there are no more."""
        if self.n_labels <= most:
            return self
        weight = np.ones(self.n) if self.weights is None else self.weights
        # labels of equal frequency are ordered by their scores, so that their numbers do not matter
        order = np.lexsort((weight @ self.scores, weight @ self.labels))
        chosen = order[np.linspace(0, self.n_labels - 1, most).round().astype(np.intp)]
        return MultilabelRows(self.scores[:, chosen], self.labels[:, chosen], self.weights)


def check_score_matrix(scores: Any, name: str = "logits") -> np.ndarray:
    """A float matrix (n×L) with n, L ≥ 1; ±inf stand for probabilities of 0 and 1, NaN is refused."""
    array = np.asarray(scores)
    check_real(array.dtype, name)
    if array.ndim != 2 or not array.shape[0] or not array.shape[1]:
        raise InputError(f"{name} must have the shape (n, L) with one column per label, got {array.shape}")
    matrix = widen(array)
    if np.isnan(matrix).any():
        row, column = np.argwhere(np.isnan(matrix))[0]
        raise InputError(f"{name} contains NaN in row {row}, column {column}: every value must be a number")
    return matrix
