"""One equation per confidence bin, all solved together: each pass over the logits serves every bin.

Rows that come chunk by chunk give sums by bin instead of arrays by row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.calibrators.helpers.confidence_bins import ConfidenceBins, top_columns
from calibrant.core.bins import place
from calibrant.core.rows import Rows
from calibrant.core.statistic import statistic
from calibrant.core.threads import map_blocks, row_blocks
from calibrant.kernels.row_moments import row_moments
from calibrant.kernels.rows import TOP, scan_logits

LOWEST, HIGHEST = 1e-6, 1e3
"""Inverse temperatures that count as 0 and as infinity."""

TRUSTED_STEP = 0.02
"""A relative step this small is taken without another look: its error is of the order of its fourth power."""

SAMPLE_SHARE = 16
"""One row in so many gives the first estimate."""


class BinEquations:
    """f_i(β) = 0 for each bin i, f increasing in the inverse temperature β.

    Where a bin matches its accuracy, f = C_i(β) − target, the mean confidence after scaling; else f is the derivative
    of the bin's mean NLL, E_β[z] − z_y averaged over its rows.
    """

    def __init__(self, rows: Rows, prediction: np.ndarray, bins: ConfidenceBins, *, matches_accuracy: bool) -> None:
        self.rows, self.bins = rows, bins
        self.weights = np.ones(rows.n) if rows.weights is None else rows.weights
        self._kernel = row_moments.form(rows.n * rows.n_classes)
        self.target, self.matches_accuracy = aims(bins, matches_accuracy)
        every = np.arange(rows.n)
        gap = rows.logits[every, rows.labels].astype(np.float64) - rows.logits[every, prediction]
        self.label_gap = self._means(gap, slice(None))

    def sample(self) -> np.ndarray:
        """Row numbers of an even sample of every bin, with weight in each bin that has any."""
        order = np.lexsort((-self.weights, self.bins.index))
        first = np.flatnonzero(np.diff(self.bins.index[order], prepend=-1))
        chosen = np.zeros(len(order), dtype=bool)
        chosen[::SAMPLE_SHARE] = True
        chosen[first] = True
        return order[chosen]

    def rows_of(self, active: np.ndarray) -> np.ndarray | None:
        """Row numbers of the active bins; None when they are nearly all rows."""
        chosen = active[self.bins.index]
        return None if chosen.mean() > 0.7 else np.flatnonzero(chosen)

    def means(self, inverse: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean confidence and mean NLL of each bin at inverse temperatures (M,)."""
        moments = self._moments(inverse, None)
        return self._means(1.0 / moments[:, 0], slice(None)), self._mean_loss(moments, inverse)

    def evaluate(self, inverse: np.ndarray, chosen: np.ndarray | None) -> tuple[np.ndarray, float]:
        """f and its first three derivatives of each bin (4×M) from the chosen rows, and the objective over all bins."""
        moments = self._moments(inverse, chosen)
        where = slice(None) if chosen is None else chosen
        confidence, expected = (np.stack([self._means(row, where) for row in part]) for part in row_terms(moments))
        found = np.where(self.matches_accuracy, confidence, expected)
        found[0] -= np.where(self.matches_accuracy, self.target, self.label_gap)
        gap = self.matches_accuracy.all()
        loss = np.abs(self.bins.accuracy - confidence[0]) if gap else self._mean_loss(moments, inverse, where)
        filled = self.bins.filled
        return found, float(np.average(np.nan_to_num(loss[filled]), weights=self.bins.mass[filled]))

    def _moments(self, inverse: np.ndarray, chosen: np.ndarray | None) -> np.ndarray:
        per_row = inverse[self.bins.index if chosen is None else self.bins.index[chosen]]

        def part(block: slice) -> np.ndarray:
            return self._kernel(self.rows.logits[block if chosen is None else chosen[block]], per_row[block])

        return np.concatenate(map_blocks(part, row_blocks(len(per_row), self.rows.n_classes)))

    def _mean_loss(
        self, moments: np.ndarray, inverse: np.ndarray, where: np.ndarray | slice = slice(None)
    ) -> np.ndarray:
        return self._means(np.log(moments[:, 0]), where) - inverse * self.label_gap

    def _means(self, values: np.ndarray, where: np.ndarray | slice) -> np.ndarray:
        index, weights, n_bins = self.bins.index[where], self.weights[where], len(self.bins.mass)
        with np.errstate(invalid="ignore"):
            return np.bincount(index, weights * values, n_bins) / np.bincount(index, weights, n_bins)


class ChunkedBinEquations:
    """`BinEquations` over chunked rows; a pass serves every bin, and the edges place a row anew in each."""

    def __init__(self, rows: Any, edges: np.ndarray, bins: ConfidenceBins, *, matches_accuracy: bool) -> None:
        self.rows, self.edges, self.bins = rows, edges, bins
        size = rows.n * rows.n_classes
        self._kernels = scan_logits.form(size), row_moments.form(size)
        self.target, self.matches_accuracy = aims(bins, matches_accuracy)
        self._wanted = matches_accuracy

    def sample(self) -> BinEquations:
        """The same equations of a sample in memory."""
        rows = self.rows.sample(self.rows.n // 16).whole()
        top = top_columns(rows)
        bins = ConfidenceBins.of(top, rows.weights, place(top.confidence, self.edges), len(self.target))
        return BinEquations(rows, top.prediction, bins, matches_accuracy=self._wanted)

    def rows_of(self, active: np.ndarray) -> None:
        """All rows: a pass over files reads them anyway."""

    def means(self, inverse: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean confidence and mean NLL of each bin at inverse temperatures (M,)."""
        label_gap, confidence, *_, log_mass = self._means(inverse)
        return confidence, log_mass - inverse * label_gap

    def evaluate(self, inverse: np.ndarray, chosen: BinEquations | None) -> tuple[np.ndarray, float]:
        """f and its first three derivatives of each bin (4×M), from all rows or the sample; the objective over all."""
        if chosen is not None:
            return chosen.evaluate(inverse, None)
        means = self._means(inverse)
        label_gap, confidence, expected, log_mass = means[0], means[1:5], means[5:9], means[9]
        found = np.where(self.matches_accuracy, confidence, expected)
        found[0] -= np.where(self.matches_accuracy, self.target, label_gap)
        gap, filled = self.matches_accuracy.all(), self.bins.filled
        loss = np.abs(self.bins.accuracy - confidence[0]) if gap else log_mass - inverse * label_gap
        return found, float(np.average(np.nan_to_num(loss[filled]), weights=self.bins.mass[filled]))

    def _means(self, inverse: np.ndarray) -> np.ndarray:
        (sums,) = self.rows.total(bin_moments, self._kernels, self.edges, inverse)
        with np.errstate(invalid="ignore"):
            return sums[1:] / sums[0]


@statistic
def bin_moments(logits, labels, weights, kernels, edges, inverse):  # noqa: PLR0917 (a statistic's parameters)
    """Σw of each bin, and Σw times each of the ten columns that the equations average, 11×M."""
    scan, moments = kernels
    logits = np.ascontiguousarray(logits)
    top, _ = scan(logits, labels, TOP)
    every, index = np.arange(len(labels)), place(top.confidence, edges)
    label_gap = logits[every, labels].astype(np.float64) - logits[every, top.prediction]
    return summed_by_bin(index, moments(logits, inverse[index]), label_gap, weights, len(inverse))


@bin_moments.on_device
def _(rows, _, edges, inverse):
    from calibrant.kernels.torch import row_passes

    index = place(rows.top()[0], edges)
    gaps = rows.remembered("label gaps", lambda: row_passes.label_gaps(rows))
    return summed_by_bin(index, row_passes.row_moments(rows, inverse[index]), gaps, rows.weights, len(inverse))


def summed_by_bin(index, moments, label_gap, weights, n_bins):
    """`bin_moments` from the bin, the moments (n×5) and the label's gap to the peak of each row."""
    confidence, expected = row_terms(moments)
    columns = (np.ones(len(index)), label_gap, *confidence, *expected, np.log(moments[:, 0]))
    weigh = (lambda column: column) if weights is None else (lambda column: weights * column)
    return (np.stack([np.bincount(index, weigh(column), n_bins) for column in columns]),)


def row_terms(moments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The confidence p and the mean E[x] of each row at its β, each with its first three derivatives by β (4×n).

    From Σ exp(β·x)·x^k, k = 0 … 4: p is one over the first of them, E[x] has the cumulants of x for derivatives.
    """
    mean, second, third, fourth = moments[:, 1:].T / moments[:, 0]
    square = mean * mean
    skew = third - mean * (3 * second - 2 * square)
    tail = fourth - 4 * mean * skew - 3 * second * second + 2 * square * square
    falling = np.stack([np.ones_like(mean), -mean, 2 * square - second, 6 * mean * (second - square) - third])
    return falling / moments[:, 0], np.stack([mean, second - square, skew, tail])


def aims(bins: ConfidenceBins, matches_accuracy: bool) -> tuple[np.ndarray, np.ndarray]:
    """The confidence each bin is to reach (M,), and which bins are solved for it."""
    # a bin that is right throughout has its best temperature at 0: it aims half a row below certainty
    perfect = bins.accuracy == 1.0
    target = np.where(perfect, 1.0 - 0.5 / np.maximum(bins.mass, 1.0), bins.accuracy)
    return target, np.full(len(target), matches_accuracy) | perfect


def solve_roots(equations: Any, max_iter: int = 60) -> tuple[np.ndarray, list[float]]:
    """Inverse temperatures (M,) where every f_i is 0, and the objective at the start of each full pass.

    A sample gives the start where the data are large; then Householder's third-order steps, each inside
    the bracket its bin has so far.
    """
    inverse = np.ones(len(equations.target))
    if equations.rows.n >= 64 * len(inverse):
        inverse, _ = _iterate(equations, inverse, equations.sample(), max_iter)
    return _iterate(equations, inverse, None, max_iter)


def _iterate(equations: Any, inverse: np.ndarray, sample: Any, max_iter: int) -> tuple[np.ndarray, list[float]]:
    low, high = np.full_like(inverse, LOWEST), np.full_like(inverse, HIGHEST)
    active, trace = equations.bins.filled.copy(), []
    for _ in range(max_iter):
        chosen = sample if sample is not None else equations.rows_of(active)
        (value, slope, bend, turn), objective = equations.evaluate(inverse, chosen)
        trace.append(objective)
        low = np.where(value < 0, np.maximum(low, inverse), low)
        high = np.where(value > 0, np.minimum(high, inverse), high)
        with np.errstate(all="ignore"):
            target = inverse - _householder(value / slope, bend / slope, turn / slope)
        flat = ~(slope > 0)
        target = np.where(flat, inverse, np.clip(target, inverse / 8, inverse * 8))
        outside = ~flat & ~((target > low) & (target < high))
        at_limit = ((inverse <= LOWEST) & (value > 0)) | ((inverse >= HIGHEST) & (value < 0))
        target = np.where(outside, np.clip(np.sqrt(low * high), inverse / 8, inverse * 8), target)
        done = flat | at_limit | (value == 0) | (np.abs(target - inverse) <= TRUSTED_STEP * inverse)
        inverse = np.where(active & ~at_limit, target, inverse)
        active &= ~done
        if not active.any():
            break
    return inverse, trace


def _householder(newton: np.ndarray, bend: np.ndarray, turn: np.ndarray) -> np.ndarray:
    """f/f' corrected for f''/f' and f'''/f'; by the former alone, as in Halley's step, where both say too much."""
    bent = newton * bend
    factor = (1.0 - 0.5 * bent) / (1.0 - bent + newton * newton * turn / 6.0)
    return newton * np.where((factor > 0.5) & (factor < 2.0), factor, 1.0 / np.maximum(1.0 - 0.5 * bent, 0.5))
