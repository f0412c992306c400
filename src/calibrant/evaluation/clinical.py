"""Slope, intercept, O:E, ICI, discrimination and score parts of one probability per row, with bootstrap intervals.

Rows are summed into cells of neighbouring log-odds; a resample is then a pair of numbers per cell, and all resamples
are refitted at once by Newton's method.
"""

from __future__ import annotations

import warnings

import numpy as np

from calibrant.core.bins import mass_index
from calibrant.core.errors import FitWarning
from calibrant.core.odds import finite_log_odds, probability_log_odds, sigmoid
from calibrant.evaluation.bootstrap import Resamples, inverted_interval, percentile_interval
from calibrant.evaluation.intervals import auroc_by_cell
from calibrant.evaluation.table import Estimate
from calibrant.metrics.clinical import intercept_of, slope_of
from calibrant.metrics.decomposition import decomposition_of
from calibrant.metrics.discrimination import average_precision_of
from calibrant.metrics.flexible import curve_gaps, spline_columns, spline_knots, weighted_quantile
from calibrant.metrics.ks import kuiper_error_of
from calibrant.metrics.selective import confidence_auroc_of

CELLS = 256
"""Of equal mass, into which rows are summed before they are resampled."""

NEWTON_STEPS = 8
"""From the fit of all rows a resample is a few steps away; they stop early where all have arrived."""

RIDGE = 1e-3
"""Added to the curvature of every resample, so that one without positives stays finite."""

NAMES = (
    "calibration_slope", "calibration_intercept", "observed_expected", "integrated_calibration_index", "e50", "e90",
    "kuiper_error", "roc_auc", "average_precision", "miscalibration", "discrimination", "uncertainty",
)  # fmt: skip
"""The figures that one probability per row has besides those of the top label."""


def clinical_estimates(
    log_odds: np.ndarray, positive: np.ndarray, weights: np.ndarray | None, resamples: Resamples
) -> dict[str, Estimate]:
    """Every figure of `NAMES`, with a 95% interval but for the parts of the log loss.

    Parameters
    ----------
    log_odds : array (n,), finite
        Of the positive class.
    positive : array (n,) of bool
    weights : array (n,) or None
    resamples : Resamples
        Draws over rows, or over clusters of rows.
    """
    values = clinical_values(log_odds, positive, weights)
    drawn = _Draws(log_odds, positive, weights, resamples)
    figures = {**drawn.regressions(), **drawn.curve(), **drawn.rankings()}
    # the in-sample parts are biased upwards by an amount that resampling does not show: they get no interval
    estimates = {name: Estimate(values[name]) for name in PARTS}
    estimates |= {"kuiper_error": Estimate(values["kuiper_error"], *drawn.kuiper(values["kuiper_error"]))}
    for name, (first, draws) in figures.items():
        # cells blur the figure a little, so that only the deviations are taken from them
        moved = values[name] + resamples.shrink * (draws - first)
        if name not in SIGNED:
            moved = np.maximum(moved, 0.0)
        estimates[name] = Estimate(values[name], *percentile_interval(moved, values[name]))
    return {name: estimates[name] for name in NAMES}


PARTS = ("miscalibration", "discrimination", "uncertainty")
"""Of the log loss; `calibration_loss` is the unbiased estimate of the first, with a standard error."""

SIGNED = frozenset({"calibration_slope", "calibration_intercept"})


def clinical_values(log_odds: np.ndarray, positive: np.ndarray, weights: np.ndarray | None) -> dict[str, float]:
    """The figures themselves; where a fit has no finite optimum the weakly pulled one, without a warning."""
    probability = sigmoid(log_odds)
    mass = np.ones(len(log_odds)) if weights is None else weights
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        slope = slope_of(log_odds, positive, weights)
        intercept = intercept_of(log_odds, positive, weights)
    gaps = curve_gaps(probability, log_odds, positive, weights)
    e50, e90 = weighted_quantile(gaps, np.array([0.5, 0.9]), weights)
    parts = decomposition_of(log_odds, positive, weights)
    expected = float(mass @ probability)
    return {
        "calibration_slope": slope,
        "calibration_intercept": intercept,
        "observed_expected": float(mass @ positive) / expected if expected > 0 else float("nan"),
        "integrated_calibration_index": float(np.average(gaps, weights=weights)),
        "e50": float(e50),
        "e90": float(e90),
        "kuiper_error": kuiper_error_of(probability, positive, weights),
        "roc_auc": confidence_auroc_of(log_odds, positive, weights),
        "average_precision": average_precision_of(log_odds, positive, weights),
        "miscalibration": parts.miscalibration,
        "discrimination": parts.discrimination,
        "uncertainty": parts.uncertainty,
    }


def exact_log_odds(probability: np.ndarray, positive: np.ndarray, nll: np.ndarray, from_logits: bool) -> np.ndarray:
    """Log-odds (n,) of rows of which p, the label and the log loss are known.

    Probabilities that came from logits saturate at 1, while the log loss does not: s follows from it exactly.
    """
    if not from_logits:
        return finite_log_odds(probability_log_odds(probability))
    loss = nll.astype(np.float64)
    with np.errstate(divide="ignore"):
        # log(exp(x) − 1): the log-odds of the other class
        against = np.where(loss < 30, np.log(np.expm1(np.minimum(loss, 30.0))), loss)
    return finite_log_odds(np.where(positive, -against, against))


Drawn = dict[str, tuple[float, np.ndarray]]
"""A figure over the cells, and over each resample of them (R,)."""


class _Draws:
    """Weight and positives of every cell: of the resampled rows first, then of each resample (R + 1, L)."""

    def __init__(
        self, log_odds: np.ndarray, positive: np.ndarray, weights: np.ndarray | None, resamples: Resamples
    ) -> None:
        index = mass_index(log_odds, CELLS, weights)
        _, cell = np.unique(index, return_inverse=True)
        mass = np.ones(len(log_odds)) if weights is None else weights
        total = np.bincount(cell, mass)
        safe = np.where(total > 0, total, 1.0)
        self.score = np.bincount(cell, mass * log_odds) / safe
        self.probability = np.bincount(cell, mass * sigmoid(log_odds)) / safe
        self.resamples = resamples
        chosen, own, hit = resamples.take(cell), resamples.take(mass), resamples.take(positive)
        tables = []
        for column in (own, own * hit, own * (hit - sigmoid(resamples.take(log_odds)))):
            whole = np.bincount(chosen, column, minlength=len(self.score))
            tables.append(np.vstack([whole, resamples.cell_sums(chosen, column, len(self.score))]))
        self.weight, self.positive, self.residual = tables
        self.knots = spline_knots(log_odds, weights)

    def regressions(self) -> Drawn:
        """Slope, intercept and O:E."""
        ones = np.ones_like(self.score)
        scaled, spread = _standardised(self.score[None])
        slope = _refit(np.vstack([scaled, ones]), self.weight, self.positive)[:, 0] / spread[0]
        intercept = _refit(ones[None], self.weight, self.positive, offset=self.score)[:, 0]
        expected = self.positive.sum(axis=1) - self.residual.sum(axis=1)
        ratio = self.positive.sum(axis=1) / np.where(expected > 0, expected, np.nan)
        return {
            "calibration_slope": (slope[0], slope[1:]),
            "calibration_intercept": (intercept[0], intercept[1:]),
            "observed_expected": (ratio[0], ratio[1:]),
        }

    def curve(self) -> Drawn:
        """ICI, E50 and E90 of the flexible curve refitted to every resample, with the knots of all rows."""
        scaled, _ = _standardised(spline_columns(self.score, self.knots))
        design = np.vstack([scaled, np.ones_like(self.score)])
        points = _refit(design, self.weight, self.positive)
        gaps = np.abs(sigmoid(points @ design) - self.probability)
        total = np.maximum(self.weight.sum(axis=1), 1e-300)
        mean = (gaps * self.weight).sum(axis=1) / total
        order = np.argsort(gaps, axis=1)
        ranked = np.take_along_axis(gaps, order, axis=1)
        share = np.cumsum(np.take_along_axis(self.weight, order, axis=1), axis=1) / total[:, None]
        found: Drawn = {"integrated_calibration_index": (mean[0], mean[1:])}
        for name, level in (("e50", 0.5), ("e90", 0.9)):
            place = np.minimum((share < level).sum(axis=1), len(self.score) - 1)
            value = np.take_along_axis(ranked, place[:, None], axis=1)[:, 0]
            found[name] = (value[0], value[1:])
        return found

    def rankings(self) -> Drawn:
        """ROC AUC and average precision; rows of one cell count as tied."""
        area = auroc_by_cell(self.positive, self.weight - self.positive)
        with np.errstate(invalid="ignore", divide="ignore"):
            found = np.cumsum(self.positive[:, ::-1], axis=1)
            precision = found / np.cumsum(self.weight[:, ::-1], axis=1)
            average = np.nansum(self.positive[:, ::-1] * precision, axis=1) / self.positive.sum(axis=1)
        return {"roc_auc": (area[0], area[1:]), "average_precision": (average[0], average[1:])}

    def kuiper(self, value: float) -> tuple[float, float]:
        """Interval of the Kuiper error: the test of the residuals inverted, as for every calibration error."""
        share = self.residual / np.maximum(self.weight.sum(axis=1, keepdims=True), 1e-300)
        noise = self.resamples.shrink * (share[1:] - share[0])

        def norm(residual: np.ndarray) -> np.ndarray:
            path = np.cumsum(residual, axis=-1)
            return np.maximum(path.max(axis=-1), 0.0) - np.minimum(path.min(axis=-1), 0.0)

        return inverted_interval(norm, share[0], noise, value=value)


def _standardised(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Columns (d, L) with mean 0 and spread 1, and their spreads (d,)."""
    spread = columns.std(axis=1)
    spread = np.where(spread > 0, spread, 1.0)
    return (columns - columns.mean(axis=1, keepdims=True)) / spread[:, None], spread


def _refit(
    design: np.ndarray, weight: np.ndarray, positive: np.ndarray, offset: np.ndarray | None = None
) -> np.ndarray:
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
