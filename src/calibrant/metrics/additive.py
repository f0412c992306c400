"""Metrics over chunks: `update` with each chunk, `merge` partial results in any order, then ask for the `value`.

A chunk is a `Predictions` (anything with `values`, `kind`, `labels` and `weights`), or the arrays themselves. Only
sums are kept, never samples, so the answer over chunks is the answer over the whole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np

from calibrant.core.bin_sums import BinSums
from calibrant.core.bins import check_n_bins, width_edges, width_index
from calibrant.core.errors import InputError
from calibrant.kernels.rows import LEVELS, RowColumns
from calibrant.metrics.binning import bin_sums, check_choice, check_norm
from calibrant.metrics.classwise import (
    ClasswiseLosses,
    ClasswiseOverUnder,
    class_loss_sums,
    class_sums,
    losses_of_sums,
    over_under_of_class_sums,
)
from calibrant.metrics.inputs import Checked, check, total_weight
from calibrant.metrics.reliability import Reliability, reliability_of_sums
from calibrant.metrics.soft import SoftSums, bin_temperature, soft_sums
from calibrant.metrics.top_label import (
    OverUnderConfidence,
    debiased_norm,
    over_under_of_sums,
)


class Additive(ABC):
    """A metric as sums over rows: `update`, `merge`, `value`."""

    columns = "correct"
    """Which columns of the scan it reads: "correct", "scores", "all", or "" where it reads the matrix itself."""

    def __init__(self) -> None:
        self._sums: tuple[Any, ...] | None = None
        self._n_classes = 0

    def update(
        self, chunk: Any, labels: Any = None, sample_weight: Any = None, *, from_logits: bool = False
    ) -> Additive:
        """Add the rows of a `Predictions`, or of a matrix with labels; returns itself."""
        update_all([self], chunk, labels, sample_weight, from_logits=from_logits)
        return self

    def merge(self, other: Additive) -> Additive:
        """Add all rows that another of the same kind and options has seen; returns itself."""
        if type(self) is not type(other) or self._options() != other._options():
            raise InputError(f"cannot merge {other._words()} into {self._words()}: give both the same options")
        if other._sums is not None:
            self._add(other._sums, other._n_classes)
        return self

    def value(self) -> Any:
        """The metric of all rows so far."""
        if self._sums is None:
            raise InputError(f"{type(self).__name__} has seen no row of positive weight: update it first")
        return self._value(*self._sums)

    def add_rows(self, checked: Checked, columns: RowColumns | None) -> None:
        """Add checked rows whose columns were scanned already."""
        self._add(self._rows(checked, columns), checked.values.shape[1])

    @abstractmethod
    def _rows(self, checked: Checked, columns: Any) -> tuple[Any, ...]:
        """The sums of some rows."""

    @abstractmethod
    def _value(self, *sums: Any) -> Any:
        """The metric from its sums."""

    def _add(self, sums: tuple[Any, ...], n_classes: int) -> None:
        if self._sums is None:
            self._sums, self._n_classes = sums, n_classes
            return
        if n_classes != self._n_classes:
            raise InputError(
                f"{type(self).__name__} has seen {self._n_classes} classes, but this chunk has {n_classes}"
            )
        self._sums = tuple(mine + theirs for mine, theirs in zip(self._sums, sums, strict=True))

    def _options(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def _words(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self._options().items())
        return f"{type(self).__name__}({options})"


def update_all(
    metrics: Iterable[Additive], chunk: Any, labels: Any = None, sample_weight: Any = None, *, from_logits: bool = False
) -> None:
    """Update several metrics with one pass over a chunk (and one more for the classwise ones)."""
    kind = getattr(chunk, "kind", None) if labels is None else None
    if kind is not None:
        from_logits = chunk.kind == "logits"
        chunk, labels, sample_weight = chunk.values, chunk.labels, chunk.weights
    weighs_nothing = sample_weight is not None and not np.any(sample_weight)
    checked = check(chunk, labels, None if weighs_nothing else sample_weight, from_logits, weights_are="parts")
    metrics = list(metrics)
    wanted = [metric.columns for metric in metrics if metric.columns]
    columns = checked.columns(max(wanted, key=LEVELS.__getitem__)) if wanted else None
    # a chunk may weigh nothing as long as the whole does not; its values were checked all the same
    if not weighs_nothing:
        for metric in metrics:
            metric.add_rows(checked, columns)


class _AdditiveMean(Additive):
    column: str

    def _rows(self, checked: Checked, columns: RowColumns) -> tuple[float, float]:
        column = getattr(columns, self.column)
        weights = checked.weights
        total = column.sum(dtype=np.float64) if weights is None else np.dot(column.astype(np.float64), weights)
        return total_weight(len(column), weights), float(total)

    def _value(self, weight: float, total: float) -> float:
        return total / weight


class AdditiveNll(_AdditiveMean):
    """`nll` over chunks."""

    columns, column = "scores", "nll"


class AdditiveBrier(_AdditiveMean):
    """`brier` over chunks."""

    columns, column = "scores", "brier"


class AdditiveAccuracy(_AdditiveMean):
    """`accuracy` over chunks."""

    column = "correct"


class AdditiveEntropy(_AdditiveMean):
    """`entropy` over chunks."""

    columns, column = "all", "entropy"


class AdditiveConfidence(_AdditiveMean):
    """`confidence` over chunks."""

    column = "confidence"


class _AdditiveBins(Additive):
    def __init__(self, n_bins: int = 15) -> None:
        super().__init__()
        self.n_bins = check_n_bins(n_bins)

    def _rows(self, checked: Checked, columns: RowColumns) -> tuple[Any, ...]:
        return (bin_sums(columns.confidence, columns.correct, checked.weights, self.n_bins, "width"),)


class AdditiveEce(_AdditiveBins):
    """`ece` over chunks: equal-width bins; ``weighting="label"`` with ``norm=2`` only, the others need samples."""

    def __init__(self, n_bins: int = 15, norm: float = 1, weighting: str = "bin") -> None:
        super().__init__(n_bins)
        self.norm = check_norm(norm)
        self.weighting = check_choice("weighting", weighting, ("bin", "label"))
        if weighting == "label" and norm != 2:
            raise InputError(f'weighting="label" is additive with norm=2 only, got norm={norm!r}')

    def _rows(self, checked: Checked, columns: RowColumns) -> tuple[Any, ...]:
        sums = super()._rows(checked, columns)
        if self.weighting == "bin":
            return sums
        squares = columns.confidence.astype(np.float64) ** 2
        squares = squares if checked.weights is None else squares * checked.weights
        index = width_index(columns.confidence, self.n_bins)
        return (*sums, np.bincount(index, squares, minlength=self.n_bins))

    def _value(self, bins: BinSums, square: np.ndarray | None = None) -> float:
        return float(bins.norm(self.norm)) if square is None else SoftSums(bins, square).label_norm()


class AdditiveOverUnderConfidence(_AdditiveBins):
    """`over_under_confidence` over chunks."""

    def _value(self, bins: BinSums) -> OverUnderConfidence:
        return over_under_of_sums(bins)


class AdditiveDebiasedEce(_AdditiveBins):
    """`debiased_ece` over chunks."""

    def _value(self, bins: BinSums) -> float:
        return float(debiased_norm(bins))


class AdditiveReliability(_AdditiveBins):
    """`reliability` over chunks."""

    def _value(self, bins: BinSums) -> Reliability:
        return reliability_of_sums(bins, width_edges(self.n_bins))


class AdditiveClasswiseEce(Additive):
    """`classwise_ece` over chunks."""

    columns = ""

    def __init__(self, n_bins: int = 15, norm: float = 1) -> None:
        super().__init__()
        self.n_bins = check_n_bins(n_bins)
        self.norm = check_norm(norm)

    def _rows(self, checked: Checked, columns: RowColumns | None) -> tuple[Any, ...]:
        return (class_sums(checked, self.n_bins, "width"),)

    def _value(self, sums: BinSums) -> Any:
        return sums.norm(self.norm)


class AdditiveSce(AdditiveClasswiseEce):
    """`sce` over chunks."""

    def _value(self, sums: BinSums) -> float:
        return float(sums.norm(self.norm).mean())


class AdditiveClasswiseOverUnder(AdditiveClasswiseEce):
    """`classwise_over_under` over chunks."""

    def _value(self, sums: BinSums) -> ClasswiseOverUnder:
        return over_under_of_class_sums(sums)


class AdditiveSoftEce(Additive):
    """`soft_ece` over chunks; ``weighting="label"`` with ``norm=2`` only."""

    def __init__(
        self,
        n_bins: int = 15,
        temperature: float = 0.01,
        norm: float = 2,
        weighting: str = "bin",
        decay: float | None = None,
    ) -> None:
        super().__init__()
        self.n_bins = check_n_bins(n_bins)
        self.temperature = bin_temperature(n_bins, temperature, decay)
        self.norm = check_norm(norm)
        self.weighting = check_choice("weighting", weighting, ("bin", "label"))
        if weighting == "label" and norm != 2:
            raise InputError(f'weighting="label" is additive with norm=2 only, got norm={norm!r}')

    def _rows(self, checked: Checked, columns: RowColumns) -> tuple[Any, ...]:
        weights = checked.weights
        return (soft_sums(columns.confidence, columns.correct, weights, self.n_bins, self.temperature),)

    def _value(self, sums: SoftSums) -> float:
        return float(sums.bins.norm(self.norm)) if self.weighting == "bin" else sums.label_norm()


class AdditiveClasswiseLosses(Additive):
    """`classwise_losses` over chunks."""

    columns = "scores"

    def _rows(self, checked: Checked, columns: RowColumns) -> tuple[Any, ...]:
        return class_loss_sums(columns.nll, checked.labels, checked.weights, checked.values.shape[1])

    def _value(self, weight: np.ndarray, loss: np.ndarray) -> ClasswiseLosses:
        return losses_of_sums(weight, loss)
