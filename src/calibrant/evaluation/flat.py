"""Columns of tasks with one score per row: bins of p against outcomes, as for the top label, about the positive class.

For `binary` the outcome is the positive class, for `pairs` that the answer was right. The predicted class of a binary
row is 1 where p ≥ 0.5.
"""

from __future__ import annotations

import numpy as np

from calibrant.core.arrays import check_score_values
from calibrant.core.softmax import sigmoid
from calibrant.data.tasks import FLAT
from calibrant.kernels.rows import RowColumns
from calibrant.metrics.inputs import Checked

ABOUT = {"multiclass": "predicted class", "pairs": "predicted class"}


def about(task: str) -> str:
    """Which class the figures of a task are about."""
    return ABOUT.get(task, "positive class")


def two_class(values: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, from_logits: bool) -> Checked:
    """One score per row (m,) as the matrix [0, z] or [1 − p, p] (m×2), which the sums by class read."""
    other = np.zeros_like(values) if from_logits else 1 - values
    return Checked(np.stack([other, values], axis=1), labels, weights, from_logits)


def flat_columns(checked: Checked, *, name: str = "", first_row: int = 0) -> RowColumns:
    """Probability, predicted class, outcome and losses of every row of a `two_class` block.

    The log loss of a logit z is log(1 + exp(−z)) where y = 1 and log(1 + exp(z)) where y = 0.
    """
    values, outcome = checked.values.astype(np.float64), checked.labels.astype(bool)
    scores = values[:, 1]
    check_score_values(scores, from_logits=checked.from_logits, name=name or "scores", first_row=first_row)
    if checked.from_logits:
        probability = sigmoid(scores)
        nll = np.logaddexp(0.0, np.where(outcome, -scores, scores))
    else:
        probability = scores
        with np.errstate(divide="ignore"):
            nll = -np.log(np.maximum(np.where(outcome, scores, 1 - scores), np.finfo(np.float64).tiny))
    with np.errstate(divide="ignore", invalid="ignore"):
        sides = np.stack([probability, 1 - probability])
        entropy = -np.where(sides > 0, sides * np.log(sides), 0.0).sum(axis=0)
    predicted = (probability >= 0.5).astype(np.int64)
    return RowColumns(probability, predicted, outcome, nll, (probability - outcome) ** 2, entropy)


def hits(columns: RowColumns, task: str) -> np.ndarray:
    """Is the predicted class of each row right (n,)?"""
    return columns.prediction == columns.correct if task == "binary" else columns.correct


def is_flat(task: str) -> bool:
    """Has the task one score per row?"""
    return task in FLAT
