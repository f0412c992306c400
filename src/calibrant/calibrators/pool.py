"""A weighted average of the probabilities of several calibrators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from sklearn.base import clone

from calibrant.calibrators import maps
from calibrant.calibrators.base import Calibrator, Identity
from calibrant.calibrators.confidence_bins import map_rows
from calibrant.calibrators.ensemble_temperature import minimise_on_simplex
from calibrant.calibrators.learned import INNERS, RECORD, Learned
from calibrant.calibrators.posterior_temperature import PosteriorTemperatureScaling
from calibrant.calibrators.registry import get
from calibrant.calibrators.second_stage import SecondStage
from calibrant.calibrators.solvers.folds import FOLDS, content_folds
from calibrant.calibrators.solvers.likelihood import check_penalty
from calibrant.calibrators.temperature import TemperatureScaling
from calibrant.core.arrays import Array
from calibrant.core.errors import InputError, warn_user
from calibrant.core.rows import Rows, two_columns
from calibrant.core.statistic import use_compiled
from calibrant.kernels.rows import scan

SMALLEST_WEIGHT = 0.02
"""A calibrator of less weight is left out: it costs time and changes next to nothing."""

MOST = 10
"""Calibrators in one pool: the solver for the weights visits every subset of them."""

PRIOR_ROWS = 0.25
"""Prior of each calibrator, in rows; chosen on calibration parts of the arena."""

TEMPERATURE_MIXTURES: dict[type, Callable[[Any], tuple[Array, Array]]] = {
    Identity: lambda _: (np.ones(1), np.ones(1)),
    TemperatureScaling: lambda one: (np.array([one.temperature_], np.float64), np.ones(1)),
    PosteriorTemperatureScaling: lambda one: (one.temperatures_, one.weights_),
}
"""Temperatures and weights of calibrators that average softmax(z/T)."""

LEAST_LOG = -700.0
"""A held-out log-probability below this counts as this much: its exponential is still a number."""


class LinearPool(
    Calibrator,
    cross_fits=True,
    # where all calibrators do
    keeps_prediction=lambda own: all(one.keeps_prediction for one in own._present()),
    # where all calibrators do
    keeps_ranking=lambda own: all(one.keeps_ranking for one in own._present()),
    # where one of the calibrators does
    requires_logits=lambda own: any(one.requires_logits for one in own._present()),
):
    """q = Σ_m w_m·p_m: the average of several calibrators' probabilities, weighted by what they say of held-out rows.

    Every calibrator is fitted to all rows, and answers for each row from a fit that has not seen it (`fit_held_out`).
    The weights, w ≥ 0 with Σ w = 1, maximise

        Σ_i log Σ_m w_m·p_m(y_i | x_i) + prior_rows·Σ_m log w_m

    over these held-out answers, which is concave (stacking; Wolpert 1992, for densities Smyth & Wolpert 1999, eq. 4).
    The second term is a prior of that many rows for each calibrator: on few rows the weights stay near each other.
    Weights below 0.02 are set to 0. A pool of calibrators that keep predictions keeps them, and a pool of increasing
    maps of one score is increasing.

    Parameters
    ----------
    calibrators : sequence of short names or calibrators
        At most 10.
    prior_rows : float
        0 leaves the weights to the rows alone.
    seed : int
        Of the folds.

    Attributes
    ----------
    calibrators_ : the fitted calibrators whose weight is not 0.
    weights_ : array (M,)
        Their weights.
    places_ : array (M,)
        Their places among the calibrators given.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant import LinearPool
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 3, 900)
    >>> logits = 4 * (rng.normal(size=(900, 3)) + np.eye(3)[labels])
    >>> fitted = LinearPool(["ts", "vs"]).fit(logits, labels)
    >>> float(fitted.weights_.sum()), fitted.predict_proba(logits[:2]).shape
    (1.0, (2, 3))
    """

    learns = {"calibrators_": INNERS, "weights_": Learned(("M",), 0.0, 1.0), "places_": RECORD}

    def __init__(
        self, calibrators: Sequence[Any] = ("ts", "shape"), *, prior_rows: float = PRIOR_ROWS, seed: int = 0
    ) -> None:
        self.calibrators = calibrators
        self.prior_rows = prior_rows
        self.seed = seed

    @property
    def n_parameters_(self) -> int:
        """Those of all calibrators of the pool, and all weights but one."""
        return sum(int(one.n_parameters_) for one in self.calibrators_) + len(self.weights_) - 1

    @classmethod
    def of(cls, fitted: Sequence[Any], weights: Array) -> LinearPool:
        """The pool of calibrators that were fitted to the same rows; those of weight 0 are left out."""
        pool = cls([clone(one) for one in fitted])
        first = fitted[0]
        pool.task_, pool.n_features_in_, pool.classes_ = first.task_, first.n_features_in_, first.classes_
        pool.n_iter_, pool.objective_trace_ = 1, np.empty(0)
        pool._take(fitted, weights)
        pool.fit_seconds_ = float(sum(one.fit_seconds_ for one in fitted))
        return pool

    def _take(self, fitted: Any, weights: Array) -> None:
        self.places_ = np.flatnonzero(weights)
        self.calibrators_, self.weights_ = [fitted[place] for place in self.places_], weights[self.places_]

    def _present(self) -> list[Any]:
        """The fitted calibrators, which know their task, or those given."""
        return getattr(self, "calibrators_", None) or self._members()

    def _members(self) -> list[Any]:
        """The calibrators as objects, not fitted."""
        given = self.calibrators
        if isinstance(given, str):
            raise InputError(f"calibrators must be a list, got the text {given!r}: give [{given!r}]")
        if not 1 <= len(given) <= MOST:
            raise InputError(f"a pool has 1 to {MOST} calibrators, got {len(given)}: leave some out")
        return [get(one) if isinstance(one, str) else clone(one) for one in given]

    def _fit(self, rows: Rows) -> None:
        members = self._members()
        if len(members) == 1 or rows.total_weight < 2 * FOLDS:
            # too few rows to leave any out
            self._take([members[0].fit_rows(rows)], np.ones(1))
        else:
            self._pooled(rows, content_folds(rows, FOLDS, self.seed))

    _fit_binary = _fit

    def _held_out(self, rows: Rows, fold: Array) -> Array:
        # the weights are learned from all rows: what a row adds to its own answer is far below the noise
        return pool_rows(self._pooled(rows, fold), self.weights_)

    def _pooled(self, rows: Rows, fold: Array) -> list[Array]:
        """Learn everything; the held-out answers of the calibrators that have weight."""
        members = self._members()
        answers = [one.fit_held_out(rows, fold) for one in members]
        # log p of the true class of each row
        matrices = (two_columns(one) if one.ndim == 1 else one for one in answers)
        own = -np.stack([scan(one, rows.labels, from_logits=True, columns="scores").nll for one in matrices], axis=1)
        prior_rows = check_penalty(self.prior_rows, "prior_rows", by_cv=False)
        weights, self.objective_trace_ = pool_weights(own.astype(np.float64), rows.weights, prior_rows)
        self._take(members, weights)
        self.n_iter_ = max(1, len(self.objective_trace_) - 1)
        return [answers[place] for place in self.places_]

    def _transform(self, logits: Array) -> Array:
        if logits.ndim == 2 and not use_compiled(logits.size):  # block by block through all members
            return super()._transform(logits)
        pooled = pool_rows([one._calibrated(logits) for one in self.calibrators_], self.weights_)
        return self._kept(maps.numpy_space, pooled, logits)

    _transform_binary = _transform

    def _learned(self) -> SimpleNamespace:
        """With the members that only divide by temperatures as the inverse temperatures and weights of their nodes."""
        found = super()._learned()
        inverses, shares, others, weights = [np.empty(0)], [np.empty(0)], [], []
        for one, learned, weight in zip(self.calibrators_, found.calibrators_, self.weights_, strict=True):
            if type(one) in TEMPERATURE_MIXTURES:
                temperatures, nodes = TEMPERATURE_MIXTURES[type(one)](one)
                inverses.append(1 / temperatures)
                shares.append(weight * nodes)
            else:
                others.append(learned)
                weights.append(weight)
        found.inverses_, found.calibrators_ = np.concatenate(inverses), others
        found.weights_ = np.concatenate([*shares, weights])
        return found

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        others = [one for one in self.calibrators_ if type(one) not in TEMPERATURE_MIXTURES]
        answers, parts = map_members(xp.of_members, list(zip(others, learned.calibrators_, strict=True)), logits), []
        if learned.inverses_.shape[0]:
            parts.append(maps.wide(xp, logits) * xp.reshape(learned.inverses_, (-1, *[1] * len(logits.shape))))
        if answers:
            # all at once: of few rows that takes as long as one of them
            parts.append(xp.stack([maps.wide(xp, one) for one in answers]))
        pooled = average_answers(xp, xp.concat(parts, axis=0) if len(parts) > 1 else parts[0], learned.weights_)
        return self._kept(xp, maps.like(xp, pooled, logits), logits)

    _map_binary = _map

    def _kept(self, xp: Any, pooled: Any, logits: Any) -> Any:
        """The average, with the prediction of a row of logits kept where all calibrators keep it."""
        if len(logits.shape) == 1 or not self.keeps_prediction:
            return pooled
        return xp.keep_prediction(pooled, maps.prediction(xp, logits))

    def _check_learned(self) -> None:
        if not len(self.calibrators_) == len(self.weights_) >= 1 or abs(float(self.weights_.sum()) - 1) > 1e-6:
            raise InputError(
                f"LinearPool holds {len(self.calibrators_)} calibrators and {len(self.weights_)} weights that sum to "
                f"{float(np.sum(self.weights_)):g}: as many weights as calibrators must sum to 1"
            )


def pool_weights(log_probabilities: Array, row_weights: Array | None, prior_rows: float) -> tuple[Array, Array]:
    """Weights (M,) that maximise Σ log Σ_m w_m·p_m + prior_rows·Σ_m log w_m, and the mean loss at each step.

    `log_probabilities` (n×M) are what each calibrator says of the true class. In ratios to the row's largest, so that
    no row underflows.

    >>> pool_weights(np.log([[0.8, 0.2], [0.8, 0.4], [0.1, 0.3]]), None, 0.0)[0].round(2).tolist()
    [0.8, 0.2]
    """
    mass = np.ones(len(log_probabilities)) if row_weights is None else row_weights
    prior, mass = prior_rows / float(mass.sum()), mass / mass.sum()
    raised = np.maximum(log_probabilities, LEAST_LOG)
    peak = raised.max(axis=1)
    ratios = np.exp(raised - peak[:, None])

    def evaluate(weights: Array) -> tuple[float, Array, Array]:
        mixed = np.maximum(ratios @ weights, 1e-300)
        shares = ratios / mixed[:, None]
        weighted = mass[:, None] * shares
        loss = -float(mass @ (np.log(mixed) + peak))
        gradient, hessian = -weighted.sum(axis=0), weighted.T @ shares
        if prior == 0:
            return loss, gradient, hessian
        if weights.min() <= 0:
            return np.inf, gradient, hessian  # a step that is not accepted
        loss -= prior * float(np.log(weights).sum())
        return loss, gradient - prior / weights, hessian + np.diag(prior / weights**2)

    count = ratios.shape[1]
    weights, trace, converged = minimise_on_simplex(evaluate, np.full(count, 1.0 / count))
    if not converged:
        warn_user(f"the weights of the pool did not converge in {len(trace)} steps")
    weights = np.where(weights < SMALLEST_WEIGHT, 0.0, weights)
    return weights / weights.sum(), np.array(trace)


def map_members(xp: Any, members: list[tuple[Any, Any]], given: Any) -> list[Any]:
    """The answers of calibrators, each with what it learned; second stages alike are applied together."""
    answers, waiting = [], []
    for member in members:
        (one, learned), stages = member, []
        while isinstance(one, SecondStage) and len(given.shape) == 2:
            stages.append((one, learned))
            one, learned = one.calibrator_, learned.calibrator_
        answers.append(one._map_either(xp, given, learned))
        waiting.append(stages)
    while any(waiting):
        alike: dict[type, list[int]] = {}
        for place, stages in enumerate(waiting):
            if stages:
                alike.setdefault(type(stages[-1][0]), []).append(place)
        for places in alike.values():
            found = xp.apply_stages([waiting[place].pop() for place in places], [answers[place] for place in places])
            for place, answer in zip(places, found, strict=True):
                answers[place] = answer
    return answers


def pool_rows(answers: Sequence[Array], weights: Array) -> Array:
    """`average_answers` in the dtype of the answers, block by block."""
    xp = maps.numpy_space

    def average_block(block: slice) -> Array:
        return average_answers(xp, xp.stack([maps.wide(xp, one[block]) for one in answers]), weights)

    return map_rows(average_block, answers[0])


def average_answers(xp: Any, answers: Any, weights: Any) -> Any:
    """log Σ_m w_m·softmax(u_m) of logits (M×n×K), or the log-odds of Σ_m w_m·sigmoid(u_m) of scores (M×n), in float64.

    A single answer is returned unchanged.
    """
    if answers.shape[0] == 1:
        return answers[0]
    if len(answers.shape) == 3:
        return xp.log_mean_softmax(answers, weights)
    return maps.log_mean(xp, -xp.softplus(-answers), weights) - maps.log_mean(xp, -xp.softplus(answers), weights)
