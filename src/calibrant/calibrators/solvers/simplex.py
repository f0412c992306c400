"""Small convex problems on the simplex: weights ≥ 0 that sum to one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np

from calibrant.core.arrays import Array


def minimise_quadratic(hessian: Array, linear: Array) -> Array:
    """The point of the simplex that minimises ½·xᵀHx + cᵀx, exactly: the best of the minimisers of all faces."""
    size = len(linear)
    best, best_value = np.full(size, 1.0 / size), np.inf
    for count in range(1, size + 1):
        for face in combinations(range(size), count):
            chosen = list(face)
            system = np.ones((count + 1, count + 1))
            system[:count, :count], system[-1, -1] = hessian[np.ix_(chosen, chosen)], 0.0
            solved = np.linalg.lstsq(system, np.append(-linear[chosen], 1.0), rcond=None)[0][:count]
            if solved.min() < -1e-12:
                continue
            point = np.zeros(size)
            point[chosen] = np.maximum(solved, 0.0)
            point /= point.sum()
            value = 0.5 * float(point @ hessian @ point) + float(linear @ point)
            # a face is taken only for a real gain, so that redundant weights end at exactly 0
            if value < best_value - 1e-15 * max(1.0, abs(best_value)) or np.isinf(best_value):
                best, best_value = point, value
    return best


def minimise_on_simplex(
    evaluate: Callable[[Array], tuple[float, Array, Array]],
    start: Array,
    *,
    tolerance: float = 1e-10,
    max_iter: int = 100,
) -> tuple[Array, list[float], bool]:
    """Newton's method for a smooth convex loss on the simplex: the quadratic model is minimised exactly each step.

    Returns the point, the losses step by step and whether no first-order decrease beyond the tolerance is left.
    """
    point = start
    loss, gradient, hessian = evaluate(point)
    trace = [loss]
    for _ in range(max_iter):
        # the gap bounds how far the loss can still fall
        if float(gradient @ point - gradient.min()) <= tolerance:
            return point, trace, True
        direction = minimise_quadratic(hessian, gradient - hessian @ point) - point
        expected, length = float(gradient @ direction), 1.0
        candidate = evaluate(point + direction)
        while candidate[0] > loss + 1e-4 * length * expected and length > 1e-10:
            length /= 4
            candidate = evaluate(point + length * direction)
        if length <= 1e-10 or abs(expected) <= 1e-16:
            return point, trace, abs(expected) <= 1e-8
        point = np.maximum(point + length * direction, 0.0)
        point /= point.sum()
        loss, gradient, hessian = candidate
        trace.append(loss)
    return point, trace, False
