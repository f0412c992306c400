"""From what a caller hands a metric to the checked columns that the metric is computed from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.core.arrays import check_counts, check_labels, check_matrix, check_weights, unit_scale
from calibrant.kernels.rows import RowColumns, scan


@dataclass(frozen=True)
class Checked:
    """A matrix (n×K) with labels (n,) and weights (n,) or None that passed the gate; values not yet looked at."""

    values: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None
    from_logits: bool

    @property
    def name(self) -> str:
        """What the matrix is called in an error message."""
        return "logits" if self.from_logits else "probabilities"

    def columns(self, wanted: str) -> RowColumns:
        """Per-row columns ("correct", "top", "scores" or "all") from one pass over the matrix."""
        return scan(self.values, self.labels, from_logits=self.from_logits, columns=wanted)


def check(
    probabilities: Any, labels: Any, sample_weight: Any, from_logits: bool, *, weights_are: str = "shares"
) -> Checked:
    """Pass the three inputs of a metric through the gate.

    `weights_are`: "shares" for a ratio of sums, which takes any scale; "counts" for a metric that asks how many rows
    there are; "parts" for one chunk of many, whose weights stay as they are.
    """
    name = "logits" if from_logits else "probabilities"
    matrix = check_matrix(probabilities, name)
    n_rows, n_classes = matrix.shape
    indices = check_labels(labels, n_rows, n_classes, against=name)
    weights = check_weights(sample_weight, n_rows)
    if weights_are == "counts":
        check_counts(weights)
    elif weights_are == "shares":
        weights = unit_scale(weights)
    return Checked(matrix, indices, weights, from_logits)


def top_label(
    probabilities: Any, labels: Any, sample_weight: Any, from_logits: bool, *, weights_are: str = "shares"
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Confidence, correctness and weights of every row: all that a top-label metric reads."""
    checked = check(probabilities, labels, sample_weight, from_logits, weights_are=weights_are)
    columns = checked.columns("correct")
    return columns.confidence, columns.correct, checked.weights


def total_weight(n_rows: int, weights: np.ndarray | None) -> float:
    """Σw; n where there are no weights."""
    return float(n_rows) if weights is None else float(weights.sum())


def mean(column: np.ndarray, weights: np.ndarray | None) -> float:
    """Weighted mean in float64."""
    if weights is None:
        return float(column.mean(dtype=np.float64))
    return float(np.dot(column.astype(np.float64, copy=False), weights) / weights.sum())
