"""The shape of the map from log-probability to log-probability: four numbers, a convex fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import clone

from calibrant.calibrators import maps
from calibrant.calibrators.base import Calibrator, fact
from calibrant.calibrators.confidence_bins import map_rows
from calibrant.calibrators.learned import INNER, Learned
from calibrant.calibrators.platt import PlattScaling
from calibrant.calibrators.solvers.positive_class import fit_positive_shape, positive_features
from calibrant.calibrators.solvers.shapes import fit_shape
from calibrant.calibrators.temperature import TemperatureScaling
from calibrant.calibrators.tensors import can_fit_inner, fit_inner
from calibrant.core.rows import Rows
from calibrant.kernels.shape import bent_scores, features


class ShapeScaling(Calibrator):
    """Bend the confidence curve, which a temperature only stretches: u_j = Σ_m θ_m·φ_m(j), one θ for all classes.

    With l = log p the log-probabilities of an inner calibrator (temperature scaling unless given) and c = max p,

        φ = ( l_j,  −log(1 − p_j),  log(p_j + 0.01),  l_j·log(1 − c)/5 ).

    The first is the temperature, the second opens or closes the gap of a class that is nearly certain, the third
    lifts or lowers the tail, the fourth lets the temperature depend on the confidence of the row. θ minimises
    Σ w·NLL(softmax u) + ‖θ − (1, 0, 0, 0)‖²: a conditional logit, so the problem is convex and Newton's method
    solves it in a few passes. The predicted class of the inner calibrator stays first.

    Of one score per row the log-odds s of the positive class are bent, after Platt scaling unless another calibrator is
    given: u = θ·(s, −log(1 − p), log(p + 0.01), s·log(1 − max(p, 1 − p))/5, 1).

    An inner calibrator of more than 5 parameters is more confident on its fit data than on new data; θ is then learned
    from its held-out answers (`fit_held_out`).

    Parameters
    ----------
    calibrator : Calibrator or None
        What comes before; None is `TemperatureScaling()`.
    seed : int
        Of the folds.

    Attributes
    ----------
    calibrator_ : the fitted inner calibrator.
    shape_ : array (4,), or (5,) of one score per row
        θ.

    Examples
    --------
    >>> import calibrant as cal
    >>> val = cal.open_predictions("cifar10-resnet18#val")
    >>> cal.ShapeScaling().fit(val.logits, val.labels).shape_.shape
    (4,)
    """

    learns = {"calibrator_": INNER, "shape_": Learned((4,))}
    learns_binary = {"calibrator_": INNER, "shape_": Learned((5,))}

    def __init__(self, calibrator: Calibrator | None = None, *, seed: int = 0) -> None:
        self.calibrator = calibrator
        self.seed = seed

    @fact
    def keeps_prediction(self) -> bool:
        """As the inner calibrator; of the positive class alone nothing is kept."""
        return self.task_ != "binary" and (self.calibrator is None or self.calibrator.keeps_prediction)

    @fact
    def requires_logits(self) -> bool:
        """As the inner calibrator."""
        return self.calibrator is not None and self.calibrator.requires_logits

    @fact
    def fits_on_device(self) -> bool:
        """Where the inner calibrator is fitted there, and by few parameters."""
        return can_fit_inner(self.calibrator)

    def _fit_binary(self, rows: Rows) -> None:
        self.calibrator_ = PlattScaling() if self.calibrator is None else clone(self.calibrator)
        found = fit_positive_shape(self.calibrator_.fit_for_next(rows, self.seed), rows)
        self.shape_, self.objective_trace_ = found.point, found.trace
        self.n_iter_ = max(1, len(found.trace))

    def _map_binary(self, xp: Any, scores: Any, learned: Any) -> Any:
        inner = self.calibrator_._map_binary(xp, scores, learned.calibrator_)
        wide = xp.astype(inner, xp.float64)
        bent = learned.shape_[4] + xp.zeros_like(wide)
        for j, column in enumerate(positive_features(xp, wide)):
            bent = bent + learned.shape_[j] * column
        return xp.astype(bent, scores.dtype)

    def _fit(self, rows: Rows) -> None:
        self.calibrator_ = TemperatureScaling() if self.calibrator is None else clone(self.calibrator)
        if not rows.in_memory:  # on a GPU
            self._fit_shape(fit_inner(self.calibrator_, rows))
        else:
            self._fit_shape(replace(rows, logits=self.calibrator_.fit_for_next(rows, self.seed)))

    def _held_out(self, rows: Rows, fold: np.ndarray) -> np.ndarray:
        if rows.one_score:
            return super()._held_out(rows, fold)
        self.calibrator_ = TemperatureScaling() if self.calibrator is None else clone(self.calibrator)
        inner = self.calibrator_.fit_held_out(rows, fold)
        self._fit_shape(replace(rows, logits=inner))
        # four numbers learned from all rows: what a row adds to its own answer is far below the noise
        return self._bend(inner)

    def _fit_shape(self, rows: Any) -> None:
        solution = fit_shape(rows)
        self.shape_, self.objective_trace_, self.n_iter_ = solution.point, solution.trace, max(1, solution.n_iter)

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        return bend(xp, self.calibrator_._map(xp, logits, learned.calibrator_), learned.shape_)

    def _transform(self, logits: np.ndarray) -> np.ndarray:
        return self._bend(self.calibrator_._transform(logits))

    def _bend(self, logits: np.ndarray) -> np.ndarray:
        kernel = bent_scores.form(logits.size)
        if kernel is bent_scores:
            return map_rows(lambda block: bend(maps.numpy_space, logits[block], self.shape_), logits)
        kept = maps.prediction(maps.numpy_space, logits)
        return map_rows(
            lambda block: maps.keep_prediction(maps.numpy_space, kernel(logits[block], self.shape_), kept[block]),
            logits,
        )


def bend(xp: Any, logits: Any, shape: Any) -> Any:
    """Log-probabilities Σ_m θ_m·φ_m of calibrated logits (n×K), their prediction kept first."""
    inputs = features(xp, xp.log_softmax_of_rows(maps.wide(xp, logits)))
    bent = inputs[0] * shape[0] + inputs[1] * shape[1] + inputs[2] * shape[2] + inputs[3] * shape[3]
    scores = maps.like(xp, xp.log_softmax_of_rows(bent), logits)
    return maps.keep_prediction(xp, scores, maps.prediction(xp, logits))
