"""A bent line in the logit of a binary score: many small penalised logistic fits, solved at the same time."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np
from scipy.special import expit, ndtri

from calibrant.core.rows import Rows
from calibrant.kernels.logistic import batch_sums, newton

LINEAR = (1.0, 10.0, 1e3, 1e5)
"""Penalties of the change of the slope."""

BEND = (0.1, 1.0, 10.0, 100.0, 1e3, 1e5)
"""Penalties of the bends."""

INTERCEPT = (1.0, 30.0, 1000.0)
"""Penalties of the intercept; the least keeps the fit finite where all labels are equal."""

BREAKS = (-1.8, -1.2, -0.6, 0.0, 0.6, 1.2, 1.8)
"""Where the map may bend, in standard deviations of the normal score."""

TEMPER = 0.65
"""The weight of a triple of penalties is exp(−TEMPER·excess of its held-out loss), times its prior."""

STRAIGHT = 0.15
"""The prior of a triple grows with this power of the penalty of its bends: few rows rarely pay for bends."""

ENOUGH = 1e-6
"""Summed log loss that a fit may still gain before its last step."""

PRIOR_ROWS = 10.0
"""Each step of the isotonic fit is averaged with this many rows that follow the smooth map.

They are rows of probability ½. Where positives are rare, a row carries less information, and ¼ / (p·(1 − p)) times as
many are taken.
"""

SHARE, SHARE_ROWS = 0.2, 20.0
"""The share of the steps before any row is seen, and how many rows, counted as above, that prior is worth."""

LARGEST = 1 - 1e-12

MAX_ROUNDS, SETTLED = 200, 1e-5
"""Of the EM algorithm for the share of the steps: its most rounds, and the change at which it ends."""


class Cells(NamedTuple):
    """Rows grouped by score: between two knots every map that is fitted here is a line."""

    knots: np.ndarray
    place: np.ndarray
    scores: np.ndarray
    masses: np.ndarray
    features: np.ndarray
    knot_features: np.ndarray


def fit_bend(rows: Rows, fold: np.ndarray, n_knots: int) -> tuple[np.ndarray, np.ndarray]:
    """Knots and non-decreasing values: fits of all penalties, averaged by held-out log loss, pooled with steps."""
    cells = group_rows(rows, n_knots)
    n_folds = int(fold.max()) + 1
    by_fold = np.stack([_counts(rows, cells, fold == part) for part in range(n_folds)])
    total = by_fold.sum(axis=0)
    counts = np.concatenate([total - by_fold, total[None]])
    ridge = np.array(
        [[first, second, *[bend] * len(BREAKS)] for first, second, bend in product(INTERCEPT, LINEAR, BEND)]
    )
    problems = np.repeat(np.arange(len(counts)), len(ridge))
    points = solve(cells.features, cells.scores, counts[problems], np.tile(ridge, (len(counts), 1)))
    points = points.reshape(len(counts), len(ridge), -1)
    held_out = cells.scores + points[:n_folds] @ cells.features.T
    losses = np.array([_losses(held_out[part], by_fold[part]) for part in range(n_folds)]).sum(axis=0)
    averages = np.tensordot(_weights(losses, ridge), points, axes=(0, 1))
    smooth = cells.scores + averages @ cells.features.T
    smooth = np.stack([isotonic(one, given.sum(axis=0) + 1e-9) for one, given in zip(smooth, counts, strict=True)])
    # steps are constant between knots: what they add to the smooth map is interpolated between the cells' means
    added = np.interp(cells.knots, cells.scores, pooled(smooth, counts, by_fold) - smooth[-1])
    values = isotonic(cells.knots + cells.knot_features @ averages[-1], cells.masses + 1e-9)
    return cells.knots, isotonic(values + added, cells.masses + 1e-9)


def group_rows(rows: Rows, n_knots: int) -> Cells:
    """Knots at evenly spaced quantiles of the weight, and the rows between two of them as one."""
    scores = rows.logits.astype(np.float64)
    weights = np.ones(rows.n) if rows.weights is None else rows.weights
    values, which = np.unique(scores, return_inverse=True)
    mass = np.bincount(which, weights=weights)
    values, mass = values[mass > 0], mass[mass > 0]
    below = np.cumsum(mass)
    chosen = np.arange(len(values))
    if len(values) > n_knots:
        wanted = np.linspace(0.0, below[-1], n_knots)
        chosen = np.unique(np.append(np.minimum(np.searchsorted(below, wanted), len(values) - 1), [0, len(values) - 1]))
    knots = values[chosen]
    # the normal score is that of the middle of the rows tied at a knot
    normal = ndtri(((below - mass / 2)[chosen] + 0.5) / (below[-1] + 1.0))
    spread = np.sqrt(max(np.average((values - np.average(values, weights=mass)) ** 2, weights=mass), 1e-24))
    hinges = np.maximum(normal[:, None] - np.array(BREAKS), 0.0)
    knot_features = np.column_stack([np.ones(len(knots)), knots / min(spread, 1.0), hinges])
    place = np.clip(np.searchsorted(knots, scores, side="right") - 1, 0, len(knots) - 1)
    masses = np.bincount(place, weights=weights, minlength=len(knots))
    means = np.bincount(place, weights=weights * scores, minlength=len(knots))
    means = np.where(masses > 0, means / np.where(masses > 0, masses, 1.0), knots)
    features = np.column_stack([np.interp(means, knots, column) for column in knot_features.T])
    return Cells(knots, place, means, masses, features, knot_features)


def solve(features: np.ndarray, offset: np.ndarray, counts: np.ndarray, ridge: np.ndarray) -> np.ndarray:
    """Points (P×m) that minimise Σ n₁·log(1 + e^−u) + n₀·log(1 + e^u) + ½·Σ ridge·θ² with u = offset + X·θ.

    P problems share the features X (c×m) and differ in their counts (P×2×c) of labels 0 and 1 and in their ridge (P×m).
    """
    weights = counts.sum(axis=1)
    shares = counts[:, 1] / np.where(weights > 0, weights, 1.0)

    def evaluate(points: np.ndarray, which: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        value, gradient, hessian = batch_sums(features.T[None], shares[which], weights[which], points, offset)
        np.einsum("pii->pi", hessian)[:] += ridge[which]
        return value + 0.5 * (ridge[which] * points**2).sum(axis=1), gradient + ridge[which] * points, hessian

    return newton(evaluate, np.zeros(ridge.shape), np.full(ridge.shape[1], -np.inf), gap=ENOUGH)[0]


def _counts(rows: Rows, cells: Cells, inside: np.ndarray) -> np.ndarray:
    """Weight of the labels 0 and 1 in each cell (2×c) over some of the rows."""
    weights = np.ones(rows.n) if rows.weights is None else rows.weights
    n_cells = len(cells.knots)
    code = rows.labels * n_cells + cells.place
    return np.bincount(code[inside], weights=weights[inside], minlength=2 * n_cells).reshape(2, n_cells)


def _weights(losses: np.ndarray, ridge: np.ndarray) -> np.ndarray:
    """Weight of each triple of penalties (m,), from its held-out loss and its prior."""
    logarithm = STRAIGHT * np.log(ridge[:, -1]) - TEMPER * losses
    weights = np.exp(logarithm - logarithm.max())
    return weights / weights.sum()


def _losses(scores: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return np.logaddexp(0.0, scores) @ counts[0] + np.logaddexp(0.0, -scores) @ counts[1]


def isotonic(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The non-decreasing sequence nearest to the values (c,) in weighted squares."""
    from sklearn.isotonic import isotonic_regression

    return np.asarray(isotonic_regression(values, sample_weight=weights), dtype=np.float64)


def pooled(scores: np.ndarray, counts: np.ndarray, held_out: np.ndarray) -> np.ndarray:
    """Logits (c,) of the smooth map pooled with steps: q = (1 − s)·p + s·isotonic.

    The isotonic fit reads the counts of both labels per cell; its blocks are shrunk to the smooth map. The share s has
    the largest likelihood over the held-out cells, found by the EM algorithm of a mixture with a beta prior.

    Parameters
    ----------
    scores : array (F + 1, c)
        Non-decreasing logits of the smooth map without each of F folds, and of the fit to all rows.
    counts : array (F + 1, 2, c)
        Labels 0 and 1 per cell that each of them was fitted to.
    held_out : array (F, 2, c)
        Labels per cell in each fold.
    """
    smooth = np.clip(expit(scores), 1 - LARGEST, LARGEST)
    stepped = np.stack([steps(one, given) for one, given in zip(smooth, counts, strict=True)])
    share = _share(smooth[:-1], stepped[:-1], held_out)
    mixed = (1 - share) * smooth[-1] + share * stepped[-1]
    return np.log(mixed) - np.log1p(-mixed)


def steps(smooth: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Isotonic probabilities (c,) of counts (2×c); cells without rows lie between their neighbours."""
    mass = counts.sum(axis=0)
    seen = np.flatnonzero(mass > 0)
    if not len(seen):
        return smooth
    rates = isotonic(counts[1, seen] / mass[seen], mass[seen])
    _, block = np.unique(rates, return_inverse=True)
    rows = np.bincount(block, weights=mass[seen])
    positive = np.bincount(block, weights=counts[1, seen])
    expected = np.bincount(block, weights=mass[seen] * smooth[seen]) / rows
    prior = PRIOR_ROWS * _rows_per_even_row(expected)
    shrunk = isotonic((positive + prior * expected) / (rows + prior), rows)
    found = np.interp(np.arange(len(smooth)), seen, shrunk[block])
    return np.clip(found, 1 - LARGEST, LARGEST)


def _share(smooth: np.ndarray, stepped: np.ndarray, held_out: np.ndarray) -> float:
    negative, positive = held_out[:, 0], held_out[:, 1]
    total, share = held_out.sum(), SHARE
    prior = SHARE_ROWS * float(_rows_per_even_row(positive.sum() / total))
    for _ in range(MAX_ROUNDS):
        mixed = (1 - share) * smooth + share * stepped
        owed = share * float((positive * stepped / mixed + negative * (1 - stepped) / (1 - mixed)).sum())
        following = (owed + SHARE * prior) / (total + prior)
        if abs(following - share) < SETTLED:
            break
        share = following
    return share


def _rows_per_even_row(probability: np.ndarray | float) -> np.ndarray:
    """Rows of a probability that carry as much information on their log-odds as one row of probability ½."""
    return np.asarray(0.25 / np.maximum(probability * (1 - probability), 1e-9))
