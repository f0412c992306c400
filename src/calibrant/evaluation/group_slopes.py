"""The calibration slope of every group: logit P(y) = a + b·logit(p), all groups fitted at once by Newton steps."""

from __future__ import annotations

import numpy as np

from calibrant.core.odds import sigmoid, softplus
from calibrant.evaluation.group_sums import by_cluster
from calibrant.evaluation.grouping import Grouping

SMALLEST = 1e-12
STEPS, HALVINGS = 50, 40
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
    away = np.where(labels > 0.5, -1.0, 1.0)

    def loss(point: np.ndarray) -> np.ndarray:
        losses = total(mass * softplus(away * (point[0, code] + point[1, code] * score)))
        return losses + pull / 2 * (point[0] ** 2 + (point[1] - 1) ** 2)

    point = np.stack([np.zeros(size), np.ones(size)])
    present = loss(point)
    for _ in range(STEPS):
        mean = sigmoid(point[0, code] + point[1, code] * score)
        residual, curve = mass * (labels - mean), mass * mean * (1 - mean)
        first = total(residual) - pull * point[0], total(residual * score) - pull * (point[1] - 1)
        h00, h01, h11 = total(curve) + pull, total(curve * score), total(curve * score**2) + pull
        determinant = np.maximum(h00 * h11 - h01**2, 1e-300)
        step = np.stack([h11 * first[0] - h01 * first[1], h00 * first[1] - h01 * first[0]]) / determinant
        # probabilities that are far too extreme have little curvature: a full step may jump over the optimum and back
        for _ in range(HALVINGS):
            reached = loss(point + step)
            worse = ~(reached <= present + 1e-12 * np.abs(present))
            if not worse.any():
                break
            step[:, worse] /= 2
        else:
            step[:, worse], reached[worse] = 0.0, present[worse]
        point, present = point + step, reached
        if np.abs(step).max() < 1e-9:
            break
    influence = mass * (labels - mean) * ((h00 / determinant)[code] * score - (h01 / determinant)[code])
    if clusters is None:
        variance = total(influence**2)
    else:
        sums = by_cluster(influence, code, np.eye(size, dtype=bool), clusters)
        variance = np.asarray((sums * sums).sum(axis=1)).ravel()
    known = (positives > 0) & (positives < weight)
    return np.where(known, point[1], np.nan), np.where(known, np.sqrt(variance), np.nan)
