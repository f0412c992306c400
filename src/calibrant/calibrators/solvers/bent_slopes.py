"""Increasing maps of one score whose slope is a broken line: between knots a parabola, beyond them straight.

The map is u(s) = value + Σ_j slope_j·∫ hat_j, with the integral from the first knot to s and hat_j the tent function of
knot j. It increases where all slopes are 0 or more, and slopes of 1 are the identity up to the value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.calibrators.solvers.score_maps import fit_scores, line_columns
from calibrant.core.rows import Rows
from calibrant.core.threads import map_blocks, row_blocks
from calibrant.kernels.logistic import Pull, fit_logistic
from calibrant.metrics.flexible import weighted_quantile

OUTER_SHARES = (0.025, 0.975)
"""Where the outer knots stand; beyond them the map is straight."""

PULL_TO_LINE = 2.0
"""Strength of the pull of a spline to Platt scaling: about as much as two more rows."""


def slope_columns(scores: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """∫ hat_j from the first knot to each score (k, n), for k ≥ 2 knots."""
    columns = np.empty((len(knots), len(scores)))

    def part(block: slice) -> None:
        wide = scores[block].astype(np.float64)
        columns[:, block] = 0.0
        columns[0, block] = np.minimum(wide - knots[0], 0.0)
        columns[-1, block] += np.maximum(wide - knots[-1], 0.0)
        for j in range(len(knots) - 1):
            width = knots[j + 1] - knots[j]
            along = np.clip(wide - knots[j], 0.0, width)
            rising = along * along / (2 * width)
            columns[j, block] += along - rising
            columns[j + 1, block] += rising

    map_blocks(part, row_blocks(len(scores), len(knots), 1 << 17))
    return columns


def bent_map(xp: Any, scores: Any, knots: Any, slopes: Any, value: Any) -> Any:
    """u(s) (n,) of scores (n,), over the array API: knots and slopes (k,), the value at the first knot."""
    count = knots.shape[0]
    zero = xp.zeros_like(scores)
    result = value + slopes[0] * xp.minimum(scores - knots[0], zero)
    result = result + slopes[count - 1] * xp.maximum(scores - knots[count - 1], zero)
    for j in range(count - 1):
        width = knots[j + 1] - knots[j]
        along = xp.minimum(xp.maximum(scores - knots[j], zero), zero + width)
        result = result + along * (slopes[j] + along * (slopes[j + 1] - slopes[j]) / (2 * width))
    return result


@dataclass(frozen=True)
class BentFit:
    """A fitted map: knots and slopes (k,), the value at the first knot, and the losses step by step."""

    knots: np.ndarray
    slopes: np.ndarray
    start: float
    trace: np.ndarray


def fit_bent(rows: Rows, n_knots: int) -> BentFit:
    """The increasing map of highest likelihood with knots at percentiles, pulled weakly to Platt scaling."""
    scores = rows.logits.astype(np.float64)
    shares = np.linspace(*OUTER_SHARES, n_knots)
    knots = np.unique(weighted_quantile(scores, shares, rows.weights))
    if len(knots) < 2 or knots[-1] - knots[0] < 1e-9 * (1 + abs(knots[0])):
        knots = np.array([knots[0], knots[0] + 1.0])
    straight = fit_scores("SplineCalibration", rows, line_columns, np.array([1.0, 0.0]))
    slope, intercept = straight.point
    centre = np.append(np.full(len(knots), slope), intercept + slope * knots[0])
    columns = slope_columns(scores, knots)
    spread = np.maximum(np.average(columns**2, axis=1, weights=rows.weights), 1e-6)
    pull = Pull(centre, PULL_TO_LINE * np.diag(np.append(spread, 1.0)))
    found = fit_logistic(columns, rows.labels, rows.weights, start=centre, non_negative=True, pull=pull)
    return BentFit(knots, found.point[:-1], float(found.point[-1]), found.trace)
