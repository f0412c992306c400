"""A bent line in the logit of a binary score: the default for binary problems."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.calibrators.base import BinaryCalibrator
from calibrant.calibrators.learned import Learned
from calibrant.calibrators.solvers.bend import BREAKS, fit_bend
from calibrant.calibrators.solvers.folds import content_folds
from calibrant.calibrators.solvers.positive_class import interpolate
from calibrant.core.errors import InputError
from calibrant.core.rows import Rows

OUTER_SHARE = 0.05
"""The slope beyond the last knot is that over this share of the knots, where it is less than that of the last two."""


class BendScaling(BinaryCalibrator):
    """A monotone, piecewise linear map of the logit, shrunk to the identity as far as the data ask.

    With z the logit of the positive class and t(z) its normal score (Φ⁻¹ of its rank in the fit data),

        logit q = z + c₀ + c₁·z + Σ_k d_k·max(t(z) − t_k, 0),

    seven bends at t_k = −1.8 … 1.8. The coefficients minimise Σ w·log loss + ½·(κ·c₀² + λ·c₁² + μ·Σ d²) for each of
    72 triples (κ, λ, μ), from nearly free to nearly the identity; the triples are averaged with weights
    μ^0.15·exp(−0.65·excess of the cross-validated log loss), which varies less than the best one alone. The normal
    score lets the map bend where the rows are, also where scores are saturated. The values at the knots are made
    non-decreasing, so that the order of probabilities is never reversed. Last, the probability is pooled with that of
    an isotonic regression whose steps are shrunk to it; the share of the steps, 0.2 before any row, maximises the
    held-out likelihood. Beyond the fit data the map continues linearly.

    Parameters
    ----------
    n_knots : int
        Most knots at which the map is stored; between them it is linear.
    seed : int
        Of the folds of the cross-validation.

    Attributes
    ----------
    knots_ : (B,) logits.
    values_ : (B,) calibrated logits at the knots, non-decreasing.
    slopes_ : (2,) slopes below the first and above the last knot.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant import BendScaling
    >>> rng = np.random.default_rng(0)
    >>> scores = 2 * rng.normal(size=2000)
    >>> labels = (rng.random(2000) < 1 / (1 + np.exp(1 - scores / 2))).astype(int)
    >>> fitted = BendScaling().fit(scores, labels)
    >>> bool(abs(fitted.predict_proba(scores)[:, 1].mean() - labels.mean()) < 0.01)
    True
    """

    keeps_ranking = True
    learns = {
        "knots_": Learned(("B",), increasing=True),
        "values_": Learned(("B",), increasing=True),
        "slopes_": Learned((2,), 0.0),
    }

    def __init__(self, n_knots=128, *, seed=0):
        self.n_knots = n_knots
        self.seed = seed

    @property
    def n_parameters_(self) -> int:
        """Intercept, slope and bends."""
        return 2 + len(BREAKS)

    def _fit_binary(self, rows: Rows) -> None:
        if isinstance(self.n_knots, bool) or not isinstance(self.n_knots, (int, np.integer)) or self.n_knots < 2:
            raise InputError(f"n_knots must be a whole number of at least 2, got {self.n_knots!r}")
        n_folds = int(min(5, max(2, rows.total_weight)))
        knots, values = fit_bend(rows, content_folds(rows.matrix(), n_folds, self.seed), int(self.n_knots))
        if len(knots) == 1:
            knots, values = knots + np.array([0.0, 1.0]), values + np.array([0.0, 1.0])
        self.knots_, self.values_ = knots, values
        self.slopes_ = _outer_slopes(self.knots_, self.values_)

    def _map_binary(self, xp: Any, scores: Any, learned: Any) -> Any:
        given, knots = xp.astype(scores, xp.float64), learned.knots_
        calibrated = interpolate(xp, given, knots, learned.values_)
        calibrated = calibrated + learned.slopes_[0] * xp.minimum(given - knots[0], xp.zeros_like(given))
        calibrated = calibrated + learned.slopes_[1] * xp.maximum(given - knots[-1], xp.zeros_like(given))
        return xp.astype(calibrated, scores.dtype)


def _outer_slopes(knots: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Slopes at both ends; one steep step between the last two knots is not continued."""
    reach = max(1, int(OUTER_SHARE * len(knots)))
    lows = [(values[j] - values[0]) / (knots[j] - knots[0]) for j in (1, reach)]
    highs = [(values[-1] - values[-1 - j]) / (knots[-1] - knots[-1 - j]) for j in (1, reach)]
    return np.array([min(lows), min(highs)])
