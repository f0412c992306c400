"""The two solvers of the likelihood fits: a scalar root for temperatures, Newton-CG for everything larger."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from calibrant.core.errors import FitWarning

Array = np.ndarray


@dataclass(frozen=True)
class Solution:
    """Where a solver stopped: the point, its losses step by step, and whether it is an optimum."""

    point: Array
    trace: Array
    n_iter: int
    converged: bool
    gradient_norm: float


@dataclass(frozen=True)
class InverseTemperature:
    """Where the scalar solver stopped. `limit` is "" at a proper optimum, else where the optimum lies."""

    value: float
    trace: list[float]
    limit: str
    converged: bool


def solve_inverse_temperature(
    moments: Callable[[float], tuple[float, float, float]],
    start: float,
    *,
    tolerance: float = 1e-9,
    step_tolerance: float = 1e-6,
    max_iter: int = 100,
) -> InverseTemperature:
    """Minimise a convex loss over β > 0, given (loss, first, second derivative) at any β.

    Newton steps on β, held inside the bracket found so far and to a factor of 8; outside it, the middle of the
    bracket in log β. A relative step below `step_tolerance` is taken and trusted: Newton squares it.
    """
    beta, low, high = start, 0.0, math.inf
    trace: list[float] = []
    for _ in range(max_iter):
        loss, slope, curvature = moments(beta)
        trace.append(loss)
        if slope < 0:
            low = beta
        elif slope > 0:
            high = beta
        newton = beta - slope / curvature if curvature > 0 else math.copysign(math.inf, -slope) if slope else beta
        if abs(newton - beta) <= step_tolerance * beta:
            return InverseTemperature(newton, trace, "", True)
        if abs(slope) * beta <= tolerance and (low == 0 or math.isinf(high)):
            return InverseTemperature(beta, trace, "0" if low > 0 else "infinity", True)
        following = min(max(newton, beta / 8), beta * 8)
        if not low < following < high:
            following = math.sqrt(low * high) if low > 0 and high < math.inf else beta * (8 if slope < 0 else 1 / 8)
        beta = following
    return InverseTemperature(beta, trace, "", False)


def newton_cg(
    evaluate: Callable[[Array], tuple[float, Array, Callable[[Array], Array]]],
    product: Callable[[Array, Array], Array],
    start: Array,
    *,
    tolerance: float = 1e-8,
    max_iter: int = 100,
    max_inner: int = 250,
) -> Solution:
    """Minimise a smooth convex loss by Newton steps solved with preconditioned conjugate gradients.

    Parameters
    ----------
    evaluate : point → (loss, gradient, preconditioner), the last a function close to the inverse Hessian.
    product : (point, direction) → Hessian times direction.
    tolerance : largest absolute entry of the gradient at which the point counts as the optimum.
    """
    point = start
    loss, gradient, precondition = evaluate(point)
    trace = [loss]
    for iteration in range(1, max_iter + 1):
        norm = float(np.abs(gradient).max())
        if norm <= tolerance:
            return Solution(point, np.array(trace), iteration - 1, True, norm)
        forcing = min(0.1, math.sqrt(norm))
        direction = _conjugate_gradients(lambda v, at=point: product(at, v), gradient, precondition, forcing, max_inner)
        expected = float(np.vdot(gradient, direction))
        length, moved = 1.0, False
        while length > 1e-10:
            candidate = point + length * direction
            new_loss, new_gradient, new_precondition = evaluate(candidate)
            # the loss cannot show a decrease below its own rounding; there the slope along the step decides
            flat = abs(new_loss - loss) <= 1e-13 * max(1.0, abs(loss))
            if new_loss <= loss + 1e-4 * length * expected or (
                flat and abs(np.vdot(new_gradient, direction)) <= 0.9 * abs(expected)
            ):
                moved = True
                break
            length /= 4
        if not moved:
            return Solution(point, np.array(trace), iteration, norm <= 100 * tolerance, norm)
        point, loss, gradient, precondition = candidate, new_loss, new_gradient, new_precondition
        trace.append(loss)
    norm = float(np.abs(gradient).max())
    return Solution(point, np.array(trace), max_iter, norm <= tolerance, norm)


def _conjugate_gradients(
    product: Callable[[Array], Array],
    gradient: Array,
    precondition: Callable[[Array], Array],
    forcing: float,
    max_inner: int,
) -> Array:
    step = np.zeros_like(gradient)
    residual = -gradient
    preconditioned = precondition(residual)
    direction = preconditioned
    energy = float(np.vdot(residual, preconditioned))
    goal = forcing * forcing * energy
    for _ in range(max_inner):
        curved = product(direction)
        curvature = float(np.vdot(direction, curved))
        if curvature <= 0:
            return step if step.any() else preconditioned
        length = energy / curvature
        step = step + length * direction
        residual = residual - length * curved
        preconditioned = precondition(residual)
        following = float(np.vdot(residual, preconditioned))
        if following <= goal:
            break
        direction = preconditioned + (following / energy) * direction
        energy = following
    return step


def warn_unless_converged(method: str, solution: Solution) -> None:
    """Say that a fit did not reach its optimum, with the figure that shows it."""
    if not solution.converged:
        warnings.warn(
            f"{method} stopped after {solution.n_iter} steps with a gradient of {solution.gradient_norm:.2g}: "
            "the fit has not converged",
            FitWarning,
            stacklevel=5,
        )
