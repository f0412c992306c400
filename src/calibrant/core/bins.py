"""THE bin rule: which bin a confidence belongs to, and sums over bins, stated once for metrics and calibrators alike.

Equal-width bins are (lo, hi] over [0, 1], with 0 itself in the first bin. Equal-mass bins give every
tied group the lowest rank of the group, so the answer never depends on the order of the rows. Calibration errors are
functions of the sums, and sums of chunks add up to the sums of the whole.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from calibrant.core.arrays import Array, check_whole

RANK_SLACK = 1e-12
"""A rank so little below the border of two bins lies on it, where ranks are sums of fractional weights."""


MAX_BINS, MAX_CLASS_BINS = 1_000_000, 100_000_000
"""Bins of one table, and of the tables of all classes."""


def check_n_bins(n_bins: int, n_classes: int = 1) -> int:
    """A whole number of bins, at least one, that fit in memory."""
    return check_whole(n_bins, "n_bins", 1, min(MAX_BINS, max(1, MAX_CLASS_BINS // n_classes)))


def width_edges(n_bins: int, dtype: np.typing.DTypeLike = np.float64) -> Array:
    """The n_bins + 1 edges j/M, rounded to the dtype of the confidences that meet them.

    Rounding the edge as the data were rounded keeps a float32 0.2 and a float64 0.2 in the same bin.
    """
    return (np.arange(n_bins + 1) / n_bins).astype(dtype)


def width_index(confidence: Array, n_bins: int) -> Array:
    """Equal-width bin of each confidence: (lo, hi], a confidence of 0 in the first bin."""
    return np.searchsorted(width_edges(n_bins, confidence.dtype)[1:-1], confidence)


def mass_index(confidence: Array, n_bins: int, weights: Array | None = None) -> Array:
    """Equal-mass bin floor(M·rank/n); ties share the lowest rank of their group.

    With weights, the rank of a row is the weight of all strictly smaller confidences and n their total,
    so that a weight of 2 equals the row twice and the unit of the weights does not matter.
    """
    order = np.argsort(confidence)  # ties are joined below: no need for the slower stable sort
    ordered = confidence[order]
    opens = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    if weights is None:
        lowest_rank, total = opens, len(confidence)
    else:
        before = cumulate(weights[order])
        lowest_rank, total = before[opens], before[-1]
    share = n_bins * lowest_rank / total * (1 + rank_slack(weights))
    group_bin = np.minimum(np.floor(share), n_bins - 1).astype(np.intp)
    index = np.empty(len(confidence), np.intp)
    index[order] = np.repeat(group_bin, np.diff(np.append(opens, len(ordered))))
    return index


def rank_slack(weights: Array | None) -> float:
    """0 where ranks are exact, as sums of whole weights are; else `RANK_SLACK`."""
    return 0.0 if weights is None or (weights == np.rint(weights)).all() else RANK_SLACK


def cumulate(weights: Array) -> Array:
    """0 and the running sums, added up in extended precision where the machine has it."""
    return np.concatenate(([0.0], np.cumsum(weights, dtype=np.longdouble)))


def quantile_edges(values: Array, weight: Array, n_bins: int) -> Array:
    """Edges that hold about the same mass of the fit data, for calibrators that must place new points.

    An inner edge lies midway between two neighbouring values, the lower of which holds the row of rank n·j/M: rounding
    in another precision or library moves no value across it. The first edge is 0 and the last 1.

    Parameters
    ----------
    values : array (k,), the distinct confidences, ascending
    weight : array (k,), above 0; a value of weight w takes as many ranks
    """
    ranks = np.concatenate(([0.0], np.cumsum(weight)))
    above = np.searchsorted(ranks[:-1], ranks[-1] * np.arange(1, n_bins) / n_bins, side="right")
    inner = 0.5 * (values[above - 1] + np.append(values, 1.0)[above])
    return np.concatenate(([0.0], inner, [1.0]))


def place(confidence: Array, edges: Array) -> Array:
    """Bin of each confidence between given edges, (lo, hi], the outer bins open-ended."""
    return np.searchsorted(edges[1:-1], confidence)


def total_gap(gaps: Array, total: Any = 1.0, axis: int = -1) -> Any:
    """Σ_b |Σw·confidence − Σw·correct| / Σw: the ECE, from the signed gap sums of the bins along one axis.

    >>> float(total_gap(np.array([3.0, -1.0]), 10.0))
    0.4
    """
    return np.abs(gaps).sum(axis=axis) / total


def over(excess: Array) -> Array:
    """Σ_b max(0, g_b): the part of the error where confidence exceeds accuracy; of −g, where accuracy does."""
    return np.maximum(excess, 0).sum(axis=-1)


class BinSums(NamedTuple):
    """Σw, Σw·confidence and Σw·correct of each bin; any leading axes (classes, resamples) are kept."""

    weight: Array
    confidence: Array
    correct: Array

    def __add__(self, other: BinSums) -> BinSums:  # type: ignore[override]
        return BinSums(*map(np.add, self, other))

    @property
    def excess(self) -> Array:
        """Signed gap of each bin as a share of the whole: (n_b/n)·(C_b − A_b); over-confidence is positive.

        NaN where no row counts.
        """
        with np.errstate(invalid="ignore"):
            return (self.confidence - self.correct) / self.weight.sum(axis=-1, keepdims=True)

    @property
    def accuracy(self) -> Array:
        """Share of right rows of each bin; 0 in an empty bin."""
        return self.correct / np.where(self.weight > 0, self.weight, 1.0)

    @property
    def gap(self) -> Array:
        """C_b − A_b; 0 in an empty bin."""
        return (self.confidence - self.correct) / np.where(self.weight > 0, self.weight, 1.0)

    def norm(self, p: float) -> Array:
        """(Σ_b (n_b/n)·|A_b − C_b|^p)^(1/p), over the last axis."""
        if p == 1:
            return total_gap(self.excess)
        gap = np.where(self.weight > 0, np.abs(self.gap), 0.0)
        if np.isinf(p):
            return gap.max(axis=-1)
        return mean_power(gap, self.weight / self.weight.sum(axis=-1, keepdims=True), p)


def mean_power(gap: Array, share: Array, p: float) -> Array:
    """(Σ share·gap^p)^(1/p) over the last axis; relative to the largest gap, so that no power underflows."""
    largest = np.where(share > 0, gap, 0.0).max(axis=-1)
    unit = np.where(largest > 0, largest, 1.0)
    return unit * (share * (gap / unit[..., None]) ** p).sum(axis=-1) ** (1 / p)
