"""Many small logistic regressions at once, each pulled to the fit of all of them together.

Label l has the columns x (d, L, n)[:, l] and its own parameters θ_l = (slopes, intercept). The pooled fit θ₀ treats
every (row, label) as a row. θ_l minimises Σ_i w_i·log-loss + ½·k·(θ_l − θ₀)ᵀ·M·(θ_l − θ₀), with M the curvature of the
pooled log loss per unit of Σ p(1 − p): k is measured in such units, so that a label with Σ p(1 − p) = k lies about
halfway between the pooled fit and its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrant.core.threads import map_blocks, row_blocks
from calibrant.kernels.logistic import fit_logistic, logistic_sums

BLOCK_ELEMENTS = 1 << 16
MAX_STEPS = 50


@dataclass(frozen=True)
class Labelled:
    """Columns (d, L, n), labels (L, n) of 0.0 and 1.0, row weights (n,) or None, and whether slopes stay above 0."""

    columns: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None
    non_negative: bool

    def take_rows(self, rows: np.ndarray) -> Labelled:
        """Some rows."""
        weights = None if self.weights is None else self.weights[rows]
        return Labelled(
            np.ascontiguousarray(self.columns[:, :, rows]), self.labels[:, rows], weights, self.non_negative
        )

    def take_labels(self, labels: np.ndarray | slice) -> Labelled:
        """Some labels."""
        return Labelled(self.columns[:, labels], self.labels[labels], self.weights, self.non_negative)

    def pooled(self) -> Pooled:
        """The fit of all labels together."""
        size = len(self.columns)
        flat = self.columns.reshape(size, -1)
        labels = self.labels.reshape(-1)
        weights = None if self.weights is None else np.tile(self.weights, len(self.labels))
        rate = float(np.average(labels, weights=weights))
        if rate in (0.0, 1.0):
            # nothing to learn a slope from: half a (row, label) of the other kind
            total = float(len(labels)) if weights is None else float(weights.sum())
            labels = np.clip(labels, 0.5 / total, 1 - 0.5 / total)
        point = fit_logistic(flat, labels, weights, non_negative=self.non_negative).point
        hessian = logistic_sums(flat, labels, weights, point)[2]
        metric = hessian / hessian[-1, -1]
        return Pooled(point, metric + 1e-9 * np.diag(np.diag(metric)))


@dataclass(frozen=True)
class Pooled:
    """The pooled parameters (d + 1,) and the metric M (d + 1, d + 1) of the pull."""

    point: np.ndarray
    metric: np.ndarray


def fit_labels(
    data: Labelled, pooled: Pooled, strength: float, start: np.ndarray | None = None, *, tolerance: float = 1e-6
) -> np.ndarray:
    """Parameters of every label (L, d + 1) at a strength of the pull; infinity gives the pooled ones."""
    n_labels = len(data.labels)
    begin = np.tile(pooled.point, (n_labels, 1)) if start is None else start
    if np.isinf(strength):
        return np.tile(pooled.point, (n_labels, 1))

    def part(block: slice) -> np.ndarray:
        return _newton(data.take_labels(block), pooled, strength, begin[block], tolerance)

    return np.concatenate(map_blocks(part, row_blocks(n_labels, data.labels.shape[1], BLOCK_ELEMENTS)))


def scores_of(columns: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Calibrated log-odds (L, n)."""
    result = columns[0] * points[:, 0, None]
    for j in range(1, len(columns)):
        result += columns[j] * points[:, j, None]
    result += points[:, -1, None]
    return result


def summed_losses(data: Labelled, points: np.ndarray) -> np.ndarray:
    """Weighted sum of the log loss of each label (L,)."""
    score = scores_of(data.columns, points)
    losses = np.maximum(score, 0.0) + np.log1p(np.exp(-np.abs(score))) - data.labels * score
    return losses.sum(axis=1) if data.weights is None else losses @ data.weights


def _sums(data: Labelled, points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log loss (L,), gradient (L, d + 1) and Hessian (L, d + 1, d + 1) of every label."""
    size = len(data.columns)
    score = scores_of(data.columns, points)
    small = np.exp(-np.abs(score))
    share = 1.0 / (1.0 + small)
    losses = np.maximum(score, 0.0) - np.log(share) - data.labels * score
    residual = np.where(score >= 0, share, small * share) - data.labels
    curvature = small * share * share
    if data.weights is not None:
        losses, residual, curvature = losses * data.weights, residual * data.weights, curvature * data.weights
    gradient = np.empty((len(points), size + 1))
    hessian = np.empty((len(points), size + 1, size + 1))
    for j in range(size):
        gradient[:, j] = np.einsum("ln,ln->l", data.columns[j], residual)
        bent = data.columns[j] * curvature
        for k in range(j + 1):
            hessian[:, j, k] = hessian[:, k, j] = np.einsum("ln,ln->l", bent, data.columns[k])
        hessian[:, j, size] = hessian[:, size, j] = bent.sum(axis=1)
    gradient[:, size] = residual.sum(axis=1)
    hessian[:, size, size] = curvature.sum(axis=1)
    return losses.sum(axis=1), gradient, hessian


def _newton(data: Labelled, pooled: Pooled, strength: float, start: np.ndarray, tolerance: float) -> np.ndarray:
    lower = np.append(np.full(len(data.columns), 0.0 if data.non_negative else -np.inf), -np.inf)
    pull = strength * pooled.metric
    points = np.maximum(start, lower)

    def evaluate(at: np.ndarray, of: Labelled) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        loss, gradient, hessian = _sums(of, at)
        offset = at - pooled.point
        bent = offset @ pull
        return loss + 0.5 * (bent * offset).sum(axis=1), gradient + bent, hessian + pull

    # labels that have arrived leave, so that a few hard ones do not hold up the rest
    moving, own = np.arange(len(points)), data
    value, gradient, hessian = evaluate(points, own)
    for _ in range(MAX_STEPS):
        here = points[moving]
        direction = _directions(here, gradient, hessian, lower)
        length = np.ones(len(moving))
        for _ in range(30):
            candidate = np.maximum(here + length[:, None] * direction, lower)
            found = evaluate(candidate, own)
            worse = found[0] > value + 1e-10 * np.abs(value)
            if not worse.any():
                break
            length[worse] *= 0.5
        points[moving] = candidate
        spread = np.abs(candidate - here) * np.sqrt(np.diag(pooled.metric))
        still = spread.max(axis=1) > tolerance
        if not still.any():
            break
        value, gradient, hessian = found[0][still], found[1][still], found[2][still]
        if not still.all():
            moving, own = moving[still], own.take_labels(still)
    return points


def _directions(points: np.ndarray, gradient: np.ndarray, hessian: np.ndarray, lower: np.ndarray) -> np.ndarray:
    """The step of every label to the minimum of its local parabola, with no coordinate below its bound."""
    index = np.arange(len(lower))
    held = (points <= lower) & (gradient > 0)
    while True:
        direction = np.where(held, np.where(held, lower, 0.0) - np.where(held, points, 0.0), 0.0)
        slope = gradient + np.einsum("ljk,lk->lj", hessian, direction)
        inner = np.where(held[:, :, None] | held[:, None, :], 0.0, hessian)
        inner[:, index, index] += np.where(held, 1.0, 0.0)
        direction -= np.linalg.solve(inner, np.where(held, 0.0, slope)[:, :, None])[:, :, 0]
        crossing = ~held & (points + direction < lower)
        if not crossing.any():
            return direction
        held |= crossing
