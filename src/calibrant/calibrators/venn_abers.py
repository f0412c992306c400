"""Venn-Abers calibration."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from calibrant.calibrators.base import BinaryCalibrator
from calibrant.calibrators.learned import Learned
from calibrant.calibrators.maps import numpy_space
from calibrant.core.rows import Rows
from calibrant.kernels.isotonic import score_groups
from calibrant.kernels.venn_abers import venn_abers_tables


class VennAbers(BinaryCalibrator):
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

    keeps_ranking = True
    learns = {
        "low_knots_": Learned(("M",), increasing=True, free=False),
        "low_values_": Learned(("M+1",), 0.0, 1.0, increasing=True),
        "high_knots_": Learned(("N",), increasing=True, free=False),
        "high_values_": Learned(("N+1",), 0.0, 1.0, increasing=True),
    }

    def _fit_binary(self, rows: Rows) -> None:
        groups = score_groups(rows.logits.astype(np.float64), rows.labels, rows.weights)
        low, high = venn_abers_tables(groups)
        self.low_knots_, self.low_values_ = _steps(groups.scores, low)
        self.high_knots_, self.high_values_ = _steps(groups.scores, high)

    def predict_interval(self, logits: Any) -> np.ndarray:
        """p₀ and p₁ of each row (n×2): the low and the high end of the probability of the positive class."""
        check_is_fitted(self)
        given = self._admitted(logits)
        scores = given if given.ndim == 1 else given[:, 1] - given[:, 0]
        return np.stack(_ends(numpy_space, scores, self._learned()), axis=1)

    def _map_binary(self, xp: Any, scores: Any, learned: Any) -> Any:
        low, high = _ends(xp, scores, learned)
        return xp.astype(xp.log(high) - xp.log1p(-low), scores.dtype)


def _ends(xp: Any, scores: Any, learned: Any) -> tuple[Any, Any]:
    """p₀ and p₁ (n,) of scores (n,)."""
    wide = xp.astype(scores, xp.float64)
    low = xp.take(learned.low_values_, xp.searchsorted(learned.low_knots_, wide, side="right"))
    high = xp.take(learned.high_values_, xp.searchsorted(learned.high_knots_, wide, side="left"))
    # of equal values rounding may put the lower end above the upper one
    return xp.minimum(low, high), xp.maximum(low, high)


def _steps(knots: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The knots at which a step function changes, and its values between them."""
    values = np.maximum.accumulate(np.clip(values, 0.0, 1.0))
    changes = np.flatnonzero(values[1:] != values[:-1])
    return knots[changes], values[np.concatenate([changes, [len(values) - 1]])]
