"""A smooth monotone map of the top confidence, after any other calibrator."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import clone

from calibrant.calibrators import maps
from calibrant.calibrators.base import Calibrator, fact, of_inner
from calibrant.calibrators.beta import beta_columns
from calibrant.calibrators.learned import INNER, Learned
from calibrant.calibrators.tensors import can_fit_inner, fit_inner
from calibrant.calibrators.top_label import TopLabel, top_label
from calibrant.core.rows import Rows
from calibrant.kernels.logistic import Pull, fit_logistic

IDENTITY = np.array([1.0, 1.0, 0.0])
"""The map g = c."""

PRIOR_ROWS = 50.0
"""Strength of the pull to the identity; n rows have the weight n beside it."""


class TopLabelMap(Calibrator):
    """Remap the confidence c of a calibrator's predicted class: logit g = a·log c − b·log(1 − c) + d, a, b ≥ 0.

    The map is monotone, holds the identity (1, 1, 0) and is pulled towards it by a ridge that fades as rows are
    added: a, b, d minimise Σ w·log-loss(correct | g) + (50/2)·‖(a, b, d) − (1, 1, 0)‖². The predicted class gets g, the
    others are rescaled to 1 − g; where the runner-up would overtake, the excess above g is spread over the rest, so
    the prediction stays.

    An inner calibrator of more than 5 parameters is more confident on its fit data than on new data, so the map is
    then fitted to held-out rows of 5 folds, and the inner calibrator to all rows.

    Parameters
    ----------
    calibrator : Calibrator
        What comes before the map, for instance `TemperatureScaling()`.

    Attributes
    ----------
    calibrator_ : the fitted inner calibrator.
    map_ : array (3,)
        a, b, d.

    Examples
    --------
    >>> import calibrant as cal
    >>> val = cal.open_predictions("cifar10-resnet18#val")
    >>> fitted = cal.TopLabelMap(cal.TemperatureScaling()).fit(val.logits, val.labels)
    >>> bool((fitted.predict(val.logits) == val.logits.argmax(axis=1)).all())
    True
    """

    keeps_prediction = of_inner("keeps_prediction")
    keeps_ranking = of_inner("keeps_ranking")
    requires_logits = of_inner("requires_logits")
    learns = {"calibrator_": INNER, "map_": Learned((3,))}

    def __init__(self, calibrator: Calibrator, *, seed: int = 0) -> None:
        self.calibrator = calibrator
        self.seed = seed

    @fact
    def fits_on_device(self) -> bool:
        """Where the inner calibrator is fitted there, and by few parameters."""
        return can_fit_inner(self.calibrator)

    def _fit(self, rows: Rows) -> None:
        self.calibrator_ = clone(self.calibrator)
        if not rows.in_memory:  # on a GPU
            from calibrant.kernels.torch.row_passes import top_odds

            mapped = fit_inner(self.calibrator_, rows)
            self._fit_top(mapped, TopLabel(*top_odds(mapped.blocks)))
            return
        self._fit_map(rows, self.calibrator_.fit_for_next(rows, self.seed))

    def _held_out(self, rows: Rows, fold: np.ndarray) -> np.ndarray:
        self.calibrator_ = clone(self.calibrator)
        inner = self.calibrator_.fit_held_out(rows, fold)
        self._fit_map(rows, inner)
        # three numbers learned from all rows: what a row adds to its own answer is far below the noise
        return self._remap(inner)

    def _fit_map(self, rows: Rows, logits: np.ndarray) -> None:
        self._fit_top(rows, top_label(logits))

    def _fit_top(self, rows: Any, top: TopLabel) -> None:
        self.map_, self.objective_trace_ = fit_map(top.log_odds, top.prediction == rows.labels, rows.weights)
        self.n_iter_ = max(1, len(self.objective_trace_) - 1)

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        return _remapped(xp, self.calibrator_._map(xp, logits, learned.calibrator_), learned.map_)

    def _remap(self, logits: np.ndarray) -> np.ndarray:
        return _remapped(maps.numpy_space, logits, self.map_)


def _remapped(xp: Any, logits: Any, parameters: Any) -> Any:
    """Log-probabilities whose predicted class has log-odds a·log c − b·log(1 − c) + d."""

    def change(log_odds: Any) -> Any:
        right, wrong = -maps.softplus(xp, -log_odds), maps.softplus(xp, log_odds)
        return right * parameters[0] + wrong * parameters[1] + parameters[2]

    return maps.with_mapped_confidence(xp, logits, change)


def fit_map(log_odds: np.ndarray, correct: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """a, b, d of the lowest penalised log-loss of `correct`, and the mean objective at each step."""
    pull = Pull(IDENTITY, PRIOR_ROWS * np.eye(3))
    found = fit_logistic(beta_columns(log_odds), correct, weights, start=IDENTITY, non_negative=True, pull=pull)
    return found.point, found.trace
