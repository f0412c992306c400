"""Checks the inputs of a metric and gives the rows that it is computed from.

A metric asks its rows for totals, which add up over chunks, or for all of them, with the reason why it must.

Probabilities (n, K) are asked about the predicted class; one probability per row, (n,), is asked about the positive
class: p is used as the confidence, and the label 0/1 as correctness.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike

from calibrant.core.arrays import (
    PROBABILITY_TOLERANCE,
    check_counts,
    check_labels,
    check_matrix,
    check_outcomes,
    check_scores,
    check_weights,
    on_device,
    unit_scale,
)
from calibrant.core.errors import InputError
from calibrant.core.softmax import finite_log_odds, probability_log_odds, sigmoid, softplus
from calibrant.kernels.rows import LEVELS, RowColumns, scan

Probabilities: TypeAlias = Annotated[
    ArrayLike, "array (n, K), or (n,) of the positive class: Probabilities, or logits with ``from_logits=True``."
]
ClassIndices: TypeAlias = Annotated[
    ArrayLike, "array (n,): Class indices 0 … K−1. Every metric checks them, also where it does not read them."
]
PositiveProbabilities: TypeAlias = Annotated[
    ArrayLike, "array (n,): Probabilities of the positive class, or logits with ``from_logits=True``."
]
BinaryLabels: TypeAlias = Annotated[ArrayLike, "array (n,): 0 or 1."]
RowWeights: TypeAlias = Annotated[ArrayLike | None, "array (n,), optional: A weight of 2 counts as the row twice."]


Sums = TypeVar("Sums")
"""What a total is: anything with `+`."""

ORDER_OF_ROWS = "needs the confidences of all rows in their order"
ORDER_OF_CLASSES = "ranks every class's probabilities of all rows"


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

    @property
    def n_classes(self) -> int:
        """K."""
        return self.values.shape[1]

    def total(self, statistic: Callable[..., Sums], *options: Any) -> Sums:
        """The sums that a statistic of these rows, with its options, gives; they add up over chunks."""
        return statistic(self, *options)

    def every(self, reason: str) -> Checked:
        """All rows, for what is not a function of totals."""
        return self

    def columns(self, wanted: str) -> RowColumns:
        """Per-row columns ("correct", "top", "scores" or "all") from one pass over the matrix, which is remembered."""
        level, found = self.__dict__.get("_scanned", (-1, None))
        if level < LEVELS[wanted]:
            found = self._scan(wanted)
            self.__dict__["_scanned"] = LEVELS[wanted], found
        return found

    def _scan(self, wanted: str) -> RowColumns:
        return scan(self.values, self.labels, from_logits=self.from_logits, columns=wanted)

    def column(self, name: str) -> np.ndarray:
        """One number per row: a field of `RowColumns`, or "hit", whether the predicted class is right."""
        level = {"nll": "scores", "brier": "scores", "entropy": "all"}.get(name, "correct")
        return getattr(self.columns(level), "correct" if name == "hit" else name)

    def top(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Confidence, correctness and weights of every row: all that a top-label metric reads."""
        columns = self.columns("correct")
        return columns.confidence, columns.correct, self.weights


@dataclass(frozen=True)
class CheckedScores(Checked):
    """One probability or logit per row of the positive class, labels 0/1 and weights that passed the gate.

    `values` holds the same as two columns. Logits of ±inf stand for probabilities of 0 and 1.
    """

    scores: np.ndarray

    @cached_property
    def probability(self) -> np.ndarray:
        """P(y = 1) of each row (n,): in the dtype of the probabilities, float64 from logits."""
        return sigmoid(self.scores.astype(np.float64)) if self.from_logits else self.scores

    @cached_property
    def log_odds(self) -> np.ndarray:
        """log p − log(1 − p) of each row, finite: exact 0 and 1 are taken as half the smallest other p and 1 − p."""
        raw = self.scores.astype(np.float64) if self.from_logits else probability_log_odds(self.scores)
        return finite_log_odds(raw)

    @property
    def positive(self) -> np.ndarray:
        """Is the label 1 (n,)?"""
        return self.labels == 1

    def losses(self) -> np.ndarray:
        """−log of the probability of the label (n,): inf where p = 0 meets y = 1 or p = 1 meets y = 0."""
        wide = self.scores.astype(np.float64)
        if self.from_logits:
            return softplus(np.where(self.positive, -wide, wide))
        with np.errstate(divide="ignore"):
            return -np.where(self.positive, np.log(wide), np.log1p(-wide))

    def _scan(self, wanted: str) -> RowColumns:
        """Columns of the question "how likely is the positive class": p for confidence, y = 1 for correctness."""
        p = self.probability
        wide = p.astype(np.float64)
        positive = self.positive
        smallest = np.finfo(p.dtype).tiny
        nll = np.minimum(self.losses(), -np.log(smallest))
        with np.errstate(divide="ignore", invalid="ignore"):
            parts = np.where(wide > 0, wide * np.log(wide), 0.0) + np.where(wide < 1, (1 - wide) * np.log1p(-wide), 0.0)
        prediction = (p >= 0.5).astype(np.int64)
        return RowColumns(p, prediction, positive, nll, (wide - positive) ** 2, np.maximum(-parts, 0.0))

    def column(self, name: str) -> np.ndarray:
        """One number per row; a hit is p ≥ ½ where the label is 1, and p below it where the label is 0."""
        return (self.probability >= 0.5) == self.positive if name == "hit" else super().column(name)

    def top(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Probability and label stand for confidence and correctness."""
        return self.probability, self.positive, self.weights


class CheckedTensor(Checked):
    """A matrix on a GPU: its columns are computed there, and a metric that reads the matrix itself copies it."""

    def __init__(self, tensor: Any, labels: np.ndarray, weights: np.ndarray | None, from_logits: bool) -> None:
        for name, value in (("tensor", tensor), ("labels", labels), ("weights", weights), ("from_logits", from_logits)):
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name != "values":
            raise AttributeError(name)
        return check_matrix(self.tensor, self.name)

    def _scan(self, wanted: str) -> RowColumns:
        """Per-row columns by one pass on the device; only they are copied."""
        from calibrant.kernels.torch.columns import host_columns

        return host_columns(self.tensor, self.labels, from_logits=self.from_logits, name=self.name)


def check(
    probabilities: Any, labels: Any, sample_weight: Any, from_logits: bool, *, weights_are: str = "shares"
) -> Checked:
    """Pass the three inputs of a metric through the gate.

    `weights_are`: "shares" for a ratio of sums, which takes any scale; "counts" for a metric that asks how many rows
    there are; "parts" for one chunk of many, whose weights stay as they are.
    """
    if isinstance(probabilities, Checked):
        return probabilities
    if np.ndim(probabilities) == 1:
        return check_binary(probabilities, labels, sample_weight, from_logits, weights_are=weights_are)
    name = "logits" if from_logits else "probabilities"
    device = on_device(probabilities) and probabilities.ndim == 2
    matrix = probabilities if device else check_matrix(probabilities, name)
    n_rows, n_classes = matrix.shape
    indices = check_labels(labels, n_rows, n_classes, against=name)
    kind = CheckedTensor if device else Checked
    return kind(matrix, indices, _weights(sample_weight, n_rows, weights_are), from_logits)


def _weights(sample_weight: Any, n_rows: int, weights_are: str) -> np.ndarray | None:
    weights = check_weights(sample_weight, n_rows)
    if weights_are == "counts":
        check_counts(weights)
    return unit_scale(weights) if weights_are == "shares" else weights


def check_binary(
    probabilities: Any, labels: Any, sample_weight: Any, from_logits: bool, *, weights_are: str = "shares"
) -> CheckedScores:
    """Pass one probability per row, labels 0/1 and weights through the gate."""
    if isinstance(probabilities, Checked):
        return cast(CheckedScores, probabilities.every("reads one score per row"))
    name = "logits" if from_logits else "probabilities"
    shape = np.shape(probabilities)
    if len(shape) == 2 and shape[1] == 2:
        raise InputError(
            f"{name} has shape {shape}, but this metric asks about one positive class: give the column of the positive "
            "class, for instance probabilities[:, 1]"
        )
    scores = check_scores(probabilities, name)
    if np.isnan(scores).any():
        raise InputError(f"{name} contains NaN in row {int(np.isnan(scores).argmax())}: every value must be a number")
    if not from_logits:
        lowest, highest = float(scores.min()), float(scores.max())
        if lowest < 0 or highest > 1 + PROBABILITY_TOLERANCE:
            raise InputError(
                f"{name} range from {lowest:.4g} to {highest:.4g}, but probabilities lie in [0, 1]: "
                'if these are logits, say so (from_logits=True, kind="logits" or --kind logits)'
            )
        scores = np.minimum(scores, scores.dtype.type(1))
    n_rows = len(scores)
    # beyond ±745 the probability of the other class is 0 in float64
    first, second = (np.zeros_like(scores), np.clip(scores, -745, 745)) if from_logits else (1 - scores, scores)
    return CheckedScores(
        np.stack([first, second], axis=1),
        check_outcomes(labels, n_rows),
        _weights(sample_weight, n_rows, weights_are),
        from_logits,
        scores,
    )


def top_label(
    probabilities: Any, labels: Any, sample_weight: Any, from_logits: bool, *, weights_are: str = "shares"
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Confidence, correctness and weights of every row, for a metric that needs their order."""
    rows = check(probabilities, labels, sample_weight, from_logits, weights_are=weights_are)
    return rows.every(ORDER_OF_ROWS).top()


def column_sums(rows: Checked, name: str) -> np.ndarray:
    """Σw and Σw·x of a column of the rows, as a (2,) array; an infinite loss of a row of weight 0 counts nothing."""
    return weighted_sums(rows.column(name), rows.weights)


def weighted_sums(column: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Σw and Σw·x in float64."""
    column = column.astype(np.float64, copy=False)
    if weights is None:
        return np.array([len(column), column.sum()])
    with np.errstate(invalid="ignore"):
        total = np.dot(column, weights)
    if np.isnan(total):
        total = np.dot(column[weights > 0], weights[weights > 0])
    return np.array([weights.sum(), total])


def mean(rows: Checked, name: str) -> float:
    """Weighted mean of a column of the rows."""
    weight, total = rows.total(column_sums, name)
    return float(total / weight)


def weighted_mean(column: np.ndarray, weights: np.ndarray | None) -> float:
    """Weighted mean in float64 of numbers at hand."""
    weight, total = weighted_sums(column, weights)
    return float(total / weight)
