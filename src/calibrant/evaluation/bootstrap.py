"""A seeded bootstrap over rows in which every figure is a matrix product.

Resample r gives row i the count N_ri ~ Poisson(1) (the Poisson bootstrap, which needs no pass to fix the total).
Sums over a resample are then N·X for a table X of per-row columns, so that all metrics, and all methods of a
comparison, share one set of draws: the comparison is paired.

Two intervals come out of the draws.

* `percentile_interval`, for means and other smooth figures: the 2.5% and 97.5% quantiles of the draws.
* `inverted_interval`, for calibration errors. An ECE is a norm ‖g‖ of bin residuals g = Σ(c−a)/n. It is biased
  upwards by the noise in g, and a resample is noisy twice, so its plain percentiles may lie wholly above the
  estimate. Instead the test is inverted along the line t·ĝ: with d* = g*−ĝ the noise, the interval holds every
  ‖t·ĝ‖ for which the observed error lies inside the central 95% of ‖t·ĝ + d*‖ (Carpenter 1999 on test inversion).
  It starts at 0 when noise alone explains what was seen, and it is widened where needed to hold the estimate itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial

import numpy as np

from calibrant.core.errors import InputError

LEVEL = 0.95
ROW_LIMIT = 16_384
"""Above this many rows, the noise is estimated on this many rows picked at random and scaled to n."""

Norm = Callable[[np.ndarray], np.ndarray]
"""Calibration error of residuals (…, F) → (…)."""


@dataclass(frozen=True)
class Resamples:
    """Counts (R, m) of the m rows that are resampled.

    rows : their places among the n rows (m,), or None for all of them.
    shrink : √(m/n), by which noise over n rows is smaller than over m.
    """

    counts: np.ndarray
    rows: np.ndarray | None
    shrink: float

    @cached_property
    def by_row(self) -> np.ndarray:
        """The counts as (m, R), each row's together."""
        return np.ascontiguousarray(self.counts.T)

    def take(self, column: np.ndarray) -> np.ndarray:
        """The resampled rows of a column (n, …)."""
        return column if self.rows is None else column[self.rows]

    def first(self, resamples: int) -> Resamples:
        """The first of the draws, for tables of figures that vary little from one to the next."""
        return Resamples(self.counts[:resamples], self.rows, self.shrink)

    def fewer(self, n_rows: int) -> Resamples:
        """The same draws over `n_rows` of the resampled rows, for tables too wide for all of them."""
        m = self.counts.shape[1]
        if n_rows >= m:
            return self
        # at random: a file may be sorted by class
        places = np.sort(np.random.default_rng(m).permutation(m)[:n_rows])
        rows = places if self.rows is None else self.rows[places]
        return Resamples(self.counts[:, places], rows, self.shrink * float(np.sqrt(n_rows / m)))

    def sums(self, columns: np.ndarray) -> np.ndarray:
        """Sums (R, F) of columns (m, F) of the resampled rows."""
        return (self.counts @ np.ascontiguousarray(columns, dtype=np.float32)).astype(np.float64)

    def mean_draws(self, columns: np.ndarray, mass: np.ndarray) -> np.ndarray:
        """Weighted means (R, F) of columns (m, F), as deviations from the mean over all m rows, scaled to n rows."""
        # centred first: float32 products then lose nothing of a small spread around a large mean
        centred = columns - (mass @ columns) / mass.sum()
        weight = self.sums(mass[:, None])
        return self.shrink * self.sums(mass[:, None] * centred) / np.maximum(weight, 1e-300)


def draw(n_rows: int, resamples: int, seed: int) -> Resamples:
    """The counts of `resamples` Poisson resamples of n rows."""
    if isinstance(resamples, bool) or not isinstance(resamples, (int, np.integer)) or resamples < 1:
        raise InputError(f"resamples must be a whole number of at least 1, got {resamples!r}")
    generator = np.random.default_rng([seed, 7])
    m = min(n_rows, ROW_LIMIT)
    rows = None if m == n_rows else generator.choice(n_rows, m, replace=False, shuffle=True)
    # 16 random bits pick a count from a table: several times faster than a Poisson generator
    counts = poisson_table()[generator.integers(0, 1 << 16, size=(resamples, m), dtype=np.uint16)]
    # a resample of nothing has no mean; possible for a handful of rows only
    counts[counts.sum(axis=1) == 0] = 1.0
    return Resamples(counts, rows, float(np.sqrt(m / n_rows)))


@cache
def poisson_table() -> np.ndarray:
    """65,536 counts whose frequencies are those of Poisson(1) to 16 bits."""
    probability, cumulative, edges = np.exp(-1.0), 0.0, []
    for count in range(1, 12):
        cumulative += probability
        edges.append(cumulative)
        probability /= count
    quantile = (np.arange(1 << 16) + 0.5) / (1 << 16)
    return np.searchsorted(edges, quantile).astype(np.float32)


def percentile_interval(draws: np.ndarray, value: float, level: float = LEVEL) -> tuple[float, float]:
    """The central `level` of the draws (R,), widened where needed to hold the value itself.

    >>> low, high = percentile_interval(np.arange(101.0), 50.0, level=0.9)
    >>> round(low, 6), round(high, 6)
    (5.0, 95.0)
    """
    finite = draws[np.isfinite(draws)]
    if len(finite) == 0 or not np.isfinite(value):
        return float("nan"), float("nan")
    tail = (1 - level) / 2
    low, high = np.quantile(finite, [tail, 1 - tail])
    return min(float(low), value), max(float(high), value)


def inverted_interval(
    norm: Norm,
    residual: np.ndarray,
    noise: np.ndarray,
    *,
    value: float | None = None,
    statistic: Norm | None = None,
    ceiling: float = 1.0,
    level: float = LEVEL,
) -> tuple[float, float]:
    """Interval of a calibration error ‖g‖ by inverting its test along t·ĝ.

    Parameters
    ----------
    norm : the error as a function of residuals (…, F).
    residual : ĝ, the observed residuals (F,).
    noise : d* = g* − ĝ of each resample (R, F).
    value : the figure that is reported, which the interval must hold; ‖ĝ‖ if None.
    statistic : what is compared, where it is not the norm itself (a debiased error).
    ceiling : the largest value the error can take.
    """
    statistic = norm if statistic is None else statistic
    observed = float(statistic(residual))
    value = float(norm(residual)) if value is None else value
    tail = (1 - level) / 2

    def surplus(scale: float) -> np.ndarray:
        drawn = statistic(scale * residual + noise)
        return np.array([_upper_quantile(drawn, tail), -_upper_quantile(-drawn, tail)]) - observed

    at_zero, at_one = surplus(0.0), surplus(1.0)
    ends = [_root(partial(_entry, surplus, k), at_zero[k], at_one[k]) for k in (0, 1)]
    low, high = (float(norm(scale * residual)) for scale in ends)
    return min(low, value), max(min(high, ceiling), value)


def _entry(function: Callable[[float], np.ndarray], place: int, scale: float) -> float:
    return float(function(scale)[place])


def _upper_quantile(draws: np.ndarray, tail: float) -> float:
    """The value that a share `tail` of the draws reaches or exceeds; a selection, since np.quantile sorts twice."""
    place = min(int(np.ceil((1 - tail) * len(draws))), len(draws) - 1)
    return float(np.partition(draws, place)[place])


def _root(surplus: Callable[[float], float], at_zero: float, at_one: float, steps: int = 6) -> float:
    """Where an increasing function of a scale ≥ 0 crosses zero, by the Illinois rule; 0 if it is positive there."""
    if at_zero >= 0:
        return 0.0
    low, high, below, above = 0.0, 1.0, at_zero, at_one
    while above < 0:
        low, below, high = high, above, 2 * high
        if high > 64:  # residuals of exactly zero: no scale of them changes anything
            return 1.0
        above = surplus(high)
    last = 0
    for _ in range(steps):
        middle = (low * above - high * below) / (above - below)
        here = surplus(middle)
        if abs(here) < 1e-3 * (above - below) or high - low < 1e-3:
            return middle
        if here < 0:
            low, below, above = middle, here, above / 2 if last < 0 else above
            last = -1
        else:
            high, above, below = middle, here, below / 2 if last > 0 else below
            last = 1
    return (low * above - high * below) / (above - below)
