"""The two solvers of the likelihood fits: a scalar root for temperatures, Newton-CG for everything larger."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from calibrant.core.errors import FitWarning
from calibrant.core.progress import step

Array = np.ndarray
Operator = Callable[[Array], Array]


NEAR_SLOPE = 0.1
"""Slopes of the loss by log β above this belong to no neighbourhood of an optimum."""


GAP = 1e-9
"""Nats per row that a finished fit may still gain: the Newton decrement of the check that ends every convex fit."""

SEPARATED = 1e-7
"""Nats per row below which the classes are told apart perfectly, and the parameters grow without bound."""

ENDLESS = 100.0
"""Factor by which parameters grow in a continued search only if there is no optimum to be reached."""

FAR_AWAY = 1e4
"""How many times the start, or their unit, parameters may reach: beyond it no optimum can be told."""

FLAT = 1e-13
"""Curvature below which a direction counts as flat."""

CONTINUATIONS = 2
"""How often a search that failed the check goes on before the fit warns."""


@dataclass(frozen=True)
class Solution:
    """Where a solver stopped: the point, its losses step by step, and whether it is an optimum."""

    point: Array
    trace: Array
    n_iter: int
    converged: bool
    gradient_norm: float
    diverging: bool = False
    """Stopped because the parameters grow without bound."""


@dataclass(frozen=True)
class InverseTemperature:
    """Where the scalar solver stopped. `limit` is "" at a proper optimum, else where the optimum lies."""

    value: float
    trace: list[float]
    limit: str
    converged: bool


def solve_inverse_temperature(
    moments: Callable[[float], tuple[float, float, float, float, float]],
    start: float,
    *,
    tolerance: float = 1e-9,
    step_tolerance: float = 1e-2,
    max_iter: int = 100,
) -> InverseTemperature:
    """Minimise a convex loss over β > 0, given the loss and β^k times its k-th derivative, k = 1 … 4, at any β.

    Householder's third-order steps on the slope, held inside the bracket found so far and to a factor of 8. Where a
    step did not halve the slope, or leaves the bracket, the middle of the bracket in log β: far from the optimum the
    curvature of sharp logits is nothing but rounding. Near it, a relative step below `step_tolerance` is trusted: what
    it leaves is of the order of its fourth power.
    """
    beta, low, high, previous = _short(start), 0.0, math.inf, math.inf
    trace: list[float] = []
    for _ in range(max_iter):
        loss, slope, *higher = moments(beta)
        trace.append(loss)
        if slope == 0:
            return InverseTemperature(beta, trace, "" if higher[0] > 0 or low == 0 else "0", True)
        low, high = (beta, high) if slope < 0 else (low, beta)
        step_size = _householder_step(slope, *higher)
        proposed = beta + beta * step_size
        if abs(step_size) <= step_tolerance and abs(slope) <= NEAR_SLOPE:
            return InverseTemperature(proposed, trace, "", True)
        if abs(slope) <= tolerance and (low == 0 or math.isinf(high)):
            return InverseTemperature(beta, trace, "0" if low > 0 else "infinity", True)
        following = _short(min(max(proposed, beta / 8), beta * 8))
        if not low < following < high or abs(slope / beta) > previous / 2:
            following = math.sqrt(low * high) if low > 0 and high < math.inf else beta * (8 if slope < 0 else 1 / 8)
        beta, previous = _short(following), abs(slope / beta)
    return InverseTemperature(beta, trace, "", False)


def _householder_step(slope: float, curvature: float, bend: float, tail: float) -> float:
    """The relative step to where the slope is 0, by its value and its next three derivatives."""
    numerator = 3 * slope * (slope * bend - 2 * curvature * curvature)
    denominator = 6 * curvature**3 - 6 * slope * curvature * bend + slope * slope * tail
    if denominator > 0 and numerator * slope < 0:
        return numerator / denominator
    return -slope / curvature if curvature > 0 else math.copysign(math.inf, -slope)


def _short(beta: float) -> float:
    """β with the 24 bits that float32 holds, so that kernels of either precision work at this very number."""
    mantissa, exponent = math.frexp(beta)
    return math.ldexp(round(mantissa * 2**24), exponent - 24)


class Objective(Protocol):
    """A smooth convex loss as the solver sees it."""

    def evaluate(self, point: Array) -> tuple[float, Array, Any]:
        """Loss and gradient at a point, and whatever `curvature` can reuse of the work."""

    def curvature(self, point: Array, reuse: Any) -> tuple[Operator, Operator]:
        """Two functions of a direction: the Hessian's product with it, and something close to its inverse's."""


def newton_cg(
    objective: Objective,
    start: Array,
    *,
    lower: float = -math.inf,
    tolerance: float = 1e-10,
    enough: float = 1e-7,
    far: float = math.inf,
    precise: Objective | None = None,
    unit: float = 1.0,
    max_iter: int = 100,
    max_inner: int = 100,
) -> Solution:
    """Minimise a smooth convex loss by Newton steps solved with preconditioned conjugate gradients.

    With `precise` the search ends with a check of its optimum: ½·gᵀH⁻¹g, the loss that a further Newton step would
    gain, does not depend on the units of the parameters. Where it exceeds `GAP`, the search continues with the precise
    objective; where it still does, the solution is marked as not converged.

    Parameters
    ----------
    lower : bound of every coordinate; those that rest on it and press against it are held there.
    tolerance : largest absolute entry of the (projected) gradient at which the search ends.
    enough : the same, where the search ends if it makes no more progress: float32 sums reach no further.
    far : size of a coordinate beyond which a point that still grows is on its way to an optimum at infinity.
    unit : size that a coordinate may have without being called large.
    precise : the same loss with float64 sums; None skips the check, for fits that are only a step of a search.
    """
    limits = _Limits(lower, tolerance, enough, far, max_iter, min(max_inner, 2 * start.size))
    solution = _search(objective, start, limits)
    if precise is None:
        return solution
    for attempt in range(CONTINUATIONS + 1):
        if _size(solution.point) > FAR_AWAY * max(_size(start), unit):
            return replace(solution, converged=False, diverging=True)
        gap, norm = _remaining(precise, solution.point, lower, limits.max_inner)
        solution = replace(solution, converged=gap <= GAP, gradient_norm=norm)
        if solution.trace[-1] <= SEPARATED:
            return replace(solution, converged=False, diverging=True)
        if solution.converged or solution.diverging or attempt == CONTINUATIONS:
            break
        more = _search(precise, solution.point, replace(limits, tolerance=min(tolerance, 1e-3 * norm), enough=0.0))
        trace = np.concatenate([solution.trace, more.trace[1:]])
        # flat ground on which the parameters grow by orders of magnitude leads to an optimum at infinity
        endless = _size(more.point) > ENDLESS * max(_size(solution.point), _size(start))
        solution = replace(more, trace=trace, n_iter=solution.n_iter + more.n_iter, diverging=more.diverging or endless)
        if endless:
            return replace(solution, converged=False)
    return solution


@dataclass(frozen=True)
class _Limits:
    lower: float
    tolerance: float
    enough: float
    far: float
    max_iter: int
    max_inner: int


def _remaining(objective: Objective, point: Array, lower: float, max_inner: int) -> tuple[float, float]:
    """½·gᵀH⁻¹g over the free coordinates, and the largest entry of g there.

    H⁻¹g by conjugate gradients: what only nearly inverts H may miss a direction in which much is left to gain.
    """
    _, gradient, reuse = objective.evaluate(point)
    free = (point > lower) | (gradient < 0)
    pull = np.where(free, gradient, 0.0)
    norm = float(np.abs(pull).max())
    if norm == 0:
        return 0.0, norm
    product, solve = objective.curvature(point, reuse)
    if not free.all():
        product, solve = _restricted(product, free), _restricted(solve, free)
    # a little curvature everywhere: along the common shift of all biases, which changes nothing, there is only rounding
    direction = _conjugate_gradients(lambda vector: product(vector) + FLAT * vector, pull, solve, 0.1, max_inner)
    return 0.5 * abs(float(np.vdot(pull, direction))), norm


def _search(objective: Objective, start: Array, limits: _Limits) -> Solution:
    lower, enough, point = limits.lower, limits.enough, start
    loss, gradient, reuse = objective.evaluate(point)
    trace, sizes, previous = [loss], [_size(point)], math.inf
    for iteration in range(limits.max_iter):
        free = (point > lower) | (gradient < 0)
        pull = np.where(free, gradient, 0.0)
        norm = float(np.abs(pull).max())
        if norm <= limits.tolerance or previous / 2 < norm <= enough:
            return Solution(point, np.array(trace), iteration, True, norm)
        if len(trace) > 5 and trace[-6] - loss <= 1e-9 * abs(loss) + 1e-10:
            # five Newton steps without gain: what is left of the gradient points to infinity
            return Solution(point, np.array(trace), iteration, norm <= enough, norm)
        if len(trace) > 5 and trace[-6] - loss <= 0.01 * abs(loss) and sizes[-1] > max(limits.far, 1.1 * sizes[-6]):
            # five Newton steps that gain 1% of the loss together while the parameters grow: separable classes
            return Solution(point, np.array(trace), iteration, norm <= enough, norm, diverging=True)
        previous = norm
        product, solve = objective.curvature(point, reuse)
        if not free.all():
            product, solve = _restricted(product, free), _restricted(solve, free)
        direction = _conjugate_gradients(product, pull, solve, min(0.1, math.sqrt(norm)), limits.max_inner)
        found = _line_search(objective, point, loss, pull, direction, lower)
        if found is None:
            return Solution(point, np.array(trace), iteration, norm <= enough, norm)
        if norm <= enough and _pull_norm(found[0], found[2], lower) > norm:
            # a step that leads away again: float32 sums cannot show the way any further
            return Solution(point, np.array(trace), iteration, True, norm)
        point, loss, gradient, reuse = found
        trace.append(loss)
        sizes.append(_size(point))
        step("Newton steps", iteration + 1, None, f"loss {loss:.6f}")
    norm = float(np.abs(gradient).max())
    return Solution(point, np.array(trace), limits.max_iter, norm <= enough, norm)


def _size(point: Array) -> float:
    return float(np.abs(point).max())


def _pull_norm(point: Array, gradient: Array, lower: float) -> float:
    return float(np.abs(np.where((point > lower) | (gradient < 0), gradient, 0.0)).max())


def _restricted(operator: Operator, free: Array) -> Operator:
    return lambda vector: np.where(free, operator(vector), 0.0)


def _line_search(  # noqa: PLR0917
    objective: Objective, point: Array, loss: float, pull: Array, direction: Array, lower: float
) -> tuple[Array, float, Array, Any] | None:
    expected = float(np.vdot(pull, direction))
    length = 1.0
    while length > 1e-10:
        candidate = np.maximum(point + length * direction, lower)
        new_loss, gradient, reuse = objective.evaluate(candidate)
        if new_loss <= loss + 1e-4 * length * expected:
            return candidate, new_loss, gradient, reuse
        # the loss cannot show a decrease below its own rounding; there the slope along the step decides
        flat = abs(new_loss - loss) <= 1e-7 * max(1.0, abs(loss))
        if flat and abs(np.vdot(gradient, direction)) <= 0.9 * abs(expected):
            return candidate, new_loss, gradient, reuse
        length /= 4
    return None


def _conjugate_gradients(
    product: Operator,
    gradient: Array,
    precondition: Operator,
    forcing: float,
    max_inner: int,
) -> Array:
    """A step s with H·s ≈ −gradient, its error reduced by `forcing` in the norm of the preconditioner."""
    total = np.zeros_like(gradient)
    residual = -gradient
    preconditioned = precondition(residual)
    direction = preconditioned
    energy = float(np.vdot(residual, preconditioned))
    goal = forcing * forcing * energy
    for _ in range(max_inner):
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


def warn_unless_converged(method: str, solution: Solution) -> None:
    """Say that a fit did not reach its optimum, with the figure that shows it."""
    if solution.diverging and solution.trace[-1] <= SEPARATED:
        warnings.warn(
            f"{method} separates all rows of the fit data: its parameters grow without bound, and were stopped after "
            f"{solution.n_iter} steps",
            FitWarning,
            stacklevel=5,
        )
    elif solution.diverging and not solution.converged:
        warnings.warn(
            f"{method} was stopped after {solution.n_iter} steps with a gradient of {solution.gradient_norm:.2g}: its "
            "parameters grow without bound, so the fit has not converged",
            FitWarning,
            stacklevel=5,
        )
    elif not solution.converged:
        warnings.warn(
            f"{method} stopped after {solution.n_iter} steps with a gradient of {solution.gradient_norm:.2g}: "
            "the fit has not converged",
            FitWarning,
            stacklevel=5,
        )
