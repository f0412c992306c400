"""Platt scaling."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.calibrators.base import BinaryCalibrator
from calibrant.calibrators.learned import Learned
from calibrant.calibrators.solvers.score_maps import check_strength, fit_scores, line_columns
from calibrant.core.rows import Rows


class PlattScaling(BinaryCalibrator):
    """Logistic regression on the logit of one score: P(y = 1) = sigmoid(a·s + b) (Platt 1999).

    a and b maximise the likelihood. Unlike Platt's original the targets are 0 and 1; where the classes are separable,
    or one is absent, a weak pull to the identity (1, 0) keeps a and b finite and a FitWarning says so.

    Parameters
    ----------
    penalty : number
        λ of ½·λ·(var(s)·(a − 1)² + b²), added to the summed log loss.

    Attributes
    ----------
    slope_, intercept_ : the learned a and b.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant import PlattScaling
    >>> rng = np.random.default_rng(0)
    >>> scores = 3 * rng.normal(size=2000)
    >>> labels = rng.random(2000) < 1 / (1 + np.exp(-scores / 3))
    >>> fitted = PlattScaling().fit(scores, labels)
    >>> fitted.slope_ < 0.5, fitted.predict_proba(scores).shape
    (True, (2000, 2))
    """

    few_parameters = True
    additive_scores = True
    learns = {"slope_": Learned(()), "intercept_": Learned(())}

    def __init__(self, penalty: float = 0.0) -> None:
        self.penalty = penalty

    def _fit_binary(self, rows: Rows) -> None:
        penalty = check_strength(self.penalty)
        found = fit_scores("PlattScaling", rows, line_columns, np.array([1.0, 0.0]), penalty, non_negative=False)
        self.slope_, self.intercept_ = map(float, found.point)
        self.objective_trace_, self.n_iter_ = found.trace, max(1, len(found.trace))

    def _map_binary(self, xp: Any, scores: Any, learned: Any) -> Any:
        return scores * xp.astype(learned.slope_, scores.dtype) + xp.astype(learned.intercept_, scores.dtype)
