"""Measures of one probability per row, as clinical prediction models are judged by.

Slope, intercept and observed to expected; the flexible calibration curve and the errors read off it (ICI, E50, E90);
ROC AUC and average precision; the decomposition of a proper score; and the effect of a threshold: rows flagged,
positives found, net benefit of acting.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from calibrant.core.arrays import Array, as_array, check_choice, check_shape
from calibrant.core.errors import InputError, warn_user
from calibrant.core.few_clusters import BOOTSTRAP_CLUSTERS, count_clusters, needs_t_interval
from calibrant.core.rows import Rows, score_range
from calibrant.core.schema import cluster_codes
from calibrant.core.softmax import sigmoid
from calibrant.kernels.isotonic import isotonic_values, score_groups
from calibrant.kernels.logistic import (
    Pull,
    Units,
    batch_sums,
    fit_logistic,
    is_separable,
    logistic_sums,
    newton,
    smoothed_targets,
)
from calibrant.metrics.inputs import (
    BinaryLabels,
    Checked,
    PositiveProbabilities,
    RowWeights,
    check_binary,
    mean,
)
from calibrant.metrics.record import Figure, Redrawn, metric
from calibrant.metrics.selective import area_under_roc
from calibrant.metrics.top_label import increasing_root

RIDGE = 1e-3
"""Added to the curvature of every resample, so that one without positives stays finite."""

REFIT_GAP = 1e-9
"""Log loss, summed over rows, that the last Newton step of a resample may gain."""


def refit(columns: Array, draws: Any, offset: Array | float = 0.0) -> Array:
    """Parameters (R, d + 1), intercept last, of the logistic regression of every resample on columns (d, L)."""
    share, size = draws.positive / np.maximum(draws.weight, 1e-300), len(columns) + 1

    def evaluate(points: Array, which: Array) -> tuple[Array, Array, Array]:
        loss, gradient, hessian = batch_sums(columns[None], share[which], draws.weight[which], points, offset)
        loss += 0.5 * RIDGE * (points**2).sum(axis=1)
        return loss, gradient + RIDGE * points, hessian + RIDGE * np.eye(size)

    return newton(evaluate, np.zeros((len(share), size)), np.full(size, -np.inf), gap=REFIT_GAP)[0]


def redrawn_slope(draws: Any) -> Array:
    """The slope of every resample (R,); NaN if all scores are equal, so that no slope can be estimated."""
    if np.ptp(draws.score) == 0:
        return np.full(len(draws.weight), np.nan)
    units = Units.of(draws.score[None], None)
    return refit(units.scale(draws.score[None]), draws)[:, 0] / units.spread


def redrawn_intercept(draws: Any) -> Array:
    """The intercept of every resample (R,)."""
    return refit(np.empty((0, len(draws.score))), draws, draws.score)[:, 0]


def redrawn_ratio(draws: Any) -> Array:
    """O:E of every resample (R,)."""
    observed = draws.positive.sum(axis=1)
    expected = observed - draws.excess.sum(axis=1)
    return observed / np.where(expected > 0, expected, np.nan)


@metric(
    "slope",
    "slope",
    "1 is perfect; below 1 p is too extreme",
    Redrawn(redrawn_slope, lowest=-np.inf),
    better=0,
)
def calibration_slope(
    probabilities: PositiveProbabilities,
    labels: BinaryLabels,
    *,
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> float:
    """Slope b of the logistic regression logit P(y = 1) = a + b·logit p (Cox 1958); 1 is perfect.

    Below 1 the probabilities are too extreme, above 1 too close to the mean. If all p or all labels are equal, the rows
    have no information on the slope: the result is 1, with a FitWarning. If a threshold of p separates the classes, the
    slope has no finite estimate. It then comes from Platt's targets, 1/(n₀ + 2) for n₀ negatives and (n₁ + 1)/(n₁ + 2)
    for n₁ positives, with a FitWarning.

    Examples
    --------
    >>> from calibrant.metrics import calibration_slope
    >>> round(calibration_slope([0.1, 0.1, 0.9, 0.9, 0.9, 0.1], [0, 1, 1, 0, 1, 0]), 4)
    0.3155
    """
    checked = check_binary(probabilities, labels, sample_weight, from_logits)
    log_odds, positive, weights = checked.log_odds, checked.positive, checked.weights
    ends, targets = score_range(Rows(log_odds, positive, weights)), positive
    one_label = bool(np.isinf(ends).any())
    if one_label or np.ptp(ends) == 0:
        what = "labels" if one_label else "probabilities"
        warn_user(f"calibration_slope: all {what} are equal, so the slope has no estimate; the result is 1")
        return 1.0
    if is_separable(ends, non_negative=False):
        warn_user(
            "calibration_slope: a threshold separates the classes, so the slope has no finite estimate; labels were "
            "smoothed by one row of either class"
        )
        events = float(checked.mass @ positive)
        targets = smoothed_targets(float(checked.mass.sum()) - events, events)[checked.labels]
    return float(fit_logistic(log_odds[None], targets, weights).point[0])


@metric(
    "intercept",
    "intercept",
    "0 is perfect; above 0 p is too low on average",
    Redrawn(redrawn_intercept, lowest=-np.inf),
    better=0,
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
    log_odds, weight = checked.log_odds, checked.mass
    total, observed = weight.sum(), weight @ checked.positive
    if observed in (0.0, total):
        warn_user(
            "calibration_intercept: all labels are equal, so the intercept has no finite estimate; half a row of the "
            "other label was added"
        )
        observed = 0.5 if observed == 0 else total - 0.5 * min(1.0, total)
    share = observed / total
    low, width = (np.log(share) - np.log1p(-share)) - log_odds.max(), np.ptp(log_odds)

    def surplus(part: float) -> float:
        return weight @ sigmoid(log_odds + low + part * width) - observed

    return float(low + increasing_root(surplus, tolerance=1e-15, steps=100) * width)


@metric("O:E ratio", "O:E", "events seen for each event expected", Redrawn(redrawn_ratio), better=0)
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
    expected = mean(checked, "confidence")
    if expected <= 0:
        raise InputError("probabilities sum to 0, so that there is no event to expect: O:E needs a positive sum")
    return mean(checked, "correct") / expected


KNOTS = ((100.0, (5, 27.5, 50, 72.5, 95)), (30.0, (5, 35, 65, 95)), (10.0, (10, 50, 90)))
"""Rows from which the curve has 5, 4 or 3 knots, and the percentiles they stand at; below, or where knots coincide, the
next smaller number, and at last a straight line (Harrell 2015)."""

CURVE_RIDGE = 1e-9
"""Added to the curvature of each coefficient (columns in units of their spread), so that separable data stay finite."""

GRID_SIZE = 101
Z_95 = 1.959963984540054


@dataclass(frozen=True)
class FlexibleCalibration:
    """A smooth curve of the observed share of positives over the predicted probability, with a pointwise 95% band."""

    probability: Array
    """Predicted probabilities (101,), from the lowest to the highest of the data, evenly spaced in log-odds."""
    observed: Array
    """The curve at them."""
    low: Array
    """Lower end of the band."""
    high: Array
    """Upper end of the band."""
    knots: Array
    """Knots of the restricted cubic spline in log-odds; empty where the curve is a straight line in log-odds."""


@metric()
def flexible_calibration(
    probabilities: PositiveProbabilities,
    labels: BinaryLabels,
    *,
    sample_weight: RowWeights = None,
    from_logits: bool = False,
    clusters: ArrayLike | None = None,
) -> FlexibleCalibration:
    """Logistic regression of the label on a restricted cubic spline of logit p (Harrell 2015; Van Calster 2016).

    The band is pointwise (Wald, on the log-odds). It comes from the curvature of the likelihood; with `clusters`, the
    cluster of each row (patient, image), from the sums of the score by cluster (Liang & Zeger 1986), since rows of one
    cluster are no independent witnesses. With fewer than 20 clusters there is no band, and a warning.

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
    counted = checked.log_odds[checked.mass > 0]
    grid = np.linspace(counted.min(), counted.max(), GRID_SIZE)
    score, error, knots = curve(checked, grid, clusters)
    observed, low, high = (sigmoid(score + side * Z_95 * error) for side in (0, -1, 1))
    return FlexibleCalibration(sigmoid(grid), observed, low, high, knots)


def curve(checked: Checked, predicted: Array, clusters: ArrayLike | None = None) -> tuple[Array, Array, Array]:
    """The flexible curve of highest likelihood at predicted log-odds (n,): its log-odds, their standard errors, knots.

    Its coefficients are those of spline columns in units of their spread, and of a column of ones.
    """
    positive, weights = checked.positive.astype(np.float64), checked.weights
    knots = spline_knots(checked.log_odds, weights)
    columns = spline_columns(checked.log_odds, knots)
    units = Units.of(columns, weights)
    scaled, size = units.scale(columns), len(columns) + 1
    pull = Pull(np.zeros(size), CURVE_RIDGE * np.eye(size))
    point = fit_logistic(scaled, positive, weights, pull=pull).point
    covariance = np.linalg.pinv(logistic_sums(scaled, positive, weights, point)[2] + pull.strength, hermitian=True)
    if clusters is not None:
        own, rows = cluster_codes(clusters, len(positive))[0], np.vstack([scaled, np.ones_like(positive)])
        if needs_t_interval(n_clusters := count_clusters(own, checked.mass)):
            warn_user(f"{n_clusters} clusters are too few for the band of the curve: {BOOTSTRAP_CLUSTERS} are needed")
            covariance = np.full_like(covariance, np.nan)
        count, gaps = own.max() + 1, checked.mass * (sigmoid(point @ rows) - positive)
        sums = np.stack([np.bincount(own, gaps * column) for column in rows])
        covariance = covariance @ (sums @ sums.T * count / max(count - 1, 1)) @ covariance
    design = np.vstack([units.scale(spline_columns(predicted, knots)), np.ones_like(predicted)])
    return point @ design, np.sqrt(np.maximum((design * (covariance @ design)).sum(axis=0), 0.0)), knots


def spline_knots(log_odds: Array, weights: Array | None) -> Array:
    """Knots of the restricted cubic spline; empty where there are too few rows or distinct values for three."""
    total = len(log_odds) if weights is None else weights.sum()
    for needed, percentiles in KNOTS:
        if total >= needed:
            knots = weighted_quantile(np.array(percentiles) / 100, log_odds, weights)
            if (np.diff(knots) > 1e-9 * (1 + np.abs(knots[1:]))).all():
                return knots
    return np.empty(0)


def spline_columns(log_odds: Array, knots: Array) -> Array:
    """s and, for k knots, the k − 2 cubic terms that are linear beyond the outer knots (k − 1, n)."""
    if len(knots) == 0:
        return log_odds[None]
    last, before, inner = knots[-1], knots[-2], knots[:-2, None]
    cubes = np.maximum(log_odds - knots[:, None], 0.0) ** 3
    terms = cubes[:-2] - cubes[-2] * (last - inner) / (last - before) + cubes[-1] * (before - inner) / (last - before)
    return np.vstack([log_odds, terms / (last - knots[0]) ** 2])


def weighted_quantile(shares: Any, values: Array, weights: Array | None) -> Any:
    """Quantiles by linear interpolation at share·(n − 1); a row of weight w counts as w rows."""
    if weights is None:
        return np.quantile(values, shares)
    kept = weights > 0
    # rows of one value are one: between the places of two of them nothing lies
    ordered, group = np.unique(values[kept], return_inverse=True)
    mass = np.bincount(group, weights[kept])
    before = np.append(0.0, np.cumsum(mass))
    last = before[:-1] + np.maximum(mass - 1.0, 0.0)
    places = np.stack([before[:-1], last], axis=1).ravel()
    return np.interp(shares * max(before[-1] - 1.0, 0.0), places, np.repeat(ordered, 2))


def _gaps(*inputs: Any) -> tuple[Array, Array | None]:
    """|c(p) − p| of each row, and the weights, from the inputs of a metric."""
    checked = check_binary(*inputs, weights_are="counts")
    score, *_ = curve(checked, checked.log_odds)
    return np.abs(sigmoid(score) - checked.probability.astype(np.float64)), checked.weights


def redrawn_gaps(draws: Any) -> Array:
    """|c(p) − p| of each cell (R, L), the curve refitted to every resample with the knots of all rows."""
    columns = spline_columns(draws.score, draws.knots)
    scaled = Units.of(columns, None).scale(columns)
    points = refit(scaled, draws)
    return np.abs(sigmoid(points[:, :-1] @ scaled + points[:, -1:]) - draws.confidence)


def redrawn_index(draws: Any) -> Array:
    """ICI of every resample (R,)."""
    return (redrawn_gaps(draws) * draws.weight).sum(axis=1) / np.maximum(draws.weight.sum(axis=1), 1e-300)


def redrawn_quantile(draws: Any, level: float) -> Array:
    """A quantile of the gaps of every resample (R,)."""
    gaps = redrawn_gaps(draws)
    order = np.argsort(gaps, axis=1)
    running = np.cumsum(np.take_along_axis(draws.weight, order, axis=1), axis=1)
    share = running / np.maximum(draws.weight.sum(axis=1, keepdims=True), 1e-300)
    place = np.minimum((share < level).sum(axis=1), gaps.shape[1] - 1)
    return np.take_along_axis(gaps, order, axis=1)[np.arange(len(gaps)), place]


@metric("ICI", "ICI", "mean gap of the smooth calibration curve", Redrawn(redrawn_index), percent=True)
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
    return float(np.average(gaps, weights=weights))


@metric(
    "E50",
    "E50",
    "median gap of the smooth calibration curve",
    Redrawn(partial(redrawn_quantile, level=0.5)),
    percent=True,
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
    return float(weighted_quantile(0.5, *_gaps(probabilities, labels, sample_weight, from_logits)))


@metric(
    "E90",
    "E90",
    "90th percentile of the gap of the smooth calibration curve",
    Redrawn(partial(redrawn_quantile, level=0.9)),
    percent=True,
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
    return float(weighted_quantile(0.9, *_gaps(probabilities, labels, sample_weight, from_logits)))


@metric(
    "ROC AUC",
    "AUC",
    "chance that a positive gets a higher p than a negative",
    Redrawn(area_under_roc),
    better=1,
)
def roc_auc(
    probabilities: PositiveProbabilities,
    labels: BinaryLabels,
    *,
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> float:
    """Chance that a positive has a higher probability than a negative, ties counted half (Hanley & McNeil 1982).

    The area under the ROC curve; where one of the classes is absent there is nothing to tell apart, and it is 0.5.

    Examples
    --------
    >>> from calibrant.metrics import roc_auc
    >>> roc_auc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    0.75
    """
    checked = check_binary(probabilities, labels, sample_weight, from_logits)
    groups = score_groups(checked.values, checked.positive, checked.weights)
    return float(np.nan_to_num(area_under_roc(groups), nan=0.5))


def area_under_steps(sums: Any) -> Array:
    """`average_precision` from weights by group (L,) or cell (R, L), whose rows are tied; NaN without positives."""
    positive, weight = sums.positive[..., ::-1], sums.weight[..., ::-1]
    with np.errstate(invalid="ignore", divide="ignore"):
        precision = np.cumsum(positive, axis=-1) / np.cumsum(weight, axis=-1)
        return np.nansum(positive * precision, axis=-1) / positive.sum(axis=-1)


@metric(
    "average precision",
    "AP",
    "area under the precision-recall curve",
    Redrawn(area_under_steps),
    better=1,
)
def average_precision(
    probabilities: PositiveProbabilities,
    labels: BinaryLabels,
    *,
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> float:
    """Area under the precision-recall curve as a step function, ``Σ_k (R_k − R_{k−1})·P_k`` over the distinct scores.

    Without positives there is no recall, and the answer is 0.

    Examples
    --------
    >>> from calibrant.metrics import average_precision
    >>> round(average_precision([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]), 4)
    0.8333
    """
    checked = check_binary(probabilities, labels, sample_weight, from_logits)
    return float(np.nan_to_num(area_under_steps(score_groups(checked.values, checked.positive, checked.weights))))


@dataclass(frozen=True)
class ScoreDecomposition:
    """score = miscalibration − discrimination + uncertainty, each 0 or more."""

    miscalibration: float
    """What the best monotone map of the same rows would take off the score: 0 for calibrated probabilities, but
    biased upwards in small samples."""
    discrimination: float
    """What the probabilities, once calibrated, tell beyond the base rate."""
    uncertainty: float
    """The score of the base rate."""
    score: float


@metric(
    figures=(
        # biased upwards by an amount that resampling does not show: no interval
        Figure(
            "miscalibration", "miscalibration", "MSC", False, -1, "part of the log loss that a map can fix",
            field="miscalibration",
        ),
        Figure(
            "discrimination", "discrimination", "DSC", False, 1, "what p tells beyond the base rate, in nats",
            field="discrimination",
        ),
        Figure("uncertainty", "uncertainty", "UNC", False, 0, "log loss of the base rate", field="uncertainty"),
    ),
)  # fmt: skip
def score_decomposition(
    probabilities: PositiveProbabilities,
    labels: BinaryLabels,
    *,
    score: str = "nll",
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> ScoreDecomposition:
    """CORP decomposition of the log loss or the Brier score (Dimitriadis, Gneiting & Jordan 2021).

    With p̂ the isotonic fit of the labels to p and π the base rate: ``MSC = S(p) − S(p̂)``, ``DSC = S(π) − S(p̂)``,
    ``UNC = S(π)``. Where p = 0 meets y = 1 the log loss and with it the miscalibration are infinite.

    Parameters
    ----------
    score : {"nll", "brier"}
        The log loss in nats, or mean (p − y)².

    Examples
    --------
    >>> from calibrant.metrics import score_decomposition
    >>> parts = score_decomposition([0.25, 0.25, 0.75, 0.75], [0, 0, 1, 0], score="brier")
    >>> parts.miscalibration, parts.discrimination, parts.uncertainty, parts.score
    (0.0625, 0.0625, 0.1875, 0.1875)
    """
    check_choice(score, "score", ("nll", "brier"))
    checked = check_binary(probabilities, labels, sample_weight, from_logits)
    column, kept = checked.losses() if score == "nll" else checked.column("brier"), checked.mass > 0
    given = float(np.average(column[kept], weights=checked.mass[kept]))
    groups = score_groups(checked.values, checked.positive, checked.weights)
    each = _score_at(groups.positive / groups.weight, isotonic_values(groups), score)
    fitted = float(np.average(each, weights=groups.weight))
    rate = groups.positive.sum() / groups.weight.sum()
    base = float(_score_at(rate, rate, score))
    return ScoreDecomposition(max(given - fitted, 0.0), max(base - fitted, 0.0), base, given)


def _score_at(share: Array, fitted: Array, score: str) -> Array:
    """Mean score (k,) of groups of rows with these shares of positives that are all given the fitted probability."""
    if score == "brier":
        return share * (1 - fitted) ** 2 + (1 - share) * fitted**2
    from scipy.special import xlog1py, xlogy  # here, since the import alone takes longer than most metrics

    return -(xlogy(share, fitted) + xlog1py(1 - share, -fitted))


THRESHOLDS = np.arange(1, 100) / 100
"""1% … 99%."""


@dataclass(frozen=True)
class DecisionCurve:
    """Net benefit of acting on the model, on everyone and on no one, at each threshold."""

    thresholds: Array
    model: Array
    treat_all: Array
    treat_none: Array


@dataclass(frozen=True)
class ThresholdMetrics:
    """What flagging p ≥ threshold does; numbers, or arrays where several thresholds were asked for. NaN where the
    denominator is 0."""

    threshold: float | Array
    sensitivity: float | Array
    """Share of the positives that are flagged."""
    specificity: float | Array
    """Share of the negatives that are not flagged."""
    ppv: float | Array
    """Share of the flagged that are positive."""
    npv: float | Array
    """Share of the others that are negative."""
    flagged: float | Array
    """Share of all rows that are flagged."""


@metric()
def net_benefit(
    probabilities: PositiveProbabilities,
    labels: BinaryLabels,
    thresholds: ArrayLike = THRESHOLDS,
    *,
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> Array:
    """Net benefit of acting where p ≥ t, ``TP/n − FP/n · t/(1 − t)``, at each threshold (Vickers & Elkin 2006).

    Acting on everyone has ``π − (1 − π)·t/(1 − t)``, π the share of positives, and acting on no one has 0:
    `decision_curve` gives all three.

    Parameters
    ----------
    thresholds : array
        Numbers in [0, 1).

    Examples
    --------
    >>> from calibrant.metrics import net_benefit
    >>> net_benefit([0.1, 0.6, 0.8], [0, 0, 1], [0.5]).round(4).tolist()
    [0.0]
    """
    return decision_curve(probabilities, labels, thresholds, sample_weight=sample_weight, from_logits=from_logits).model


@metric()
def decision_curve(
    probabilities: PositiveProbabilities,
    labels: BinaryLabels,
    thresholds: ArrayLike = THRESHOLDS,
    *,
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> DecisionCurve:
    """Net benefit of the model beside treating all and treating none (Vickers & Elkin 2006).

    Parameters
    ----------
    thresholds : array
        Numbers in [0, 1).

    Examples
    --------
    >>> from calibrant.metrics import decision_curve
    >>> decision_curve([0.1, 0.6, 0.8, 0.2], [0, 0, 1, 0], [0.25]).treat_all.tolist()
    [0.0]
    """
    checked = check_binary(probabilities, labels, sample_weight, from_logits)
    cuts, found, flagged, total, positive, *_ = flagged_above(thresholds, checked)
    if (cuts >= 1).any():
        raise InputError(f"thresholds reach {cuts.max():g}, but the net benefit needs thresholds below 1")
    odds, share = cuts / (1 - cuts), positive / total
    benefit = (found - (flagged - found) * odds) / total
    return DecisionCurve(cuts, benefit, share - (1 - share) * odds, np.zeros_like(cuts))


@metric()
def threshold_metrics(
    probabilities: PositiveProbabilities,
    labels: BinaryLabels,
    threshold: ArrayLike = 0.5,
    *,
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> ThresholdMetrics:
    """Sensitivity, specificity, predictive values and the share flagged where p ≥ threshold is flagged.

    Parameters
    ----------
    threshold : number or array
        In [0, 1]; an array gives arrays.

    Examples
    --------
    >>> from calibrant.metrics import threshold_metrics
    >>> found = threshold_metrics([0.1, 0.6, 0.8, 0.2], [0, 0, 1, 0], 0.5)
    >>> found.sensitivity, found.ppv, found.flagged
    (1.0, 0.5, 0.5)
    """
    checked = check_binary(probabilities, labels, sample_weight, from_logits)
    cuts, found, flagged, total, positive, spared, below, negative = flagged_above(threshold, checked)
    with np.errstate(invalid="ignore"):
        columns = (cuts, found / positive, spared / negative, found / flagged, spared / below, flagged / total)
    return ThresholdMetrics(*(columns if cuts.ndim else map(float, columns)))


def flagged_above(thresholds: ArrayLike, checked: Checked) -> tuple[Array, ...]:
    """Thresholds; the weight of positives and of all rows at or above each; of all rows and of all positives; of
    negatives and of all rows below each; of all negatives.

    Every weight is a sum from the end that its share begins at: a difference of sums would leave rounding where there
    is nobody, and shares beyond 1.
    """
    cuts = as_array(thresholds, "thresholds")
    check_shape((1,), cuts.dtype, "thresholds", classes=False)
    cuts = cuts.astype(np.float64)
    if cuts.size == 0 or not ((cuts >= 0) & (cuts <= 1)).all():
        shown = "none" if cuts.size == 0 else f"{cuts.min():g} to {cuts.max():g}"
        raise InputError(f"thresholds must lie in [0, 1], got {shown}")
    groups = score_groups(checked.probability, checked.positive, checked.weights)
    # thresholds are rounded as the probabilities were, so that a float32 0.2 is at a threshold of 0.2
    first = np.searchsorted(groups.scores, cuts.astype(groups.scores.dtype))
    found, flagged = (np.append(np.cumsum(one[::-1])[::-1], 0.0) for one in (groups.positive, groups.weight))
    spared, below = (np.append(0.0, np.cumsum(one)) for one in (groups.weight - groups.positive, groups.weight))
    return cuts, found[first], flagged[first], flagged[0], found[0], spared[first], below[first], spared[-1]
