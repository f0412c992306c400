"""What the probability of one class says about another: a penalised confusion matrix beside a scale and a bias."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy import inf

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.confidence_bins import map_rows
from calibrant.calibrators.folds import content_folds
from calibrant.calibrators.newton import Operator, Solution, newton_cg, warn_unless_converged
from calibrant.calibrators.shape import fit_shape, shape_losses
from calibrant.calibrators.temperature import fit_inverse_temperature
from calibrant.core.arrays import check_values
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
    Penalties(inf, 1000.0, 300.0),
    Penalties(inf, 300.0, 100.0),
    Penalties(3.0, 300.0, 100.0),
    Penalties(1.0, 300.0, 100.0),
    Penalties(0.3, 300.0, 100.0),
    Penalties(0.1, 300.0, 100.0),
)
"""What cross-validation walks, from a temperature alone to a confusion matrix that is nearly free."""

MOST_CLASSES = 256
"""Above, a confusion matrix has more entries than a calibration set can fill: only scales and biases are learned."""

NEAR = 2.0
"""Steps of the path within this many standard errors of the best are averaged."""

LOOSE, TIGHT, FOLDS = 1e-5, 1e-9, 5


class ConfusionScaling(Calibrator):
    """u = a∘z̄/T + C·softmax(z/T) + b: a temperature, class scales and biases, and a confusion matrix C.

    z̄ are the logits less their mean over the classes. C reads probabilities, not logits, so what it adds is bounded
    whatever the logits are: where the network says "30% wolf" it may add to "husky". Minimises

        Σ w·NLL + penalty·Σ C² + penalty_scale·Σ (a − mean a)² + penalty_bias·Σ b²,

    a prior that fades as n grows (C has no diagonal). `penalty="cv"` walks a path of penalties from a temperature
    alone to a nearly free C and averages the parameters of all steps within two standard errors of the lowest
    held-out NLL: near the optimum the path is flat, and an average varies less than any one of its points.

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
    >>> import numpy as np
    >>> from calibrant import ConfusionScaling
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 3, 500)
    >>> logits = 4 * (rng.normal(size=(500, 3)) + 2 * np.eye(3)[labels])
    >>> ConfusionScaling(penalty=1.0).fit(logits, labels).matrix_.shape
    (3, 3)
    """

    def __init__(self, penalty="cv", *, penalty_scale=300.0, penalty_bias=100.0, seed=0):
        self.penalty = penalty
        self.penalty_scale = penalty_scale
        self.penalty_bias = penalty_bias
        self.seed = seed

    @property
    def n_parameters_(self) -> int:
        """A temperature, K scales, K biases, and K² − K confusions where the matrix takes part."""
        n_classes = self.n_features_in_
        return 1 + 2 * n_classes + (n_classes * (n_classes - 1) if self.matrix_.any() else 0)

    def _fit(self, rows: Rows) -> None:
        path = self._path(rows.n_classes)
        if len(path) == 1 or rows.n < 2 * FOLDS:
            self._finish(rows, path[:1])
        else:
            self._held_out(rows, content_folds(rows.logits, FOLDS, self.seed))

    def _held_out(self, rows: Rows, fold: np.ndarray) -> np.ndarray:
        path = self._path(rows.n_classes)
        answers = np.empty((len(path), *rows.logits.shape), dtype=np.float32)

        def leave_out(part: int) -> None:
            out, kept = np.flatnonzero(fold == part), np.flatnonzero(fold != part)
            unit, points = _walk(rows.take(kept) if len(kept) else rows, path, LOOSE, np.float32)
            inputs = _inputs(rows.logits[out], unit, np.float32)
            for answer, (point, _) in zip(answers, points, strict=True):
                answer[out] = _scores(*inputs, point)

        map_blocks(leave_out, list(np.unique(fold)))
        near = _near(answers, rows)
        self._finish(rows, [path[index] for index in near])
        return answers[near].mean(axis=0).astype(rows.logits.dtype)

    def _finish(self, rows: Rows, path: list[Penalties]) -> None:
        with one_blas_thread():
            unit, points = _walk(rows, path, TIGHT, np.float64)
        point = np.mean([point for point, _ in points], axis=0)
        self.temperature_ = 1.0 / unit
        self.matrix_, self.scale_, self.bias_ = point[:, :-2].copy(), point[:, -2].copy(), point[:, -1].copy()
        self.penalties_ = np.array(path)
        for _, solution in points:
            if solution is not None:
                warn_unless_converged("ConfusionScaling", solution)
                self.n_iter_, self.objective_trace_ = max(1, solution.n_iter), solution.trace

    def _path(self, n_classes: int) -> list[Penalties]:
        if isinstance(self.penalty, str) and self.penalty != "cv":
            raise InputError(f"penalty must be a number of at least 0 or 'cv', got {self.penalty!r}")
        if self.penalty == "cv":
            return [one for one in PATH if n_classes <= MOST_CLASSES or one.matrix == inf]
        given = Penalties(self.penalty, self.penalty_scale, self.penalty_bias)
        for name, value in zip(("penalty", "penalty_scale", "penalty_bias"), given, strict=True):
            if not value >= 0:
                raise InputError(f"{name} must be a number of at least 0, got {value!r}")
        return [given]

    def _transform(self, logits: np.ndarray) -> np.ndarray:
        check_values(logits, from_logits=True)
        point = np.column_stack([self.matrix_, self.scale_, self.bias_])

        def part(block: slice) -> np.ndarray:
            return _scores(*_inputs(logits[block], 1.0 / self.temperature_, np.float64), point).astype(logits.dtype)

        return map_rows(part, logits)


def _inputs(logits: np.ndarray, unit: float, dtype: type) -> tuple[np.ndarray, np.ndarray]:
    """Centred logits over the temperature, and the probabilities there."""
    scaled = logits.astype(dtype) * dtype(unit)
    return scaled - scaled.mean(axis=1, keepdims=True), softmax(scaled)


def _scores(centred: np.ndarray, probabilities: np.ndarray, point: np.ndarray) -> np.ndarray:
    """a∘z̄ + C·p + b for a point (C | a | b)."""
    point = point.astype(centred.dtype)
    scores = centred * point[:, -2] + point[:, -1]
    if point[:, :-2].any():
        scores += probabilities @ point[:, :-2].T
    return scores


def _near(answers: np.ndarray, rows: Rows) -> list[int]:
    """Which steps of the path are within `NEAR` standard errors of the best, by the NLL of held-out rows.

    Each step is scored after the bend that suits it best, so that a step is not preferred for its sharpness.
    """
    weights = np.ones(rows.n) if rows.weights is None else rows.weights
    losses = []
    for answer in answers:
        held_out = Rows(answer, rows.labels, rows.weights)
        losses.append(shape_losses(held_out, fit_shape(held_out)[0]))
    means = [float(np.average(loss, weights=weights)) for loss in losses]
    best = int(np.argmin(means))
    near = []
    for index, loss in enumerate(losses):
        excess = loss - losses[best]
        spread = weights * (excess - np.average(excess, weights=weights))
        if means[index] - means[best] <= NEAR * np.sqrt(spread @ spread) / weights.sum():
            near.append(index)
    return near


def _walk(
    rows: Rows, path: list[Penalties], tolerance: float, dtype: type
) -> tuple[float, list[tuple[np.ndarray, Solution | None]]]:
    """The inverse temperature, and the point (C | a | b) of each step, each starting where the last one ended."""
    unit = fit_inverse_temperature(rows).value
    centred, probabilities = _inputs(rows.logits, unit, dtype)
    point = np.zeros((rows.n_classes, rows.n_classes + 2))
    point[:, -2] = 1.0
    points: list[tuple[np.ndarray, Solution | None]] = []
    for penalties in path:
        if min(penalties) == inf:
            points.append((point, None))
            continue
        objective = _Objective(centred, probabilities, rows, penalties)
        solution = newton_cg(objective, point, tolerance=tolerance)
        point = solution.point
        points.append((point, solution))
    return unit, points


class _Objective:
    """Mean NLL plus the ridge over points (C | a | b), K×(K+2); parts without a finite penalty do not move."""

    def __init__(self, centred: np.ndarray, probabilities: np.ndarray, rows: Rows, penalties: Penalties) -> None:
        self.centred, self.probabilities, self.labels = centred, probabilities, rows.labels
        weights = np.ones(rows.n) if rows.weights is None else rows.weights
        self.weights = (weights / rows.total_weight).astype(centred.dtype)
        n_classes = rows.n_classes
        ridge = np.empty((n_classes, n_classes + 2))
        ridge[:, :-2], ridge[:, -2], ridge[:, -1] = penalties
        np.fill_diagonal(ridge[:, :-2], inf)
        self.moves = np.isfinite(ridge)
        self.ridge = np.where(self.moves, 2 * ridge / rows.total_weight, 0.0)

    def evaluate(self, point: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Loss, gradient and the probabilities at a point."""
        scores = _scores(self.centred, self.probabilities, point)
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
            change = _scores(self.centred, self.probabilities, direction)
            change -= np.einsum("ij,ij->i", guess, change)[:, None]
            change *= guess
            change *= weights
            return self._contract(change) + self._pull(direction)

        spread = guess * (1 - guess) * weights
        diagonal = np.empty_like(point)
        diagonal[:, :-2] = spread.T @ self.probabilities**2
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
            result[:, :-2] = residual.T @ self.probabilities
        result[:, -2] = np.einsum("ij,ij->j", residual, self.centred)
        result[:, -1] = residual.sum(axis=0)
        return np.where(self.moves, result, 0.0)
