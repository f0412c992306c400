"""The shape of the map from log-probability to log-probability: four numbers, a convex fit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import numpy as np
from sklearn.base import clone

from calibrant.calibrators import maps
from calibrant.calibrators.base import Calibrator, fact
from calibrant.calibrators.helpers.confidence_bins import map_rows
from calibrant.calibrators.helpers.device_statistics import can_fit_inner, fit_inner
from calibrant.calibrators.learned import INNER, Learned
from calibrant.calibrators.platt import PlattScaling
from calibrant.calibrators.solvers.positive_class import fit_positive_shape, positive_features
from calibrant.calibrators.temperature import TemperatureScaling
from calibrant.core.rows import Rows
from calibrant.core.statistic import add, use_compiled
from calibrant.core.threads import map_blocks, row_blocks
from calibrant.kernels.shape import (
    BLOCK_ELEMENTS,
    bent_losses_of,
    bent_scores,
    bent_sums,
    features,
    shape_sums,
    stacked_features,
)

IDENTITY = np.array([1.0, 0.0, 0.0, 0.0])
"""The map that changes nothing."""

PRIOR_ROWS = 2.0
"""Strength of the pull to the identity; n rows have the weight n beside it."""

MAX_STEPS = 50

KEPT_ELEMENTS = 1 << 21
"""Up to this many logits, their features (32 bytes each) are kept from one step to the next."""


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
            self.shape_, self.objective_trace_ = fit_shape(fit_inner(self.calibrator_, rows))
            self.n_iter_ = max(1, len(self.objective_trace_) - 1)
            return
        self._fit_shape(rows, self.calibrator_.fit_for_next(rows, self.seed))

    def _held_out(self, rows: Rows, fold: np.ndarray) -> np.ndarray:
        self.calibrator_ = TemperatureScaling() if self.calibrator is None else clone(self.calibrator)
        inner = self.calibrator_.fit_held_out(rows, fold)
        self._fit_shape(rows, inner)
        # four numbers learned from all rows: what a row adds to its own answer is far below the noise
        return self._bend(inner)

    def _fit_shape(self, rows: Rows, logits: np.ndarray) -> None:
        self.shape_, self.objective_trace_ = fit_shape(Rows(logits, rows.labels, rows.weights))
        self.n_iter_ = max(1, len(self.objective_trace_) - 1)

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


def shape_losses(rows: Rows, shape: np.ndarray) -> np.ndarray:
    """NLL of each row (n,) of calibrated logits once they are bent."""
    return rows.gather(bent_losses_of, shape)[0]


def fit_shape(rows: Any, *, start: np.ndarray = IDENTITY, tolerance: float = 1e-9) -> tuple[np.ndarray, np.ndarray]:
    """θ of the lowest penalised NLL over rows of calibrated logits, and the mean objective at each step.

    The search ends with a step below the tolerance; the error left is far smaller, because Newton's method squares it.
    """
    size = rows.n * rows.n_classes
    if size > 4 * KEPT_ELEMENTS:
        some = rows.sample(KEPT_ELEMENTS // rows.n_classes)
        if some.total_weight > 0:
            # a sample leads most of the way
            start = fit_shape(some, start=start, tolerance=1e-3)[0]
    total: Callable[[np.ndarray], tuple[Any, ...]]
    if not rows.in_memory or size > KEPT_ELEMENTS or use_compiled(size):
        total = partial(rows.total, shape_sums)
    else:
        total = _kept_sums(rows)
    # of two classes −log(1 − p) of one is −log p of the other: the second feature would repeat the first
    free = np.array([0, 2, 3] if rows.n_classes == 2 else [0, 1, 2, 3])

    def evaluate(point: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        loss, gradient, hessian = total(point)
        pull = point - IDENTITY
        value = (loss + 0.5 * PRIOR_ROWS * float(pull @ pull)) / rows.total_weight
        return value, gradient + PRIOR_ROWS * pull, hessian + PRIOR_ROWS * np.eye(len(point))

    point = start
    value, gradient, hessian = evaluate(point)
    trace = [value]
    for _ in range(MAX_STEPS):
        direction = np.zeros(len(point))
        direction[free] = -np.linalg.solve(hessian[np.ix_(free, free)], gradient[free])
        for length in 0.5 ** np.arange(30):
            candidate = point + length * direction
            found = evaluate(candidate)
            if found[0] <= value + 1e-15:
                break
        moved, point = np.abs(candidate - point).max(), candidate
        value, gradient, hessian = found
        trace.append(value)
        if moved < tolerance:
            break
    return point, np.array(trace)


def _kept_sums(rows: Rows) -> Callable[[np.ndarray], tuple[float, np.ndarray, np.ndarray]]:
    """`shape_sums` over these rows as a function of θ alone; the features, half of the work, are computed once."""
    parts = [rows.take(block) for block in row_blocks(rows.n, rows.n_classes, BLOCK_ELEMENTS)]
    inputs = map_blocks(lambda part: stacked_features(part.logits), parts)

    def total(shape: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        def one(place: int) -> tuple[float, np.ndarray, np.ndarray]:
            return bent_sums(inputs[place], parts[place].labels, parts[place].weights, shape)

        return reduce(add, map_blocks(one, range(len(parts))))

    return total
