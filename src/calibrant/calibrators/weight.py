"""Weight scaling."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.confidence_bins import ConfidenceBins, top_columns
from calibrant.calibrators.learned import Learned
from calibrant.calibrators.maps import mix_with_uniform
from calibrant.core.bins import check_n_bins, mass_index
from calibrant.core.errors import InputError
from calibrant.core.rows import Rows


class WeightScaling(Calibrator):
    """Mix the probabilities with the uniform distribution, α·p + (1 − α)/K (WS; Frenkel & Goldberger 2022, eq. 6).

    With A_i and C_i the accuracy and mean confidence of M equal-mass bins of the confidence, α in [0, 1] is fitted so
    that α·C_i + (1 − α)/K comes close to A_i. Order is kept, of classes in a row and of rows by confidence.

    Parameters
    ----------
    objective : {"least_squares", "adaptive_ece_l1"}
        "least_squares": α = Σ (C_i − 1/K)(A_i − 1/K) / Σ (C_i − 1/K)², what the paper's tables contain.
        "adaptive_ece_l1": the exact minimiser of the adaptive ECE (eq. 8), a weighted median of
        (A_i − 1/K)/(C_i − 1/K).
    n_bins : int
        Equal-mass bins of the confidence.

    Attributes
    ----------
    weight_ : float
        The learned α.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant import WeightScaling
    >>> logits = np.log([[0.6, 0.3, 0.1]] * 4)
    >>> fitted = WeightScaling(n_bins=1).fit(logits, [0, 0, 1, 2])
    >>> round(fitted.weight_, 4)
    0.625
    >>> fitted.predict_proba(logits[:1]).round(4)
    array([[0.5   , 0.3125, 0.1875]])
    """

    keeps_prediction = True
    keeps_ranking = True
    additive = True
    few_parameters = True
    learns = {"weight_": Learned((), 0.0)}

    def __init__(self, objective: str = "least_squares", *, n_bins: int = 13) -> None:
        self.objective = objective
        self.n_bins = n_bins

    def _fit(self, rows: Rows) -> None:
        solvers = {"least_squares": least_squares_weight, "adaptive_ece_l1": least_absolute_weight}
        if self.objective not in solvers:
            raise InputError(f"objective must be 'least_squares' or 'adaptive_ece_l1', got {self.objective!r}")
        n_bins = check_n_bins(self.n_bins)
        top = top_columns(rows)
        weights = rows.weights
        bins = ConfidenceBins.of(top, weights, mass_index(top.confidence, n_bins, weights), n_bins)
        uniform = 1.0 / rows.n_classes
        confidence, accuracy = bins.confidence[bins.filled] - uniform, bins.accuracy[bins.filled] - uniform
        self.weight_ = float(np.clip(solvers[self.objective](confidence, accuracy, bins.mass[bins.filled]), 0.0, 1.0))

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        return mix_with_uniform(xp, logits, learned.weight_)


def least_squares_weight(confidence: np.ndarray, accuracy: np.ndarray, mass: np.ndarray) -> float:
    """α of the lowest Σ (A − α·C)² over bins, A and C above chance; bins count alike, as they hold equal mass."""
    squares = float(confidence @ confidence)
    return float(confidence @ accuracy) / squares if squares > 0 else 1.0


def least_absolute_weight(confidence: np.ndarray, accuracy: np.ndarray, mass: np.ndarray) -> float:
    """α of the lowest Σ mass·|A − α·C|: the median of A/C under weights mass·C, the lower one if there are two."""
    leverage = mass * confidence
    if not leverage.sum() > 0:
        return 1.0
    ratio = accuracy[leverage > 0] / confidence[leverage > 0]
    order = np.argsort(ratio, kind="stable")
    below = np.cumsum(leverage[leverage > 0][order])
    return float(ratio[order][np.searchsorted(below, 0.5 * below[-1])])
