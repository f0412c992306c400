"""One scale and, if wanted, one bias per class, s∘z + b: units, starts and the fused sums that the fits share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from calibrant.calibrators.solvers.likelihood import Dense, Objective, Operator, Solution, in_wide, minimise
from calibrant.calibrators.solvers.temperature import fit_inverse_temperature
from calibrant.core.arrays import Array
from calibrant.core.rows import Rows
from calibrant.core.statistic import COMPILED_FROM, use_compiled
from calibrant.kernels.scaling import column_moments, vector_newton, vector_product, vector_sums

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
    the mean of b free, it is 0. `unit` is one unit for all scales, in place of what these rows say; `lower` bounds the
    scales in their units.
    """
    inverse_temperature = fit_inverse_temperature(rows).value
    units = class_units(rows, inverse_temperature, with_bias)
    if unit is not None:
        units = np.full(rows.n_classes, unit)
    elif penalty_scale > 0:
        # the penalty compares scales with each other, so that all of them need one unit
        units = np.full(rows.n_classes, np.median(units))
    ridge = 2.0 * np.array([penalty_scale, penalty_bias]) / rows.n_classes
    start = np.stack([inverse_temperature / units, np.zeros(rows.n_classes)])
    both = np.stack([units, np.full(rows.n_classes, 1.0 if with_bias else 0.0)])
    solution = minimise(vector_objective(rows, both, ridge), start, lower=lower, gap=1e-11, far=FAR)
    scale, bias = both * solution.point
    return replace(solution, point=np.stack([scale, bias - bias.mean() if penalty_bias == 0 else bias]))


def class_units(rows: Rows, inverse_temperature: float, about_mean: bool) -> Array:
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
    return np.maximum(inverse_temperature, 1.0 / np.where(spread > 0, spread, 1.0))


def common_unit(rows: Rows, inverse_temperature: float | None = None) -> float:
    """One unit for all scales: 1/T, or one over the median spread of the classes where T is far above it."""
    if inverse_temperature is None:
        inverse_temperature = fit_inverse_temperature(rows).value
    return float(np.median(class_units(rows, inverse_temperature, about_mean=True)))


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
    return Dense(sums, rows.total_weight, whole, exact=in_wide(rows))


def newton_sums(rows: Any) -> Callable[..., tuple[float, Array, Array]]:
    """(scale, bias, last) → loss, gradient and Hessian of softmax(s∘z + b); the last in float64 and without Hessian."""
    if rows.in_memory and rows.n * rows.n_classes < COMPILED_FROM:
        # a copy that lies class by class, as the kernel reads it
        rows = Rows(np.asfortranarray(rows.logits), rows.labels, rows.weights)
    precise = vector_newton.in_float64()
    return lambda scale, bias, last: rows.total(precise if last else vector_newton, scale, bias, not last)


class _Fused:
    """The same objective where a pass over the rows serves one product with the Hessian: large inputs, many classes."""

    exact = False

    def __init__(self, rows: Any, units: Array, ridge: Array) -> None:
        self.rows, self.units, self.ridge, self.total = rows, units, ridge[:, None], rows.total_weight

    def evaluate(self, point: Array, last: bool) -> tuple[float, Array, Array]:
        """Loss, gradient and the classes' blocks."""
        loss, gradient, blocks = self.rows.total(
            vector_sums.in_float64() if last else vector_sums, *(self.units * point)
        )
        pull = self._pull(point)
        value = loss / self.total + 0.5 * float(np.vdot(point, pull))
        return value, self.units * gradient / self.total + pull, blocks / self.total

    def _pull(self, point: Array) -> Array:
        return self.ridge * np.stack([point[0] - point[0].mean(), point[1]])

    def curvature(self, point: Array, reuse: Array) -> tuple[Operator, Operator]:
        """The Hessian's product, and the inverse of the 2×2 block of each class: without the coupling of classes."""

        def product(direction: Array) -> Array:
            (curved,) = self.rows.total(vector_product, *(self.units * point), self.units * direction)
            return self.units * curved / self.total + self._pull(direction)

        unit, with_bias = self.units
        own = reuse[[0, 2]] * np.stack([unit**2, np.ones_like(unit)]) + self.ridge
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
