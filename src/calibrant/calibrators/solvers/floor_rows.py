"""Rows whose floor is learned in the pass that a temperature fit makes anyway; `core.zeros` states the rule."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.core.arrays import check_values
from calibrant.core.rows import Rows, SolvedTemperature
from calibrant.core.statistic import Statistic, use_compiled
from calibrant.core.zeros import floor_of, raised
from calibrant.kernels.column_minima import column_minima
from calibrant.kernels.floor import learn_floor
from calibrant.kernels.scaling import temperature_sums_and_minima

SEED_ROWS = 16
"""Rows of a sample per class from which its minima leave few other rows that could lie below them."""


class FloorRows:
    """Rows as `fit_inverse_temperature` sees them, whose values nobody has looked at yet.

    The first pass over all of them also finds the smallest probability of each column. Only where a value is not
    finite are the rows checked and the floor learned by itself; zeros then count as the floor, as in any other fit.

    Parameters
    ----------
    rows : `Rows` without weights of 0, or `ChunkedRows`
    """

    def __init__(self, rows: Any) -> None:
        self.rows = rows
        self.n, self.n_classes, self.total_weight = rows.n, rows.n_classes, rows.total_weight
        self.n_zero = 0
        self._floor: np.ndarray | None = None
        self._seeds: np.ndarray | None = None

    def solved_temperature(self) -> SolvedTemperature | None:
        """Nothing is known without a solver."""
        return None

    def sample(self, size: int) -> Rows:
        """About `size` rows; nobody has looked at their values either."""
        found: Rows = self.rows.sample(size)
        n_elements = self.n * self.n_classes
        if self._floor is None and use_compiled(n_elements) and found.n >= SEED_ROWS * self.n_classes:
            minima = column_minima.form(n_elements)(np.ascontiguousarray(found.logits))
            self._seeds = minima.values
            if minima.n_zero:
                self.settle()
                return self.sample(size)
        return found

    def total(self, statistic: Statistic, *parameters: Any) -> tuple[Any, ...]:
        """Sum of `temperature_sums`, the only statistic of the fit."""
        if self._floor is None:
            *sums, minima = self.rows.total(temperature_sums_and_minima, *parameters, self._seeds)
            if np.isfinite(sums).all() and minima.n_zero == 0:
                self._floor = floor_of(minima.values)
                return tuple(sums)
            self.settle()
        return self.rows.total(statistic, *parameters)

    def floor(self) -> np.ndarray:
        """What a probability of 0 counts as (K,)."""
        if self._floor is None:
            self.settle()
        assert self._floor is not None  # noqa: S101 (set above)
        return self._floor

    def settle(self) -> None:
        """Check every value and learn the floor, in passes of their own."""
        if not isinstance(self.rows, Rows):
            self._floor = self.rows.learn_floor()
            return
        logits = self.rows.logits
        check_values(logits, from_logits=True)
        self._floor, self.n_zero = learn_floor(logits, self.rows.weights)
        if self.n_zero:
            self.rows = Rows(raised(logits, self._floor), self.rows.labels, self.rows.weights)
