"""Rows seen through other weights or labels: how a loss becomes a weighted likelihood that any calibrator can fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibrant.core.rows import Rows, Statistic, add
from calibrant.core.threads import map_blocks, row_blocks

Factor = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""`factor(logits, labels)` → what each row's weight is multiplied by (n,)."""


def reweighted(rows: Any, factor: Factor) -> Any:
    """The same rows with their weights multiplied: `Rows` in memory, else a view that does it pass by pass."""
    if not isinstance(rows, Rows):
        return WeightedRows(rows, factor)
    blocks = row_blocks(rows.n, rows.n_classes)
    factors = np.concatenate(map_blocks(lambda block: factor(rows.logits[block], rows.labels[block]), blocks))
    return replace(rows, weights=factors if rows.weights is None else rows.weights * factors)


@dataclass(frozen=True)
class WeightedRows:
    """A view of chunked rows with other weights."""

    rows: Any
    factor: Factor

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.rows.n

    @property
    def n_classes(self) -> int:
        """Number of columns."""
        return self.rows.n_classes

    @property
    def total_weight(self) -> float:
        """Sum of the new weights."""
        return float(self.class_weight().sum())

    def class_weight(self) -> np.ndarray:
        """New weight of each class (K,)."""
        return self.total(_class_weight)[0]

    def sample(self, size: int) -> WeightedRows:
        """A sample of the rows, seen through the same weights."""
        return WeightedRows(self.rows.sample(size), self.factor)

    def total(self, statistic: Statistic, *parameters: Any) -> tuple[Any, ...]:
        """Sum of the statistic under the new weights."""
        return self.rows.total(_under_weights, self.factor, statistic, *parameters)


@dataclass(frozen=True)
class SmoothedRows:
    """Each row with its own label at weight 1−ε and with every label at ε/K: label smoothing of any likelihood."""

    rows: Any
    smoothing: float

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.rows.n

    @property
    def n_classes(self) -> int:
        """Number of columns."""
        return self.rows.n_classes

    @property
    def total_weight(self) -> float:
        """Sum of the weights: smoothing moves weight between labels and adds none."""
        return self.rows.total_weight

    def class_weight(self) -> np.ndarray:
        """Weight of each class (K,) after smoothing."""
        return (1 - self.smoothing) * self.rows.class_weight() + self.smoothing * self.total_weight / self.n_classes

    def sample(self, size: int) -> SmoothedRows:
        """A sample of the rows, smoothed alike."""
        return SmoothedRows(self.rows.sample(size), self.smoothing)

    def total(self, statistic: Statistic, *parameters: Any) -> tuple[Any, ...]:
        """Sum of the statistic over all rows and labels."""
        return self.rows.total(_under_all_labels, self.smoothing, statistic, *parameters)


def _class_weight(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray]:
    return (np.bincount(labels, weights=weights, minlength=logits.shape[1]).astype(np.float64),)


def _under_weights(logits, labels, weights, factor, statistic, *parameters):
    factors = factor(logits, labels)
    return statistic(logits, labels, factors if weights is None else weights * factors, *parameters)


def _under_all_labels(logits, labels, weights, smoothing, statistic, *parameters):
    ones = np.ones(len(labels)) if weights is None else weights
    result = statistic(logits, labels, (1 - smoothing) * ones, *parameters)
    share = smoothing / logits.shape[1] * ones
    for label in range(logits.shape[1]):
        result = add(result, statistic(logits, np.full_like(labels, label), share, *parameters))
    return result
