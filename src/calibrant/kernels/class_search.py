"""The inner loops of the class temperature search: one class, many temperatures, all rows.

With all other classes frozen, a row enters only through its own scaled logit s(t) = z/t, the peak m of the other
scaled logits and their mass S = Σ exp(s_k − m) ≥ 1. The class wins where s > m (a tie goes to the lower index), and

    confidence = 1 / (1 + S·exp(m − s)) where it wins, 1 / (S + exp(s − m)) where it does not.

Two facts save most of the work. s is monotone in t, so a row's wins are the first or the last so many temperatures,
and the accuracy of the whole grid follows from one count per row. And over a stretch of temperatures on which a row
loses, its confidence is monotone: if the two ends lie in one bin, so does everything between them.
"""

from __future__ import annotations

import numpy as np

from calibrant.core.threads import row_blocks

DOUBT = 1e-10
"""A confidence this close to a bin edge (in bins) is left to the caller, who recomputes its row as a whole."""

STRETCH = 1.5
"""Ratio of the last to the first temperature of a stretch."""

CACHE_ELEMENTS = 1 << 15
"""Elements handled at a time where whole rows are needed: they stay in the second-level cache."""


def temperature_sums(
    logits: np.ndarray, labels: np.ndarray, weights: np.ndarray, grid: np.ndarray, n_bins: int
) -> tuple[np.ndarray, np.ndarray]:
    """Bin gaps Σ w·(correct − confidence) (bins × grid) of z/t, and the doubtful (row, grid) pairs they leave out."""
    gaps, doubtful = np.zeros((n_bins, len(grid))), [np.empty((0, 2), dtype=np.int64)]
    for block in row_blocks(*logits.shape, CACHE_ELEMENTS):
        shifted = logits[block].astype(np.float64)
        winner = shifted.argmax(axis=1)
        shifted -= shifted[np.arange(len(shifted)), winner][:, None]
        scaled, confidence = np.empty_like(shifted), np.empty((len(grid), len(shifted)))
        for position, temperature in enumerate(grid):
            np.multiply(shifted, 1.0 / temperature, out=scaled)
            np.exp(scaled, out=scaled).sum(axis=1, out=confidence[position])
        np.reciprocal(confidence, out=confidence)
        credit = weights[block] * (winner == labels[block]) - weights[block] * confidence
        pairs = _add_to_bins(gaps, confidence, credit, np.arange(len(grid))[:, None])
        doubtful.append(np.stack([block.start + pairs[1], pairs[0]], axis=1))
    return gaps, np.concatenate(doubtful)


def class_hits(
    values: np.ndarray, peak: np.ndarray, takes_ties: np.ndarray, gain: np.ndarray, grid: np.ndarray
) -> np.ndarray:
    """Σ gain over the rows that the class wins, for every temperature of the ascending grid.

    Parameters
    ----------
    values, peak : the class's raw logit and the highest scaled logit of the other classes (n,), float64.
    takes_ties : whether the class is predicted when its scaled logit equals the peak (n,), bool.
    gain : what a win is worth (n,): the weight where it makes a row right, minus the weight where it makes it wrong.
    """

    def wins(position: np.ndarray) -> np.ndarray:
        scores = values / grid[position]
        return (scores > peak) | ((scores == peak) & takes_ties)

    reach = np.maximum(values / grid[0], values / grid[-1])
    chosen = np.flatnonzero((reach >= peak) & (gain != 0))
    values, peak, takes_ties, gain = values[chosen], peak[chosen], takes_ties[chosen], gain[chosen]
    last = len(grid) - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = values / peak
    # positive logits win up to a temperature, negative ones from a temperature on; rounding moves it by one at most
    count = np.searchsorted(grid, np.where(peak > 0, crossing, np.inf), side="right")
    count = count + ((count <= last) & wins(np.minimum(count, last)))
    count = count - ((count > 0) & ~wins(np.maximum(count - 1, 0)))
    opens = np.searchsorted(grid, np.where(peak < 0, crossing, np.inf), side="left")
    opens = opens - ((opens > 0) & wins(np.maximum(opens - 1, 0)))
    opens = opens + ((opens <= last) & ~wins(np.minimum(opens, last)))
    zero = values == 0
    first = np.where(values > 0, 0, np.where(zero, 0, opens))
    after = np.where(values > 0, count, np.where(zero, np.where(wins(np.zeros_like(opens)), last + 1, 0), last + 1))
    change = np.bincount(first, weights=gain, minlength=last + 2) - np.bincount(after, weights=gain, minlength=last + 2)
    return np.cumsum(change)[: last + 1]


def class_sums(
    values: np.ndarray,
    peak: np.ndarray,
    mass: np.ndarray,
    takes_ties: np.ndarray,
    right_others: np.ndarray,
    right_self: np.ndarray,
    weights: np.ndarray,
    temperatures: np.ndarray,
    home: float,
    n_bins: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Bin gaps Σ w·(correct − confidence) (bins × temperatures) and the doubtful (row, temperature) pairs left out.

    Parameters
    ----------
    values, peak, mass : the class's raw logit and m, S of the other classes (n,), float64.
    takes_ties : as in `class_hits`.
    right_others, right_self : whether the best other class, or this class, is the label (n,), bool.
    temperatures : ascending, any number of them.
    home : a temperature at which most rows are in the bin where they stay, usually the present one.
    """
    columns = values, peak, mass, takes_ties, right_others, right_self, weights
    confidence = 1.0 / (mass + np.exp(np.minimum(values / home - peak, 0.0)))
    home_bin, _ = _bin(confidence, n_bins)
    order = np.argsort(home_bin.astype(np.int16), kind="stable")
    columns = tuple(column[order] for column in columns)
    bounds = _stretches(temperatures)
    gaps, steady = _steady_sums(*columns, home_bin[order], temperatures, bounds, n_bins)
    stretch, row = np.nonzero(~steady)
    sizes = np.diff(bounds)[stretch]
    position = np.repeat(bounds[stretch + 1] - np.cumsum(sizes), sizes) + np.arange(sizes.sum())
    row = np.repeat(row, sizes)
    values, peak, mass, takes_ties, right_others, right_self, weights = (column[row] for column in columns)
    scores = values / temperatures[position]
    wins = (scores > peak) | ((scores == peak) & takes_ties)
    exponential = np.exp(-np.abs(scores - peak))
    confidence = 1.0 / (np.where(wins, 1.0, mass) + np.where(wins, mass, 1.0) * exponential)
    credit = weights * (np.where(wins, right_self, right_others) - confidence)
    (doubt,) = _add_to_bins(gaps, confidence, credit, position)
    return gaps, np.stack([order[row[doubt]], position[doubt]], axis=1)


def _steady_sums(values, peak, mass, takes_ties, right_others, right_self, weights, home_bin, temperatures, bounds, n_bins):  # fmt: skip
    """Gaps over the stretches on which a row loses and stays in its home bin, and which those are (stretches × n)."""
    inverse = np.stack([1.0 / temperatures, np.ones(len(temperatures))], axis=1)
    clear_of_tie = -DOUBT * (1.0 + np.abs(peak))
    # a confidence 1/d lies inside the home bin, clear of its edges, when d lies between these two
    low = n_bins / (home_bin + 1.0 - DOUBT * (home_bin < n_bins - 1))
    high = n_bins / np.maximum(home_bin + DOUBT, 1e-300)
    starts = np.flatnonzero(np.diff(home_bin, prepend=-1))
    gaps = np.zeros((n_bins, len(temperatures)))
    steady = np.empty((len(bounds) - 1, len(values)), dtype=bool)
    memory = np.empty((np.diff(bounds).max(), len(values)))
    for stretch, (first, last) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
        denominator = np.multiply(values, inverse[first:last, :1], out=memory[: last - first])
        denominator -= peak
        stays = (denominator[0] < clear_of_tie) & (denominator[-1] < clear_of_tie)
        with np.errstate(over="ignore"):
            np.exp(denominator, out=denominator)
        denominator += mass
        for end in (denominator[0], denominator[-1]):
            stays &= (end > low) & (end < high)
        credit = weights * stays
        right = np.add.reduceat(credit * right_others, starts)
        confidences = np.add.reduceat(np.divide(credit, denominator, out=denominator), starts, axis=1)
        gaps[home_bin[starts], first:last] = right[:, None] - confidences.T
        steady[stretch] = stays
    return gaps, steady


def _stretches(temperatures: np.ndarray) -> np.ndarray:
    """Bounds of consecutive stretches of ascending temperatures."""
    bounds = [0]
    while bounds[-1] < len(temperatures):
        bounds.append(int(np.searchsorted(temperatures, temperatures[bounds[-1]] * STRETCH, side="right")))
    return np.array(bounds)


def _bin(confidence: np.ndarray, n_bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Bin of each confidence, and whether an inner edge is too close to be sure of it."""
    place = confidence * n_bins
    nearest = np.rint(place)
    doubt = (np.abs(place - nearest) < DOUBT) & (nearest > 0) & (nearest < n_bins)
    return np.clip(np.ceil(place) - 1, 0, n_bins - 1).astype(np.intp), doubt


def _add_to_bins(
    gaps: np.ndarray, confidence: np.ndarray, credit: np.ndarray, position: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Add each credit to gaps[bin, position]; where a bin is in doubt, nothing is added and the place returned."""
    index, doubt = _bin(confidence, len(gaps))
    credit[doubt] = 0.0
    index = index * gaps.shape[1] + position
    gaps += np.bincount(index.ravel(), weights=credit.ravel(), minlength=gaps.size).reshape(gaps.shape)
    return np.nonzero(doubt)
