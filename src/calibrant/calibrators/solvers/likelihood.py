"""The solver of penalised likelihoods: mean NLL of scores that are linear in the parameters, plus a ridge.

A method says what its features are and what is penalised. `minimise` walks downhill by Newton steps, solved with
preconditioned conjugate gradients, and stops on the Newton decrement ½·gᵀH⁻¹g: the loss that one more step would gain.
It has no units, so that logits of any size need no rescaling.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from numbers import Real
from typing import Any, Protocol

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from calibrant.calibrators.maps import numpy_space
from calibrant.calibrators.solvers.folds import content_folds
from calibrant.calibrators.solvers.temperature import (
    InverseTemperature,
    fit_inverse_temperature,
    warn_no_optimum,
)
from calibrant.core.arrays import Array
from calibrant.core.errors import InputError, warn_user
from calibrant.core.progress import step
from calibrant.core.rows import Rows
from calibrant.core.statistic import COMPILED_FROM, add, use_compiled
from calibrant.core.threads import map_blocks, row_blocks
from calibrant.kernels.affine import (
    Features,
    MakeFeatures,
    affine_curvature,
    affine_sums,
    blocks_at,
    means_at,
    product_at,
    sums_at,
)
from calibrant.kernels.scaling import column_moments, vector_newton, vector_product, vector_sums

Operator = Callable[[Array], Array]

GAP = 1e-10
"""Nats per row that a fit may still gain before its last step, which leaves about a ten-thousandth of it."""

PRIOR_GAP = 1e-15
"""Decrement of the mean loss under the weak prior, whose curvature is only 1/n: a looser one moves the parameters."""

PATH_GAP = 1e-7
"""The same for a fit that only shows which penalty suits held-out rows."""

SEPARATED = 1e-7
"""Nats per row below which the classes are told apart perfectly, and the parameters grow without bound."""

MISLED = 0.01
"""A 1/T below this share of one over the spread of the logits is the result of offsets between the classes."""

MATCHING_STEPS = 20
"""Steps of iterative scaling that match mean probabilities to class frequencies."""

ENDLESS = 100.0
"""Factor by which parameters grow in a search that goes on in float64, or in five steps that gain 1% of the loss
together, only if there is no optimum to be reached."""

FAR_AWAY = 1e4
"""How many times the start, or their unit, parameters may reach: beyond it no optimum can be told."""

MAX_STEPS = 100

FLAT = 1e-13
"""Curvature that every direction gets: along the common shift of all biases there is nothing but rounding."""

FORCING = 0.1
"""Share of the gradient that a Newton step leaves unsolved where a product takes a pass; the last leaves its square."""

BLOCK_WORK = 1 << 24
"""Up to this many operations (K·M³) the preconditioner inverts a block of M×M numbers for each class."""

KEPT_ELEMENTS = 1 << 26
"""Up to this many features, they and the probabilities are kept from one product to the next."""


@dataclass(frozen=True)
class Solution:
    """Where a search stopped: the point, its losses step by step, and whether it is an optimum."""

    point: Array
    trace: Array
    n_iter: int
    converged: bool
    gradient_norm: float
    diverging: bool = False
    """Whether the likelihood has no maximum: the point is the mode under the weak prior, if there is one."""

    def report(self, calibrator: Any, *, warn: bool = True) -> None:
        """Store the steps in a calibrator; warn if the search did not reach an optimum."""
        calibrator.n_iter_, calibrator.objective_trace_ = max(1, self.n_iter), self.trace
        name = type(calibrator).__name__
        if self.diverging and warn:
            warn_no_optimum(f"{name} separates the classes, or its parameters grow without bound")
        elif warn and not self.converged:
            warn_user(
                f"{name} stopped after {self.n_iter} steps with a gradient of {self.gradient_norm:.2g}: "
                "the fit has not converged"
            )


class Objective(Protocol):
    """A smooth convex loss as the search sees it."""

    exact: bool
    """Are all its sums in float64?"""
    forcing: float
    """Share of the gradient that a step leaves unsolved; the last one leaves its square."""

    def evaluate(self, point: Array, last: bool) -> tuple[float, Array, Any]:
        """Loss, gradient and what `curvature` needs; of a point that may be the `last`, in float64 and without it."""

    def curvature(self, point: Array, reuse: Any) -> tuple[Operator, Operator]:
        """Two functions of a direction: the Hessian's product with it, and something close to its inverse's."""

    def with_prior(self, centre: Array) -> Objective:
        """The same under the weak prior θ ~ N(centre, 1), with the penalties about that centre too."""


def minimise(
    objective: Objective, start: Array, centre: Callable[[], Array], *, endless: bool = False, **options: Any
) -> Solution:
    """The point of the lowest loss or, if there is none, the mode under the weak prior about a centre.

    Parameters
    ----------
    centre : computes that point.
    endless : whether it is known that there is no lowest loss, since all rows are predicted correctly.
    options : of `search`.
    """
    if not endless:
        found = search(objective, start, **options)
        if not found.diverging:
            return found
    start = centre()
    found = search(objective.with_prior(start), start, **options | {"bounded": True, "polish": True, "gap": PRIOR_GAP})
    return replace(found, diverging=True)


def search(
    objective: Objective,
    start: Array,
    *,
    lower: float = -math.inf,
    gap: float = GAP,
    polish: bool = True,
    far: float = math.inf,
    unit: float = 1.0,
    bounded: bool = False,
) -> Solution:
    """The point of the lowest loss.

    Parameters
    ----------
    lower : bound of every coordinate; those that rest on it and press against it are held there.
    gap : the decrement at which the search takes its last step.
    polish : end with a gradient in float64, and check the decrement there; without it a fit is a step of a walk.
    far : size of a coordinate beyond which a point that still grows is on its way to an optimum at infinity.
    unit : size that a coordinate may have without being called large.
    bounded : whether a penalty of all coordinates makes sure that there is an optimum.
    """
    walk = _Search(objective, np.maximum(start, lower), lower, gap, polish)
    sizes, limit = [walk.size], FAR_AWAY * max(walk.size, unit)
    # a rough search ends before it comes close to a loss of 0
    separated = max(SEPARATED, 10 * gap)
    for iteration in range(MAX_STEPS):
        # a chord was solved more exactly, so that its step may be the last one sooner
        trace, small = walk.trace, walk.decrement <= (10 * gap if walk.precise and walk.chord else gap)
        # what the last five steps gained; with nothing, float32 sums show no further way, or it leads to infinity
        gained = trace[-6] - trace[-1] if len(trace) > 5 else math.inf
        grown = sizes[-1] / sizes[-6] if gained <= 0.01 * abs(trace[-1]) and sizes[-6] > 0 else 1.0
        endless = sizes[-1] > min(limit, ENDLESS * max(sizes[0], walk.settled_size)) or grown > ENDLESS
        if not bounded and (trace[-1] <= separated or (polish and endless)):
            # the curvature here is rounding, which would decide where a step ends
            return walk.solution(iteration, converged=False, diverging=True)
        if small or gained <= 1e-9 * abs(trace[-1]) + 1e-10:
            if walk.precise or not polish:
                # the last step is taken without another look
                walk.point = np.maximum(walk.point + walk.direction, lower)
                trace.append(walk.loss - walk.decrement)
                return walk.solution(iteration, converged=small or walk.decrement <= GAP)
            # the gradient here in float64; the direction follows from the curvature known so far
            walk.loss, walk.gradient, reuse = objective.evaluate(walk.point, True)
            walk.precise, walk.settled_size = True, walk.size
            walk.aim(reuse)
            continue
        if not bounded and grown > 1.1 and sizes[-1] > far:
            return walk.solution(iteration, converged=False, diverging=True)
        if not walk.advance():
            return walk.solution(iteration, converged=False)
        sizes.append(walk.size)
        step("Newton steps", iteration + 1, None, f"loss {trace[-1]:.6f}")
    return walk.solution(MAX_STEPS, converged=False)


class _Search:
    """A point on its way, the direction that it takes next and what that promises."""

    def __init__(self, objective: Objective, point: Array, lower: float, gap: float, polish: bool) -> None:
        self.objective, self.point, self.lower, self.gap, self.polish = objective, point, lower, gap, polish
        self.precise, self.settled_size, self.decrement = objective.exact, math.inf, math.inf
        self.loss, self.gradient, reuse = objective.evaluate(point, False)
        self.trace = [self.loss]
        self.aim(reuse)

    @property
    def size(self) -> float:
        return float(np.abs(self.point).max())

    def advance(self) -> bool:
        """Move along the direction; False where no length of it lowers the loss."""
        share = self.decrement / self.previous if 0 < self.previous < math.inf else 1.0
        if self.chord and share > 0.1:
            # it was meant for the last step, but leads nowhere: compute the curvature here
            self.aim(self.objective.evaluate(self.point, False)[2])
        # a step that left the share r of the decrement is followed by one that leaves r², or what its system left
        last = self.polish and self.decrement * max(min(share, 1.0), self.objective.forcing) ** 2 <= self.gap
        expected, length = float(np.vdot(self.pull, self.direction)), 1.0
        while length > 1e-10:
            candidate = np.maximum(self.point + length * self.direction, self.lower)
            loss, gradient, reuse = self.objective.evaluate(candidate, last)
            # the loss cannot show a decrease below its own rounding; there the slope along the step decides
            flat = abs(loss - self.loss) <= 1e-7 * max(1.0, abs(self.loss))
            slope = abs(float(np.vdot(gradient, self.direction)))
            if loss <= self.loss + 1e-4 * length * expected or (flat and slope <= 0.9 * abs(expected)):
                self.point, self.loss, self.gradient = candidate, loss, gradient
                self.precise = self.objective.exact or last
                self.trace.append(loss)
                self.aim(reuse)
                return True
            length /= 4
        return False

    def aim(self, reuse: Any) -> None:
        """The Newton direction, by the curvature here or, where there is none, by the last one (a chord)."""
        self.chord, self.previous = reuse is None, self.decrement
        if reuse is not None:
            self.curved = self.objective.curvature(self.point, reuse)
        free = (self.point > self.lower) | (self.gradient < 0)
        self.pull = np.where(free, self.gradient, 0.0)
        product, solve = self.curved
        forcing = self.objective.forcing
        final = self.polish and self.previous * forcing**2 <= self.gap
        if self.precise and (final or self.chord):
            forcing *= forcing
        self.direction = _conjugate_gradients(
            lambda vector: np.where(free, product(vector) + FLAT * vector, 0.0),
            self.pull,
            lambda vector: np.where(free, solve(vector), 0.0),
            forcing,
            min(100, 2 * self.point.size),
        )
        self.decrement = 0.5 * abs(float(np.vdot(self.pull, self.direction)))

    def solution(self, n_iter: int, *, converged: bool, diverging: bool = False) -> Solution:
        """What was found."""
        norm = float(np.abs(self.pull).max())
        return Solution(self.point, np.array(self.trace), n_iter, converged, norm, diverging)


def _conjugate_gradients(
    product: Operator, gradient: Array, precondition: Operator, forcing: float, max_inner: int
) -> Array:
    """A step s with H·s ≈ −gradient, its error reduced by `forcing` in the norm of the preconditioner."""
    total = np.zeros_like(gradient)
    residual = -gradient
    preconditioned = precondition(residual)
    direction = preconditioned
    energy = float(np.vdot(residual, preconditioned))
    goal = forcing * forcing * energy
    for _ in range(max_inner):
        if energy <= 0:
            break
        curved = product(direction)
        curvature = float(np.vdot(direction, curved))
        if curvature <= 0:
            return total if total.any() else preconditioned
        length = energy / curvature
        total = total + length * direction
        residual = residual - length * curved
        preconditioned = precondition(residual)
        following = float(np.vdot(residual, preconditioned))
        if following <= goal:
            break
        direction = preconditioned + (following / energy) * direction
        energy = following
    return total


@dataclass(frozen=True)
class Ridge:
    """½·Σ strength·(θ − centre)² over points K×M, infinite where a parameter stays as it is.

    The entries marked in `balanced` are shrunk to their mean instead of to the centre.
    """

    strength: Array
    balanced: Array | None = None
    centre: Array | float = 0.0

    def value_and_pull(self, point: Array) -> tuple[float, Array]:
        """The penalty and its gradient."""
        away = self._departure(point - self.centre)
        pull = self.finite * away
        return 0.5 * float(np.vdot(away, pull)), pull

    def times(self, direction: Array) -> Array:
        """The product of its Hessian with a direction."""
        return self.finite * self._departure(direction)

    @property
    def finite(self) -> Array:
        """The strengths, 0 where nothing moves."""
        return np.where(self.moves, self.strength, 0.0)

    @property
    def moves(self) -> Array:
        """Which parameters move."""
        return np.isfinite(self.strength)

    def _departure(self, point: Array) -> Array:
        if self.balanced is None:
            return point
        result = point.copy()
        result[self.balanced] -= point[self.balanced].mean()
        return result


class Affine:
    """Mean NLL of scores that are linear in a matrix of parameters (`kernels.affine`), plus a ridge; points K×M.

    Parameters
    ----------
    rows : what to fit; blocks of features stay in memory where the logits do.
    make : the features of logits.
    dtype : of the kept features; None is that of the logits.
    """

    forcing = FORCING

    def __init__(self, rows: Any, make: MakeFeatures, dtype: type | None = None) -> None:
        self.rows, self.make, self.total = rows, make, rows.total_weight
        self.exact, self.blocks = False, None
        self.steering: Array | None = None
        read = make(np.zeros((1, rows.n_classes)))
        self.common = np.ones(read.n_columns, dtype=bool)
        """The columns that all classes read: a shift of their weights that all classes share changes no probability."""
        self.common[read.shared.shape[1] : -1] = False
        if rows.in_memory and rows.n * read.n_columns <= KEPT_ELEMENTS:
            wide = rows.logits.dtype if dtype is None else np.dtype(dtype)
            self.exact = wide == np.float64

            def kept(block):
                part = rows.take(block)
                return make(part.logits.astype(wide, copy=False)), part.labels, part.weights

            self.blocks = map_blocks(kept, row_blocks(rows.n, rows.n_classes))

    def penalised(self, ridge: Ridge) -> Affine:
        """The same with another ridge; the curvature that steers the search is still that of the first start."""
        self.ridge = ridge
        self.inverses: Array | None = None
        return self

    def with_prior(self, centre: Array) -> Affine:
        """The same under the weak prior."""
        return self.penalised(Ridge(self.ridge.strength + 1 / self.total, centre=centre))

    def evaluate(self, point: Array, last: bool) -> tuple[float, Array, Any]:
        """Loss, gradient, and the probabilities of the kept blocks."""
        reuse: Any = None
        if self.blocks is not None and (self.exact or not last):
            parts = map_blocks(lambda block: sums_at(block[0], block[1], block[2], point), self.blocks)
            reuse = [part[2] for part in parts]
            loss, gradient = reduce(add, (part[:2] for part in parts))
        elif last:
            loss, gradient = self.rows.total(affine_sums.in_float64(), self.make, point)
        else:
            (loss, gradient), reuse = self.rows.total(affine_sums, self.make, point), []
        penalty, pull = self.ridge.value_and_pull(point)
        return loss / self.total + penalty, np.where(self.ridge.moves, self._means(gradient) + pull, 0.0), reuse

    def _means(self, sums: Array) -> Array:
        """Sums over the rows as means; what classes share in the columns of all is 0, and rounding is taken off it."""
        means = sums / self.total
        return means - np.where(self.common, means.mean(axis=0), 0.0)

    def curvature(self, point: Array, reuse: Any) -> tuple[Operator, Operator]:
        """The Hessian's product, and an inverse of what it is without the coupling of classes.

        Along shifts that all classes share the coupling takes all curvature away, apart from that of the ridge: they
        are solved by themselves, and what is left is shifted to where the ridge is lowest.
        """
        moves, ridge = self.ridge.moves, self.ridge

        def product(direction: Array) -> Array:
            (curved,) = self._curve(point, reuse, product_at, direction)
            return np.where(moves, self._means(curved) + ridge.times(direction), 0.0)

        n_classes, size = point.shape
        solver = self._block_solver if n_classes * size**3 <= BLOCK_WORK else self._mean_solver
        apart, strength = solver(point, reuse), ridge.finite
        common, pull = self.common & moves.all(axis=0), strength.sum(axis=0)
        safe = np.where(pull > 0, pull, 1.0)
        share = np.where(common, np.where(pull > 0, strength / safe, 1.0 / n_classes), 0.0)
        inverse = np.where(common & (pull > 0), 1.0 / safe, 0.0)

        def solve(vector: Array) -> Array:
            shift = vector.sum(axis=0)
            found = apart(vector - share * shift)
            return found - common * (share * found).sum(axis=0) + inverse * shift

        return product, solve

    def _curve(self, point: Array, reuse: Any, curve: Callable[..., tuple[Array, ...]], *more: Any) -> Any:
        if self.blocks is None:
            return self.rows.total(affine_curvature, self.make, point, curve, *more)
        every = list(zip(self.blocks, reuse, strict=True))
        return reduce(add, map_blocks(lambda one: curve(one[0][0], one[0][2], one[1], *more), every))

    def _block_solver(self, point: Array, reuse: Any) -> Operator:
        if self.steering is None:
            # the start is a temperature away from the optimum: what inverts the Hessian there nearly does so later
            (self.steering,) = self._curve(point, reuse, blocks_at)
            self.steering /= self.total
        if self.inverses is None:
            blocks = self.steering.copy()
            diagonal = np.einsum("jkk->jk", blocks)
            # a class that never gets probability has no curvature of its own; a floor keeps its step bounded
            diagonal += self.ridge.finite + 1e-6 * diagonal + 1e-4 * diagonal.mean(axis=0) + 1e-12
            stays = ~self.ridge.moves
            if stays.any():
                blocks[stays[:, :, None] | stays[:, None, :]] = 0.0
                diagonal[stays] = 1.0
            self.inverses = np.linalg.inv(blocks)
        inverses = self.inverses
        return lambda vector: np.matmul(inverses, vector[:, :, None])[:, :, 0]

    def _mean_solver(self, point: Array, reuse: Any) -> Operator:
        """The inverse of a block per class of the form diagonal + rank one: for many classes.

        Where class j has curvature, its features have a mean and variances around it; both differ much between classes,
        because a class is in doubt where its own logit is high. Correlations beyond the mean are left out.
        """
        first, second = (one / self.total for one in self._curve(point, reuse, means_at))
        spread = first[:, -1]
        mass = (spread + 1e-6 * spread.mean() + 1e-30)[:, None]
        mean = first / mass
        mean[:, -1] = 1.0
        own = np.maximum(second - mass * mean**2, 1e-3 * second)
        own[:, -1] = 0.0
        inverse = np.where(self.ridge.moves, 1.0 / (own + self.ridge.finite + 1e-6 * mass + 1e-12), 0.0)
        pulled = inverse * mean
        scale = mass[:, 0] / (1.0 + mass[:, 0] * np.einsum("jk,jk->j", mean, pulled))

        def solve(vector: Array) -> Array:
            return inverse * vector - pulled * (scale * np.einsum("jk,jk->j", pulled, vector))[:, None]

        return solve


def fit_matrix(
    rows: Any, make: MakeFeatures, ridge: Ridge, start: Array | None = None, *, polish: bool = True
) -> Solution:
    """(W | b), K×(K+1), of the lowest mean NLL of softmax(W·x + b) plus the ridge.

    Nothing moves the mean of biases that are free: they sum to 0 as at the start.
    """
    endless = False
    if start is None:
        plain = fit_inverse_temperature(rows)
        start, endless = scaled_identity(plain.value, np.zeros(rows.n_classes)), plain.limit == "0"
    _, sizes, _ = rows.total(column_moments) if polish else (0, np.ones(1), 0)
    # the median over classes of the mean absolute logit
    typical = float(np.median(sizes)) / rows.total_weight or 1.0
    objective, gap = Affine(rows, make).penalised(ridge), GAP if polish else PATH_GAP

    options: Any = {"endless": endless, "polish": polish, "gap": gap, "unit": max(1.0, 1.0 / typical)}
    return minimise(objective, start, lambda: scaled_identity(*prior_centre(rows)), **options)


def scaled_identity(scale: float, bias: Array) -> Array:
    """(scale·I | b), K×(K+1)."""
    return np.column_stack([scale * np.eye(len(bias)), bias])


def prior_centre(rows: Rows) -> tuple[float, Array]:
    """The scale and biases (K,) about which the weak prior holds the parameters of classes.

    The scale is 1/T. At that scale the biases match the class frequencies as far as a prior N(0, 1) allows. If offsets
    between the classes mislead T, they are subtracted first.
    """
    plain, shift = fit_inverse_temperature(rows), np.zeros(rows.n_classes)
    if is_misled(rows, plain):
        shift, rows = rows.total(column_moments)[0] / rows.total_weight, rows.whole()
        rows = replace(rows, logits=rows.logits - shift.astype(rows.logits.dtype))
        plain = fit_inverse_temperature(rows)
    scale, bias, counts = np.full(len(shift), plain.value), np.zeros(len(shift)), rows.class_weight() + 1.0
    for _ in range(MATCHING_STEPS):
        # the bound keeps the logarithm finite; no later step needs it
        bias -= np.log1p(np.maximum((rows.total(vector_sums, scale, bias)[1][1] + bias) / counts, -0.9))
    return plain.value, bias - plain.value * shift


def is_misled(rows: Rows, plain: InverseTemperature) -> bool:
    """Return whether offsets between the classes, or the absence of any signal, led to a T far above the spread."""
    return plain.value < MISLED * common_unit(rows)


def on_numpy(features: Callable[..., Features], logits: Array, **options: Any) -> Features:
    """The features of a method's map as its fit reads them."""
    return features(numpy_space, logits, **options)


def in_wide(rows: Any) -> bool:
    """Are the logits float64 in memory?"""
    return rows.in_memory and rows.logits.dtype == np.float64


@dataclass
class Dense:
    """A mean loss whose sums come with the whole Hessian, plus ½·(θ − centre)ᵀ·ridge·(θ − centre): few parameters.

    `sums(point, last)` gives the summed loss, its gradient in the shape of the point, and the Hessian over the
    flattened point, or None for a point that may be the last. `unit` times the flattened point are the parameters of
    the weak prior.
    """

    sums: Callable[[Array, bool], tuple[float, Array, Array | None]]
    total: float
    ridge: Array
    centre: Array | float = 0.0
    exact: bool = True
    forcing: float = FORCING**2
    unit: Array | float = 1.0

    def with_prior(self, centre: Array) -> Dense:
        """The same under the weak prior."""
        return replace(self, ridge=self.ridge + self.unit**2 * np.eye(centre.size) / self.total, centre=centre)

    def evaluate(self, point: Array, last: bool) -> tuple[float, Array, Array | None]:
        """Loss, gradient and Hessian."""
        loss, gradient, hessian = self.sums(point, last)
        away = (point - self.centre).ravel()
        pull = self.ridge @ away
        curved = None if hessian is None else hessian / self.total + self.ridge
        value = loss / self.total + 0.5 * float(away @ pull)
        return value, gradient / self.total + pull.reshape(point.shape), curved

    def curvature(self, point: Array, reuse: Array) -> tuple[Operator, Operator]:
        """The Hessian, and its inverse by a Cholesky factor."""
        factor, shape = _positive_factor(reuse), point.shape
        return (
            lambda direction: (reuse @ direction.ravel()).reshape(shape),
            lambda vector: cho_solve(factor, vector.ravel(), check_finite=False).reshape(shape),
        )


def _positive_factor(hessian: Array) -> tuple[Array, bool]:
    """Cholesky factor of the Hessian and as little on its diagonal as makes it positive.

    The common shift of all biases is flat, and rounding may bend it the wrong way.
    """
    diagonal = np.maximum(np.diag(hessian), 0.0)
    for share in (1e-6, 1e-4, 1e-2):
        try:
            extra = np.diag(share * (diagonal + 1e-3 * diagonal.mean()) + 1e-12)
            return cho_factor(hessian + extra, overwrite_a=True, check_finite=False)
        except LinAlgError:
            continue
    return cho_factor(np.diag(diagonal + 1e-3 * diagonal.mean() + 1e-12))


FAR = 20.0
"""Scales are in units of the temperature or of the spread, biases in nats: beyond it, a scale that grows diverges."""

DENSE_CLASSES = 256
"""Up to this many classes a small input is solved with the whole Hessian."""

UNIT_ROWS = 4096
"""Rows that show the spread of a class well enough for a unit."""


def fit_vector(
    rows: Rows,
    *,
    penalty_bias: float = 0.0,
    penalty_scale: float = 0.0,
    with_bias: bool = True,
    lower: float = -np.inf,
    unit: float | None = None,
) -> Solution:
    """Scales s and biases b (2×K) of the lowest mean NLL of softmax(s∘z + b) plus μ·mean b² plus ν·mean (s·T − mean)².

    The solver works on s in units of 1/T, T the temperature of the lowest NLL. Where T is far above the spread of the
    logits, up to infinity, a class has the inverse of its own spread as unit (`class_units`). Where the penalty leaves
    the mean of b free, it is 0. `unit` is one unit for all scales, in place of what these rows say: a penalty of scales
    compares them with each other, so that it needs one. `lower` bounds the scales in their units.
    """
    plain = fit_inverse_temperature(rows)
    units = class_units(rows, plain, with_bias) if unit is None else np.full(rows.n_classes, unit)
    ridge = 2.0 * np.array([penalty_scale, penalty_bias]) / rows.n_classes
    start = np.stack([plain.value / units, np.zeros(rows.n_classes)])
    both = np.stack([units, np.full(rows.n_classes, 1.0 if with_bias else 0.0)])

    def centre() -> Array:
        scale, bias = prior_centre(rows) if with_bias else (plain.value, start[1])
        return np.stack([scale / units, bias])

    options: Any = {"endless": plain.limit == "0", "lower": lower, "gap": 1e-11, "far": FAR}
    solution = minimise(vector_objective(rows, both, ridge), start, centre, **options)
    scale, bias = both * solution.point
    return replace(solution, point=np.stack([scale, bias - bias.mean() if penalty_bias == 0 else bias]))


def class_units(rows: Rows, plain: InverseTemperature, about_mean: bool) -> Array:
    """The larger of 1/T and one over the spread of the class's logits (K,), about their mean or about 0.

    Where the logits have nothing in common with the labels the best single T is infinite, and 1/T is not a unit.
    """
    sample = rows.sample(UNIT_ROWS) if rows.n >= 2 * UNIT_ROWS else rows
    sample = sample if sample.total_weight > 0 else rows
    sums, sizes, squares = (value / sample.total_weight for value in sample.total(column_moments))
    with np.errstate(over="ignore", invalid="ignore"):
        spread = np.sqrt(np.maximum(squares - sums * sums if about_mean else squares, 0.0))
    # a constant column has no spread, and squares may overflow
    spread = np.where(np.isfinite(spread) & (spread > 1e-7 * sizes), spread, sizes)
    return np.maximum(0.0 if plain.limit == "infinity" else plain.value, 1.0 / np.where(spread > 0, spread, 1.0))


def common_unit(rows: Rows) -> float:
    """One unit for all scales: 1/T, or one over the median spread of the classes where T is far above it."""
    return float(np.median(class_units(rows, fit_inverse_temperature(rows), about_mean=True)))


def vector_objective(rows: Any, units: Array, ridge: Array) -> Objective:
    """Mean NLL of softmax(u₀∘x₀∘z + u₁∘x₁) plus ½·(r₀·Σ (x₀ − mean x₀)² + r₁·Σ x₁²), over points x (2×K)."""
    if rows.on_device or rows.n_classes > DENSE_CLASSES or use_compiled(rows.n * rows.n_classes):
        return _Fused(rows, units, ridge)
    newton, flat, n_classes = newton_sums(rows), units.ravel(), rows.n_classes

    def sums(point: Array, last: bool) -> tuple[float, Array, Array | None]:
        loss, gradient, hessian = newton(*(units * point), last)
        return loss, units * gradient, None if last else hessian * np.outer(flat, flat)

    whole = np.diag(np.repeat(ridge, n_classes))
    whole[:n_classes, :n_classes] -= ridge[0] / n_classes
    return Dense(sums, rows.total_weight, whole, exact=in_wide(rows), unit=flat)


def newton_sums(rows: Any) -> Callable[..., tuple[float, Array, Array]]:
    """(scale, bias, last) → loss, gradient and Hessian of softmax(s∘z + b); the last in float64 and without Hessian."""
    if rows.in_memory and rows.n * rows.n_classes < COMPILED_FROM:
        # a copy that lies class by class, as the kernel reads it
        rows = Rows(np.asfortranarray(rows.logits), rows.labels, rows.weights)
    precise = vector_newton.in_float64()
    return lambda scale, bias, last: rows.total(precise if last else vector_newton, scale, bias, not last)


class _Fused:
    """The same objective where a pass over the rows serves one product with the Hessian: large inputs, many classes."""

    exact, forcing = False, FORCING

    def __init__(self, rows: Any, units: Array, ridge: Array) -> None:
        self.rows, self.units, self.ridge, self.total = rows, units, ridge[:, None], rows.total_weight
        self.weak: Array | float = 0.0
        self.centre: Array | float = 0.0

    def with_prior(self, centre: Array) -> _Fused:
        """The same under the weak prior."""
        self.weak, self.centre = self.units**2 / self.total, centre
        return self

    def evaluate(self, point: Array, last: bool) -> tuple[float, Array, Array]:
        """Loss, gradient and the classes' blocks."""
        loss, gradient, blocks = self.rows.total(
            vector_sums.in_float64() if last else vector_sums, *(self.units * point)
        )
        away = point - self.centre
        pull = self._pull(away)
        value = loss / self.total + 0.5 * float(np.vdot(away, pull))
        return value, self.units * gradient / self.total + pull, blocks / self.total

    def _pull(self, point: Array) -> Array:
        return self.ridge * np.stack([point[0] - point[0].mean(), point[1]]) + self.weak * point

    def curvature(self, point: Array, reuse: Array) -> tuple[Operator, Operator]:
        """The Hessian's product, and the inverse of the 2×2 block of each class: without the coupling of classes."""

        def product(direction: Array) -> Array:
            (curved,) = self.rows.total(vector_product, *(self.units * point), self.units * direction)
            return self.units * curved / self.total + self._pull(direction)

        unit, with_bias = self.units
        own = reuse[[0, 2]] * np.stack([unit**2, np.ones_like(unit)]) + self.ridge + self.weak
        # a class that never gets probability has no curvature of its own; a floor keeps its step bounded
        own_scale, own_bias = np.maximum(own, 1e-3 * own.max(axis=1, keepdims=True) + 1e-12)
        limit = 0.999 * np.sqrt(own_scale * own_bias)
        cross = with_bias * np.clip(unit * reuse[1], -limit, limit)
        determinant = own_scale * own_bias - cross * cross

        def solve(vector: Array) -> Array:
            by_scale = own_bias * vector[0] - cross * vector[1]
            by_bias = own_scale * vector[1] - cross * vector[0]
            return np.stack([by_scale, by_bias]) / determinant

        return product, solve


NO_GAIN = 1e-6
"""Differences in nats per row below this are ties, in which the stronger penalty stays."""

N_SPLITS = 3
"""Folds that choose a penalty."""

PATIENCE = 3
"""Candidates in a row that may be worse than the best before the walk ends."""

LARGE = 1 << 23
"""Above this many logits one split decides, and the walk ends at the first candidate that is worse than the best."""


def check_penalty(value: Any, name: str, *, by_cv: bool = True, highest: float = sys.float_info.max) -> Any:
    """A number from 0 to `highest`, or "cv" where cross-validation may choose it."""
    if by_cv and isinstance(value, str) and value == "cv":
        return value
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) <= highest:
        most = f" and at most {highest:g}" if highest < sys.float_info.max else ""
        raise InputError(f"{name} must be a number of at least 0{most}{' or {!r}'.format('cv') * by_cv}, got {value!r}")
    return float(value)


def choose(
    rows: Rows,
    candidates: Sequence[Any],
    fit: Callable[[Rows, Any, Array | None], Array],
    loss: Callable[[Rows, Array], float],
    *,
    seed: int,
    most_logits: float = np.inf,
    patience: int = PATIENCE,
) -> Any:
    """The candidate of the lowest held-out loss; candidates go from the strongest penalty to the weakest.

    Parameters
    ----------
    fit : (rows, candidate, start or None) → the fitted point.
    loss : (held-out rows, point) → their summed loss.
    most_logits : where there are more, a part of the rows decides; for penalties that do not depend on their number.
    patience : candidates in a row that may be worse than the best before the walk ends.
    """
    if not rows.on_device:  # rows on a GPU stay there
        rows = rows.whole()  # folds pick rows: a map of the file or of a scratch copy
        rows.settle()
    large = rows.n * rows.n_classes > LARGE
    shares = int(np.ceil(rows.n * rows.n_classes / most_logits))
    if shares > 1:
        rows = rows.take(np.flatnonzero(content_folds(rows, shares, seed) == 0))
    if rows.total_weight < 2 * N_SPLITS:
        return candidates[0]
    fold, used = content_folds(rows, N_SPLITS, seed), range(1 if large else N_SPLITS)
    splits = [[rows.take(np.flatnonzero(inside)) for inside in (fold != k, fold == k)] for k in used]
    # where no split holds weight on both sides, all candidates are alike and the strongest penalty stays
    splits = [split for split in splits if min(part.total_weight for part in split) > 0]
    points: list[Any] = [None] * len(splits)

    def one(candidate: Any, place: int) -> float:
        inside, outside = splits[place]
        points[place] = fit(inside, candidate, points[place])
        return loss(outside, points[place])

    # the first candidate that no other undercuts by more than a tie; enough after so many that are not better
    tie, patience = NO_GAIN * rows.total_weight, 1 if large else patience
    best, lowest = 0, math.inf
    for index, candidate in enumerate(candidates):
        held_out = sum(map_blocks(partial(one, candidate), range(len(splits))))
        step("cross-validation", index + 1, len(candidates))
        if held_out < lowest - tie:
            best, lowest = index, held_out
        if index - best >= patience:
            break
    return candidates[best]
