"""The inner loops of the class temperature search: one class, many temperatures, all rows.

With all other classes frozen, a row enters only through its own scaled logit s(t) = z/t, the peak m of the other
scaled logits and their mass S = Σ exp(s_k − m) ≥ 1. The class wins where s > m (a tie goes to the lower index), and

    confidence = 1 / (1 + S·exp(m − s)) where it wins, 1 / (S + exp(s − m)) where it does not.

Two facts save most of the work. s is monotone in t, so a row's wins are the first or the last so many temperatures,
and the accuracy of the whole grid follows from one count per row. And over a stretch of temperatures on which a row
loses, its confidence is monotone: if the two ends lie in one bin, so does everything between them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from calibrant.core.arrays import Array

DOUBT = 1e-10
"""A confidence this close to a bin edge (in bins) is left to the caller, who recomputes its row as a whole."""

STRETCH = 1.5
"""Ratio of the last to the first temperature of a stretch."""


def start_sums(confidence: Array, correct: Array, weights: Array, n_bins: int) -> tuple[Array, Array]:
    """Bin gaps Σ w·(correct − confidence) (bins × grid) of confidences (n × grid), and the doubtful (row, grid) pairs
    they leave out."""
    gaps = np.zeros((n_bins, confidence.shape[1]))
    credit = weights[:, None] * (correct[:, None] - confidence)
    return gaps, np.stack(_add_to_bins(gaps, confidence, credit, np.arange(gaps.shape[1])), axis=1)


class ClassRows(NamedTuple):
    """What the rows are to one class while all other classes are frozen; every column (n,)."""

    values: Array
    """The class's raw logit z, float64."""
    peak: Array
    """The highest scaled logit m of the other classes."""
    mass: Array
    """S = Σ exp(s_k − m) over the other classes."""
    takes_ties: Array
    """Whether the class is predicted when its scaled logit equals the peak, bool."""
    right_others: Array
    """Whether the best other class is the label, bool."""
    right_self: Array
    """Whether this class is the label, bool."""
    weights: Array

    def take(self, index: Array | slice) -> ClassRows:
        """The rows at these places."""
        return ClassRows(*(column[index] for column in self))

    def wins(self, temperature: Array) -> Array:
        """Whether the class is predicted; true division, as z / T has it."""
        scores = self.values / temperature
        return (scores > self.peak) | ((scores == self.peak) & self.takes_ties)


def class_hits(rows: ClassRows, grid: Array) -> Array:
    """Σ w·correct for every temperature of the ascending grid, less the same constant for all."""
    gain = rows.weights * (rows.right_self.astype(np.int8) - rows.right_others)
    reach = np.maximum(rows.values / grid[0], rows.values / grid[-1])
    chosen = np.flatnonzero((reach >= rows.peak) & (gain != 0))
    rows, gain = rows.take(chosen), gain[chosen]
    last = len(grid) - 1
    positive, negative = rows.values > 0, rows.values < 0
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = rows.values / rows.peak
    # a positive logit wins up to a temperature, a negative one from a temperature on; rounding moves it by one at most
    count = np.searchsorted(grid, np.where(rows.peak > 0, crossing, np.inf), side="right")
    count = count + ((count <= last) & rows.wins(grid[np.minimum(count, last)]))
    count = count - ((count > 0) & ~rows.wins(grid[np.maximum(count - 1, 0)]))
    opens = np.searchsorted(grid, np.where(rows.peak < 0, crossing, np.inf))
    opens = opens - ((opens > 0) & rows.wins(grid[np.maximum(opens - 1, 0)]))
    opens = opens + ((opens <= last) & ~rows.wins(grid[np.minimum(opens, last)]))
    always = np.where(rows.wins(grid[:1]), last + 1, 0)
    first, after = np.where(negative, opens, 0), np.where(positive, count, np.where(negative, last + 1, always))
    change = np.bincount(first, gain, last + 2) - np.bincount(after, gain, last + 2)
    return np.cumsum(change)[: last + 1]


def class_sums(rows: ClassRows, temperatures: Array, home: float, n_bins: int) -> tuple[Array, Array]:
    """Bin gaps Σ w·(correct − confidence) (bins × temperatures) and the doubtful (row, temperature) pairs left out.

    `home` is a temperature at which most rows are in the bin where they stay, usually the present one.
    """
    home_bin, _ = _bin(1.0 / (rows.mass + np.exp(np.minimum(rows.values / home - rows.peak, 0.0))), n_bins)
    order = np.argsort(home_bin.astype(np.int16), kind="stable")
    rows = rows.take(order)
    # bounds of consecutive stretches of the ascending temperatures
    ends = [0]
    while ends[-1] < len(temperatures):
        ends.append(np.searchsorted(temperatures, temperatures[ends[-1]] * STRETCH, side="right"))
    bounds = np.array(ends)
    gaps, steady = _steady_sums(rows, home_bin[order], temperatures, bounds, n_bins)
    stretch, row = np.nonzero(~steady)
    sizes = np.diff(bounds)[stretch]
    position = np.repeat(bounds[stretch + 1] - np.cumsum(sizes), sizes) + np.arange(sizes.sum())
    row = np.repeat(row, sizes)
    moving = rows.take(row)
    wins = moving.wins(temperatures[position])
    exponential = np.exp(-np.abs(moving.values / temperatures[position] - moving.peak))
    confidence = 1.0 / (np.where(wins, 1.0, moving.mass) + np.where(wins, moving.mass, 1.0) * exponential)
    credit = moving.weights * (np.where(wins, moving.right_self, moving.right_others) - confidence)
    (doubt,) = _add_to_bins(gaps, confidence, credit, position)
    return gaps, np.stack([order[row[doubt]], position[doubt]], axis=1)


def _steady_sums(
    rows: ClassRows, home_bin: Array, temperatures: Array, bounds: Array, n_bins: int
) -> tuple[Array, Array]:
    """Gaps over the stretches on which a row loses and stays in its home bin, and which those are (stretches × n)."""
    inverse = 1.0 / temperatures[:, None]
    clear_of_tie = -DOUBT * (1.0 + np.abs(rows.peak))
    # a confidence 1/d lies inside the home bin, clear of its edges, when d lies between these two
    low = n_bins / (home_bin + 1.0 - DOUBT * (home_bin < n_bins - 1))
    high = n_bins / np.maximum(home_bin + DOUBT, 1e-300)
    starts = np.flatnonzero(np.diff(home_bin, prepend=-1))
    gaps = np.zeros((n_bins, len(temperatures)))
    steady = np.empty((len(bounds) - 1, len(home_bin)), bool)
    memory = np.empty((np.diff(bounds).max(), len(home_bin)))
    for stretch, (first, last) in enumerate(pairwise(bounds)):
        denominator = np.multiply(rows.values, inverse[first:last], out=memory[: last - first])
        denominator -= rows.peak
        stays = (denominator[0] < clear_of_tie) & (denominator[-1] < clear_of_tie)
        with np.errstate(over="ignore"):
            np.exp(denominator, out=denominator)
        denominator += rows.mass
        for end in (denominator[0], denominator[-1]):
            stays &= (end > low) & (end < high)
        credit = rows.weights * stays
        right = np.add.reduceat(credit * rows.right_others, starts)
        confidences = np.add.reduceat(np.divide(credit, denominator, out=denominator), starts, axis=1)
        gaps[home_bin[starts], first:last] = right[:, None] - confidences.T
        steady[stretch] = stays
    return gaps, steady


def _bin(confidence: Array, n_bins: int) -> tuple[Array, Array]:
    """Bin of each confidence, and whether an inner edge is too close to be sure of it."""
    place = confidence * n_bins
    nearest = np.rint(place)
    doubt = (np.abs(place - nearest) < DOUBT) & (nearest > 0) & (nearest < n_bins)
    return np.clip(np.ceil(place) - 1, 0, n_bins - 1).astype(np.intp), doubt


def _add_to_bins(gaps: Array, confidence: Array, credit: Array, position: Array) -> tuple[Array, ...]:
    """Add each credit to gaps[bin, position]; where a bin is in doubt, nothing is added and the place returned."""
    index, doubt = _bin(confidence, len(gaps))
    credit[doubt] = 0.0
    index = index * gaps.shape[1] + position
    gaps += np.bincount(index.ravel(), credit.ravel(), gaps.size).reshape(gaps.shape)
    return np.nonzero(doubt)
