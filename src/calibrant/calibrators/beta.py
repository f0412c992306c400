"""Beta calibration."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from calibrant.calibrators.base import BinaryCalibrator
from calibrant.calibrators.learned import Learned
from calibrant.calibrators.solvers.score_maps import check_strength, fit_scores, stacked
from calibrant.core.rows import Rows


class BetaCalibration(BinaryCalibrator):
    """P(y = 1) = sigmoid(a·ln p − b·ln(1 − p) + c) with a, b ≥ 0 (Kull, Silva Filho & Flach 2017).

    Low and high probabilities are stretched apart or together each by its own factor; a = b is Platt scaling. The map
    never reverses the order of two scores. a, b, c maximise the likelihood; where the classes are separable, or one
    is absent, a weak pull to the identity (1, 1, 0) keeps them finite and a FitWarning says so.

    Parameters
    ----------
    penalty : number
        λ of ½·λ·(var(ln p)·(a − 1)² + var(ln(1 − p))·(b − 1)² + c²), added to the summed log loss.

    Attributes
    ----------
    a_, b_, intercept_ : the learned a, b and c.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant import BetaCalibration
    >>> rng = np.random.default_rng(0)
    >>> scores = 3 * rng.normal(size=2000)
    >>> labels = rng.random(2000) < 1 / (1 + np.exp(-scores / 3))
    >>> fitted = BetaCalibration().fit(scores, labels)
    >>> fitted.a_ < 0.5, fitted.b_ < 0.5
    (True, True)
    """

    keeps_ranking = True
    few_parameters = True
    additive_scores = True
    learns = {"a_": Learned((), 0.0), "b_": Learned((), 0.0), "intercept_": Learned(())}

    def __init__(self, penalty: float = 0.0) -> None:
        self.penalty = penalty

    def _fit_binary(self, rows: Rows) -> None:
        penalty = check_strength(self.penalty)
        found = fit_scores("BetaCalibration", rows, beta_columns, np.array([1.0, 1.0, 0.0]), penalty)
        self.a_, self.b_, self.intercept_ = map(float, found.point)
        self.objective_trace_, self.n_iter_ = found.trace, max(1, len(found.trace))

    def _map_binary(self, xp: Any, scores: Any, learned: Any) -> Any:
        a, b, c = (xp.astype(one, scores.dtype) for one in (learned.a_, learned.b_, learned.intercept_))
        low, high = beta_features(xp, scores)
        return a * low + b * high + c


def beta_features(xp: Any, scores: Any) -> tuple[Any, Any]:
    """ln p and −ln(1 − p) of log-odds (n,); both increase with the score."""
    rest, zero = xp.log1p(xp.exp(-xp.abs(scores))), xp.zeros_like(scores)
    return xp.minimum(scores, zero) - rest, xp.maximum(scores, zero) + rest


beta_columns = partial(stacked, beta_features)
"""The features of a score as the fit reads them, (2, n)."""
