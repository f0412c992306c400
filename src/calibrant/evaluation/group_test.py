"""Do groups differ in calibration beyond chance, at equal confidence?

Rows are compared within bins of confidence, so that groups of easy and of hard rows under one and the same calibration
map do not count as different. With e = (c − a) minus its mean over all rows of the bin, the sums S_g = Σ w·e of
calibrated-alike groups have mean 0 and a known covariance V, as in the Cochran–Mantel–Haenszel test of a table in
layers; Q = SᵀV⁺S is χ² with rank(V) degrees of freedom.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from calibrant.core.bins import width_index
from calibrant.evaluation.consistency import flipped_sums
from calibrant.evaluation.grouping import Grouping
from calibrant.evaluation.table import PlainData

MOST_JOINT = 2000
"""Groups up to which the whole covariance is used; beyond, its diagonal."""


@dataclass(frozen=True)
class Heterogeneity(PlainData):
    """The test that all groups share one calibration map."""

    statistic: float
    freedom: int
    p_value: float


def groups_differ(
    confidence: np.ndarray,
    correct: np.ndarray,
    mass: np.ndarray,
    grouping: Grouping,
    clusters: np.ndarray | None = None,
    *,
    n_bins: int = 15,
    draws: int = 1000,
    seed: int = 0,
) -> Heterogeneity:
    """Test the finest groups of a grouping; with clusters, by random signs of whole clusters.

    >>> from calibrant.evaluation.grouping import make_grouping
    >>> generator = np.random.default_rng(0)
    >>> p, ward = generator.uniform(0.5, 1, 2000), generator.integers(0, 3, 2000)
    >>> right = generator.random(2000) < p
    >>> groups_differ(p, right, np.ones(2000), make_grouping({"ward": ward}, 2000)).p_value > 0.05
    True
    """
    cell, n_cells = grouping.cell, grouping.members.shape[1]
    index, gap = width_index(confidence, n_bins), confidence - correct
    weight = np.bincount(index, mass, minlength=n_bins)
    mean = np.bincount(index, mass * gap, minlength=n_bins) / np.where(weight > 0, weight, 1.0)
    residual = gap - mean[index]
    sums = np.bincount(cell, mass * residual, minlength=n_cells)
    if clusters is not None:
        return _by_signs(sums, mass * residual, cell, clusters, draws=draws, seed=seed)
    joint = np.bincount(cell * n_bins + index, mass, minlength=n_cells * n_bins).reshape(n_cells, n_bins)
    squares = np.bincount(cell * n_bins + index, mass**2, minlength=n_cells * n_bins).reshape(n_cells, n_bins)
    count = np.bincount(index, minlength=n_bins)
    spread = np.bincount(index, mass * residual**2, minlength=n_bins) / np.where(weight > 0, weight, 1.0)
    spread *= np.where(count > 1, count / np.maximum(count - 1, 1), 0.0)
    share = joint / np.where(weight > 0, weight, 1.0)
    own = squares.sum(axis=0)
    diagonal = (spread * (squares - 2 * share * squares + share**2 * own)).sum(axis=1)
    known = diagonal > 1e-12 * max(diagonal.max(initial=0.0), 1e-300)
    if known.sum() < 2:
        return Heterogeneity(0.0, 0, 1.0)
    if n_cells > MOST_JOINT:
        freedom = int(known.sum()) - 1
        statistic = float((sums[known] ** 2 / diagonal[known]).sum()) * freedom / (freedom + 1)
        return Heterogeneity(statistic, freedom, _upper(statistic, freedom))
    cross = (share * spread) @ squares.T
    covariance = np.diag((spread * squares).sum(axis=1)) - cross - cross.T + (share * (spread * own)) @ share.T
    values, vectors = np.linalg.eigh(covariance)
    kept = values > 1e-9 * values.max()
    statistic = float(((vectors[:, kept].T @ sums) ** 2 / values[kept]).sum())
    return Heterogeneity(statistic, int(kept.sum()), _upper(statistic, int(kept.sum())))


def _upper(statistic: float, freedom: int) -> float:
    from scipy.special import chdtrc

    return float(chdtrc(freedom, statistic))


def _by_signs(
    sums: np.ndarray, residual: np.ndarray, cell: np.ndarray, clusters: np.ndarray, *, draws: int, seed: int
) -> Heterogeneity:
    """Σ S_g²/V_g, V_g the sum of squares of the clusters' parts, against its values under random signs."""
    table = csr_array((residual, (cell, clusters)), shape=(len(sums), int(clusters.max()) + 1))
    table.sum_duplicates()
    variance = np.asarray((table * table).sum(axis=1)).ravel()
    known = variance > 0
    if known.sum() < 2:
        return Heterogeneity(0.0, 0, 1.0)
    statistic = float((sums[known] ** 2 / variance[known]).sum())
    drawn = flipped_sums(cell, residual, clusters, len(sums), draws=draws, seed=seed)[:, known]
    at_least = int(((drawn**2 / variance[known]).sum(axis=1) >= statistic - 1e-12).sum())
    return Heterogeneity(statistic, int(known.sum()) - 1, (1 + at_least) / (draws + 1))
