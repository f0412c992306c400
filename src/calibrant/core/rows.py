"""The fit data as a calibrator sees it: rows that can be summed over, wherever they live.

A calibrator that is `additive` touches its data only through `total`, so the same lines fit an array in
memory and a thousand files on a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from calibrant.core.statistic import Kernel, Statistic, add
from calibrant.core.threads import BLOCK_ELEMENTS, map_blocks, row_blocks

SMALLEST_BLOCK = 1 << 18
"""Elements below which handing a block to a thread costs more than it saves."""

Columns = Kernel | Callable[..., tuple[np.ndarray, ...]]
"""`columns(logits, labels, weights, *parameters)` → arrays with an entry per row."""

Factor = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""`factor(logits, labels)` → what each row's weight is multiplied by (n,)."""


class SolvedTemperature(NamedTuple):
    """β = 1/T of the lowest mean NLL, the loss there and the passes it took."""

    value: float
    loss: float
    n_passes: int


class RowSource(Protocol):
    """Rows to fit on, wherever they are: in memory, in files, of which only the top is known, or seen otherwise."""

    @property
    def n(self) -> int:
        """Number of rows."""

    @property
    def n_classes(self) -> int:
        """Number of columns."""

    @property
    def total_weight(self) -> float:
        """Sum of the weights; n where there are none."""

    @property
    def in_memory(self) -> bool:
        """Are `logits`, `labels` and `weights` arrays at hand, as in `Rows`?"""

    def class_weight(self) -> np.ndarray:
        """Total weight of each class (K,); 0 for a class that is absent."""

    def row_weights(self) -> np.ndarray | None:
        """The weight of each row (n,), or None where all weigh the same."""

    def sample(self, size: int) -> RowSource:
        """About `size` rows, for a cheap first estimate."""

    def total(self, statistic: Statistic, *parameters: Any) -> tuple[Any, ...]:
        """Sum of `statistic(logits, labels, weights, *parameters)` over all rows."""

    def gather(self, columns: Columns, *parameters: Any) -> Sequence[np.ndarray]:
        """Arrays with an entry per row, joined in the order of the rows."""

    def gather_top(self, columns: Columns) -> Sequence[np.ndarray]:
        """The same for confidence, prediction and correctness of each row, which some sources know by themselves."""

    def whole(self) -> Rows:
        """All rows as arrays, for fits that cannot go chunk by chunk."""

    def reweighted(self, factor: Factor) -> RowSource:
        """The same rows with their weights multiplied."""

    def solved_temperature(self) -> SolvedTemperature | None:
        """The temperature of the lowest NLL, where the source finds it by itself (on a GPU); else None."""


class PerRow:
    """What a dataclass of arrays with an entry per row can do; those that are absent are None."""

    labels: np.ndarray
    weights: np.ndarray | None

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.labels)

    @property
    def total_weight(self) -> float:
        """Sum of the weights; n where there are none."""
        return float(self.n) if self.weights is None else float(self.weights.sum())

    def take(self, index: np.ndarray | slice) -> Self:
        """The rows at these places."""
        columns = vars(self).items()
        return type(self)(**{name: None if column is None else column[index] for name, column in columns})


@dataclass(frozen=True)
class Rows(PerRow):
    """Checked logits (n×K), labels (n,), weights (n,) or None and group numbers (n,) or None, in memory."""

    logits: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None = None
    groups: np.ndarray | None = None

    in_memory = True

    @property
    def n_classes(self) -> int:
        """Number of columns."""
        return self.logits.shape[1]

    def class_weight(self) -> np.ndarray:
        """Total weight of each class (K,); 0 for a class that is absent."""
        return np.bincount(self.labels, weights=self.weights, minlength=self.n_classes).astype(np.float64)

    def row_weights(self) -> np.ndarray | None:
        """The weight of each row (n,), or None where all weigh the same."""
        return self.weights

    def sample(self, size: int) -> Rows:
        """About `size` evenly spaced rows, for a cheap first estimate; all of them when there are fewer."""
        stride = max(1, self.n // max(1, size))
        return self.take(slice(None, None, stride))

    def total(self, statistic: Statistic, *parameters: Any) -> tuple[Any, ...]:
        """Sum of `statistic(logits, labels, weights, *parameters)` over all rows."""

        form = statistic.form(self.n * self.n_classes)

        def part(block: slice) -> tuple[Any, ...]:
            rows = self.take(block)
            return form(rows.logits, rows.labels, rows.weights, *parameters)

        # few large blocks would leave cores idle; the cut depends on the data alone, so the sums have the same bits
        size = min(max(self.n * self.n_classes // 16, SMALLEST_BLOCK), BLOCK_ELEMENTS)
        return reduce(add, map_blocks(part, row_blocks(self.n, self.n_classes, size)))

    def gather(self, columns: Columns, *parameters: Any) -> Sequence[np.ndarray]:
        """Arrays with an entry per row, joined in the order of the rows."""
        form = columns.form(self.n * self.n_classes) if isinstance(columns, Kernel) else columns

        def part(block: slice) -> tuple[Any, ...]:
            rows = self.take(block)
            return form(rows.logits, rows.labels, rows.weights, *parameters)

        parts = map_blocks(part, row_blocks(self.n, self.n_classes))
        return parts[0] if len(parts) == 1 else [np.concatenate(columns) for columns in zip(*parts, strict=True)]

    gather_top = gather

    def whole(self) -> Rows:
        """Itself."""
        return self

    def solved_temperature(self) -> SolvedTemperature | None:
        """Nothing is known without a solver."""
        return None

    def reweighted(self, factor: Factor) -> Rows:
        """The same rows with their weights multiplied."""
        (factors,) = self.gather(lambda logits, labels, _: (factor(logits, labels),))
        return replace(self, weights=factors if self.weights is None else self.weights * factors)
