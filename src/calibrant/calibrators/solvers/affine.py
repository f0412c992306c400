"""A matrix and a bias, W·x + b: the penalised Newton problem that several methods share."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from calibrant.calibrators.solvers.inverse_temperature import fit_inverse_temperature
from calibrant.calibrators.solvers.newton import Operator, Solution, newton_cg
from calibrant.core.blas import one_blas_thread
from calibrant.core.rows import Rows
from calibrant.core.softmax import log_softmax
from calibrant.core.statistic import Statistic, add
from calibrant.core.threads import map_blocks, row_blocks
from calibrant.kernels.affine import (
    affine_curvature,
    affine_product,
    affine_state,
    affine_sums,
    class_means,
    class_means_of,
    class_moments,
)
from calibrant.kernels.scaling import column_moments

BLOCK_CLASSES = 256
"""Up to this many classes the preconditioner keeps a block of (K+1)² numbers for each."""

KEPT_CLASSES, KEPT_ELEMENTS = 64, 1 << 26
"""From this many classes and up to this many logits, features and probabilities are kept from one product to the next.

With fewer classes they are quickly computed again; with more logits they would fill the memory.
"""


@dataclass(frozen=True)
class Ridge:
    """Half-squared penalties: ½·(off_diagonal·Σ_{i≠j} w² + diagonal·Σ (w_jj − mean w_jj)² + bias·Σ b²)."""

    off_diagonal: float
    bias: float
    diagonal: float = 0.0

    @classmethod
    def odir(cls, off_diagonal: float, bias: float, n_classes: int) -> Ridge:
        """The ridge whose value is λ·mean_{i≠j} w² + μ·mean b²."""
        return cls(2 * off_diagonal / (n_classes * (n_classes - 1)), 2 * bias / n_classes)

    def times(self, point: np.ndarray) -> np.ndarray:
        """The gradient of the penalty at a point K×(K+1); it is linear."""
        result = self.off_diagonal * point
        diagonal = np.einsum("jj->j", point[:, :-1])
        np.einsum("jj->j", result[:, :-1])[:] = self.diagonal * (diagonal - diagonal.mean())
        result[:, -1] = self.bias * point[:, -1]
        return result


def fit_affine(
    rows: Rows,
    ridge: Ridge,
    *,
    log_probabilities: bool = False,
    start: np.ndarray | None = None,
    tolerance: float | None = None,
) -> tuple[np.ndarray, np.ndarray, Solution]:
    """W (K×K) and b (K,) of the lowest mean NLL of softmax(W·x + b) plus the ridge."""
    if start is None:
        start = np.zeros((rows.n_classes, rows.n_classes + 1))
        np.fill_diagonal(start, fit_inverse_temperature(rows).value)
    loose = tolerance is not None
    if tolerance is None:
        logits = getattr(rows, "logits", None)
        tolerance = 1e-9 if logits is not None and logits.dtype == np.float64 else 5e-8
    with one_blas_thread():
        objective = _objective(rows, ridge, log_probabilities)
        precise, unit = (None, 1.0) if loose else (objective.precise(), max(1.0, 1.0 / _typical_size(rows)))
        solution = newton_cg(objective, start, tolerance=tolerance, precise=precise, unit=unit)
    matrix, bias = solution.point[:, :-1], solution.point[:, -1]
    return matrix, bias - bias.mean() if ridge.bias == 0 else bias, solution


def _objective(rows: Rows, ridge: Ridge, log_probabilities: bool) -> AffineObjective:
    large = rows.n_classes >= KEPT_CLASSES and rows.n * rows.n_classes <= KEPT_ELEMENTS
    kind = KeptObjective if rows.in_memory and large else AffineObjective
    return kind(rows, ridge, log_probabilities)


def _sum(parts: Sequence[np.ndarray]) -> np.ndarray:
    return reduce(np.add, parts)


def _typical_size(rows: Rows) -> float:
    """The median over classes of the mean absolute logit, and 1 where all are 0."""
    _, sizes, _ = rows.total(column_moments)
    return float(np.median(sizes)) / rows.total_weight or 1.0


class AffineObjective:
    """Mean NLL of softmax(W·x + b) plus a ridge, over points (W | b), K×(K+1)."""

    def __init__(self, rows: Rows, ridge: Ridge, log_probabilities: bool) -> None:
        self.rows = rows
        self.ridge = ridge
        self.log_probabilities = log_probabilities
        self.total = rows.total_weight
        self.sums: Statistic = affine_sums
        self.times: Statistic = affine_product
        self.solver: dict[str, Any] = {}

    def precise(self) -> AffineObjective:
        """The same objective with float64 sums; what nearly inverts the Hessian is computed once for both."""
        twin = copy(self)
        twin.sums, twin.times = affine_sums.in_float64(), affine_product.in_float64()
        return twin

    def evaluate(self, point: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Loss, gradient and the mean of q(1−q) of each class."""
        loss, gradient, spread = self.rows.total(self.sums, point, self.log_probabilities)
        pull = self.ridge.times(point)
        return loss / self.total + 0.5 * float(np.vdot(point, pull)), gradient / self.total + pull, spread / self.total

    def curvature(self, point: np.ndarray, reuse: Any) -> tuple[Operator, Operator]:
        """The Hessian's product, and the inverse of what it is without the coupling of classes."""

        def product(direction: np.ndarray) -> np.ndarray:
            (curved,) = self.rows.total(self.times, point, self.log_probabilities, direction)
            return curved / self.total + self.ridge.times(direction)

        if self.rows.n_classes > BLOCK_CLASSES:
            return product, self._mean_solver(point, reuse)
        if "blocks" not in self.solver:
            # the start is a temperature away from the optimum: what inverts the Hessian there nearly does so later
            self.solver["blocks"] = self._block_solver(point)
        return product, self.solver["blocks"]

    def _own_ridge(self) -> np.ndarray:
        """The ridge on each class's row of (W | b), K×(K+1), with a floor that keeps every block invertible."""
        n_classes = self.rows.n_classes
        ridge = np.full((n_classes, n_classes + 1), self.ridge.off_diagonal)
        np.fill_diagonal(ridge, self.ridge.diagonal)
        ridge[:, -1] = self.ridge.bias
        return ridge

    def _block_solver(self, point: np.ndarray) -> Operator:
        (blocks,) = self.rows.total(class_moments, point, self.log_probabilities)
        blocks /= self.total
        diagonal = np.einsum("jkk->jk", blocks)
        # a class that never gets probability has no curvature of its own; a floor keeps its step bounded
        floor = 1e-6 * diagonal + 1e-4 * diagonal.mean(axis=0) + 1e-12
        diagonal += self._own_ridge() + floor
        inverses = np.linalg.inv(blocks)
        return lambda vector: np.matmul(inverses, vector[:, :, None])[:, :, 0]

    def _class_means(self, point: np.ndarray, reuse: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.rows.total(class_means, point, self.log_probabilities)

    def _mean_solver(self, point: np.ndarray, reuse: Any) -> Operator:
        """The inverse of a block per class of the form diagonal + rank one: for many classes.

        Where class j has curvature, its features have a mean and variances around it; both differ much between classes,
        because a class is in doubt where its own logit is high. Correlations beyond the mean are left out.
        """
        spread, first, second = (one / self.total for one in self._class_means(point, reuse))
        mass = spread + 1e-6 * spread.mean() + 1e-30
        mean, own = np.ones((len(mass), len(mass) + 1)), self._own_ridge() + 1e-6 * mass[:, None] + 1e-12
        mean[:, :-1] = first / mass[:, None]
        own[:, :-1] += np.maximum(second - mass[:, None] * mean[:, :-1] ** 2, 1e-3 * second)
        inverse = 1.0 / own
        pulled = inverse * mean
        scale = mass / (1.0 + mass * np.einsum("jk,jk->j", mean, pulled))

        def solve(vector: np.ndarray) -> np.ndarray:
            return inverse * vector - pulled * (scale * np.einsum("jk,jk->j", pulled, vector))[:, None]

        return solve


class KeptObjective(AffineObjective):
    """The same with features and probabilities kept: a product with the Hessian is then two matrix products."""

    def __init__(self, rows: Rows, ridge: Ridge, log_probabilities: bool) -> None:
        super().__init__(rows, ridge, log_probabilities)
        self.blocks = row_blocks(rows.n, rows.n_classes)
        self.features = rows.logits
        if log_probabilities:
            self.features = np.concatenate(map_blocks(lambda block: log_softmax(rows.logits[block]), self.blocks))

    def _of(self, block: slice) -> tuple[np.ndarray, np.ndarray | None]:
        weights = self.rows.weights
        return self.features[block], None if weights is None else weights[block]

    def _class_means(self, point: np.ndarray, reuse: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        def part(place: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            return class_means_of(*self._of(self.blocks[place]), reuse[1][place])

        return reduce(add, map_blocks(part, range(len(self.blocks))))

    def evaluate(self, point: np.ndarray) -> tuple[float, np.ndarray, Any]:
        """Loss, gradient, and the mean of q(1−q) of each class with the probabilities q of every block."""

        def part(block: slice) -> tuple[Any, ...]:
            features, weights = self._of(block)
            return affine_state(features, self.rows.labels[block], weights, point)

        losses, gradients, spreads, probabilities = zip(*map_blocks(part, self.blocks), strict=True)
        pull = self.ridge.times(point)
        loss = sum(losses) / self.total + 0.5 * float(np.vdot(point, pull))
        return loss, _sum(gradients) / self.total + pull, (_sum(spreads) / self.total, probabilities)

    def curvature(self, point: np.ndarray, reuse: Any) -> tuple[Operator, Operator]:
        """The Hessian's product from the kept probabilities, and the same preconditioner."""
        probabilities = reuse[1]
        _, solve = super().curvature(point, reuse)

        def product(direction: np.ndarray) -> np.ndarray:
            def part(place: int) -> np.ndarray:
                return affine_curvature(*self._of(self.blocks[place]), probabilities[place], direction)

            return _sum(map_blocks(part, range(len(self.blocks)))) / self.total + self.ridge.times(direction)

        return product, solve

    def precise(self) -> AffineObjective:
        """Float64 sums for loss and gradient; products only lead to the optimum, and stay as they are."""
        twin = PreciseObjective(self.rows, self.ridge, self.log_probabilities)
        twin.solver, twin.features = self.solver, self.features
        return twin


class PreciseObjective(KeptObjective):
    """Loss and gradient in float64, products from probabilities in the precision of the logits."""

    def __init__(self, rows: Rows, ridge: Ridge, log_probabilities: bool) -> None:
        AffineObjective.__init__(self, rows, ridge, log_probabilities)
        self.blocks = row_blocks(rows.n, rows.n_classes)
        self.sums = affine_sums.in_float64()

    def evaluate(self, point: np.ndarray) -> tuple[float, np.ndarray, Any]:
        """Loss, gradient and the mean of q(1−q) of each class."""
        return AffineObjective.evaluate(self, point)

    def curvature(self, point: np.ndarray, reuse: Any) -> tuple[Operator, Operator]:
        """As in `KeptObjective`, at the cost of one more evaluation."""
        return super().curvature(point, KeptObjective.evaluate(self, point)[2])
