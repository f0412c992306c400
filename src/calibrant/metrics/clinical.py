"""The calibration measures of clinical prediction models: slope, intercept, observed to expected."""

from __future__ import annotations

import warnings

import numpy as np

from calibrant.core.errors import FitWarning, InputError
from calibrant.kernels.logistic import Pull, fit_logistic, separable
from calibrant.metrics.inputs import BinaryLabels, PositiveProbabilities, RowWeights, check_binary, mean


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
    return slope_of(checked.log_odds, checked.positive, checked.weights)


def slope_of(log_odds: np.ndarray, positive: np.ndarray, weights: np.ndarray | None = None) -> float:
    """`calibration_slope` of finite log-odds (n,), labels (n,) of bool and weights (n,) or None."""
    counted = log_odds if weights is None else log_odds[weights > 0]
    pull = None
    if counted.min() == counted.max() or separable(log_odds, positive, weights, either=True):
        why = "all probabilities are equal" if counted.min() == counted.max() else "a threshold separates the classes"
        warnings.warn(
            f"calibration_slope: {why}, so the slope has no finite estimate; a weak pull to 1 was added",
            FitWarning,
            stacklevel=3,
        )
        pull = Pull(np.array([1.0, 0.0]), np.diag([max(float(counted.var()), 1e-6), 1.0]))
    return float(fit_logistic(log_odds[None], positive, weights, pull=pull).point[0])


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
    return intercept_of(checked.log_odds, checked.positive, checked.weights)


def intercept_of(log_odds: np.ndarray, positive: np.ndarray, weights: np.ndarray | None = None) -> float:
    """`calibration_intercept` of finite log-odds (n,), labels (n,) of bool and weights (n,) or None."""
    weight = np.ones(len(log_odds)) if weights is None else weights
    total, observed = float(weight.sum()), float(weight @ positive)
    if observed in (0.0, total):
        warnings.warn(
            "calibration_intercept: all labels are equal, so the intercept has no finite estimate; half a row of the "
            "other label was added",
            FitWarning,
            stacklevel=3,
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
    expected = mean(checked.probability, checked.weights)
    if expected <= 0:
        raise InputError("probabilities sum to 0, so that there is no event to expect: O:E needs a positive sum")
    return mean(checked.positive, checked.weights) / expected
