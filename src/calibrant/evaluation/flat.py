"""Columns of tasks with one score per row: bins of p against outcomes, as for the top label, about the positive class.

For `binary` the outcome is the positive class, for `pairs` that the answer was right. The predicted class of a binary
row is 1 where p ≥ 0.5.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from calibrant.core.arrays import check_score_values
from calibrant.core.softmax import sigmoid
from calibrant.data import Predictions
from calibrant.data.source import Source
from calibrant.evaluation.results import TestColumns
from calibrant.kernels.rows import RowColumns
from calibrant.metrics.inputs import Checked
from calibrant.metrics.top_label import adaptive_ece, ece

ABOUT = {"multiclass": "predicted class", "pairs": "predicted class"}


def about(task: str) -> str:
    """Which class the figures of a task are about."""
    return ABOUT.get(task, "positive class")


def two_class(values: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, from_logits: bool) -> Checked:
    """Single scores (m,) or (m, L) as rows of [0, z] or [1 − p, p] (m·L×2), which the sums by class read."""
    if values.ndim == 2:
        weights = None if weights is None else np.repeat(weights, values.shape[1])
        values, labels = values.reshape(-1), labels.reshape(-1)
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


def hits(columns: RowColumns | TestColumns, task: str) -> np.ndarray:
    """Is the predicted class of each row right (n,)?"""
    return columns.prediction == columns.correct if task == "binary" else columns.correct


def figures_of(columns: RowColumns, weights: np.ndarray | None, task: str) -> dict[str, float]:
    """The main figures of rows as plain numbers, for a glance before and after a fit."""
    rows = columns.confidence, columns.correct
    means = {"accuracy": hits(columns, task), "nll": columns.nll, "brier": columns.brier}
    return {
        **{name: float(np.average(column, weights=weights)) for name, column in means.items()},
        "ece": ece(*rows, sample_weight=weights),
        "adaptive_ece": adaptive_ece(*rows, sample_weight=weights),
    }


def flattened(predictions: Predictions) -> Predictions:
    """Every row and label as a row of a binary problem; the labels of one row form a cluster."""
    n, width = predictions.source.shape
    return Predictions.from_source(
        FlattenedSource(predictions.source),
        predictions.kind,
        predictions.labels.reshape(-1),
        None if predictions.weights is None else np.repeat(predictions.weights, width),
        task="binary",
        groups={name: np.repeat(column, width) for name, column in predictions.groups.items()},
        clusters=np.repeat(np.arange(n) if predictions.clusters is None else predictions.clusters, width),
        field=predictions.field,
    )


class FlattenedSource(Source):
    """The columns of each row one after another (n·L×1)."""

    def __init__(self, source: Source) -> None:
        self.name, self.dtype = source.name, source.dtype
        self.shape = (source.shape[0] * source.shape[1], 1)
        self._source = source

    def blocks(self, start: int, stop: int, rows: int) -> Iterator[np.ndarray]:
        """Blocks of the rows behind, cut to size."""
        width = self._source.shape[1]
        for first in range(start, stop, rows):
            last = min(first + rows, stop)
            top, bottom = first // width, -(-last // width)
            block = np.concatenate(list(self._source.blocks(top, bottom, bottom - top))).reshape(-1, 1)
            yield block[first - top * width : last - top * width]

    def locate(self, row: int) -> tuple[str, int]:
        """The row behind."""
        return self._source.locate(row // self._source.shape[1])
