"""Increasing maps of one score whose slope is a broken line: between knots a parabola, beyond them straight.

The map is u(s) = value + Σ_j slope_j·∫ hat_j, with the integral from the first knot to s and hat_j the tent function of
knot j. It increases where all slopes are 0 or more, and slopes of 1 are the identity up to the value.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from calibrant.calibrators.solvers.score_maps import fit_scores, line_columns, stacked
from calibrant.core.rows import Rows
from calibrant.kernels.logistic import Pull, fit_logistic
from calibrant.metrics.flexible import weighted_quantile

OUTER_SHARES = (0.025, 0.975)
"""Where the outer knots stand; beyond them the map is straight."""

PULL_TO_LINE = 2.0
"""Strength of the pull of a spline to Platt scaling: about as much as two more rows."""


def slope_features(xp: Any, scores: Any, knots: Any) -> list[Any]:
    """∫ hat_j from the first knot to each score (n,), for each of k ≥ 2 knots."""
    count, zero = knots.shape[0], xp.zeros_like(scores)
    columns = [xp.minimum(scores - knots[0], zero), *[zero] * (count - 2), xp.maximum(scores - knots[count - 1], zero)]
    for j in range(count - 1):
        width = knots[j + 1] - knots[j]
        along = xp.minimum(xp.maximum(scores - knots[j], zero), zero + width)
        rising = along * along / (2 * width)
        columns[j] = columns[j] + along - rising
        columns[j + 1] = columns[j + 1] + rising
    return columns


slope_columns = partial(stacked, slope_features)
"""The features of scores as a fit reads them, (k, n); takes `knots=`."""


def bent_map(xp: Any, scores: Any, knots: Any, slopes: Any, value: Any) -> Any:
    """u(s) (n,) of scores (n,), over the array API: knots and slopes (k,), the value at the first knot."""
    result = value + xp.zeros_like(scores)
    for j, column in enumerate(slope_features(xp, scores, knots)):
        result = result + slopes[j] * column
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
    columns = slope_columns(scores, knots=knots)
    spread = np.maximum(np.average(columns**2, axis=1, weights=rows.weights), 1e-6)
    pull = Pull(centre, PULL_TO_LINE * np.diag(np.append(spread, 1.0)))
    found = fit_logistic(columns, rows.labels, rows.weights, start=centre, non_negative=True, pull=pull)
    return BentFit(knots, found.point[:-1], float(found.point[-1]), found.trace)
