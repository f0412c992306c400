"""One scale and, if wanted, one bias per class: the Newton problem that several methods share."""

from __future__ import annotations

import numpy as np

from calibrant.calibrators.newton import Solution, newton_cg
from calibrant.calibrators.temperature import fit_inverse_temperature
from calibrant.core.rows import Rows
from calibrant.kernels.dispatch import pick
from calibrant.kernels.scaling import vector_product, vector_sums


def fit_vector(
    rows: Rows, *, penalty_bias: float = 0.0, with_bias: bool = True, tolerance: float = 1e-8
) -> tuple[np.ndarray, np.ndarray, Solution]:
    """Scales s and biases b (K,) of the lowest mean NLL of softmax(s∘z + b) plus μ·mean b²."""
    n_elements = rows.n * rows.n_classes
    sums, times = pick(vector_sums, n_elements), pick(vector_product, n_elements)
    total, n_classes = rows.total_weight, rows.n_classes
    unit = fit_inverse_temperature(rows).value
    ridge = 2.0 * penalty_bias / n_classes

    def unpack(point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return unit * point[0], point[1]

    def evaluate(point: np.ndarray):
        loss, gradient, blocks = rows.total(sums, *unpack(point))
        gradient = gradient / total
        gradient[0] *= unit
        gradient[1] += ridge * point[1]
        blocks = blocks / total * np.array([[unit**2], [unit], [1.0]])
        blocks[2] += ridge
        if not with_bias:
            gradient[1] = 0.0
        loss = loss / total + 0.5 * ridge * float(point[1] @ point[1])
        return loss, gradient, _block_solver(blocks, with_bias)

    def product(point: np.ndarray, direction: np.ndarray) -> np.ndarray:
        scaled = np.stack([unit * direction[0], direction[1]])
        (result,) = rows.total(times, *unpack(point), scaled)
        result = result / total
        result[0] *= unit
        result[1] += ridge * direction[1]
        if not with_bias:
            result[1] = 0.0
        return result

    start = np.stack([np.ones(n_classes), np.zeros(n_classes)])
    solution = newton_cg(evaluate, product, start, tolerance=tolerance)
    scale, bias = unpack(solution.point)
    return scale, bias - bias.mean() if penalty_bias == 0 else bias, solution


def _block_solver(blocks: np.ndarray, with_bias: bool):
    """Solves the 2×2 systems of each class: the part of the Hessian that does not couple classes."""
    # a class that never gets probability has no curvature of its own; a floor keeps its step bounded
    floor = 1e-3 * blocks[[0, 2]].max(axis=1, keepdims=True) + 1e-12
    own_scale, own_bias = np.maximum(blocks[[0, 2]], floor)
    cross = blocks[1] if with_bias else np.zeros_like(blocks[1])
    limit = 0.999 * np.sqrt(own_scale * own_bias)
    cross = np.clip(cross, -limit, limit)
    determinant = own_scale * own_bias - cross * cross

    def solve(vector: np.ndarray) -> np.ndarray:
        return np.stack(
            [
                (own_bias * vector[0] - cross * vector[1]) / determinant,
                (own_scale * vector[1] - cross * vector[0]) / determinant,
            ]
        )

    return solve
