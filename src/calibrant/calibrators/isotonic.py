"""Isotonic calibration, and the Venn-Abers pair of isotonic fits."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from calibrant.calibrators import maps
from calibrant.calibrators.base import BinaryCalibrator
from calibrant.calibrators.binning import ProbabilityMap
from calibrant.calibrators.confidence_bins import mapped_columns
from calibrant.calibrators.learned import CHANCE, Learned
from calibrant.core.arrays import Array
from calibrant.core.errors import InputError
from calibrant.core.progress import step
from calibrant.core.rows import Rows
from calibrant.core.softmax import probability_log_odds, softplus
from calibrant.kernels.isotonic import ROUNDING, ScoreGroups, distinct_scores, isotonic_values, venn_abers_tables


class IsotonicCalibration(
    ProbabilityMap,
    # scores of the positive class are never reversed
    keeps_ranking=lambda own: own.task_ == "binary",
):
    """Map probabilities by the non-decreasing step function of least squares (Zadrozny & Elkan 2002).

    The fit is that of scikit-learn's `IsotonicRegression`; between its knots the map is linear. Probabilities that
    differ by the rounding of float32 alone are one knot.

    Parameters
    ----------
    mode : {"top_label", "one_vs_rest"}
        "top_label": the confidence of the predicted class is mapped against correct or not; the other probabilities
        are rescaled to the rest and the prediction stays (see `maps.with_mapped_confidence`).
        "one_vs_rest": one map for each class's probability against the class or not, then rows are normalised;
        predictions may change.

    Of one score per row the probability of the positive class is mapped, whatever the mode: the isotonic fit of the
    labels to the scores, linear in the score between its knots.

    Attributes
    ----------
    knots_, values_ : array
        Knots and values of all maps, one after the other; values stay half a row away from 0 and 1, so that no
        outcome gets probability 0.
    offsets_ : array (1 + 1 or K + 1,)
        Map j owns the entries offsets_[j] to offsets_[j + 1].

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant import IsotonicCalibration
    >>> logits = np.array([[2.0, 0.0]] * 4)
    >>> IsotonicCalibration().fit(logits, [0, 0, 0, 1]).predict_proba(logits[:1]).round(4)
    array([[0.75, 0.25]])
    """

    learns = {
        "knots_": Learned(("M",), 0.0, 1.0, free=False),
        "values_": Learned(("M",), *CHANCE),
        "offsets_": Learned(("C+1",), 0, increasing=True, free=False),
    }
    learns_binary = {
        "knots_": Learned(("M",), increasing=True, free=False),
        "values_": Learned(("M",), *CHANCE, increasing=True),
    }

    def __init__(self, mode: str = "top_label") -> None:
        self.mode = mode

    def _fit_binary(self, rows: Rows) -> None:
        groups = distinct_scores(rows.logits.astype(np.float64), rows.labels, rows.weights)
        self.knots_, self.values_ = isotonic_knots(groups)

    def _transform_binary(self, scores: Array) -> Array:
        return probability_log_odds(np.interp(scores, self.knots_, self.values_)).astype(scores.dtype)

    def _map_binary(self, xp, scores, learned):
        share = maps.interpolate(xp, maps.wide(xp, scores), learned.knots_, learned.values_)
        return maps.like(xp, maps.log_odds(xp, share), scores)

    def _fit(self, rows: Rows) -> None:
        columns, n_columns = mapped_columns(rows, self.mode)
        margin = min(0.5, 0.5 / rows.total_weight)
        knots, values = [], []
        for j, column in enumerate(columns):
            groups = distinct_scores(column.confidence, column.correct, rows.weights)
            bends, shares = _bends(groups.scores, np.clip(isotonic_values(groups), margin, 1.0 - margin))
            knots.append(bends)
            values.append(shares)
            step("isotonic", j + 1, n_columns)
        self.offsets_ = np.cumsum([0, *map(len, knots)])
        self.knots_, self.values_ = np.concatenate(knots), np.concatenate(values)

    def _check_learned(self) -> None:
        if self.task_ == "binary":
            return
        knots, offsets = np.asarray(self.knots_), np.asarray(self.offsets_)
        whole = offsets.dtype.kind in "iu" and offsets[0] == 0 and offsets[-1] == len(knots)
        if not whole or (np.diff(offsets) < 1).any():
            raise InputError(f"IsotonicCalibration.offsets_ must run from 0 to {len(knots)} in whole steps")
        falls = np.flatnonzero(np.diff(knots) < 0) + 1
        if not np.isin(falls, offsets).all():
            raise InputError("IsotonicCalibration.knots_ must not decrease within a map")

    def _learned(self) -> SimpleNamespace:
        """The maps as tables (C×W); shorter ones repeat their last knot."""
        if self.task_ == "binary":
            return super()._learned()
        width = int(np.diff(self.offsets_).max())

        def table(joined: Array) -> Array:
            maps = np.split(np.asarray(joined, dtype=np.float64), self.offsets_[1:-1])
            return np.stack([np.pad(one, (0, width - len(one)), mode="edge") for one in maps])

        return SimpleNamespace(knots_=table(self.knots_), values_=table(self.values_))

    def _mapped(self, xp, chances, learned):
        return xp.lines_by_class(chances, learned.knots_, learned.values_)


def isotonic_knots(groups: ScoreGroups) -> tuple[Array, Array]:
    """Scores at which the isotonic fit bends, and its values there, inside (0, 1).

    A share of 0 becomes half a row of all, or, where the scores themselves say less, the constant of their log loss; a
    share of 1 likewise. So no outcome gets probability 0, and no row of such a block loses to its own score.
    """
    values = isotonic_values(groups)
    margin = min(0.5, 0.5 / float(groups.weight.sum()))
    for end, sign in ((0.0, 1.0), (1.0, -1.0)):
        block = values == end
        if block.any():
            stated = -np.expm1(-np.average(softplus(sign * groups.scores[block]), weights=groups.weight[block]))
            values[block] = abs(end - max(min(margin, stated), CHANCE[0]))
    return _bends(groups.scores, np.clip(values, min(margin, values[0]), max(1.0 - margin, values[-1])))


def _bends(scores: Array, values: Array) -> tuple[Array, Array]:
    bends = np.ones(len(values), dtype=bool)
    bends[1:-1] = (values[1:-1] != values[:-2]) | (values[1:-1] != values[2:])
    return scores[bends], values[bends]


class VennAbers(BinaryCalibrator, keeps_ranking=True, has_steps=True):
    """Two isotonic fits, with the new point labelled 0 and labelled 1, bracket its probability (Vovk et al. 2015).

    For a new score p₀ and p₁ are the isotonic values at it once it joins the fit data with label 0 or 1; one of the two
    is a perfectly calibrated forecast, whatever the data. The point forecast is p₁/(1 − p₀ + p₁), which minimises the
    regret of the log loss; it is never 0 or 1. Both are computed for every possible score at the fit, in
    O(n log n) altogether.

    Attributes
    ----------
    low_knots_, low_values_ : p₀ is low_values_[i] where i of the knots do not exceed the score.
    high_knots_, high_values_ : p₁ is high_values_[i] where i of the knots are below the score.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant import VennAbers
    >>> fitted = VennAbers().fit(np.array([-2.0, -1.0, 0.5, 1.0]), [0, 1, 0, 1])
    >>> fitted.predict_interval(np.array([0.0])).round(4)
    array([[0.3333, 0.6667]])
    """

    learns = {
        "low_knots_": Learned(("M",), increasing=True, free=False),
        "low_values_": Learned(("M+1",), 0.0, 1.0, increasing=True),
        "high_knots_": Learned(("N",), increasing=True, free=False),
        "high_values_": Learned(("N+1",), 0.0, 1.0, increasing=True),
    }

    def _fit_binary(self, rows: Rows) -> None:
        groups = distinct_scores(rows.logits.astype(np.float64), rows.labels, rows.weights)
        low, high = venn_abers_tables(groups)
        # a score that rounding moved off a fit score is still at it: its steps lie a little below and above, not on it
        scores, room = groups.scores, 2 * ROUNDING * np.abs(groups.scores)
        between = np.pad(0.5 * (scores[1:] + scores[:-1]), 1, constant_values=(-np.inf, np.inf))
        self.low_knots_, self.low_values_ = _steps(np.maximum(scores - room, between[:-1]), low)
        self.high_knots_, self.high_values_ = _steps(np.minimum(scores + room, between[1:]), high)

    def predict_interval(self, logits: Any) -> Array:
        """p₀ and p₁ of each row (n×2): the low and the high end of the probability of the positive class."""
        self._check_fitted()
        given = self._admitted(logits)
        scores = given if given.ndim == 1 else given[:, 1] - given[:, 0]
        return np.stack(_ends(maps.numpy_space, scores, self._ready()), axis=1)

    def _map_binary(self, xp, scores, learned):
        low, high = _ends(xp, scores, learned)
        return xp.astype(xp.log(high) - xp.log1p(-low), scores.dtype)


def _ends(xp: Any, scores: Any, learned: Any) -> tuple[Any, Any]:
    """p₀ and p₁ (n,) of scores (n,)."""
    wide = xp.astype(scores, xp.float64)
    low = xp.take(learned.low_values_, xp.searchsorted(learned.low_knots_, wide, side="right"))
    high = xp.take(learned.high_values_, xp.searchsorted(learned.high_knots_, wide, side="left"))
    # of equal values rounding may put the lower end above the upper one
    return xp.minimum(low, high), xp.maximum(low, high)


def _steps(knots: Array, values: Array) -> tuple[Array, Array]:
    """The knots at which a step function changes, and its values between them."""
    values = np.maximum.accumulate(np.clip(values, 0.0, 1.0))
    changes = np.flatnonzero(values[1:] != values[:-1])
    return knots[changes], values[np.concatenate([changes, [len(values) - 1]])]
