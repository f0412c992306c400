"""Second stages: maps that are learned from the answers of another calibrator, and kept predictions."""

from dataclasses import replace
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone

from calibrant.calibrators import maps
from calibrant.calibrators.base import Calibrator, of_inner
from calibrant.calibrators.confidence_bins import map_rows
from calibrant.calibrators.learned import INNER, Learned
from calibrant.calibrators.logistic import PlattScaling, beta_columns
from calibrant.calibrators.solvers.likelihood import Dense, Solution, search
from calibrant.calibrators.temperature import TemperatureScaling
from calibrant.calibrators.tensors import device_map
from calibrant.core.arrays import Array
from calibrant.core.rows import Rows
from calibrant.core.softmax import logsumexp
from calibrant.core.statistic import add, use_compiled
from calibrant.core.threads import map_blocks, row_blocks
from calibrant.kernels.logistic import Pull, fit_logistic
from calibrant.kernels.shape import (
    BLOCK_ELEMENTS,
    bent_losses_of,
    bent_scores,
    bent_sums,
    features,
    shape_sums,
    stacked_features,
)

SAME_CONFIDENCE = np.array([1.0, 1.0, 0.0])
"""The map g = c of the top confidence."""

TOP_PRIOR_ROWS = 50.0
"""Strength of the pull of a top-label map to the identity; n rows have the weight n beside it."""

SAME_SHAPE = np.array([1.0, 0.0, 0.0, 0.0])
"""The shape that changes nothing."""

SHAPE_PRIOR_ROWS = 2.0
"""Strength of the pull of a shape to the identity."""

LARGEST_LOG_ODDS = 14.0
"""Where log(1 − p) of a positive class is cut off: about p = 1 − 1e-6."""

KEPT_ELEMENTS = 1 << 21
"""Up to this many logits, their features (32 bytes each) are kept from one step to the next."""

TIGHT, LEADING, ROUGH = 1e-14, 1e-8, 1e-6
"""Decrements before the last step: of a shape, of a sample that leads to it, and of a bend that ranks penalties."""

CACHED_ELEMENTS = 1 << 17
"""Elements handled at a time: float64 copies of a block stay in the second-level cache."""


class SecondStage(
    Calibrator,
    is_base=True,
    # where the inner calibrator is fitted there, and its answers on the fit rows are good for a second stage
    fits_on_device=lambda own: (
        own.calibrator is None
        or (own.calibrator.few_parameters and (own.calibrator.additive or own.calibrator.fits_on_device))
    ),
    cross_fits=lambda own: own.calibrator is not None and not own.calibrator.few_parameters,
):
    """Base of the maps: the inner calibrator is fitted first, and the map to its answers.

    An inner calibrator of more than 5 parameters is more confident on its fit data than on new data; the map is then
    learned from its held-out answers. A method writes `_learn(rows)` and `_after(xp, logits, learned)` for rows of
    answers, and `_fresh()`, the unfitted inner calibrator, where it need not be given.
    """

    calibrator: Calibrator | None
    seed: int
    _learn: Any
    _after: Any

    def _fresh(self) -> Calibrator:
        return clone(self.calibrator)

    def _fit(self, rows: Rows) -> None:
        self.calibrator_ = self._fresh()
        if rows.in_memory:
            self._learn(replace(rows, logits=self.calibrator_.fit_for_next(rows, self.seed)))
        else:  # on a GPU
            blocks: Any = rows.blocks
            change = device_map(self.calibrator_.fit_rows(rows), blocks.tensor.device)
            self._learn(replace(blocks, change=change).rows())

    def _held_out(self, rows: Rows, fold: Array) -> Array:
        if rows.one_score:
            return super()._held_out(rows, fold)
        self.calibrator_ = self._fresh()
        inner = self.calibrator_.fit_held_out(rows, fold)
        self._learn(replace(rows, logits=inner))
        # a few numbers learned from all rows: what a row adds to its own answer is far below the noise
        return self._changed(inner)

    def _changed(self, logits: Array) -> Array:
        learned = self._ready()
        return map_rows(lambda block: self._after(maps.numpy_space, logits[block], learned), logits)

    def _map(self, xp, logits, learned):
        return self._after(xp, self.calibrator_._map(xp, logits, learned.calibrator_), learned)


class TopLabel(NamedTuple):
    """The predicted class of each row and u = log(c / (1 − c)), exact also where c rounds to 1 (n,)."""

    prediction: Array
    log_odds: Array


def top_label(logits: Array) -> TopLabel:
    """Prediction and log-odds of its confidence: the peak minus the log-sum-exp of all other logits."""

    def part(block):
        others, prediction = logits[block].astype(np.float64), logits[block].argmax(axis=1)
        every = np.arange(len(others))
        peaks = others[every, prediction]
        others[every, prediction] = -np.inf
        return TopLabel(prediction, peaks - logsumexp(others))

    parts = map_blocks(part, row_blocks(len(logits), logits.shape[1], CACHED_ELEMENTS))
    return TopLabel(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


class TopLabelMap(
    SecondStage,
    keeps_prediction=of_inner("keeps_prediction"),
    keeps_ranking=of_inner("keeps_ranking"),
    requires_logits=of_inner("requires_logits"),
    searches_in_order=of_inner("searches_in_order"),
):
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

    learns = {"calibrator_": INNER, "map_": Learned((3,))}

    def __init__(self, calibrator: Calibrator, *, seed: int = 0) -> None:
        self.calibrator = calibrator
        self.seed = seed

    def _learn(self, rows: Any) -> None:
        if rows.in_memory:
            top = top_label(rows.logits)
        else:
            from calibrant.kernels.torch.rows import top_odds

            top = TopLabel(*rows.blocks.per_row(top_odds))
        self.map_, self.objective_trace_ = fit_map(top.log_odds, top.prediction == rows.labels, rows.weights)
        self.n_iter_ = max(1, len(self.objective_trace_) - 1)

    def _after(self, xp, logits, learned):
        """Log-probabilities whose predicted class has log-odds a·log c − b·log(1 − c) + d."""

        def change(log_odds: Any) -> Any:
            wrong = xp.softplus(log_odds)
            return (log_odds - wrong) * learned.map_[0] + wrong * learned.map_[1] + learned.map_[2]

        return maps.with_mapped_confidence(xp, logits, change)


def fit_map(log_odds: Array, correct: Array, weights: Array | None) -> tuple[Array, Array]:
    """a, b, d of the lowest penalised log-loss of `correct`, and the mean objective at each step."""
    start, pull = SAME_CONFIDENCE, Pull(SAME_CONFIDENCE, TOP_PRIOR_ROWS * np.eye(3))
    found = fit_logistic(beta_columns(log_odds), correct, weights, start=start, non_negative=True, pull=pull)
    return found.point, found.trace


class ShapeScaling(
    SecondStage,
    # as the inner calibrator; of the positive class alone nothing is kept
    keeps_prediction=lambda own: own.task_ != "binary" and (own.calibrator is None or own.calibrator.keeps_prediction),
    # as the inner calibrator
    requires_logits=lambda own: own.calibrator is not None and own.calibrator.requires_logits,
):
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

    def _fresh(self) -> Calibrator:
        if self.calibrator is None:
            return PlattScaling() if self.task_ == "binary" else TemperatureScaling()
        return super()._fresh()

    def _fit_binary(self, rows: Rows) -> None:
        self.calibrator_ = self._fresh()
        inner = self.calibrator_.fit_for_next(rows, self.seed)
        columns = np.stack(positive_features(maps.numpy_space, inner.astype(np.float64)))
        pull = Pull(np.append(SAME_SHAPE, 0.0), SHAPE_PRIOR_ROWS * np.eye(5))
        found = fit_logistic(columns, rows.labels, rows.weights, pull=pull)
        self.shape_, self.objective_trace_, self.n_iter_ = found.point, found.trace, max(1, len(found.trace))

    def _map_binary(self, xp, scores, learned):
        wide = maps.wide(xp, self.calibrator_._map_binary(xp, scores, learned.calibrator_))
        bent = learned.shape_[4] + xp.zeros_like(wide)
        for j, column in enumerate(positive_features(xp, wide)):
            bent = bent + learned.shape_[j] * column
        return maps.like(xp, bent, scores)

    def _learn(self, rows: Any) -> None:
        solution = fit_shape(rows)
        self.shape_ = solution.point
        solution.report(self, warn=False)

    def _after(self, xp, logits, learned):
        """Log-probabilities Σ_m θ_m·φ_m of calibrated logits (n×K), their prediction kept first."""
        wide, shape = maps.wide(xp, logits), learned.shape_
        first, second, third, sureness = features(xp, wide - xp.max(wide, axis=1, keepdims=True))
        bent = first * (shape[0] + shape[3] * sureness) + second * shape[1] + third * shape[2]
        scores = maps.like(xp, xp.normalized_scores(bent), logits)
        return xp.keep_prediction(scores, maps.prediction(xp, logits))

    def _transform(self, logits: Array) -> Array:
        return self._changed(self.calibrator_._transform(logits))

    def _changed(self, logits: Array) -> Array:
        kernel = bent_scores.form(logits.size)
        if kernel is bent_scores:
            return super()._changed(logits)
        xp, kept = maps.numpy_space, maps.prediction(maps.numpy_space, logits)
        return map_rows(lambda block: xp.keep_prediction(kernel(logits[block], self.shape_), kept[block]), logits)


class KeptPrediction(
    Calibrator, keeps_prediction=True, requires_logits=of_inner("requires_logits"), cross_fits=of_inner("cross_fits")
):
    """Any calibrator, with the class of the largest raw logit kept first.

    Methods with class parameters gain likelihood, but change predictions as well, and what that gains in accuracy on
    the fit data it may lose where class frequencies differ. Where the inner calibrator would put another class first,
    the two share the mean of their probabilities, the network's class ahead by a rounding step: of all ways to let two
    classes change places, the smallest in squared distance. In the rare row where a third class is still ahead, the
    network's class is put ahead of it by a rounding step too.

    Parameters
    ----------
    calibrator : Calibrator
        What is calibrated with.

    Attributes
    ----------
    calibrator_ : the fitted inner calibrator.

    Examples
    --------
    >>> import calibrant as cal
    >>> val = cal.open_predictions("cifar10-resnet18#val")
    >>> fitted = cal.KeptPrediction(cal.VectorScaling()).fit(val.logits, val.labels)
    >>> bool((fitted.predict(val.logits) == val.logits.argmax(axis=1)).all())
    True
    """

    learns = {"calibrator_": INNER}

    def __init__(self, calibrator: Calibrator) -> None:
        self.calibrator = calibrator

    def _fit(self, rows: Rows) -> None:
        self.calibrator_ = clone(self.calibrator).fit_rows(rows)

    def _held_out(self, rows: Rows, fold: Array) -> Array:
        self.calibrator_ = clone(self.calibrator)
        answers = self.calibrator_.fit_held_out(rows, fold)
        return map_rows(lambda block: put_first(maps.numpy_space, answers[block], rows.logits[block]), answers)

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        return put_first(xp, self.calibrator_._map(xp, logits, learned.calibrator_), logits)


def put_first(xp: Any, calibrated: Any, logits: Any) -> Any:
    """Log-probabilities (n×K) of calibrated logits that put the prediction of the raw logits first."""
    scores, kept = xp.log_softmax_of_rows(calibrated), maps.prediction(xp, logits)
    winner = maps.prediction(xp, scores)
    first, second, moved = xp.entry(scores, winner), xp.entry(scores, kept), winner != kept
    # where they differ, both classes get the mean of their probabilities
    both = second + xp.softplus(first - second) - float(np.log(2.0))
    scores = xp.with_entry(scores, winner, xp.where(moved, both, first))
    return xp.keep_prediction(xp.with_entry(scores, kept, xp.where(moved, both, second)), kept)


def positive_features(xp: Any, log_odds: Any) -> tuple[Any, ...]:
    """s, −log(1 − p), log(p + 0.01) and s·log(1 − max(p, 1 − p))/5 of log-odds (n,), over the array API."""
    rest = xp.log1p(xp.exp(-xp.abs(log_odds)))
    zero = xp.zeros_like(log_odds)
    opposite = xp.softplus(xp.minimum(log_odds, zero + LARGEST_LOG_ODDS))
    sureness = -xp.minimum(xp.abs(log_odds) + rest, zero + LARGEST_LOG_ODDS) / 5.0
    return log_odds, opposite, xp.log(maps.sigmoid(xp, log_odds) + 0.01), log_odds * sureness


def fit_shape(rows: Any, *, start: Array = SAME_SHAPE, gap: float = TIGHT) -> Solution:
    """θ (4,) of the lowest penalised NLL over rows of calibrated logits."""
    size = rows.n * rows.n_classes
    if size > 4 * KEPT_ELEMENTS:
        some = rows.sample(KEPT_ELEMENTS // rows.n_classes)
        if some.total_weight > 0:
            # a sample leads most of the way
            start = fit_shape(some, start=start, gap=max(gap, LEADING)).point
    total: Any = partial(rows.total, shape_sums)
    if rows.in_memory and size <= KEPT_ELEMENTS and not use_compiled(size):
        # the features, half of the work, are computed once
        parts = [rows.take(block) for block in row_blocks(rows.n, rows.n_classes, BLOCK_ELEMENTS)]
        kept = map_blocks(lambda part: (stacked_features(part.logits), part.labels, part.weights), parts)
        total = lambda shape: reduce(add, map_blocks(lambda one: bent_sums(*one, shape), kept))  # noqa: E731
    # of two classes −log(1 − p) of one is −log p of the other: the second feature would repeat the first
    moves = np.diag([1.0, 0.0 if rows.n_classes == 2 else 1.0, 1.0, 1.0])

    def sums(point: Array, last: bool) -> tuple[float, Array, Array]:
        loss, gradient, hessian = total(point)
        return loss, moves @ gradient, moves @ hessian @ moves

    pull = SHAPE_PRIOR_ROWS / rows.total_weight * np.eye(4)
    return search(Dense(sums, rows.total_weight, pull, SAME_SHAPE, exact=True), start, gap=gap, polish=False)


def bent_losses(answer: Array, rows: Rows, start: Array) -> tuple[Array, Array]:
    """The bend that suits held-out answers best, and the NLL of each row after it."""
    held_out = Rows(answer, rows.labels, rows.weights)
    some = held_out.sample(KEPT_ELEMENTS // rows.n_classes)
    # a sample determines the bend well enough, unless it holds no weight
    shape = fit_shape(some if some.total_weight > 0 else held_out, start=start, gap=ROUGH).point
    return shape, held_out.gather(bent_losses_of, shape)[0]
