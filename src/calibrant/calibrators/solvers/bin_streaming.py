"""The equations of `bin_roots` from rows that come chunk by chunk: sums by bin instead of arrays by row."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.calibrators.helpers.confidence_bins import ConfidenceBins, top_columns
from calibrant.calibrators.solvers.bin_roots import BinEquations, aims, row_terms
from calibrant.core.bins import place
from calibrant.kernels.dispatch import pick
from calibrant.kernels.row_moments import row_moments
from calibrant.kernels.rows import TOP, scan_logits


class ChunkedBinEquations:
    """`BinEquations` over chunked rows; a pass serves every bin, and the edges place a row anew in each."""

    def __init__(self, rows: Any, edges: np.ndarray, bins: ConfidenceBins, *, matches_accuracy: bool) -> None:
        self.rows, self.edges, self.bins = rows, edges, bins
        size = rows.n * rows.n_classes
        self._kernels = pick(scan_logits, size), pick(row_moments, size)
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


def bin_moments(logits, labels, weights, kernels, edges, inverse):  # noqa: PLR0917 (a statistic's parameters)
    """Σw of each bin, and Σw times each of the ten columns that the equations average, 11×M."""
    scan, row_moments = kernels
    logits = np.ascontiguousarray(logits)
    top, _ = scan(logits, labels, TOP)
    every, index = np.arange(len(labels)), place(top.confidence, edges)
    label_gap = logits[every, labels].astype(np.float64) - logits[every, top.prediction]
    return summed_by_bin(index, row_moments(logits, inverse[index]), label_gap, weights, len(inverse))


def summed_by_bin(index, moments, label_gap, weights, n_bins):
    """`bin_moments` from the bin, the moments (n×5) and the label's gap to the peak of each row."""
    confidence, expected = row_terms(moments)
    columns = (np.ones(len(index)), label_gap, *confidence, *expected, np.log(moments[:, 0]))
    weigh = (lambda column: column) if weights is None else (lambda column: weights * column)
    return (np.stack([np.bincount(index, weigh(column), n_bins) for column in columns]),)
