"""Spline calibration."""

import numpy as np
from scipy.interpolate import CubicSpline

from calibrant.calibrators import maps
from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.confidence_bins import top_columns
from calibrant.calibrators.learned import CHANCE, Learned
from calibrant.calibrators.logistic import fit_scores, line_columns, slope_columns, slope_features
from calibrant.core.arrays import check_whole
from calibrant.core.rows import Rows, score_range
from calibrant.kernels.logistic import Pull, fit_logistic, is_separable
from calibrant.metrics.clinical import weighted_quantile

TABLE_SIZE = 1024
"""Most points of the map that are kept; between them it is linear."""

CONFIDENCE_DECIMALS = 12
"""Confidences that agree so far are one."""

OUTER_SHARES = (0.025, 0.975)
"""Where the outer knots of a positive class stand; beyond them the map is straight."""

PULL_TO_LINE = 2.0
"""Strength of the pull of its spline to Platt scaling: about as much as two more rows."""


class SplineCalibration(
    Calibrator,
    additive=True,
    # a map of the top confidence keeps it; a map of the positive class need not
    keeps_prediction=lambda own: own.task_ != "binary",
    # scores of the positive class are never reversed
    keeps_ranking=lambda own: own.task_ == "binary",
):
    """Correct the top confidence by the slope of a spline through the cumulative error (Gupta et al. 2021).

    With rows sorted by confidence c and t the share of rows up to a confidence, the cumulative error is
    H(t) = (1/n)·Σ_{rows up to t} (correct − c), the curve whose largest value is the KS error. Its derivative is the
    accuracy at that confidence minus the confidence. A natural cubic spline with a few evenly spaced knots is fitted to
    H by least squares, and c + H'(t) is the calibrated confidence. The other probabilities are rescaled to the rest
    and the prediction stays (see `maps.with_mapped_confidence`).

    Of one score per row the log-odds s of the positive class are mapped by an increasing quadratic spline of highest
    likelihood: its slope is a broken line, 0 or more at every knot, and constant beyond the outer knots, which stand at
    the 2.5th and 97.5th percentile. A weak pull leads to Platt scaling, and the result is Platt scaling if a threshold
    separates the classes.

    Parameters
    ----------
    n_knots : int
        Knots of the spline, at least 3.

    Attributes
    ----------
    knots_, slopes_, start_ : of one score per row: the knots, the slope at each, and the value at the first.
    knot_values_ : array (n_knots,)
        The spline's values at its evenly spaced knots over [0, 1].
    confidences_, values_ : array
        The map from confidence to calibrated confidence, at up to 1,024 quantiles of the fit data.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant import SplineCalibration
    >>> logits = np.array([[2.0, 0.0]] * 4)
    >>> SplineCalibration().fit(logits, [0, 0, 0, 1]).predict_proba(logits[:1]).round(4)
    array([[0.75, 0.25]])
    """

    learns = {
        "knot_values_": Learned(("N",)),
        "confidences_": Learned(("M",), 0.0, 1.0, increasing=True, free=False),
        "values_": Learned(("M",), *CHANCE, free=False),
    }
    learns_binary = {
        "knots_": Learned(("N",), increasing=True, free=False),
        "slopes_": Learned(("N",), 0.0),
        "start_": Learned(()),
    }

    def __init__(self, n_knots: int = 6) -> None:
        self.n_knots = n_knots

    def _fit_binary(self, rows: Rows) -> None:
        scores, n_knots = rows.logits.astype(np.float64), check_whole(self.n_knots, "n_knots", 3)
        knots = np.unique(weighted_quantile(np.linspace(*OUTER_SHARES, n_knots), scores, rows.weights))
        if knots[-1] - knots[0] <= 1e-9 * np.abs(knots).max():
            knots = np.array([knots[0], knots[0] + 1.0])
        ends = score_range(rows)
        found = fit_scores("SplineCalibration", rows, ends, line_columns, np.array([1.0, 0.0]))
        slope, intercept = found.point
        centre = np.append(np.full(len(knots), slope), intercept + slope * knots[0])
        found = found._replace(point=centre)
        if not is_separable(ends):
            columns = slope_columns(scores, knots=knots)
            spread = np.average(columns**2, axis=1, weights=rows.weights)
            pull = Pull(centre, PULL_TO_LINE * np.diag(np.append(np.where(spread > 0, spread, 1.0), 1.0)))
            found = fit_logistic(columns, rows.labels, rows.weights, start=centre, non_negative=True, pull=pull)
        self.knots_, self.slopes_, self.start_ = knots, found.point[:-1], float(found.point[-1])
        self.objective_trace_, self.n_iter_ = found.trace, max(1, len(found.trace))

    def _map_binary(self, xp, scores, learned):
        knots, slopes, start = (maps.like(xp, one, scores) for one in (learned.knots_, learned.slopes_, learned.start_))
        result = start + xp.zeros_like(scores)
        for j, column in enumerate(slope_features(xp, scores, knots)):
            result = result + slopes[j] * column
        return result

    def _fit(self, rows: Rows) -> None:
        n_knots = check_whole(self.n_knots, "n_knots", 3)
        top, weights = top_columns(rows), rows.mass()
        counted = weights > 0
        # confidences near 1 that are within rounding of each other differ by the order of the classes and nothing more
        confidence, group = np.unique(np.round(top.confidence[counted], CONFIDENCE_DECIMALS), return_inverse=True)
        mass = np.bincount(group, weights[counted])
        hits = np.bincount(group, weights[counted] * top.correct[counted])
        # the share of weight and the cumulative correct − confidence up to each distinct confidence
        share, error = np.cumsum(mass) / mass.sum(), np.cumsum(hits - mass * confidence) / mass.sum()
        knots = np.linspace(0.0, 1.0, n_knots)
        basis = CubicSpline(knots, np.eye(len(knots)), bc_type="natural")
        # evenly spaced shares see rows of equal confidence as the straight piece of the curve that they are
        evenly = np.linspace(0.0, 1.0, TABLE_SIZE)
        curve = np.interp(evenly, np.append(0.0, share), np.append(0.0, error))
        self.knot_values_ = np.linalg.lstsq(basis(evenly), curve, rcond=None)[0]
        middle = share - 0.5 * mass / mass.sum()
        calibrated = confidence + basis(middle, 1) @ self.knot_values_
        chosen = np.unique(np.linspace(0, len(confidence) - 1, TABLE_SIZE).round().astype(np.intp))
        margin = min(0.5, 0.5 / rows.total_weight)
        self.confidences_ = confidence[chosen]
        self.values_ = np.clip(calibrated, margin, 1.0 - margin)[chosen]

    def _map(self, xp, logits, learned):
        accuracy = xp.lines_by_class(xp.confidence(logits), learned.confidences_[None, :], learned.values_[None, :])
        return maps.with_confidence(xp, logits, maps.log_odds(xp, accuracy))
