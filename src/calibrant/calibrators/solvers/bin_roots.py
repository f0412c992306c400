"""One equation per confidence bin, all solved together: each pass over the logits serves every bin.

Rows that come chunk by chunk give sums by bin instead of arrays by row.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from calibrant.calibrators.confidence_bins import ConfidenceBins, top_columns
from calibrant.core.bins import place
from calibrant.core.rows import Rows
from calibrant.core.statistic import statistic
from calibrant.core.threads import map_blocks, row_blocks
from calibrant.kernels.rows import TOP, scan_logits
from calibrant.kernels.scaling import row_moments

LOWEST, HIGHEST = 1e-6, 1e3
"""Inverse temperatures that count as 0 and as infinity."""

TRUSTED_STEP = 0.02
"""A relative step this small is taken without another look: its error is of the order of its fourth power."""

SAMPLE_SHARE = 16
"""One row in so many gives the first estimate."""


class BinEquations:
    """f_i(β) = 0 for each bin i, f increasing in the inverse temperature β.

    Where a bin matches its accuracy, f = C_i(β) − target, the mean confidence after scaling; else f is the derivative
    of the bin's mean NLL, E_β[z] − z_y averaged over its rows. A pass over rows that are not in memory serves every
    bin, and the edges place a row anew in each.
    """

    def __init__(self, rows: Any, edges: np.ndarray, bins: ConfidenceBins, *, matches_accuracy: bool) -> None:
        self.rows, self.edges, self.bins, self._wanted = rows, edges, bins, matches_accuracy
        self._kernels = scan_logits.form(rows.size), row_moments.form(rows.size)
        # a bin that is right throughout has its best temperature at 0: it aims half a row below certainty
        perfect = bins.accuracy == 1.0
        self.target = np.where(perfect, 1.0 - 0.5 / np.maximum(bins.mass, 1.0), bins.accuracy)
        self.matches_accuracy = matches_accuracy | perfect

    def sample(self) -> BinEquations:
        """The same equations of a sample in memory."""
        rows = self.rows.sample(self.rows.n // SAMPLE_SHARE).whole()
        top = top_columns(rows)
        bins = ConfidenceBins.of(top, rows.weights, place(top.confidence, self.edges), len(self.target))
        return KeptBinEquations(rows, self.edges, bins, top.prediction, matches_accuracy=self._wanted)

    def means(self, inverse: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean confidence and mean NLL of each bin at inverse temperatures (M,)."""
        label_gap, confidence, *_, log_mass = self._means(inverse, None)
        return confidence, log_mass - inverse * label_gap

    def evaluate(self, inverse: np.ndarray, active: np.ndarray | None = None) -> tuple[np.ndarray, float]:
        """f and its first three derivatives of each (active) bin (4×M), and the objective over all bins."""
        means = self._means(inverse, active)
        label_gap, confidence, expected, log_mass = means[0], means[1:5], means[5:9], means[9]
        found = np.where(self.matches_accuracy, confidence, expected)
        found[0] -= np.where(self.matches_accuracy, self.target, label_gap)
        gap, filled = self.matches_accuracy.all(), self.bins.filled
        loss = np.abs(self.bins.accuracy - confidence[0]) if gap else log_mass - inverse * label_gap
        return found, float(np.average(np.nan_to_num(loss[filled]), weights=self.bins.mass[filled]))

    def _means(self, inverse: np.ndarray, active: np.ndarray | None) -> np.ndarray:
        sums = self._sums(inverse, active)
        with np.errstate(invalid="ignore"):
            return sums[1:] / sums[0]

    def _sums(self, inverse: np.ndarray, active: np.ndarray | None) -> np.ndarray:
        return self.rows.total(bin_moments, self._kernels, self.edges, inverse)[0]


class KeptBinEquations(BinEquations):
    """The same over rows in memory: the bin of each row is kept, and bins that are solved need no more passes."""

    def __init__(
        self, rows: Rows, edges: np.ndarray, bins: ConfidenceBins, prediction: np.ndarray, *, matches_accuracy: bool
    ) -> None:
        super().__init__(rows, edges, bins, matches_accuracy=matches_accuracy)
        every, size = np.arange(rows.n), len(self.target)
        gap = rows.logits[every, rows.labels].astype(np.float64) - rows.logits[every, prediction]
        with np.errstate(invalid="ignore"):
            self.label_gap = np.bincount(bins.index, rows.mass() * gap, size) / bins.mass

    def sample(self) -> BinEquations:
        """An even sample of every bin, with weight in each bin that has any."""
        order = np.lexsort((-self.rows.mass(), self.bins.index))
        first = np.flatnonzero(np.diff(self.bins.index[order], prepend=-1))
        chosen = np.zeros(len(order), dtype=bool)
        chosen[::SAMPLE_SHARE] = True
        chosen[first] = True
        some = copy(self)
        # the label's gap stays that of all rows: where a sample is right throughout, its own would have no optimum
        some.rows, some.bins = self.rows.take(order[chosen]), replace(self.bins, index=self.bins.index[order[chosen]])
        return some

    def _means(self, inverse: np.ndarray, active: np.ndarray | None) -> np.ndarray:
        means = super()._means(inverse, active)
        means[0] = self.label_gap
        return means

    def _sums(self, inverse: np.ndarray, active: np.ndarray | None) -> np.ndarray:
        rows, index = self.rows, self.bins.index
        if active is not None and active[index].mean() <= 0.7:
            chosen = np.flatnonzero(active[index])
            rows, index = rows.take(chosen), index[chosen]

        def part(block: slice) -> np.ndarray:
            return self._kernels[1](rows.logits[block], inverse[index[block]])

        moments = np.concatenate(map_blocks(part, row_blocks(len(index), rows.n_classes)))
        return summed_by_bin(index, moments, np.zeros(len(index)), rows.weights, len(inverse))[0]


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


def solve_roots(equations: BinEquations, max_iter: int = 60) -> tuple[np.ndarray, list[float]]:
    """Inverse temperatures (M,) where every f_i is 0, and the objective at the start of each full pass.

    A sample gives the start where the data are large; then Householder's third-order steps, each inside
    the bracket its bin has so far.
    """
    inverse = np.ones(len(equations.target))
    if equations.rows.n >= 64 * len(inverse):
        inverse, _ = _iterate(equations.sample(), inverse, max_iter)
    return _iterate(equations, inverse, max_iter)


def _iterate(equations: BinEquations, inverse: np.ndarray, max_iter: int) -> tuple[np.ndarray, list[float]]:
    low, high = np.full_like(inverse, LOWEST), np.full_like(inverse, HIGHEST)
    active, trace = equations.bins.filled.copy(), []
    for _ in range(max_iter):
        (value, slope, bend, turn), objective = equations.evaluate(inverse, active)
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
