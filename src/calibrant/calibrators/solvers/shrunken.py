"""Many small logistic regressions at once, each pulled to the fit of all of them together.

Label l has the columns x (d, L, n)[:, l] and its own parameters θ_l = (slopes, intercept). The pooled fit θ₀ treats
every (row, label) as a row. θ_l minimises Σ_i w_i·log-loss + ½·k·(θ_l − θ₀)ᵀ·M·(θ_l − θ₀), with M the curvature of the
pooled log loss per unit of Σ p(1 − p): k is measured in such units, so that a label with Σ p(1 − p) = k lies about
halfway between the pooled fit and its own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from calibrant.core.arrays import Array
from calibrant.core.softmax import softplus
from calibrant.core.threads import map_blocks, row_blocks
from calibrant.kernels.logistic import Pull, batch_sums, fit_logistic, logistic_sums, newton

BLOCK_ELEMENTS = 1 << 16


class Labelled(NamedTuple):
    """Columns (d, L, n), labels (L, n) of 0.0 and 1.0, row weights (n,) or None, and whether slopes stay above 0."""

    columns: Array
    labels: Array
    weights: Array | None
    non_negative: bool

    def take_rows(self, rows: Array) -> Labelled:
        """Some rows."""
        weights = None if self.weights is None else self.weights[rows]
        return Labelled(
            np.ascontiguousarray(self.columns[:, :, rows]), self.labels[:, rows], weights, self.non_negative
        )

    def pooled(self) -> Pull:
        """The fit of all labels together (d + 1,), and the metric M (d + 1, d + 1) of a pull to it."""
        flat = self.columns.reshape(len(self.columns), -1)
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
        return Pull(point, metric + 1e-9 * np.diag(np.diag(metric)))


def fit_labels(
    data: Labelled, pooled: Pull, strength: float, start: Array | None = None, *, tolerance: float = 1e-6
) -> Array:
    """Parameters of every label (L, d + 1) at a strength of the pull; infinity gives the pooled ones."""
    n_labels = len(data.labels)
    alike = np.tile(pooled.centre, (n_labels, 1))
    if np.isinf(strength):
        return alike
    pull = strength * pooled.strength
    lower = np.append(np.full(len(data.columns), 0.0 if data.non_negative else -np.inf), -np.inf)
    columns = data.columns.transpose(1, 0, 2)

    def evaluate(points: Array, which: Array) -> tuple[Array, Array, Array]:
        def part(block):
            chosen = block if len(which) == n_labels else which[block]
            return batch_sums(columns[chosen], data.labels[chosen], data.weights, points[block])

        # the blocks are of labels, so that no sum depends on how many threads there are
        parts = map_blocks(part, row_blocks(len(which), data.labels.shape[1], BLOCK_ELEMENTS))
        loss, gradient, hessian = (np.concatenate(one) for one in zip(*parts, strict=True))
        offset = points - pooled.centre
        bent = offset @ pull
        return loss + 0.5 * (bent * offset).sum(axis=1), gradient + bent, hessian + pull

    return newton(evaluate, alike if start is None else start, lower, gap=tolerance**2)[0]


def summed_losses(data: Labelled, points: Array) -> Array:
    """Weighted sum of the log loss of each label (L,)."""
    score = np.einsum("dln,ld->ln", data.columns, points[:, :-1]) + points[:, -1:]
    losses = softplus(score) - data.labels * score
    return losses.sum(axis=1) if data.weights is None else losses @ data.weights
