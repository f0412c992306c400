"""Do labels go with scores? Statistics by which a reading of a table is accepted, doubted or rejected."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from calibrant.core.arrays import Array

FEWEST_OF_A_CLASS = 5
"""Rows of a class from which its mean scores are compared with those of other classes."""

EXPECTED_ERRORS = 5.0
"""Errors that probabilities promise, from which none at all means that the labels are the answers of the model."""


class Judgement(NamedTuple):
    """What the values show about a reading.

    association : by how many standard errors the scores of the labels are higher than those of shuffled labels.
    expected : the association if the scores were right; a small one means that the rows are too few to tell.
    order : classes whose scores the labels 0 … K − 1 seem to mean, where another order fits better; and by how many
        standard errors it does.
    echoed : whether the labels equal the class of the largest score, or follow from a threshold, in all rows.
    """

    association: float
    expected: float
    order: tuple[int, ...] | None
    gain: float
    echoed: bool


def judge(scores: Array, codes: Array) -> Judgement:
    """Judge the scores (n, K) of rows whose labels are the class numbers `codes`; −1 is no label.

    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]] * 5)
    >>> judge(p, np.array([0, 1, 0, 1] * 5)).association > 4, judge(p, np.array([1, 0, 1, 0] * 5)).association < -4
    (True, True)
    """
    known = codes >= 0
    p, y = scores[known], codes[known]
    n, width = p.shape
    if n < 2:
        return Judgement(0.0, 0.0, None, 0.0, echoed=False)
    centered = p - p.mean(axis=0)
    counts = np.bincount(y, minlength=width)
    deviation = centered - (centered @ counts / n)[:, None]
    variance = (deviation**2).sum(axis=0) @ counts / (n - 1)  # over all permutations of the labels
    total = centered[np.arange(n), y].sum()
    scale = np.sqrt(variance) if variance > 1e-12 * n else np.inf
    order, gain = _find_order(centered, y, counts)
    return Judgement(float(total / scale), float((centered * p).sum() / scale), order, gain, _is_echo(p, y))


def _find_order(centered: Array, y: Array, counts: Array) -> tuple[tuple[int, ...] | None, float]:
    """Return the order of the classes that fits best, unless it is 0 … K − 1, and its advantage in standard errors.

    The order is chosen on every other row and its advantage measured on the rest: the best of K! orders always fits the
    rows on which it was chosen better.
    """
    present = np.flatnonzero(counts >= FEWEST_OF_A_CLASS)
    order = _best_order(centered, y, present)
    if order is None:
        return None, 0.0
    places = tuple(map(int, order))
    trial = _best_order(centered[::2], y[::2], present)
    if trial is None:
        return places, 0.0
    rest, labels = centered[1::2], y[1::2]
    difference = rest[np.arange(len(rest)), trial[labels]] - rest[np.arange(len(rest)), labels]
    spread = ((centered[:, trial] - centered) ** 2).mean(axis=0)[labels].sum()
    return places, float(difference.sum() / np.sqrt(spread)) if spread > 0 else 0.0


def _best_order(centered: Array, y: Array, present: Array) -> Array | None:
    """Return the classes whose scores go best with the labels 0 … K − 1; None if these are 0 … K − 1."""
    sums = np.zeros((centered.shape[1], centered.shape[1]))
    np.add.at(sums, y, centered)
    within = sums[np.ix_(present, present)]
    if len(present) < 2 or (np.diag(within) >= within.max(axis=1)).all():
        return None
    from scipy.optimize import linear_sum_assignment

    _, chosen = linear_sum_assignment(-within)
    order = np.arange(len(sums))
    order[present] = present[chosen]
    return None if (order == np.arange(len(order))).all() else order


def _is_echo(p: Array, y: Array) -> bool:
    """Return whether the labels follow from the scores in all rows, although the scores promise errors."""
    top = p.max(axis=1)
    if (1 - top).sum() < EXPECTED_ERRORS:
        return False
    if (p[np.arange(len(y)), y] == top).all():
        return True
    if p.shape[1] > 2:
        return False
    low, high = p[y == 0, 1], p[y == 1, 1]
    return min(len(low), len(high)) >= FEWEST_OF_A_CLASS and bool(low.max() <= high.min())


def promises_probabilities(scores: Array, whole: float) -> bool:
    """Return whether rows of two or more columns sum to `whole`, up to the rounding of their printed digits.

    >>> promises_probabilities(np.array([[0.33, 0.67], [0.2, 0.8]]), 1.0), promises_probabilities(np.eye(2), 1.0)
    (True, False)
    """
    if scores.min() < 0 or scores.max() > whole * 1.001 or not np.isfinite(scores).all():
        return False
    unit = next((whole * 10.0**-digits for digits in (1, 2, 3, 4) if _has_unit(scores, whole * 10.0**-digits)), 0.0)
    width = scores.shape[1]
    room = max(1e-3 * whole, min(width / 2, 2.5 * width**0.5) * unit if whole > 1 else 0.0)
    return unit < 0.1 * whole and bool((np.abs(scores.sum(axis=1) - whole) <= room).all())


def _has_unit(scores: Array, unit: float) -> bool:
    """Return whether all values are whole multiples of a unit."""
    parts = scores[:300] / unit
    return bool((np.abs(parts - np.round(parts)) < 1e-6).all())
