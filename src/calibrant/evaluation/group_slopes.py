"""The calibration slope of every group: logit P(y) = a + b·logit(p), all groups fitted at once by Newton steps."""

from __future__ import annotations

import numpy as np

from calibrant.evaluation.group_sums import by_cluster
from calibrant.evaluation.grouping import Grouping

SMALLEST = 1e-12
STEPS = 25
RIDGE = 1e-6
"""Pull of a and b to 0 and 1, per row: where a group is separable its slope stays finite."""


def group_slopes(
    probability: np.ndarray, labels: np.ndarray, mass: np.ndarray, grouping: Grouping, clusters: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Slope of each group and its sandwich standard error; NaN where a group has one outcome only."""
    score = np.log(np.maximum(probability, SMALLEST)) - np.log(np.maximum(1 - probability, SMALLEST))
    slope, error = np.full((2, grouping.n_groups), np.nan)
    for level in grouping.levels:
        code = grouping.members[level].argmax(axis=0)[grouping.cell]
        slope[level], error[level] = _fit(score, labels, mass, code, level.stop - level.start, clusters)
    return slope, error


def _fit(  # noqa: PLR0917
    score: np.ndarray, labels: np.ndarray, mass: np.ndarray, code: np.ndarray, size: int, clusters: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    def total(column: np.ndarray) -> np.ndarray:
        return np.bincount(code, column, minlength=size)

    weight, positives = total(mass), total(mass * labels)
    pull = RIDGE * np.maximum(weight, 1.0)
    intercept, slope = np.zeros(size), np.ones(size)
    for _ in range(STEPS):
        mean = _logistic(intercept[code] + slope[code] * score)
        residual, curve = mass * (labels - mean), mass * mean * (1 - mean)
        first = total(residual) - pull * intercept, total(residual * score) - pull * (slope - 1)
        h00, h01, h11 = total(curve) + pull, total(curve * score), total(curve * score**2) + pull
        determinant = np.maximum(h00 * h11 - h01**2, 1e-300)
        step = (h11 * first[0] - h01 * first[1]) / determinant, (h00 * first[1] - h01 * first[0]) / determinant
        # a step of more than 2 in the slope leaves the range in which the quadratic describes the likelihood
        short = np.minimum(1.0, 2.0 / np.maximum(np.maximum(np.abs(step[0]), np.abs(step[1])), 1e-300))
        intercept, slope = intercept + short * step[0], slope + short * step[1]
        if max(np.abs(step[0]).max(), np.abs(step[1]).max()) < 1e-9:
            break
    influence = mass * (labels - mean) * ((h00 / determinant)[code] * score - (h01 / determinant)[code])
    if clusters is None:
        variance = total(influence**2)
    else:
        sums = by_cluster(influence, code, np.eye(size, dtype=bool), clusters)
        variance = np.asarray((sums * sums).sum(axis=1)).ravel()
    known = (positives > 0) & (positives < weight)
    return np.where(known, slope, np.nan), np.where(known, np.sqrt(variance), np.nan)


def _logistic(value: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0.0, -value))
