"""One scale and, if wanted, one bias per class: the Newton problem that several methods share."""

from __future__ import annotations

from copy import copy

import numpy as np

from calibrant.calibrators.solvers.inverse_temperature import fit_inverse_temperature
from calibrant.calibrators.solvers.newton import Operator, Solution, newton_cg
from calibrant.core.blas import one_blas_thread
from calibrant.core.rows import Rows
from calibrant.core.statistic import COMPILED_FROM, Statistic, use_compiled
from calibrant.kernels.scaling import column_moments, vector_newton, vector_product, vector_sums

FAR = 20.0
"""Scales are in units of the temperature or of the spread, biases in nats: beyond it, a scale that grows diverges."""

DENSE_CLASSES = 256
"""Up to this many classes a small input is solved with the whole Hessian."""

UNIT_ROWS = 4096
"""Rows that show the spread of a class well enough for a unit."""

SMALLEST_SCALE = 1e-6
"""Class temperatures stay positive: no scale falls below this share of its unit."""


def fit_class_scales(rows: Rows) -> tuple[np.ndarray, Solution]:
    """Scales s_j = 1/T_j > 0 (K,) of the lowest mean NLL of softmax(s∘z)."""
    scale, _, solution = fit_vector(rows, with_bias=False, lower=SMALLEST_SCALE)
    return scale, solution


def fit_vector(
    rows: Rows,
    *,
    penalty_bias: float = 0.0,
    penalty_scale: float = 0.0,
    with_bias: bool = True,
    lower: float = -np.inf,
    unit: float | None = None,
) -> tuple[np.ndarray, np.ndarray, Solution]:
    """Scales s and biases b (K,) of the lowest mean NLL of softmax(s∘z + b) plus μ·mean b² plus ν·mean (s·T − mean)².

    The solver works on s in units of 1/T, T the temperature of the lowest NLL, so that neither the start nor the
    tolerance depends on the size of the logits. Where T is far above the spread of the logits, up to infinity, a class
    has the inverse of its own spread as unit (`class_units`). Where the penalty leaves the mean of b free, it is 0.
    `unit` is one unit for all scales, in place of what these rows say.
    """
    inverse_temperature = fit_inverse_temperature(rows).value
    units = class_units(rows, inverse_temperature, with_bias)
    if unit is not None:
        units = np.full(rows.n_classes, unit)
    elif penalty_scale > 0:
        # the penalty compares scales with each other, so that all of them need one unit
        units = np.full(rows.n_classes, np.median(units))
    ridge = 2.0 * np.array([[penalty_scale], [penalty_bias]]) / rows.n_classes
    # exponentials have the precision of the logits, and those of float32 reach no further
    tolerance = 1e-10 if getattr(getattr(rows, "logits", None), "dtype", None) == np.float64 else 3e-8
    objective = VectorObjective(rows, units, ridge, with_bias, tolerance)
    start = np.stack([inverse_temperature / units, np.zeros(rows.n_classes)])
    with one_blas_thread():
        solution = newton_cg(
            objective,
            np.maximum(start, lower),
            lower=lower,
            tolerance=tolerance,
            far=FAR,
            precise=objective.precise(),
        )
    scale, bias = objective.units * solution.point
    return scale, bias - bias.mean() if penalty_bias == 0 else bias, solution


def class_units(rows: Rows, inverse_temperature: float, about_mean: bool) -> np.ndarray:
    """The larger of 1/T and one over the spread of the class's logits (K,), about their mean or about 0.

    Beside logits that say nothing in common the best single T is infinite, and 1/T is no unit of anything.
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


class VectorObjective:
    """Mean NLL of softmax(u∘x₀∘z + x₁) plus ½·(r₀·(x₀ − mean x₀)² + r₁·x₁²), over points x (2×K).

    u are the units of the scales.
    """

    def __init__(self, rows: Rows, units: np.ndarray, ridge: np.ndarray, with_bias: bool, tolerance: float) -> None:
        n_elements = rows.n * rows.n_classes
        self.rows = rows
        self.total = rows.total_weight
        self.units = np.stack([units, np.full(len(units), 1.0 if with_bias else 0.0)])
        self.ridge = ridge
        self.dense = rows.n_classes <= DENSE_CLASSES and not use_compiled(n_elements)
        self.statistic: Statistic = vector_newton if self.dense else vector_sums
        self.tolerance, self.norm, self.last_step, self.exact = tolerance, 0.0, False, False
        self.kept: dict[str, tuple[Operator, Operator]] = {}
        self.known: dict[bytes, tuple[float, np.ndarray, np.ndarray]] = {}
        if self.dense and rows.in_memory and n_elements < COMPILED_FROM:
            # a copy that lies class by class, as the kernel reads it
            self.rows = Rows(np.asfortranarray(rows.logits), rows.labels, rows.weights)

    def precise(self) -> VectorObjective:
        """The same objective with exponentials in float64; it starts from the last Hessian of the search."""
        twin = copy(self)
        twin.tolerance, twin.last_step, twin.exact = 0.0, True, True
        return twin

    def evaluate(self, point: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Loss, gradient, and the Hessian where it is small (or nothing: see `_foresee`), else the classes' blocks."""
        loss, gradient, second = self._sums(point)
        pull = self._ridge_times(point)
        mean = loss / self.total + 0.5 * float(np.vdot(point, pull))
        gradient = self.units * gradient / self.total + pull
        self._foresee(float(np.abs(gradient).max()))
        return mean, gradient, second / self.total

    def _sums(self, point: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """The sums at a point; at the last of a search in float64, where the check that follows finds them again."""
        last = self.last_step and bool(self.kept or not self.dense)
        key = point.tobytes()
        if last and key in self.known:
            return self.known[key]
        statistic = self.statistic.in_float64() if last or self.exact else self.statistic
        with_hessian = (not last,) if self.dense else ()
        sums = self.rows.total(statistic, *(self.units * point), *with_hessian)
        self.known.clear()
        if last:
            self.known[key] = sums
        return sums

    def _foresee(self, norm: float) -> None:
        """Expect the next point to be the last where the Hessian there would not be used.

        A Newton step that left the share r of the gradient is followed by one that leaves about r².
        """
        share = norm / self.norm if self.norm > 0 else 1.0
        self.norm, self.last_step = norm, norm * share * share <= self.tolerance

    def _ridge_times(self, point: np.ndarray) -> np.ndarray:
        return self.ridge * np.stack([point[0] - point[0].mean(), point[1]])

    def curvature(self, point: np.ndarray, second: np.ndarray) -> tuple[Operator, Operator]:
        """The Hessian and something close to its inverse, as functions of a direction."""
        if self.dense:
            if second.size:
                self.kept["curvature"] = self._dense_curvature(point.shape, second)
            return self.kept["curvature"]

        def product(direction: np.ndarray) -> np.ndarray:
            (curved,) = self.rows.total(vector_product, *(self.units * point), self.units * direction)
            return self.units * curved / self.total + self._ridge_times(direction)

        return product, self._block_solver(second)

    def _dense_curvature(self, shape: tuple[int, ...], second: np.ndarray) -> tuple[Operator, Operator]:
        """The whole Hessian and its Cholesky factor: for few classes cheaper than a pass per inner step."""
        from scipy.linalg import cho_solve

        units = self.units.ravel()
        hessian = second * np.outer(units, units)
        np.einsum("ii->i", hessian)[:] += np.repeat(self.ridge[:, 0], shape[1])
        hessian[: shape[1], : shape[1]] -= self.ridge[0, 0] / shape[1]
        factor = _positive_factor(hessian)
        return (
            lambda direction: (hessian @ direction.ravel()).reshape(shape),
            lambda vector: cho_solve(factor, vector.ravel(), check_finite=False).reshape(shape),
        )

    def _block_solver(self, blocks: np.ndarray) -> Operator:
        """Solves the 2×2 system of each class: the part of the Hessian that does not couple classes."""
        unit, with_bias = self.units
        own = blocks[[0, 2]] * np.stack([unit**2, np.ones_like(unit)]) + self.ridge
        # a class that never gets probability has no curvature of its own; a floor keeps its step bounded
        own_scale, own_bias = np.maximum(own, 1e-3 * own.max(axis=1, keepdims=True) + 1e-12)
        limit = 0.999 * np.sqrt(own_scale * own_bias)
        cross = with_bias * np.clip(unit * blocks[1], -limit, limit)
        determinant = own_scale * own_bias - cross * cross

        def solve(vector: np.ndarray) -> np.ndarray:
            by_scale = own_bias * vector[0] - cross * vector[1]
            by_bias = own_scale * vector[1] - cross * vector[0]
            return np.stack([by_scale, by_bias]) / determinant

        return solve


def _positive_factor(hessian: np.ndarray) -> tuple[np.ndarray, bool]:
    """Cholesky factor of the Hessian and as little on its diagonal as makes it positive.

    The common shift of all biases is flat, and rounding may bend it the wrong way.
    """
    from scipy.linalg import LinAlgError, cho_factor

    diagonal = np.maximum(np.diag(hessian), 0.0)
    for share in (1e-6, 1e-4, 1e-2):
        try:
            extra = np.diag(share * (diagonal + 1e-3 * diagonal.mean()) + 1e-12)
            return cho_factor(hessian + extra, overwrite_a=True, check_finite=False)
        except LinAlgError:
            continue
    return cho_factor(np.diag(diagonal + 1e-3 * diagonal.mean() + 1e-12))
