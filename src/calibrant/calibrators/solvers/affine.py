"""A matrix and a bias, W·x + b: the penalised Newton problem that several methods share."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.calibrators.solvers.newton import Operator, Solution, newton_cg
from calibrant.calibrators.temperature import fit_inverse_temperature
from calibrant.core.blas import one_blas_thread
from calibrant.core.rows import Rows, Statistic, in_float64
from calibrant.kernels.affine import affine_product, affine_sums, class_moments, feature_moments
from calibrant.kernels.scaling import column_moments

BLOCK_CLASSES = 256
"""Up to this many classes the preconditioner keeps a block of (K+1)² numbers for each."""


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
    objective = AffineObjective(rows, ridge, log_probabilities)
    with one_blas_thread():
        precise, unit = (None, 1.0) if loose else (objective.precise(), max(1.0, 1.0 / _typical_size(rows)))
        solution = newton_cg(objective, start, tolerance=tolerance, precise=precise, unit=unit)
    matrix, bias = solution.point[:, :-1], solution.point[:, -1]
    return matrix, bias - bias.mean() if ridge.bias == 0 else bias, solution


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
        twin.sums, twin.times = in_float64(affine_sums), in_float64(affine_product)
        return twin

    def evaluate(self, point: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Loss, gradient and the mean of q(1−q) of each class."""
        loss, gradient, spread = self.rows.total(self.sums, point, self.log_probabilities)
        pull = self.ridge.times(point)
        return loss / self.total + 0.5 * float(np.vdot(point, pull)), gradient / self.total + pull, spread / self.total

    def curvature(self, point: np.ndarray, spread: np.ndarray) -> tuple[Operator, Operator]:
        """The Hessian's product, and the inverse of what it is without the coupling of classes."""

        def product(direction: np.ndarray) -> np.ndarray:
            (curved,) = self.rows.total(self.times, point, self.log_probabilities, direction)
            return curved / self.total + self.ridge.times(direction)

        if self.rows.n_classes > BLOCK_CLASSES:
            return product, self._kronecker_solver(spread)
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

    def _kronecker_solver(self, spread: np.ndarray) -> Operator:
        """The inverse of spread ⊗ E[x̃·x̃ᵀ] + ridge: for many classes, where a block each would not fit."""
        if "modes" not in self.solver:
            self.solver["modes"] = self._feature_modes(spread)
        values, vectors, squares = self.solver["modes"]
        spread = np.maximum(spread, 1e-3 * spread.max() + 1e-12)
        inverse = 1.0 / (spread[:, None] * values + 1.0)
        # the diagonal has a ridge of its own, often none: with the step of the others it would crawl
        own = spread * squares + self.ridge.diagonal
        own += 1e-6 * own.mean() + 1e-12

        def solve(vector: np.ndarray) -> np.ndarray:
            solved = (inverse * (vector @ vectors)) @ vectors.T
            np.einsum("jj->j", solved[:, :-1])[:] += np.einsum("jj->j", vector[:, :-1]) / own
            return solved

        return solve

    def _feature_modes(self, spread: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Values and vectors that make E[x̃·x̃ᵀ] diagonal and the ridge one, and the mean square of each logit."""
        (moments,) = self.rows.total(feature_moments, self.log_probabilities)
        moments /= self.total
        squares = np.diag(moments)
        ridge = np.full(len(moments), self.ridge.off_diagonal)
        ridge[-1] = self.ridge.bias
        ridge += 1e-6 * spread.mean() * squares + 1e-12
        root = np.sqrt(ridge)
        values, vectors = np.linalg.eigh(moments / np.outer(root, root))
        return np.maximum(values, 0.0), vectors / root[:, None], squares[:-1]
