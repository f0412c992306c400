"""What the probability of one class says about another: a penalised confusion matrix beside a scale and a bias."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy import inf

from calibrant.calibrators import maps
from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.learned import RECORD, TEMPERATURE, Learned
from calibrant.calibrators.solvers.folds import FOLDS, content_folds
from calibrant.calibrators.solvers.inverse_temperature import fit_inverse_temperature
from calibrant.calibrators.solvers.likelihood import (
    GAP,
    Affine,
    Ridge,
    Solution,
    minimise,
    on_numpy,
    warn_unless_converged,
)
from calibrant.calibrators.solvers.penalties import Policy, cross_fit, near
from calibrant.calibrators.solvers.scales import common_unit, vector_objective
from calibrant.core.errors import InputError
from calibrant.core.rows import Rows
from calibrant.kernels.affine import Features, MakeFeatures, scores_of


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

FOLD_GAP = 1e-5
"""Decrement at which a fit without one fold takes its last step: an average over steps hides what is left."""

SMALL = 1 << 14
"""Up to this many logits the fits without one fold are exact."""


def evidence(xp: Any, scaled: Any) -> Any:
    """log(1 + p/0.01) of the probabilities p of scaled logits: 0 where a class is ruled out, at most log 101."""
    return xp.log1p(xp.softmax_of_rows(scaled) / FLOOR)


def centred(xp: Any, logits: Any) -> Any:
    """Logits minus their mean over the classes."""
    return logits - xp.mean(logits, axis=1, keepdims=True)


def confusion_features(xp: Any, logits: Any, unit: Any, with_evidence: bool = True) -> Features:
    """What C reads, and z̄/T, which class scales read; `unit` is 1/T."""
    scaled = logits * unit
    shared = evidence(xp, scaled) if with_evidence else xp.zeros((logits.shape[0], 0), dtype=logits.dtype)
    return Features(shared, (centred(xp, scaled),))


class PathScaling(Calibrator):
    """Base of methods that average the fits along a path of penalties by their held-out loss.

    A method writes `_path` (its penalties, from strong to weak), `_walker` (fits to some rows along it), `_policy` (how
    held-out losses become weights) and `_keep` (what it learns from the averaged point).
    """

    seed: int

    def _fit(self, rows: Rows) -> None:
        path = self._path(rows.n_classes)
        if len(path) == 1 or rows.total_weight < 2 * FOLDS:
            self._finish(rows, path[:1], np.ones(1))
        else:
            self._held_out(rows, content_folds(rows, FOLDS, self.seed))

    def _held_out(self, rows: Rows, fold: np.ndarray) -> np.ndarray:
        path = self._path(rows.n_classes)
        # few rows are fitted exactly: rounding in another order of rows does not show
        precise = rows.logits.size <= SMALL
        make = partial(self._walker, path=path, dtype=np.float64 if precise else np.float32, last=False)
        weights, answers = cross_fit(rows, fold, path, make, self._policy(rows.weights))
        used = np.flatnonzero(weights)
        self._finish(rows, [path[index] for index in used], weights[used])
        return answers

    def _finish(self, rows: Rows, path: list[Any], weights: np.ndarray) -> None:
        walker, points = self._walker(rows, path=path, dtype=None, last=True), []
        for penalties in path:
            solution = walker.step(penalties)
            points.append(walker.point)
            if solution is not None:
                warn_unless_converged(type(self).__name__, solution)
                self.n_iter_, self.objective_trace_ = max(1, solution.n_iter), solution.trace
        self.penalties_ = np.array(path)
        self.temperature_ = 1.0 / walker.unit
        self._keep(np.average(points, axis=0, weights=weights))

    def _path(self, n_classes: int) -> list[Any]:
        raise NotImplementedError

    def _walker(self, rows: Rows, *, path: list[Any], dtype: type | None, last: bool) -> Any:
        raise NotImplementedError

    def _policy(self, weights: np.ndarray | None) -> Policy:
        raise NotImplementedError

    def _keep(self, point: np.ndarray) -> None:
        raise NotImplementedError


class EvidenceWalk:
    """Fits along a path of penalties, each from where the last one ended; an infinite penalty holds a parameter."""

    def __init__(  # noqa: PLR0917
        self, rows: Rows, make: MakeFeatures, start: np.ndarray, unit: float, dtype: type | None, last: bool
    ) -> None:
        self.objective, self.make, self.point, self.unit = Affine(rows, make, dtype=dtype), make, start, unit
        self.dtype, self.last = dtype, last
        self.gap = FOLD_GAP if dtype == np.float32 else GAP

    def ridge(self, penalties: Any) -> Ridge:
        """What is penalised, of the mean loss."""
        raise NotImplementedError

    def step(self, penalties: Any) -> Solution | None:
        """Move to the optimum at these penalties, unless all are infinite."""
        ridge = self.ridge(penalties)
        if not ridge.moves.any():
            return None
        self.objective.penalise(ridge)
        solution = minimise(self.objective, self.point, gap=self.gap, polish=self.last)
        self.point = solution.point
        return solution

    def scores(self, logits: np.ndarray) -> np.ndarray:
        """Scores of other rows at the present point."""
        return scores_of(self.make(logits.astype(self.dtype, copy=False)), self.point)


class ConfusionWalk(EvidenceWalk):
    """Points (C | a | b), K×(K+2), or (a | b) where the path leaves the confusion matrix out."""

    def __init__(self, rows: Rows, path: list[Penalties], dtype: type | None, last: bool) -> None:
        inverse_temperature = fit_inverse_temperature(rows).value
        unit, n_classes = common_unit(rows, inverse_temperature), rows.n_classes
        self.size, self.total = n_classes if _reads_evidence(path) else 0, rows.total_weight
        start = np.zeros((n_classes, self.size + 2))
        # the temperature itself, also where the unit of the scales is another
        start[:, -2] = inverse_temperature / unit
        make = partial(on_numpy, confusion_features, unit=unit, with_evidence=self.size > 0)
        super().__init__(rows, make, start, unit, dtype, last)

    def ridge(self, penalties: Penalties) -> Ridge:
        """The penalties of C, of the scales about their mean, and of the biases."""
        strength = np.full(self.point.shape, penalties.matrix)
        strength[:, -2], strength[:, -1] = penalties.scale, penalties.bias
        balanced = np.zeros(self.point.shape, dtype=bool)
        balanced[:, -2] = True
        return Ridge(2 * strength / self.total, balanced)


class ScaleWalk:
    """The same without a confusion matrix, compiled; the whole path at once, so that only its points are kept."""

    def __init__(self, rows: Rows, path: list[Penalties], dtype: type | None, last: bool) -> None:
        self.dtype, inverse_temperature = dtype, fit_inverse_temperature(rows).value
        self.unit = common_unit(rows, inverse_temperature)
        self.point = np.zeros((rows.n_classes, 2))
        self.point[:, 0] = inverse_temperature / self.unit
        make = partial(on_numpy, confusion_features, unit=self.unit, with_evidence=False)
        (columns,) = rows.gather(lambda logits, labels, weights: make(logits).own)
        shifted, self.make = Rows(columns, rows.labels, rows.weights), make
        self.found: dict[Penalties, tuple[np.ndarray, Solution | None]] = {}
        point, units = self.point.T, np.ones((2, rows.n_classes))
        for penalties in path:
            solution = None
            if penalties.scale < inf:
                ridge = 2 * np.array([penalties.scale, penalties.bias]) / rows.total_weight
                gap = GAP if last else FOLD_GAP
                solution = minimise(vector_objective(shifted, units, ridge), point, gap=gap, polish=last)
                point = solution.point
            self.found[penalties] = point.T, solution

    def step(self, penalties: Penalties) -> Solution | None:
        """Take the point at these penalties."""
        self.point, solution = self.found[penalties]
        return solution

    def scores(self, logits: np.ndarray) -> np.ndarray:
        """Scores of other rows at the present point."""
        return scores_of(self.make(logits.astype(self.dtype, copy=False)), self.point)


class ConfusionScaling(PathScaling):
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

    def _walker(self, rows: Rows, *, path: list[Penalties], dtype: type | None, last: bool) -> Any:
        # compiled where scales and biases both move, or neither does
        alike = all(np.isinf(penalties.scale) == np.isinf(penalties.bias) for penalties in path)
        return (ScaleWalk if alike and not _reads_evidence(path) else ConfusionWalk)(rows, path, dtype, last)

    def _policy(self, weights: np.ndarray | None) -> Policy:
        return near(weights, NEAR)

    def _keep(self, point: np.ndarray) -> None:
        n_classes = len(point)
        self.scale_, self.bias_ = point[:, -2].copy(), point[:, -1].copy()
        self.matrix_ = np.zeros((n_classes, n_classes)) if point.shape[1] == 2 else point[:, :-2].copy()

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
        inputs = confusion_features(xp, maps.wide(xp, logits), 1.0 / learned.temperature_, hasattr(learned, "matrix_"))
        scores = inputs.own[0] * learned.scale_ + learned.bias_
        if hasattr(learned, "matrix_"):
            told = xp.single_precision(inputs.shared)
            scores = scores + maps.wide(xp, xp.matmul(told, xp.single_precision(learned.matrix_.T)))
        return maps.like(xp, scores, logits)


def _reads_evidence(path: list[Penalties]) -> bool:
    """Whether the confusion matrix takes part in any step."""
    return any(penalties.matrix < inf for penalties in path)
