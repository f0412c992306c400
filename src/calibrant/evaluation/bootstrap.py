"""A seeded bootstrap over rows in which every figure is a matrix product.

Resample r gives row i the count N_ri ~ Poisson(1) (the Poisson bootstrap, which needs no pass to fix the total).
Sums over a resample are then N·X for a table X of per-row columns, so that all metrics, and all methods of a
comparison, share one set of draws: the comparison is paired. Where rows come in clusters (a patient, an image), whole
clusters are drawn.

Two intervals come out of the draws.

* `percentile_interval`, for means and other smooth figures: the 2.5% and 97.5% quantiles of the draws.
* `inverted_interval`, for calibration errors. An ECE is a norm ‖g‖ of bin residuals g = Σ(c−a)/n. It is biased
  upwards by the noise in g, and a resample is noisy twice, so its plain percentiles may lie wholly above the
  estimate. Instead the test is inverted along the line t·ĝ: with d* = g*−ĝ the noise, the interval holds every
  ‖t·ĝ‖ for which the observed error lies inside the central 95% of ‖t·ĝ + d*‖ (Carpenter 1999 on test inversion).
  It starts at 0 when noise alone explains what was seen, and it is widened where needed to hold the estimate itself.
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.special import betaincinv, pdtr

from calibrant.core.arrays import Array, check_choice, check_whole
from calibrant.core.errors import InputError
from calibrant.core.schema import cluster_codes, missing_clusters_note
from calibrant.core.threads import row_blocks
from calibrant.metrics.top_label import increasing_root

LEVEL = 0.95
ROW_LIMIT = 16_384
"""Above this many rows, the noise is estimated on this many rows picked at random and scaled to n."""

MAX_RESAMPLES = 100_000
"""Their counts take up to 1.6 GB."""

MAX_BLOCK_COUNTS = 1 << 17
"""Counts that are converted to float64 at a time; they fit in the cache of a core."""

FEWEST_CLUSTERS = 200
"""Clusters that tables by class keep, thinned where they are large."""

Norm = Callable[[np.ndarray], np.ndarray]
"""Calibration error of residuals (…, F) → (…)."""


class Resamples(NamedTuple):
    """Counts (R, U) of the U units that are resampled: rows, or clusters of rows.

    rows : places of the m resampled rows among the n rows (m,), increasing.
    shrink : √(U/all units), by which noise over all units is smaller than over those resampled.
    unit : the unit of each resampled row (m,).
    """

    counts: Array
    rows: Array
    shrink: float
    unit: Array

    def fewer(self, n_rows: int) -> "Resamples":
        """The same draws over `n_rows` of the resampled rows at most, for tables too wide for all of them.

        Whole clusters are kept where enough of them fit; else each is thinned, which errs on the side of width.
        """
        n_rows, units = min(n_rows, ROW_LIMIT), self.counts.shape[1]
        if n_rows >= len(self.unit):
            return self
        # at random: a file may be sorted by class
        generator = np.random.default_rng(len(self.unit))
        order = generator.permutation(units)
        fitting = np.searchsorted(np.cumsum(np.bincount(self.unit, minlength=units)[order]), n_rows, side="right")
        chosen = np.sort(order[: max(fitting, min(units, FEWEST_CLUSTERS))])
        kept = np.flatnonzero(np.isin(self.unit, chosen))
        if len(kept) > n_rows:
            kept = np.sort(generator.choice(kept, n_rows, replace=False))
        shrink, unit = self.shrink * np.sqrt(len(chosen) / units), np.searchsorted(chosen, self.unit[kept])
        return Resamples(self.counts[:, chosen], self.rows[kept], shrink, unit)

    def sums(self, columns: Array) -> Array:
        """Sums (R, F) of columns (m, F) of the resampled rows."""
        units = self.counts.shape[1]
        table = np.stack([np.bincount(self.unit, column, units) for column in columns.T], axis=1)
        return np.concatenate([counts @ table for counts in self._float64_blocks()])

    def cell_sums(self, cell: Array, columns: Array, n_cells: int) -> Array:
        """Sums (R, F, L) of columns (F, m) of the resampled rows by the cell of each row (m,)."""
        n_columns, units = len(columns), self.counts.shape[1]
        # sparse, because a unit has rows in few cells
        places = (cell + n_cells * np.arange(n_columns)[:, None]).ravel(), np.tile(self.unit, n_columns)
        table = csr_array((np.ravel(columns), places), shape=(n_columns * n_cells, units))
        blocks = (np.ascontiguousarray(counts.T) for counts in self._float64_blocks())
        return np.concatenate([(table @ counts).T for counts in blocks]).reshape(-1, n_columns, n_cells)

    def _float64_blocks(self) -> Iterator[Array]:
        """Yield the counts of a few resamples at a time as float64.

        Processors sum the terms of a matrix product in different orders. In float32 this changes the seventh digit.
        """
        n_resamples, n_units = self.counts.shape
        for block in row_blocks(n_resamples, n_units, MAX_BLOCK_COUNTS):
            yield self.counts[block].astype(np.float64)

    def mean_draws(self, columns: Array, mass: Array) -> Array:
        """Weighted means (R, F) of columns (m, F), as deviations from the mean over all m rows, scaled to n rows."""
        # centred first, so that the sums lose no digits of a small spread around a large mean
        centred = columns - (mass @ columns) / mass.sum()
        weight = self.sums(mass[:, None])
        return self.shrink * self.sums(mass[:, None] * centred) / np.maximum(weight, 1e-300)


def column_of(predictions: Any, given: Any) -> Array:
    """A value per row: a named column of the predictions, or the given values."""
    return predictions.column(given) if isinstance(given, str) else np.asanyarray(given)


def sampled(
    predictions: Any, columns: dict[str, Array] | None, cluster: Any, weights_are: str, *, one_cluster: bool = False
) -> tuple[Any, dict[str, Array] | None, Array | None, str]:
    """Predictions whose weights sum to the number of sampling units, and words on their weights.

    Rows are the units, whatever they weigh; with "counts" every copy of a row is one. Between them, the columns of
    groups and the clusters, numbered by first appearance, of the rows that figures are made of: a row of many labels,
    or with label shares, stands for several of them, which share its group and form a cluster. They are None where
    there are none, or every row is a cluster of its own. A single cluster, of which there are no resamples, is an error
    unless `one_cluster` is set.
    """
    check_choice(weights_are, "weights_are", ("rows", "counts"))
    weights, words, rows = predictions.weights, "", np.arange(predictions.n)
    clusters = predictions.clusters if cluster is None else column_of(predictions, cluster)
    if clusters is not None:
        clusters, n_missing = cluster_codes(clusters, predictions.n)
        if n_missing:
            predictions = predictions.like(notes=(*predictions.notes, missing_clusters_note(n_missing, predictions.n)))
    if weights is not None and weights_are == "rows":
        words = f", weights sum to {weights.sum():,.8g}"
        predictions = predictions.like(weights=weights * (np.count_nonzero(weights) / weights.sum()))
    elif weights is not None:
        if (weights % 1).any():
            raise InputError("weights_are='counts' makes copies of rows, but the weights are not all whole numbers")
        rows = np.repeat(rows, weights.astype(np.int64))
        words = f" that are copies of {predictions.n:,}, as many as their weights count"
        predictions = predictions[rows].like(weights=None, notes=predictions.notes)
    unit = None
    if predictions.task == "multilabel":
        unit = np.repeat(np.arange(predictions.n), predictions.n_classes)
    elif predictions.label_shares is not None:
        unit, _ = np.nonzero(predictions.label_shares)
    rows = rows if unit is None else rows[unit]
    clusters = unit if clusters is None else clusters[rows]
    if clusters is not None:
        # rows keep their order, and numbers of rows that are left out go
        found, clusters = np.unique(clusters, return_inverse=True)
        if len(found) == 1 < len(rows) and not one_cluster:
            raise InputError("all rows are in one cluster: at least 2 are needed, and intervals need some 20 or more")
        clusters = clusters if len(found) < len(rows) else None
    return predictions, columns and {name: column[rows] for name, column in columns.items()}, clusters, words


def draw(n_rows: int, resamples: int, seed: int, clusters: Array | None = None) -> Resamples:
    """The counts of `resamples` Poisson resamples of n rows, or of whole clusters.

    clusters : the cluster of each row (n,), numbered from 0 by first appearance, or None where rows are independent.
    """
    check_whole(resamples, "resamples", 1, MAX_RESAMPLES)
    check_whole(seed, "seed", 0)
    generator = np.random.default_rng([seed, 7])
    unit = np.arange(n_rows) if clusters is None else clusters
    units = unit.max() + 1
    place, m = np.arange(units), min(units, ROW_LIMIT)
    if m < units:
        chosen, place = generator.choice(units, m, replace=False), np.full(units, -1)
        place[chosen] = np.arange(m)
    # 16 random bits pick a count from a table: several times faster than a Poisson generator
    counts = poisson_table()[generator.integers(1 << 16, size=(resamples, m), dtype=np.uint16)]
    # a resample of nothing has no mean; possible for a handful of units only
    counts[counts.sum(axis=1) == 0] = 1
    rows = np.flatnonzero(place[unit] >= 0)
    return Resamples(counts, rows, np.sqrt(m / units), place[unit[rows]])


@cache
def poisson_table() -> Array:
    """65,536 counts whose frequencies are those of Poisson(1) to 16 bits."""
    quantile = (np.arange(1 << 16) + 0.5) / (1 << 16)
    return np.searchsorted(pdtr(np.arange(11), 1.0), quantile).astype(np.uint8)


def in_blocks(drawn: Callable[[int], Array], draws: int, width: int, most: int = 4_000_000) -> Array:
    """What a function makes of so many draws at a time, one after the other: `most` numbers, `width` per draw."""
    block = max(1, most // width)
    return np.concatenate([drawn(min(block, draws - start)) for start in range(0, draws, block)])


def percentile_interval(draws: Array, value: float) -> tuple[float, float]:
    """The central 95% of the draws (R,), widened where needed to hold the value itself.

    >>> low, high = percentile_interval(np.arange(201.0), 100.0)
    >>> round(low, 6), round(high, 6)
    (5.0, 195.0)
    """
    finite = draws[np.isfinite(draws)]
    if len(finite) == 0 or not np.isfinite(value):
        return np.nan, np.nan
    low, high = np.quantile(finite, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return min(float(low), value), max(float(high), value)


def inverted_interval(
    norm: Norm,
    residual: Array,
    noise: Array,
    *,
    value: float,
    statistic: Norm | None = None,
    ceiling: float = 1.0,
    direction: Array | None = None,
) -> tuple[float, float]:
    """Interval of a calibration error ‖g‖ by inverting its test along t·ĝ, or along another direction.

    Parameters
    ----------
    norm : the error as a function of residuals (…, F).
    residual : ĝ, the observed residuals (F,).
    noise : d* = g* − ĝ of each resample (R, F).
    value : the figure that is reported, which the interval must hold.
    statistic : what is compared, where it is not the norm itself (a debiased error).
    ceiling : the largest value the error can take.
    direction : along which the test is inverted (F,), where ĝ itself holds too much noise.
    """
    line = residual if direction is None else direction
    statistic = norm if statistic is None else statistic
    observed = float(statistic(residual))
    # a selection, since np.quantile sorts twice
    last = len(noise) - 1
    place = min(int(np.ceil((1 + LEVEL) / 2 * len(noise))), last)

    def surplus(scale: float, place: int) -> float:
        return float(np.partition(statistic(scale * line + noise), place)[place]) - observed

    low, high = (
        float(norm(increasing_root(partial(surplus, place=one), tolerance=1e-3, steps=6) * line))
        for one in (place, last - place)
    )
    return min(low, value), max(min(high, ceiling), value)


def clopper_pearson(errors: float, count: float, level: float = 0.95) -> tuple[float, float]:
    """Exact two-sided interval of a share: `errors` out of `count`, which may be effective counts.

    >>> low, high = clopper_pearson(0, 100)
    >>> round(low, 4), round(high, 4)
    (0.0, 0.0362)
    """
    if count == 0:
        return 0.0, 1.0
    tail = (1 - level) / 2
    low = 0.0 if errors == 0 else float(betaincinv(errors, count - errors + 1, tail))
    high = 1.0 if errors == count else float(betaincinv(errors + 1, count - errors, 1 - tail))
    return low, high
