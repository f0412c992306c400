"""What the probability of one class says about another: a penalised confusion matrix beside a scale and a bias."""

from __future__ import annotations

from operator import methodcaller
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy import inf

from calibrant.calibrators import maps
from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.learned import RECORD, TEMPERATURE, Learned
from calibrant.calibrators.shape import IDENTITY, KEPT_ELEMENTS, fit_shape, shape_losses
from calibrant.calibrators.solvers.diagonal import common_unit
from calibrant.calibrators.solvers.folds import content_folds
from calibrant.calibrators.solvers.inverse_temperature import fit_inverse_temperature
from calibrant.calibrators.solvers.newton import Operator, Solution, newton_cg, warn_unless_converged
from calibrant.calibrators.solvers.scale_walk import ScaleWalker
from calibrant.core.blas import one_blas_thread
from calibrant.core.errors import InputError
from calibrant.core.rows import Rows
from calibrant.core.softmax import softmax
from calibrant.core.threads import map_blocks


class Penalties(NamedTuple):
    """Of the squares of the confusion matrix, the class scales and the biases; `inf` leaves a part out."""

    matrix: float
    scale: float
    bias: float


PATH = (
    Penalties(inf, inf, inf),
    Penalties(200.0, 3000.0, 1000.0),
    Penalties(80.0, 3000.0, 1000.0),
    Penalties(30.0, 1000.0, 300.0),
    Penalties(12.0, 300.0, 100.0),
    Penalties(5.0, 300.0, 100.0),
)
"""What cross-validation walks, from a temperature alone to a confusion matrix that is nearly free."""

PATH_OF_MANY = (Penalties(inf, inf, inf), Penalties(inf, 3000.0, 1000.0), Penalties(inf, 1000.0, 300.0))
"""The same for more than `MOST_CLASSES` classes."""

FLOOR = 0.01
"""Probabilities well below this say nothing about other classes."""

MOST_CLASSES = 256
"""Above, a confusion matrix has more entries than a calibration set can fill: only scales and biases are learned."""

NEAR = 2.0
"""Steps of the path within this many standard errors of the best are averaged."""

LOOSE, TIGHT, FOLDS = 5e-5, 1e-9, 5


class ConfusionScaling(Calibrator):
    """u = a∘z̄/T + C·log(1 + p/0.01) + b: a temperature, class scales and biases, and a confusion matrix C.

    z̄ are the logits minus their mean over the classes and p = softmax(z/T). What C reads grows with the logarithm of a
    probability, so a runner-up at 5% counts nearly as much as one at 30%, but it starts at 0 and ends at log 101:
    what C adds is bounded whatever the logits are. Where the network says "5% wolf" it may add to "husky". Minimises

        Σ w·NLL + penalty·Σ C² + penalty_scale·Σ (a − mean a)² + penalty_bias·Σ b²,

    a prior that fades as n grows. `penalty="cv"` walks a path of penalties from a temperature alone to a nearly free
    C, until a step is more than two standard errors above the lowest held-out NLL, and averages the parameters of all
    steps within that distance: near the optimum the path is flat, and an average varies less than any one of its
    points.

    Parameters
    ----------
    penalty : number or "cv"
        Of the confusion matrix; `inf` leaves it out. "cv" takes the path and ignores the other two.
    penalty_scale, penalty_bias : numbers
        Of the class scales and biases; `inf` leaves them out.
    seed : int
        Of the folds of the cross-validation.

    Attributes
    ----------
    temperature_ : T.
    scale_ : (K,) a.
    matrix_ : (K, K) C.
    bias_ : (K,) b.
    penalties_ : (m, 3) the penalties of matrix, scale and bias whose parameters were averaged.

    Examples
    --------
    >>> import calibrant as cal
    >>> val = cal.open_predictions("cifar10-resnet18#val")
    >>> fitted = cal.ConfusionScaling(penalty=10.0).fit(val.logits, val.labels)
    >>> fitted.matrix_.shape, round(fitted.temperature_, 2)
    ((10, 10), 1.56)
    """

    learns = {
        "temperature_": TEMPERATURE,
        "scale_": Learned(("K",)),
        "matrix_": Learned(("K", "K")),
        "bias_": Learned(("K",)),
        "penalties_": RECORD,
    }

    def __init__(
        self, penalty: float | str = "cv", *, penalty_scale: float = 300.0, penalty_bias: float = 100.0, seed: int = 0
    ) -> None:
        self.penalty = penalty
        self.penalty_scale = penalty_scale
        self.penalty_bias = penalty_bias
        self.seed = seed

    @property
    def n_parameters_(self) -> int:
        """A temperature, K scales, K biases, and K² confusions where the matrix takes part."""
        n_classes = self._n_classes
        return 1 + 2 * n_classes + (n_classes**2 if self.matrix_.any() else 0)

    def _fit(self, rows: Rows) -> None:
        path = self._path(rows.n_classes)
        if len(path) == 1 or rows.total_weight < 2 * FOLDS:
            self._finish(rows, path[:1])
        else:
            self._held_out(rows, content_folds(rows, FOLDS, self.seed))

    def _held_out(self, rows: Rows, fold: np.ndarray) -> np.ndarray:
        if rows.n_classes > MOST_CLASSES and not _reads_evidence(self._path(rows.n_classes)):
            return self._held_out_of_many(rows, fold)
        parts = map_blocks(lambda part: _Part(rows, fold == part), list(np.unique(fold)))
        path, answers, losses = self._path(rows.n_classes), [], []
        near: list[int] = []
        shape = IDENTITY
        for index, penalties in enumerate(path):
            answers.append(np.empty(rows.logits.shape, dtype=np.float32))
            for part, scores in zip(parts, map_blocks(methodcaller("step", penalties), parts), strict=True):
                answers[-1][part.out] = scores
            shape, loss = bent_losses(answers[-1], rows, shape)
            losses.append(loss)
            near = near_steps(losses, rows.weights)
            if index not in near:
                break
        self._finish(rows, [path[index] for index in near])
        return np.mean([answers[index] for index in near], axis=0).astype(rows.logits.dtype)

    def _held_out_of_many(self, rows: Rows, fold: np.ndarray) -> np.ndarray:
        """The same for many classes: each fold walks the whole path at once, and only its points are kept."""
        path = self._path(rows.n_classes)

        def walk(part: int) -> tuple[float, list[np.ndarray]]:
            kept = np.flatnonzero(fold != part)
            walker = _walker_of_many(rows.take(kept) if len(kept) else rows, path, LOOSE)
            points = []
            for penalties in path:
                walker.step(penalties)
                points.append(walker.point)
            return walker.unit, points

        parts = list(np.unique(fold))
        walked = map_blocks(walk, parts)

        def answer(index: int) -> np.ndarray:
            found = np.empty(rows.logits.shape, dtype=np.float32)
            for part, (unit, points) in zip(parts, walked, strict=True):
                out = np.flatnonzero(fold == part)
                found[out] = _scores(*_inputs(rows.logits[out], unit, np.float32, False), points[index])
            return found

        losses, shape = [], IDENTITY
        for index in range(len(path)):
            shape, loss = bent_losses(answer(index), rows, shape)
            losses.append(loss)
        near = near_steps(losses, rows.weights)
        self._finish(rows, [path[index] for index in near])
        total = answer(near[0])
        for index in near[1:]:
            total += answer(index)
        total /= np.float32(len(near))
        return total.astype(rows.logits.dtype, copy=False)

    def _finish(self, rows: Rows, path: list[Penalties]) -> None:
        with one_blas_thread():
            many = rows.n_classes > MOST_CLASSES and not _reads_evidence(path)
            walker = _walker_of_many(rows, path, TIGHT) if many else _Walker(rows, TIGHT, np.float64)
            points = []
            for penalties in path:
                solution = walker.step(penalties)
                points.append(walker.point)
                if solution is not None:
                    warn_unless_converged("ConfusionScaling", solution)
                    self.n_iter_, self.objective_trace_ = max(1, solution.n_iter), solution.trace
        point = np.mean(points, axis=0)
        self.temperature_ = 1.0 / walker.unit
        self.scale_, self.bias_ = point[:, -2].copy(), point[:, -1].copy()
        self.matrix_ = np.zeros((rows.n_classes, rows.n_classes)) if point.shape[1] == 2 else point[:, :-2].copy()
        self.penalties_ = np.array(path)

    def _path(self, n_classes: int) -> list[Penalties]:
        if isinstance(self.penalty, str) and self.penalty != "cv":
            raise InputError(f"penalty must be a number of at least 0 or 'cv', got {self.penalty!r}")
        if self.penalty == "cv":
            return list(PATH if n_classes <= MOST_CLASSES else PATH_OF_MANY)
        given = Penalties(float(self.penalty), self.penalty_scale, self.penalty_bias)
        for name, value in zip(("penalty", "penalty_scale", "penalty_bias"), given, strict=True):
            if not value >= 0:
                raise InputError(f"{name} must be a number of at least 0, got {value!r}")
        return [given]

    def _learned(self) -> SimpleNamespace:
        found = super()._learned()
        if not self.matrix_.any():
            # no confusion was learned, so that its product need not be taken
            del found.matrix_
        return found

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        scaled = maps.wide(xp, logits) * (1.0 / learned.temperature_)
        scores = (scaled - xp.mean(scaled, axis=1, keepdims=True)) * learned.scale_ + learned.bias_
        if hasattr(learned, "matrix_"):
            evidence = xp.log1p(xp.single_precision(xp.softmax_of_rows(scaled)) / FLOOR)
            scores = scores + maps.wide(xp, xp.matmul(evidence, xp.single_precision(learned.matrix_.T)))
        return maps.like(xp, scores, logits)


def _reads_evidence(path: list[Penalties]) -> bool:
    """Whether the confusion matrix takes part in any step."""
    return any(penalties.matrix < inf for penalties in path)


def _walker_of_many(rows: Rows, path: list[Penalties], tolerance: float) -> Any:
    """A walk without a confusion matrix; compiled where scales and biases both move, or neither does."""
    if all(np.isinf(penalties.scale) == np.isinf(penalties.bias) for penalties in path):
        return ScaleWalker(rows, tolerance, checked=tolerance == TIGHT)
    return _Walker(rows, tolerance, np.float64 if tolerance == TIGHT else np.float32, with_evidence=False)


def _inputs(
    logits: np.ndarray, unit: float, dtype: type, with_evidence: bool = True
) -> tuple[np.ndarray, np.ndarray | None]:
    """Centred logits over the temperature, and log(1 + p/0.01) of the probabilities p there if it is read."""
    scaled: np.ndarray = logits.astype(dtype)
    scaled *= dtype(unit)
    evidence = np.log1p(softmax(scaled) / dtype(FLOOR)) if with_evidence else None
    scaled -= scaled.mean(axis=1, keepdims=True)
    return scaled, evidence


def _scores(centred: np.ndarray, evidence: np.ndarray | None, point: np.ndarray) -> np.ndarray:
    """a∘z̄ + C·evidence + b for a point (C | a | b)."""
    point = point.astype(centred.dtype)
    scores = centred * point[:, -2]
    scores += point[:, -1]
    if evidence is not None and point[:, :-2].any():
        scores += evidence @ point[:, :-2].T
    return scores


def bent_losses(answer: np.ndarray, rows: Rows, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The bend that suits held-out answers best, and the NLL of each row after it.

    Without it a step of the path would be preferred for its sharpness.
    """
    held_out = Rows(answer, rows.labels, rows.weights)
    some = held_out.sample(KEPT_ELEMENTS // rows.n_classes)
    # a sample determines the bend well enough, unless it holds no weight
    shape = fit_shape(some if some.total_weight > 0 else held_out, start=start, tolerance=1e-2)[0]
    return shape, shape_losses(held_out, shape)


def near_steps(losses: list[np.ndarray], weights: np.ndarray | None) -> list[int]:
    """Which steps of the path are within `NEAR` standard errors of the best."""
    weights = np.ones(len(losses[0])) if weights is None else weights
    means = [float(np.average(loss, weights=weights)) for loss in losses]
    best = int(np.argmin(means))
    near = []
    for index, loss in enumerate(losses):
        excess = loss - losses[best]
        spread = excess - np.average(excess, weights=weights)
        # a weight of 2 is the row twice, so its square counts twice
        if means[index] - means[best] <= NEAR * np.sqrt(weights @ spread**2) / weights.sum():
            near.append(index)
    return near


class _Walker:
    """Walks a path of penalties over some rows, each fit starting where the last one ended."""

    def __init__(self, rows: Rows, tolerance: float, dtype: type, with_evidence: bool = True) -> None:
        self.tolerance = tolerance
        self.unit = common_unit(rows)
        self.inputs = _inputs(rows.logits, self.unit, dtype, with_evidence)
        # the logits themselves are no longer needed, and may be large
        self.rows = Rows(self.inputs[0], rows.labels, rows.weights)
        self.point = np.zeros((rows.n_classes, rows.n_classes + 2 if with_evidence else 2))
        # the temperature itself, also where the unit of the scales is another
        self.point[:, -2] = fit_inverse_temperature(rows).value / self.unit

    def step(self, penalties: Penalties) -> Solution | None:
        """Move to the optimum at these penalties; a temperature alone is there already."""
        if min(penalties) == inf:
            return None
        objective = _Objective(*self.inputs, self.rows, penalties)
        precise = objective if self.tolerance == TIGHT else None
        solution = newton_cg(objective, self.point, tolerance=self.tolerance, precise=precise)
        self.point = solution.point
        return solution


class _Part:
    """One fold: a walk over the other rows, and its answers for these."""

    def __init__(self, rows: Rows, out: np.ndarray) -> None:
        self.out = np.flatnonzero(out)
        kept = np.flatnonzero(~out)
        self.walker = _Walker(rows.take(kept) if len(kept) else rows, LOOSE, np.float32)
        self.inputs = _inputs(rows.logits[self.out], self.walker.unit, np.float32)

    def step(self, penalties: Penalties) -> np.ndarray:
        """Scores of the held-out rows at the next penalties of the path."""
        self.walker.step(penalties)
        return _scores(*self.inputs, self.walker.point)


class _Objective:
    """Mean NLL plus the ridge over points (C | a | b), K×(K+2); parts without a finite penalty do not move."""

    def __init__(self, centred: np.ndarray, evidence: np.ndarray | None, rows: Rows, penalties: Penalties) -> None:
        self.centred, self.evidence, self.labels = centred, evidence, rows.labels
        weights = np.ones(rows.n) if rows.weights is None else rows.weights
        self.weights = (weights / rows.total_weight).astype(centred.dtype)
        n_classes = rows.n_classes
        ridge = np.empty((n_classes, 2 if evidence is None else n_classes + 2))
        ridge[:, :-2], ridge[:, -2], ridge[:, -1] = penalties
        self.moves = np.isfinite(ridge)
        self.ridge = np.where(self.moves, 2 * ridge / rows.total_weight, 0.0)

    def evaluate(self, point: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Loss, gradient and the probabilities at a point."""
        scores = _scores(self.centred, self.evidence, point)
        scores -= scores.max(axis=1, keepdims=True)
        every = np.arange(len(scores))
        own = scores[every, self.labels]
        np.exp(scores, out=scores)
        total = scores.sum(axis=1)
        loss = float(self.weights.astype(np.float64) @ (np.log(total) - own))
        scores /= total[:, None]
        pull = self._pull(point)
        residual = scores * self.weights[:, None]
        residual[every, self.labels] -= self.weights
        return loss + 0.5 * float(np.vdot(self._departure(point), pull)), self._contract(residual) + pull, scores

    def curvature(self, point: np.ndarray, reuse: np.ndarray) -> tuple[Operator, Operator]:
        """The Hessian's product, and its diagonal's inverse."""
        guess, weights = reuse, self.weights[:, None]

        def product(direction: np.ndarray) -> np.ndarray:
            change = _scores(self.centred, self.evidence, direction)
            change -= np.einsum("ij,ij->i", guess, change)[:, None]
            change *= guess
            change *= weights
            return self._contract(change) + self._pull(direction)

        spread = guess * (1 - guess) * weights
        diagonal = np.empty_like(point)
        if self.evidence is not None:
            diagonal[:, :-2] = spread.T @ self.evidence**2
        diagonal[:, -2] = np.einsum("ij,ij,ij->j", spread, self.centred, self.centred)
        diagonal[:, -1] = spread.sum(axis=0)
        inverse = np.where(self.moves, 1.0 / (diagonal + self.ridge + 1e-12), 0.0)
        return product, lambda vector: inverse * vector

    def _departure(self, point: np.ndarray) -> np.ndarray:
        """The point with the mean of its scales taken off: what the ridge shrinks."""
        departure = point.copy()
        departure[:, -2] -= departure[:, -2].mean()
        return departure

    def _pull(self, point: np.ndarray) -> np.ndarray:
        return self.ridge * self._departure(point)

    def _contract(self, residual: np.ndarray) -> np.ndarray:
        result = np.zeros(self.ridge.shape)
        if self.moves[:, :-2].any():
            result[:, :-2] = residual.T @ self.evidence
        result[:, -2] = np.einsum("ij,ij->j", residual, self.centred)
        result[:, -1] = residual.sum(axis=0)
        return np.where(self.moves, result, 0.0)
