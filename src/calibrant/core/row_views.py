"""Rows seen through other weights or labels: how a loss becomes a weighted likelihood that any calibrator can fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from calibrant.core.errors import InputError
from calibrant.core.rows import Columns, Factor, Rows, RowSource, SolvedTemperature
from calibrant.core.statistic import Statistic, add, statistic


@dataclass(frozen=True)
class RowView:
    """What views of other rows share."""

    rows: RowSource
    in_memory = False

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.rows.n

    @property
    def n_classes(self) -> int:
        """Number of columns."""
        return self.rows.n_classes

    def sample(self, size: int) -> Self:
        """A sample of the rows, seen alike."""
        return replace(self, rows=self.rows.sample(size))

    def total(self, statistic: Statistic, *parameters: Any) -> tuple[Any, ...]:
        """Sum of the statistic over the rows as they are seen."""
        raise NotImplementedError

    def row_weights(self) -> np.ndarray | None:
        """The weight of each row (n,)."""
        return self.gather(_weights)[0]

    def gather(self, columns: Columns, *parameters: Any) -> Sequence[np.ndarray]:
        """Arrays with an entry per row, joined in the order of the rows."""
        (parts,) = self.total(_listed, columns, *parameters)
        return [np.concatenate(columns) for columns in zip(*parts, strict=True)]

    gather_top = gather

    def solved_temperature(self) -> SolvedTemperature | None:
        """Nothing is known without a solver."""
        return None

    def reweighted(self, factor: Factor) -> RowSource:
        """The same rows with their weights multiplied."""
        return WeightedRows(self, factor)  # type: ignore[arg-type]


@dataclass(frozen=True)
class WeightedRows(RowView):
    """A view of rows with other weights."""

    factor: Factor

    @property
    def total_weight(self) -> float:
        """Sum of the new weights."""
        return float(self.class_weight().sum())

    def class_weight(self) -> np.ndarray:
        """New weight of each class (K,)."""
        return self.total(_class_weight)[0]

    def total(self, statistic: Statistic, *parameters: Any) -> tuple[Any, ...]:
        """Sum of the statistic under the new weights."""
        return self.rows.total(_under_weights, self.factor, statistic.form(self.n * self.n_classes), *parameters)

    def whole(self) -> Rows:
        """All rows as arrays with the new weights."""
        return self.rows.whole().reweighted(self.factor)


@dataclass(frozen=True)
class SmoothedRows(RowView):
    """Each row with its own label at weight 1−ε and with every label at ε/K: label smoothing of any likelihood."""

    smoothing: float

    @property
    def total_weight(self) -> float:
        """Sum of the weights: smoothing moves weight between labels and adds none."""
        return self.rows.total_weight

    def class_weight(self) -> np.ndarray:
        """Weight of each class (K,) after smoothing."""
        return (1 - self.smoothing) * self.rows.class_weight() + self.smoothing * self.total_weight / self.n_classes

    def total(self, statistic: Statistic, *parameters: Any) -> tuple[Any, ...]:
        """Sum of the statistic over all rows and labels."""
        return self.rows.total(_under_all_labels, self.smoothing, statistic.form(self.n * self.n_classes), *parameters)

    def row_weights(self) -> np.ndarray | None:
        """The weight of each row (n,): smoothing does not change it."""
        return self.rows.row_weights()

    def gather(self, columns: Columns, *parameters: Any) -> Sequence[np.ndarray]:
        """Arrays with an entry per row, from the rows with their own labels."""
        return self.rows.gather(columns, *parameters)

    gather_top = gather

    def whole(self) -> Rows:
        """Not to be had: a smoothed row has every label."""
        raise InputError(
            "'cv' needs one label per row, label smoothing gives each row all: give the penalty as a number"
        )


@statistic
def _listed(logits, labels, weights, columns, *parameters):
    # lists add up by joining, in the order of the rows
    return ([columns(logits, labels, weights, *parameters)],)


def _weights(logits, labels, weights):
    return (np.ones(len(labels)) if weights is None else weights,)


@statistic
def _class_weight(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray]:
    return (np.bincount(labels, weights=weights, minlength=logits.shape[1]).astype(np.float64),)


@statistic
def _under_weights(logits, labels, weights, factor, form, *parameters):
    factors = factor(logits, labels)
    return form(logits, labels, factors if weights is None else weights * factors, *parameters)


@statistic
def _under_all_labels(logits, labels, weights, smoothing, form, *parameters):
    ones = np.ones(len(labels)) if weights is None else weights
    result = form(logits, labels, (1 - smoothing) * ones, *parameters)
    share = smoothing / logits.shape[1] * ones
    for label in range(logits.shape[1]):
        result = add(result, form(logits, np.full_like(labels, label), share, *parameters))
    return result
