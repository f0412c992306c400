"""The convex problem of joint scaling: a walk over penalties, warm starts, and a preconditioner per class."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from calibrant.calibrators.solvers.diagonal import common_unit
from calibrant.calibrators.solvers.newton import Operator, Solution, newton_cg
from calibrant.core.rows import Rows
from calibrant.core.softmax import log_softmax, softmax

FLOOR = 0.01
"""Probabilities well below this say nothing about other classes."""

BLOCK_CLASSES = 40
"""Up to this many classes the preconditioner keeps a block of (2K+1)² numbers for each."""

BASE_RIDGE = 100.0
"""Penalty of the biases that are fitted with the temperature, before the matrices."""

MAX_STEPS, ENOUGH = 60, 1e-7


class Penalties(NamedTuple):
    """Of the squares of the confusion matrix, the off-diagonal of the logit matrix, the class scales and the biases."""

    confusion: float
    linear: float
    scale: float
    bias: float


def fit_base(rows: Rows) -> tuple[float, np.ndarray]:
    """One inverse temperature and a bias per class (K,), weakly shrunk: softmax(β·z̄ + b).

    A temperature alone is misled where a network prefers some class throughout: it then flattens everything.
    """
    centred, n_classes = _centred(rows.logits), rows.n_classes
    weights = _weights(rows)
    unit = common_unit(rows)
    scaled = centred * unit
    every, ridge = np.arange(rows.n), BASE_RIDGE
    point = np.append(1.0, np.zeros(n_classes))

    def value(candidate: np.ndarray) -> tuple[float, np.ndarray]:
        scores = log_softmax(scaled * candidate[0] + candidate[1:])
        pull = 0.5 * ridge * float(candidate[1:] @ candidate[1:])
        return pull - float(weights @ scores[every, rows.labels]), np.exp(scores)

    objective, chance = value(point)
    for _ in range(MAX_STEPS):
        residual = chance * weights[:, None]
        spread = residual.copy()
        residual[every, rows.labels] -= weights
        gradient = np.append((residual * scaled).sum(), residual.sum(axis=0) + ridge * point[1:])
        mean = (chance * scaled).sum(axis=1, keepdims=True)
        hessian = np.empty((n_classes + 1, n_classes + 1))
        hessian[0, 0] = (spread * (scaled - mean) ** 2).sum() + 1e-9
        hessian[0, 1:] = hessian[1:, 0] = (spread * (scaled - mean)).sum(axis=0)
        hessian[1:, 1:] = np.diag(spread.sum(axis=0) + ridge) - spread.T @ chance
        direction = -np.linalg.solve(hessian, gradient)
        decrease = -float(gradient @ direction)
        if decrease <= ENOUGH:
            break
        length = 1.0
        while length > 1e-9:
            found = value(point + length * direction)
            if found[0] <= objective - 1e-4 * length * decrease:
                break
            length /= 4
        else:
            break
        point, (objective, chance) = point + length * direction, found
    # a negative slope would reverse the network's ranking: the rest of the fit can do that where it lowers the loss
    return max(point[0], 1e-3) * unit, point[1:]


def inputs(logits: np.ndarray, unit: float, dtype: type) -> np.ndarray:
    """What a point is multiplied with, n×(2K+1): log(1 + p/0.01), the centred logits over the temperature, and 1."""
    scaled = _centred(logits) * unit
    columns = [np.log1p(softmax(scaled) / FLOOR), scaled, np.ones((len(scaled), 1))]
    return np.concatenate(columns, axis=1).astype(dtype)


class Walker:
    """Walks a path of penalties over some rows, each fit starting where the last one ended."""

    def __init__(self, rows: Rows, tolerance: float, dtype: type) -> None:
        self.rows, self.tolerance = rows, tolerance
        self.unit, self.offset = fit_base(rows)
        self.features = inputs(rows.logits, self.unit, dtype)
        n_classes = rows.n_classes
        self.point = np.zeros((n_classes, 2 * n_classes + 1))
        np.einsum("jj->j", self.point[:, n_classes:-1])[:] = 1.0
        self.point[:, -1] = self.offset
        self.blocks: np.ndarray | None = None

    def step(self, penalties: Penalties | None) -> Solution | None:
        """Move to the optimum at these penalties; at None the base stays as it is."""
        if penalties is None:
            return None
        objective = JointObjective(self, penalties)
        solution = newton_cg(objective, self.point, tolerance=self.tolerance)
        self.point = solution.point
        return solution

    def answer(self, logits: np.ndarray) -> np.ndarray:
        """Scores of other rows at the present point."""
        return scores_at(inputs(logits, self.unit, self.features.dtype.type), self.point)


def scores_at(features: np.ndarray, point: np.ndarray) -> np.ndarray:
    """C·evidence + A·z̄ + b for a point (C | A | b)."""
    return features @ point.astype(features.dtype, copy=False).T


class JointObjective:
    """Mean NLL plus the ridge over points (C | A | b), K×(2K+1)."""

    def __init__(self, walker: Walker, penalties: Penalties) -> None:
        rows = walker.rows
        self.walker, self.features, self.labels = walker, walker.features, rows.labels
        self.n_classes, total = rows.n_classes, rows.total_weight
        self.weights = (_weights(rows) / total).astype(self.features.dtype)
        ridge = np.empty(walker.point.shape)
        ridge[:, : self.n_classes] = penalties.confusion
        ridge[:, self.n_classes : -1] = penalties.linear
        self._diagonal(ridge)[:] = penalties.scale
        ridge[:, -1] = penalties.bias
        self.ridge = 2 * ridge / total
        self.inverses: np.ndarray | None = None

    def evaluate(self, point: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Loss, gradient and the probabilities at a point."""
        scores = scores_at(self.features, point)
        scores -= scores.max(axis=1, keepdims=True)
        every = np.arange(len(scores))
        own = scores[every, self.labels]
        np.exp(scores, out=scores)
        total = scores.sum(axis=1)
        loss = float(self.weights.astype(np.float64) @ (np.log(total, dtype=np.float64) - own))
        scores /= total[:, None]
        moved = point.copy()
        moved[:, -1] -= self.walker.offset
        departure = self._departure(moved)
        residual = scores * self.weights[:, None]
        residual[every, self.labels] -= self.weights
        pull = self.ridge * departure
        return loss + 0.5 * float(np.vdot(departure, pull)), self._contract(residual) + pull, scores

    def curvature(self, point: np.ndarray, reuse: np.ndarray) -> tuple[Operator, Operator]:
        """The Hessian's product, and the inverse of its blocks per class (for many classes, of its diagonal)."""
        guess, weights = reuse, self.weights[:, None]

        def product(direction: np.ndarray) -> np.ndarray:
            change = scores_at(self.features, direction)
            change -= np.einsum("ij,ij->i", guess, change)[:, None]
            change *= guess
            change *= weights
            return self._contract(change) + self.ridge * self._departure(direction)

        if self.n_classes <= BLOCK_CLASSES:
            return product, self._block_solver(guess)
        spread = guess * (1 - guess) * weights
        inverse = 1.0 / (spread.T @ self.features**2 + self.ridge + 1e-12)
        return product, lambda vector: inverse * vector

    def _block_solver(self, guess: np.ndarray) -> Operator:
        """The blocks are taken where the walk begins: what inverts the Hessian there nearly does so later."""
        if self.walker.blocks is None:
            spread, wide = guess * (1 - guess) * self.weights[:, None], self.features
            self.walker.blocks = np.stack([wide.T @ (wide * one[:, None]) for one in spread.T]).astype(np.float64)
        if self.inverses is None:
            blocks = self.walker.blocks.copy()
            diagonal = np.einsum("jkk->jk", blocks)
            diagonal += self.ridge + 1e-6 * diagonal.mean() + 1e-12
            self.inverses = np.linalg.inv(blocks)
        inverses = self.inverses
        return lambda vector: np.matmul(inverses, vector[:, :, None])[:, :, 0]

    def _diagonal(self, point: np.ndarray) -> np.ndarray:
        return np.einsum("jj->j", point[:, self.n_classes : -1])

    def _departure(self, point: np.ndarray) -> np.ndarray:
        """The point with the mean of its scales taken off: what the ridge shrinks."""
        departure = point.copy()
        diagonal = self._diagonal(departure)
        diagonal -= diagonal.mean()
        return departure

    def _contract(self, residual: np.ndarray) -> np.ndarray:
        return (residual.T @ self.features).astype(np.float64)


def _weights(rows: Rows) -> np.ndarray:
    return np.ones(rows.n) if rows.weights is None else rows.weights


def _centred(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    return wide - wide.mean(axis=1, keepdims=True)
