"""The calibration measures of clinical prediction models: slope, intercept, observed to expected."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from calibrant.core.errors import FitWarning, InputError
from calibrant.core.softmax import sigmoid
from calibrant.kernels.logistic import Pull, fit_logistic, separable
from calibrant.metrics.inputs import BinaryLabels, PositiveProbabilities, RowWeights, check_binary, weighted_mean
from calibrant.metrics.record import Redrawn, metric

NEWTON_STEPS = 8
"""From the fit of all rows a resample is a few steps away; they stop early where all have arrived."""

RIDGE = 1e-3
"""Added to the curvature of every resample, so that one without positives stays finite."""


def refit(design: np.ndarray, weight: np.ndarray, positive: np.ndarray, offset: np.ndarray | None = None) -> np.ndarray:
    """Parameters (R, d) of the logistic regression of every resample (R, L) on the columns of a design (d, L)."""
    size = len(design)
    outer = (design[:, None, :] * design[None, :, :]).reshape(size * size, -1).T
    point = np.zeros((1, size))
    # the first row holds all rows: its optimum is where the others start
    for rows, steps in ((slice(0, 1), 50), (slice(None), NEWTON_STEPS)):
        point = np.repeat(point, len(weight), axis=0) if rows == slice(None) else point
        for _ in range(steps):
            score = point @ design + (0.0 if offset is None else offset)
            probability = sigmoid(score)
            gradient = (weight[rows] * probability - positive[rows]) @ design.T + RIDGE * point
            curvature = (weight[rows] * probability * (1 - probability)) @ outer
            hessian = curvature.reshape(-1, size, size) + RIDGE * np.eye(size)
            step = np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
            # far from the optimum a full step may overshoot: one unit of log-odds per column and step is enough
            length = np.maximum(np.abs(step).max(axis=1, keepdims=True), 1.0)
            point = point - step / length
            if np.abs(step).max() < 1e-6:
                break
    return point


def standardised(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Columns (d, L) with mean 0 and spread 1, and their spreads (d,)."""
    spread = columns.std(axis=1)
    spread = np.where(spread > 0, spread, 1.0)
    return (columns - columns.mean(axis=1, keepdims=True)) / spread[:, None], spread


def redrawn_slope(draws: Any) -> np.ndarray:
    """The slope of every resample (R,)."""
    scaled, spread = standardised(draws.score[None])
    return refit(np.vstack([scaled, np.ones_like(draws.score)]), draws.weight, draws.positive)[:, 0] / spread[0]


def redrawn_intercept(draws: Any) -> np.ndarray:
    """The intercept of every resample (R,)."""
    return refit(np.ones((1, len(draws.score))), draws.weight, draws.positive, offset=draws.score)[:, 0]


def redrawn_ratio(draws: Any) -> np.ndarray:
    """O:E of every resample (R,)."""
    observed = draws.positive.sum(axis=1)
    expected = observed - draws.excess.sum(axis=1)
    return observed / np.where(expected > 0, expected, np.nan)


@metric(
    "slope",
    better=0,
    meaning="1 is perfect; below 1 p is too extreme",
    interval=Redrawn(redrawn_slope, lowest=-np.inf),
    about="score",
)
def calibration_slope(
    probabilities: PositiveProbabilities,
    labels: BinaryLabels,
    *,
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> float:
    """Slope b of the logistic regression logit P(y = 1) = a + b·logit p (Cox 1958); 1 is perfect.

    Below 1 the probabilities are too extreme, above 1 too close to the mean. Where a threshold of p separates the
    classes, or all p are equal, the slope has no finite estimate: a weak pull to 1 gives one, with a FitWarning.

    Examples
    --------
    >>> from calibrant.metrics import calibration_slope
    >>> round(calibration_slope([0.1, 0.1, 0.9, 0.9, 0.9, 0.1], [0, 1, 1, 0, 1, 0]), 4)
    0.3155
    """
    checked = check_binary(probabilities, labels, sample_weight, from_logits)
    log_odds, positive, weights = checked.log_odds, checked.positive, checked.weights
    counted = log_odds if weights is None else log_odds[weights > 0]
    pull = None
    if counted.min() == counted.max() or separable(log_odds, positive, weights, either=True):
        why = "all probabilities are equal" if counted.min() == counted.max() else "a threshold separates the classes"
        warnings.warn(
            f"calibration_slope: {why}, so the slope has no finite estimate; a weak pull to 1 was added",
            FitWarning,
            stacklevel=2,
        )
        pull = Pull(np.array([1.0, 0.0]), np.diag([max(float(counted.var()), 1e-6), 1.0]))
    return float(fit_logistic(log_odds[None], positive, weights, pull=pull).point[0])


@metric(
    "intercept",
    better=0,
    meaning="0 is perfect; above 0 p is too low on average",
    interval=Redrawn(redrawn_intercept, lowest=-np.inf),
    about="score",
)
def calibration_intercept(
    probabilities: PositiveProbabilities,
    labels: BinaryLabels,
    *,
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> float:
    """Calibration in the large: a of logit P(y = 1) = a + logit p, the slope held at 1 (Cox 1958); 0 is perfect.

    Above 0 the probabilities are too low on average, below 0 too high. Where all labels are equal the intercept has no
    finite estimate: half a row of the other label is added, with a FitWarning.

    Examples
    --------
    >>> from calibrant.metrics import calibration_intercept
    >>> round(calibration_intercept([0.5, 0.5, 0.5, 0.5], [1, 1, 1, 0]), 4)  # log(3)
    1.0986
    """
    checked = check_binary(probabilities, labels, sample_weight, from_logits)
    log_odds, weights, positive = checked.log_odds, checked.weights, checked.positive
    weight = np.ones(len(log_odds)) if weights is None else weights
    total, observed = float(weight.sum()), float(weight @ positive)
    if observed in (0.0, total):
        warnings.warn(
            "calibration_intercept: all labels are equal, so the intercept has no finite estimate; half a row of the "
            "other label was added",
            FitWarning,
            stacklevel=2,
        )
        observed = 0.5 if observed == 0 else total - 0.5 * min(1.0, total)
    return offset_of(log_odds, weight, observed)


def offset_of(log_odds: np.ndarray, weight: np.ndarray, observed: float) -> float:
    """The constant a with Σ w·sigmoid(s + a) = observed: Newton's steps, held inside the bracket found so far."""
    total = float(weight.sum())
    share = observed / total
    centre = float(np.log(share) - np.log1p(-share))
    low, high = centre - float(log_odds.max()), centre - float(log_odds.min())
    offset = float(np.clip(centre - float(weight @ log_odds) / total, low, high))
    for _ in range(200):
        small = np.exp(-np.abs(log_odds + offset))
        inverse = 1.0 / (1.0 + small)
        excess = float(weight @ np.where(log_odds + offset >= 0, inverse, small * inverse)) - observed
        low, high = (low, offset) if excess > 0 else (offset, high)
        curvature = float(weight @ (small * inverse * inverse))
        following = offset - excess / curvature if curvature > 0 else 0.5 * (low + high)
        if not low <= following <= high:
            following = 0.5 * (low + high)
        if abs(following - offset) <= 1e-14 * max(1.0, abs(offset)):
            return following
        offset = following
    return offset


@metric(
    "O:E ratio",
    "O:E",
    better=0,
    meaning="events seen for each event expected",
    interval=Redrawn(redrawn_ratio),
    about="score",
)
def observed_expected(
    probabilities: PositiveProbabilities,
    labels: BinaryLabels,
    *,
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> float:
    """Events observed for each event expected, ``Σ y / Σ p`` (O:E); 1 is perfect, above 1 p is too low on average.

    Examples
    --------
    >>> from calibrant.metrics import observed_expected
    >>> observed_expected([0.25, 0.25, 0.5], [1, 0, 1])
    2.0
    """
    checked = check_binary(probabilities, labels, sample_weight, from_logits)
    expected = weighted_mean(checked.probability, checked.weights)
    if expected <= 0:
        raise InputError("probabilities sum to 0, so that there is no event to expect: O:E needs a positive sum")
    return weighted_mean(checked.positive, checked.weights) / expected
