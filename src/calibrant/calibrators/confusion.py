"""What the probability of one class says about another: a confusion matrix beside class scales or a logit matrix."""

from collections.abc import Callable, Iterator
from functools import partial
from numbers import Real
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy import inf

from calibrant.calibrators import maps
from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.learned import MATRIX, PER_CLASS, RECORD, SCALE_MATRIX, SCALES, TEMPERATURE
from calibrant.calibrators.second_stage import SAME_SHAPE, bent_losses
from calibrant.calibrators.solvers.folds import FOLDS, content_folds
from calibrant.calibrators.solvers.likelihood import (
    GAP,
    Affine,
    Dense,
    Objective,
    Ridge,
    Solution,
    check_penalty,
    common_unit,
    in_wide,
    is_misled,
    minimise,
    newton_sums,
    on_numpy,
    prior_centre,
    search,
    vector_objective,
)
from calibrant.calibrators.solvers.temperature import fit_inverse_temperature
from calibrant.core.arrays import Array
from calibrant.core.errors import InputError
from calibrant.core.progress import step
from calibrant.core.rows import Rows
from calibrant.core.threads import map_blocks
from calibrant.kernels.affine import Features, MakeFeatures, scores_of

Penalties = tuple[float, ...]
"""Of the squares of each group of parameters; `inf` leaves a group out."""

CONFUSION_PATH: tuple[Penalties, ...] = (
    (inf, inf, inf),
    (200.0, 3000.0, 1000.0),
    (80.0, 3000.0, 1000.0),
    (30.0, 1000.0, 300.0),
    (12.0, 300.0, 100.0),
    (5.0, 300.0, 100.0),
)
"""Penalties of confusion matrix, class scales and biases, from a temperature alone to a matrix that is nearly free."""

SCALE_PATH: tuple[Penalties, ...] = ((inf, inf, inf), (inf, 3000.0, 1000.0), (inf, 1000.0, 300.0))
"""The same for more than `MOST_CLASSES` classes."""

JOINT_PATH: tuple[Penalties, ...] = (
    (inf, inf, inf, inf),
    (100.0, 300.0, 3000.0, 1000.0),
    (30.0, 90.0, 1000.0, 300.0),
    (10.0, 30.0, 300.0, 100.0),
    (3.0, 9.0, 100.0, 30.0),
    (1.0, 3.0, 30.0, 10.0),
    (0.3, 1.0, 10.0, 3.0),
)
"""Penalties of confusion matrix, off-diagonal of the logit matrix, its diagonal and biases, to nearly free matrices."""

FLOOR = 0.01
"""Probabilities well below this say nothing about other classes."""

MOST_CLASSES = 256
"""Above, a confusion matrix has more entries than a calibration set can fill: only scales and biases are learned."""

NEAR = 2.0
"""Steps of a confusion path within this many standard errors of the best are averaged."""

PATIENCE, TEMPER = 2, 0.2
"""A joint path ends when so many steps in a row were worse than the best.

The weight of a step is exp(−TEMPER·excess of its held-out NLL, summed over the rows).
"""

SMALLEST_WEIGHT = 1e-3
"""Steps of less weight are left out of that average."""

BASE_RIDGE = 100.0
"""Penalty of the biases that are fitted with the temperature, before the matrices of a joint fit."""

FOLD_GAP = 1e-8
"""Decrement at which a fit without one fold takes its last step: the least that float32 sums show."""

SMALL = 1 << 14
"""Up to this many logits the fits without one fold are exact."""


def evidence(xp: Any, scaled: Any) -> Any:
    """log(1 + p/0.01) of the probabilities p of scaled logits: 0 where a class is ruled out, at most log 101."""
    return xp.log1p(xp.softmax_of_rows(scaled) / FLOOR)


def confusion_features(xp: Any, logits: Any, unit: Any, with_evidence: bool = True) -> Features:
    """What C reads, and z̄/T, which class scales read; `unit` is 1/T."""
    scaled = logits * unit
    shared = evidence(xp, scaled) if with_evidence else xp.zeros((logits.shape[0], 0), dtype=logits.dtype)
    return Features(shared, (centred(xp, scaled),))


def centred(xp: Any, logits: Any) -> Any:
    """Logits minus their mean over the classes."""
    return logits - xp.sum(logits, axis=1, keepdims=True) / logits.shape[1]


def joint_features(xp: Any, logits: Any, unit: Any) -> Features:
    """What C reads and what A reads, side by side; `unit` is 1/T."""
    scaled = centred(xp, logits) * unit
    return Features(xp.concat([evidence(xp, scaled), scaled], axis=1))


class Start(NamedTuple):
    """Where a path begins: features of logits, 1/T, the point of a temperature alone, and the ridge of penalties.

    The point is the centre of the weak prior too, for steps whose likelihood has no maximum: all of them if the rows
    are predicted correctly (`endless`).
    """

    make: MakeFeatures
    unit: float
    point: Array
    ridge: Callable[[Penalties], Ridge]
    endless: bool


Points = Iterator[tuple[Array, Solution | None]]
"""The optimum at each penalty of a path, and how it was found."""


def descend(
    objective_at: Callable[[Penalties], Objective | None], point: Array, path: list[Penalties], **options: Any
) -> Points:
    """Each optimum from where the last one ended; the same point where nothing may move."""
    start = point
    for penalties in path:
        objective, solution = objective_at(penalties), None
        if objective is not None:
            solution = minimise(objective, point, lambda: start, **options)
            point = solution.point
        yield point, solution


class PathScaling(Calibrator, is_base=True, cross_fits=True):
    """Base of methods that average the fits along a path of penalties by their held-out loss.

    A method writes `_path(n_classes)` (its penalties, from strong to weak), `_start(rows, path)` (where fits to some
    rows begin), `_weigh(weights, losses)` (the weights of steps by the held-out losses of all rows, and whether to go
    on) and `_keep(point)` (what it learns from the averaged point).
    """

    seed: int
    _path: Any
    _start: Any
    _weigh: Any
    _keep: Any

    def _fit(self, rows: Rows) -> None:
        path = self._path(rows.n_classes)
        if len(path) == 1 or rows.total_weight < 2 * FOLDS:
            self._finish(rows, path[:1], np.ones(1))
        else:
            self._held_out(rows, content_folds(rows, FOLDS, self.seed))

    def _held_out(self, rows: Rows, fold: Array) -> Array:
        """Fit with steps weighted by the loss of their held-out answers after a bend; the answers so averaged.

        Without the bend a step of the path would be preferred for its sharpness.
        """
        path = self._path(rows.n_classes)
        # few rows are fitted exactly: rounding in another order of rows does not show
        dtype = np.float64 if rows.logits.size <= SMALL else np.float32
        outside = [np.flatnonzero(fold == part) for part in np.unique(fold)]

        def walk_without(out: Array) -> tuple[Array, Start, Points]:
            kept = rows.take(np.setdiff1d(np.arange(rows.n), out, assume_unique=True))
            return out, *self._walk(kept if kept.total_weight > 0 else rows, path, dtype, last=False)

        def answer(part: tuple[Array, Start, Points]) -> Array:
            out, start, points = part
            return scores_of(start.make(rows.logits[out].astype(dtype, copy=False)), next(points)[0])

        parts = map_blocks(walk_without, outside)
        shape, answers, losses = SAME_SHAPE, [], []
        for _ in path:
            answers.append(np.empty(rows.logits.shape, dtype))
            for out, scores in zip(outside, map_blocks(answer, parts), strict=True):
                answers[-1][out] = scores
            shape, loss = bent_losses(answers[-1], rows, shape)
            losses.append(loss)
            weights, go_on = self._weigh(rows.weights, losses)
            step("cross-validation", len(losses), len(path))
            if not go_on:
                break
        used = np.flatnonzero(weights)
        self._finish(rows, [path[index] for index in used], weights[used])
        return np.average([answers[index] for index in used], axis=0, weights=weights[used]).astype(rows.logits.dtype)

    def _finish(self, rows: Rows, path: list[Penalties], weights: Array) -> None:
        start, found = self._walk(rows, path, None, last=True)
        points, solutions = zip(*found, strict=True)
        # the last step has the weakest penalty; without one there is only the temperature
        if solutions[-1] is None:
            fit_inverse_temperature(rows).warn()
        else:
            solutions[-1].report(self)
        self.penalties_, self.temperature_ = np.array(path), 1.0 / start.unit
        self._keep(np.average(points, axis=0, weights=weights))

    def _walk(self, rows: Rows, path: list[Penalties], dtype: Any, *, last: bool) -> tuple[Start, Points]:
        """Fits in a precision, that of the logits if None; the `last` are those that the method keeps."""
        start = self._start(rows, path)
        objective = Affine(rows, start.make, dtype=dtype)

        def objective_at(penalties: Penalties) -> Affine | None:
            ridge = start.ridge(penalties)
            return objective.penalised(ridge) if ridge.moves.any() else None

        gap = FOLD_GAP if dtype == np.float32 else GAP
        return start, descend(objective_at, start.point, path, endless=start.endless, gap=gap, polish=last)


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
        "scale_": SCALES,
        "matrix_": MATRIX,
        "bias_": PER_CLASS,
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
        return 1 + self._n_classes * (2 + self._n_classes * bool(self.matrix_.any()))

    def _path(self, n_classes: int) -> list[Penalties]:
        given = [check_penalty(self.penalty, "penalty", highest=inf)]
        if given == ["cv"]:
            return list(CONFUSION_PATH if n_classes <= MOST_CLASSES else SCALE_PATH)
        for name in ("penalty_scale", "penalty_bias"):
            given.append(check_penalty(getattr(self, name), name, by_cv=False, highest=inf))
        return [tuple(given)]

    def _weigh(self, weights: Array | None, losses: list[Array]) -> tuple[Array, bool]:
        """All steps within `NEAR` standard errors of the best alike; ends at the first beyond."""
        weight = np.ones(len(losses[0])) if weights is None else weights
        means = np.array([float(np.average(loss, weights=weight)) for loss in losses])
        best = int(np.argmin(means))
        excess = np.array(losses) - losses[best]
        spread = excess - np.average(excess, axis=1, weights=weight, keepdims=True)
        # a weight of 2 is the row twice, so its square counts twice
        inside = means - means[best] <= NEAR * np.sqrt(spread**2 @ weight) / weight.sum()
        return inside / inside.sum(), bool(inside[-1])

    def _start(self, rows: Rows, path: list[Penalties]) -> Start:
        """Points (C | a | b), K×(K+2), or (a | b) where the path leaves the confusion matrix out."""
        plain, unit, n_classes = fit_inverse_temperature(rows), common_unit(rows), rows.n_classes
        scale, bias = prior_centre(rows) if is_misled(rows, plain) else (plain.value, 0.0)
        reads = any(matrix < inf for matrix, _, _ in path)
        centre = np.zeros((n_classes, n_classes * reads + 2))
        centre[:, -1] = bias
        balanced = np.zeros(centre.shape, dtype=bool)
        balanced[:, -2] = True

        def ridge(penalties: Penalties) -> Ridge:
            strength = np.full(centre.shape, penalties[0])
            strength[:, -2:] = penalties[1:]
            return Ridge(2 * strength / rows.total_weight, balanced, centre)

        make = partial(on_numpy, confusion_features, unit=unit, with_evidence=reads)
        # the temperature itself, also where the unit of the scales is another
        return Start(make, unit, centre + scale / unit * balanced, ridge, plain.limit == "0")

    def _walk(self, rows: Rows, path: list[Penalties], dtype: Any, *, last: bool) -> tuple[Start, Points]:
        start = self._start(rows, path)
        mixed = any(matrix < inf or (scale < inf) != (bias < inf) for matrix, scale, bias in path)
        if mixed or start.point[:, -1].any():
            return super()._walk(rows, path, dtype, last=last)
        # without a confusion matrix, compiled; the whole path at once, so that only its points are kept
        (columns,) = rows.gather(lambda logits, labels, weights: start.make(logits).own)
        shifted, units = Rows(columns, rows.labels, rows.weights), np.ones((2, rows.n_classes))

        def objective_at(penalties: Penalties) -> Objective | None:
            ridge = 2 * np.array(penalties[1:]) / rows.total_weight
            return vector_objective(shifted, units, ridge) if penalties[1] < inf else None

        options = {"endless": start.endless, "gap": GAP if last else FOLD_GAP, "polish": last}
        found = descend(objective_at, start.point.T, path, **options)
        return start, iter([(point.T, solution) for point, solution in found])

    def _keep(self, point: Array) -> None:
        self.scale_, self.bias_ = point[:, -2:].T.copy()
        self.matrix_ = point[:, :-2].copy() if point.shape[1] > 2 else np.zeros((len(point), len(point)))

    def _learned(self) -> SimpleNamespace:
        found = super()._learned()
        if not self.matrix_.any():
            # no confusion was learned, so that its product need not be taken
            found.matrix_ = found.matrix_[:0]
        return found

    def _map(self, xp, logits, learned):
        scaled = maps.wide(xp, logits) * (1.0 / learned.temperature_)
        scores = centred(xp, scaled) * learned.scale_ + learned.bias_
        if learned.matrix_.shape[0] > 0:
            shares = xp.single_precision(evidence(xp, scaled))
            scores = scores + maps.wide(xp, xp.matmul(shares, xp.single_precision(learned.matrix_.T)))
        return maps.like(xp, scores, logits)


def fit_base(rows: Rows) -> tuple[float, Array]:
    """One inverse temperature and a bias per class (K,), weakly shrunk: softmax(β·z̄ + b).

    A temperature alone is misled where a network prefers some class throughout: it then flattens everything. The centre
    of the weak prior replaces a fit without an optimum at a positive slope, since a negative one would reverse the
    ranking: the rest of the fit can do that where it lowers the loss.
    """
    plain, n_classes, newton = fit_inverse_temperature(rows), rows.n_classes, newton_sums(rows)
    unit = common_unit(rows)
    # one scale for all classes: sums by every scale and bias, added up over the scales
    tie = np.zeros((2 * n_classes, n_classes + 1))
    tie[:n_classes, 0] = unit
    tie[n_classes:, 1:] = np.eye(n_classes)

    def sums(point: Array, last: bool) -> tuple[float, Array, Array | None]:
        loss, gradient, hessian = newton(*(tie @ point).reshape(2, n_classes), last)
        return loss, gradient.ravel() @ tie, None if last else tie.T @ hessian @ tie

    ridge = np.diag(np.append(0.0, np.full(n_classes, BASE_RIDGE))) / rows.total_weight
    centre = np.eye(1, n_classes + 1)[0]
    objective = Dense(sums, rows.total_weight, ridge, centre, exact=in_wide(rows))
    found = search(objective, plain.value / unit * centre, gap=1e-11)
    if found.diverging or found.point[0] < 1e-3 or is_misled(rows, plain):
        return prior_centre(rows)
    return found.point[0] * unit, found.point[1:]


class JointScaling(PathScaling):
    """u = A·z̄/T + C·log(1 + p/0.01) + b: a matrix over logits and one over probabilities, fitted together.

    z̄ are the logits minus their mean over the classes, and p = softmax(z̄/T). T and b⁰, one temperature and a
    shrunken bias per class, are fitted first. A reads the logits as `StructuredMatrixScaling` does, C reads bounded
    evidence as `ConfusionScaling` does; which of the two serves better depends on the network. Minimises

        Σ w·NLL + π_C·Σ C² + π_A·Σ_{i≠j} A² + π_a·Σ (A_jj − mean)² + π_b·Σ (b − b⁰)²,

    which is convex. The penalties walk a path from T and b⁰ alone to nearly free matrices, until two steps in a row
    have a higher held-out NLL than the best; the parameters of the steps are averaged with weights
    exp(−0.2·excess of the held-out NLL, summed over the rows), which varies less than the best step alone.

    Parameters
    ----------
    strength : "cv" or number
        Factor of the penalties (10, 30, 300, 100) of C, A, its diagonal and b; "cv" walks the path.
    seed : int
        Of the folds of the cross-validation.

    Attributes
    ----------
    temperature_ : T.
    linear_ : (K, K) A.
    matrix_ : (K, K) C.
    bias_ : (K,) b.
    penalties_ : (m, 4) the penalties whose parameters were averaged; infinite where the matrices were left out.

    Examples
    --------
    >>> import calibrant as cal
    >>> val = cal.open_predictions("cifar10-resnet18#val")
    >>> cal.JointScaling(1.0).fit(val.logits, val.labels).linear_.shape
    (10, 10)
    """

    learns = {
        "temperature_": TEMPERATURE,
        "linear_": SCALE_MATRIX,
        "matrix_": MATRIX,
        "bias_": PER_CLASS,
        "penalties_": RECORD,
    }

    def __init__(self, strength: float | str = "cv", *, seed: int = 0) -> None:
        self.strength = strength
        self.seed = seed

    @property
    def n_parameters_(self) -> int:
        """A temperature, K biases, and 2K² weights where the matrices take part."""
        return 1 + self._n_classes * (1 + 2 * self._n_classes * bool(self.matrix_.any()))

    def _path(self, n_classes: int) -> list[Penalties]:
        if isinstance(self.strength, str) and self.strength == "cv":
            return list(JOINT_PATH)
        if isinstance(self.strength, bool) or not isinstance(self.strength, Real) or not 0 < self.strength < inf:
            raise InputError(f"strength must be a positive number or 'cv', got {self.strength!r}")
        return [tuple(float(self.strength) * np.array([10.0, 30.0, 300.0, 100.0]))]

    def _weigh(self, weights: Array | None, losses: list[Array]) -> tuple[Array, bool]:
        """exp(−TEMPER·excess of the summed loss) of each step; ends after PATIENCE steps that were no better."""
        sums = np.array([float(loss.sum() if weights is None else weights @ loss) for loss in losses])
        share = np.exp(-TEMPER * (sums - sums.min()))
        share[share < SMALLEST_WEIGHT * share.sum()] = 0.0
        return share / share.sum(), len(sums) - 1 - int(np.argmin(sums)) < PATIENCE

    def _start(self, rows: Rows, path: list[Penalties]) -> Start:
        """Points (C | A | b), K×(2K+1)."""
        unit, offset = fit_base(rows)
        n_classes = rows.n_classes
        diagonal = np.eye(n_classes, 2 * n_classes + 1, n_classes, dtype=bool)
        centre = np.zeros(diagonal.shape)
        centre[:, -1] = offset

        def ridge(penalties: Penalties) -> Ridge:
            confusion, linear, scale, bias = penalties
            strength = np.full(diagonal.shape, confusion)
            strength[:, n_classes:] = linear
            strength[diagonal], strength[:, -1] = scale, bias
            return Ridge(2 * strength / rows.total_weight, diagonal, centre)

        make, endless = partial(on_numpy, joint_features, unit=unit), fit_inverse_temperature(rows).limit == "0"
        return Start(make, unit, diagonal + centre, ridge, endless)

    def _keep(self, point: Array) -> None:
        parts = np.split(point, [len(point), -1], axis=1)
        self.matrix_, self.linear_, self.bias_ = (np.squeeze(part).copy() for part in parts)

    def _map(self, xp, logits, learned):
        inputs = joint_features(xp, maps.wide(xp, logits), 1.0 / learned.temperature_).shared
        weights = xp.concat([learned.matrix_, learned.linear_], axis=1)
        return maps.like(xp, xp.matmul(inputs, weights.T) + learned.bias_, logits)
