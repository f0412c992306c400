"""Quadratic scaling."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from calibrant.calibrators.base import BinaryCalibrator
from calibrant.calibrators.learned import Learned
from calibrant.calibrators.solvers.score_maps import check_strength, fit_scores, slope_columns
from calibrant.core.errors import InputError
from calibrant.core.rows import Rows, score_range


class QuadraticScaling(BinaryCalibrator):
    """P(y = 1) = sigmoid(c₀ + c₁·s + c₂·s²), increasing on the range of the fit data and linear outside it.

    The derivative c₁ + 2·c₂·s is linear, so it is at least 0 on the range where it is at both ends: the fit is a
    logistic regression with two slopes that are held at or above 0. Where the classes are separable, or one is absent,
    a weak pull to the identity (0, 1, 0) keeps the coefficients finite and a FitWarning says so.

    Parameters
    ----------
    penalty : number
        λ of a pull to the identity, in the parameters slope at the lowest score, slope at the highest score (each
        times the variance of its column) and value at the lowest score; added to the summed log loss.

    Attributes
    ----------
    coef_ : array (3,)
        c₀, c₁, c₂.
    range_ : array (2,)
        Lowest and highest score of the fit data; beyond them the map goes on as a straight line.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant import QuadraticScaling
    >>> rng = np.random.default_rng(0)
    >>> scores = 3 * rng.normal(size=2000)
    >>> labels = rng.random(2000) < 1 / (1 + np.exp(-scores / 3))
    >>> QuadraticScaling().fit(scores, labels).coef_.shape
    (3,)
    """

    keeps_ranking = True
    few_parameters = True
    additive_scores = True
    learns = {"coef_": Learned((3,)), "range_": Learned((2,), increasing=True, free=False)}

    def __init__(self, penalty: float = 0.0) -> None:
        self.penalty = penalty

    def _fit_binary(self, rows: Rows) -> None:
        penalty = check_strength(self.penalty)
        ends = score_range(rows)
        low, high = ends.low, ends.high
        knots = np.array([low, high if high > low else low + 1.0])
        columns = partial(slope_columns, knots=knots)
        found = fit_scores("QuadraticScaling", rows, columns, np.array([1.0, 1.0, low]), penalty)
        self.objective_trace_, self.n_iter_ = found.trace, max(1, len(found.trace))
        first, last, value = found.point
        bend = (last - first) / (2 * (knots[1] - knots[0]))
        slope = first - 2 * bend * low
        self.coef_ = np.array([value - low * (slope + bend * low), slope, bend])
        self.range_ = np.array([low, high])

    def _check_learned(self) -> None:
        ends = self.coef_[1] + 2 * self.coef_[2] * np.asarray(self.range_)
        if ends.min() < -1e-6 * (1 + np.abs(self.coef_).max()):
            raise InputError("QuadraticScaling.coef_ falls within range_: the map must increase there")

    def _map_binary(self, xp: Any, scores: Any, learned: Any) -> Any:
        coef, ends = xp.astype(learned.coef_, scores.dtype), xp.astype(learned.range_, scores.dtype)
        inside = xp.minimum(xp.maximum(scores, ends[0]), ends[1])
        # the slope at the ends is 0 or more up to rounding
        slope = xp.maximum(coef[1] + 2 * coef[2] * inside, xp.zeros_like(scores))
        return coef[0] + inside * (coef[1] + coef[2] * inside) + slope * (scores - inside)
