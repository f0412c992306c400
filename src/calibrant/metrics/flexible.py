"""The flexible calibration curve of one probability per row, and the errors read off it: ICI, E50, E90."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.core.softmax import sigmoid
from calibrant.kernels.logistic import Pull, fit_logistic, logistic_sums
from calibrant.metrics.clinical import refit, standardised
from calibrant.metrics.inputs import BinaryLabels, PositiveProbabilities, RowWeights, check_binary, weighted_mean
from calibrant.metrics.record import Redrawn, metric

KNOTS = ((100.0, (5, 27.5, 50, 72.5, 95)), (30.0, (5, 35, 65, 95)), (10.0, (10, 50, 90)))
"""Rows from which the curve has 5, 4 or 3 knots, and the percentiles they stand at; below, or where knots coincide, the
next smaller number, and at last a straight line (Harrell 2015)."""

RIDGE = 1e-9
"""Added to the curvature of each coefficient (columns in units of their spread), so that separable data stay finite."""

GRID_SIZE = 101
Z_95 = 1.959963984540054


@dataclass(frozen=True)
class FlexibleCalibration:
    """A smooth curve of the observed share of positives over the predicted probability, with a pointwise 95% band."""

    probability: np.ndarray
    """Predicted probabilities (101,), from the lowest to the highest of the data, evenly spaced in log-odds."""
    observed: np.ndarray
    """The curve at them."""
    low: np.ndarray
    """Lower end of the band."""
    high: np.ndarray
    """Upper end of the band."""
    knots: np.ndarray
    """Knots of the restricted cubic spline in log-odds; empty where the curve is a straight line in log-odds."""


@metric(about="score")
def flexible_calibration(
    probabilities: PositiveProbabilities,
    labels: BinaryLabels,
    *,
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> FlexibleCalibration:
    """Logistic regression of the label on a restricted cubic spline of logit p (Harrell 2015; Van Calster 2016).

    The band is pointwise and comes from the curvature of the likelihood (Wald, on the log-odds).

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant.metrics import flexible_calibration
    >>> p = np.repeat([0.2, 0.4, 0.6, 0.8], 50)
    >>> curve = flexible_calibration(p, np.arange(200) % 50 < 50 * p)
    >>> bool(np.abs(curve.observed - curve.probability).max() < 0.01)
    True
    """
    checked = check_binary(probabilities, labels, sample_weight, from_logits, weights_are="counts")
    curve = Curve.fit(checked.log_odds, checked.positive, checked.weights)
    counted = checked.log_odds if checked.weights is None else checked.log_odds[checked.weights > 0]
    grid = np.linspace(counted.min(), counted.max(), GRID_SIZE)
    score, error = curve.log_odds(grid), curve.standard_error(grid)
    return FlexibleCalibration(
        sigmoid(grid), sigmoid(score), sigmoid(score - Z_95 * error), sigmoid(score + Z_95 * error), curve.knots
    )


@dataclass(frozen=True)
class Curve:
    """A fitted flexible curve: coefficients over standardised spline columns."""

    knots: np.ndarray
    centre: np.ndarray
    spread: np.ndarray
    point: np.ndarray
    covariance: np.ndarray

    @classmethod
    def fit(
        cls,
        log_odds: np.ndarray,
        positive: np.ndarray,
        weights: np.ndarray | None = None,
        *,
        knots: np.ndarray | None = None,
    ) -> Curve:
        """The curve of highest likelihood; `knots` are read off the data unless given."""
        knots = spline_knots(log_odds, weights) if knots is None else knots
        columns = spline_columns(log_odds, knots)
        centre = np.average(columns, axis=1, weights=weights)
        spread = np.sqrt(np.average((columns - centre[:, None]) ** 2, axis=1, weights=weights))
        spread = np.where(spread > 1e-12 * (1 + np.abs(centre)), spread, 1.0)
        scaled = (columns - centre[:, None]) / spread[:, None]
        size = len(columns) + 1
        pull = Pull(np.zeros(size), RIDGE * np.eye(size))
        point = fit_logistic(scaled, positive, weights, pull=pull).point
        hessian = logistic_sums(scaled, positive.astype(np.float64), weights, point)[2] + pull.strength
        return cls(knots, centre, spread, point, np.linalg.pinv(hessian, hermitian=True))

    def _columns(self, log_odds: np.ndarray) -> np.ndarray:
        return (spline_columns(log_odds, self.knots) - self.centre[:, None]) / self.spread[:, None]

    def log_odds(self, log_odds: np.ndarray) -> np.ndarray:
        """The curve in log-odds (n,) at predicted log-odds (n,)."""
        return self.point[:-1] @ self._columns(log_odds) + self.point[-1]

    def standard_error(self, log_odds: np.ndarray) -> np.ndarray:
        """Standard error of the curve in log-odds (n,)."""
        columns = self._columns(log_odds)
        design = np.concatenate([columns, np.ones((1, columns.shape[1]))])
        return np.sqrt(np.maximum(np.einsum("in,ij,jn->n", design, self.covariance, design), 0.0))


def spline_knots(log_odds: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Knots of the restricted cubic spline; empty where there are too few rows or distinct values for three."""
    total = float(len(log_odds)) if weights is None else float(weights.sum())
    for needed, percentiles in KNOTS:
        if total >= needed:
            knots = weighted_quantile(log_odds, np.array(percentiles) / 100, weights)
            if (np.diff(knots) > 1e-9 * (1 + np.abs(knots[1:]))).all():
                return knots
    return np.empty(0)


def spline_columns(log_odds: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """s and, for k knots, the k − 2 cubic terms that are linear beyond the outer knots (k − 1, n)."""
    if len(knots) == 0:
        return log_odds[None]
    last, before = knots[-1], knots[-2]
    tail, near = _cubed(log_odds - last), _cubed(log_odds - before)
    terms = [
        _cubed(log_odds - knot) - near * (last - knot) / (last - before) + tail * (before - knot) / (last - before)
        for knot in knots[:-2]
    ]
    return np.stack([log_odds, *(term / (last - knots[0]) ** 2 for term in terms)])


def _cubed(values: np.ndarray) -> np.ndarray:
    return np.maximum(values, 0.0) ** 3


def weighted_quantile(values: np.ndarray, shares: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Quantiles by linear interpolation at share·(n − 1); a row of weight w counts as w rows."""
    if weights is None:
        return np.quantile(values, shares)
    kept = weights > 0
    # rows of one value are one: between the places of two of them nothing lies
    ordered, group = np.unique(values[kept], return_inverse=True)
    mass = np.bincount(group, weights[kept])
    before = np.concatenate(([0.0], np.cumsum(mass)))
    last = before[:-1] + np.maximum(mass - 1.0, 0.0)
    places = np.stack([before[:-1], last], axis=1).ravel()
    return np.interp(np.asarray(shares) * max(before[-1] - 1.0, 0.0), places, np.repeat(ordered, 2))


def _gaps(
    probabilities: PositiveProbabilities, labels: BinaryLabels, sample_weight: RowWeights, from_logits: bool
) -> tuple[np.ndarray, np.ndarray | None]:
    checked = check_binary(probabilities, labels, sample_weight, from_logits, weights_are="counts")
    curve = Curve.fit(checked.log_odds, checked.positive, checked.weights)
    stated = checked.probability.astype(np.float64)
    return np.abs(sigmoid(curve.log_odds(checked.log_odds)) - stated), checked.weights


def redrawn_gaps(draws: Any) -> np.ndarray:
    """|c(p) − p| of each cell (R, L), the curve refitted to every resample with the knots of all rows."""
    scaled, _ = standardised(spline_columns(draws.score, draws.knots))
    design = np.vstack([scaled, np.ones_like(draws.score)])
    return np.abs(sigmoid(refit(design, draws.weight, draws.positive) @ design) - draws.probability)


def redrawn_index(draws: Any) -> np.ndarray:
    """ICI of every resample (R,)."""
    return (redrawn_gaps(draws) * draws.weight).sum(axis=1) / np.maximum(draws.weight.sum(axis=1), 1e-300)


def redrawn_quantile(level: float) -> Callable[[Any], np.ndarray]:
    """A quantile of the gaps of every resample (R,)."""

    def quantile(draws: Any) -> np.ndarray:
        gaps = redrawn_gaps(draws)
        order = np.argsort(gaps, axis=1)
        weight = np.take_along_axis(draws.weight, order, axis=1)
        share = np.cumsum(weight, axis=1) / np.maximum(draws.weight.sum(axis=1, keepdims=True), 1e-300)
        place = np.minimum((share < level).sum(axis=1), gaps.shape[1] - 1)
        return np.take_along_axis(np.take_along_axis(gaps, order, axis=1), place[:, None], axis=1)[:, 0]

    return quantile


@metric(
    "ICI",
    unit="%",
    meaning="mean gap of the smooth calibration curve",
    interval=Redrawn(redrawn_index),
    about="score",
)
def integrated_calibration_index(
    probabilities: PositiveProbabilities,
    labels: BinaryLabels,
    *,
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> float:
    """ICI: mean distance of the flexible calibration curve from the diagonal (Austin & Steyerberg 2019).

    ``1/n Σ |c(p_i) − p_i|``, c the curve of `flexible_calibration`.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant.metrics import integrated_calibration_index
    >>> round(integrated_calibration_index(np.full(100, 0.25), np.arange(100) < 50), 4)
    0.25
    """
    gaps, weights = _gaps(probabilities, labels, sample_weight, from_logits)
    return weighted_mean(gaps, weights)


@metric(
    "E50",
    unit="%",
    meaning="median gap of the smooth calibration curve",
    interval=Redrawn(redrawn_quantile(0.5)),
    about="score",
)
def e50(
    probabilities: PositiveProbabilities,
    labels: BinaryLabels,
    *,
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> float:
    """Median distance of the flexible calibration curve from the diagonal (Austin & Steyerberg 2019).

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant.metrics import e50
    >>> round(e50(np.full(100, 0.25), np.arange(100) < 50), 4)
    0.25
    """
    gaps, weights = _gaps(probabilities, labels, sample_weight, from_logits)
    return float(weighted_quantile(gaps, np.array([0.5]), weights)[0])


@metric(
    "E90",
    unit="%",
    meaning="90th percentile of the gap of the smooth calibration curve",
    interval=Redrawn(redrawn_quantile(0.9)),
    about="score",
)
def e90(
    probabilities: PositiveProbabilities,
    labels: BinaryLabels,
    *,
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> float:
    """90th percentile of the distance of the flexible calibration curve from the diagonal (Austin & Steyerberg 2019).

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant.metrics import e90
    >>> round(e90(np.full(100, 0.25), np.arange(100) < 50), 4)
    0.25
    """
    gaps, weights = _gaps(probabilities, labels, sample_weight, from_logits)
    return float(weighted_quantile(gaps, np.array([0.9]), weights)[0])
