"""Logistic regressions on a few columns, by maximum likelihood: one over 1,000,000 rows in 0.1 s, or many at once.

The slopes may be held at or above 0, and a quadratic pull to a given point may be added; both keep a problem convex.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np

from calibrant.core.arrays import Array
from calibrant.core.statistic import add
from calibrant.core.threads import map_blocks, row_blocks

MAX_STEPS = 100

GAP, ROUGH_GAP = 1e-13, 1e-9
"""Log loss per row that a further Newton step would gain before the last one, of all rows and of a sample."""

SAMPLE_FROM = 100_000
"""Rows from which the search starts where a sample of them ends."""

SAMPLE_STRIDE = 16

BLOCK_ELEMENTS = 1 << 16
"""Of a block of the columns: it stays in the cache of a core."""


class Pull(NamedTuple):
    """½·(θ − centre)ᵀ·strength·(θ − centre), added to the summed loss."""

    centre: Array
    """(d + 1,): slopes, then the intercept."""
    strength: Array
    """(d + 1, d + 1), positive semidefinite."""


class LogisticFit(NamedTuple):
    """Where the search ended."""

    point: Array
    """(d + 1,): slopes, then the intercept."""
    trace: Array
    """Mean loss, pull included, at each step."""
    converged: bool


def fit_logistic(
    columns: Array,
    labels: Array,
    weights: Array | None = None,
    *,
    start: Array | None = None,
    non_negative: bool = False,
    pull: Pull | None = None,
) -> LogisticFit:
    """Slopes and intercept of the highest likelihood of P(y = 1) = sigmoid(slopes · column + intercept).

    Parameters
    ----------
    columns : array (d, n), finite
        One row per feature.
    labels : array (n,)
        0/1, or probabilities as targets.
    weights : array (n,) or None
        A weight of 2 is the row twice.
    non_negative : bool
        Hold every slope at or above 0.
    pull : Pull, optional
        Without one the optimum must be finite: see `is_separable`.
    """
    columns = np.asarray(columns, np.float64)
    labels = np.asarray(labels, np.float64)
    units = Units.of(columns, weights)
    scaled = units.scale(columns)
    if start is None:
        # the base rate: there every row has curvature, while scores of ±700 as they are would have none
        rate = np.clip(np.average(labels, weights=weights), 1e-3, 1 - 1e-3)
        point = np.append(np.zeros(len(columns)), np.log(rate) - np.log1p(-rate))
    else:
        point = units.inward(np.asarray(start, np.float64))
    inner = None if pull is None else units.pull(pull)
    lower = np.append(np.full(len(columns), 0.0 if non_negative else -np.inf), -np.inf)

    def solved(some: slice, held: Pull | None, gap: float) -> LogisticFit:
        few = None if weights is None else weights[some]
        sample = np.ascontiguousarray(scaled[:, some])
        total = sample.shape[1] if few is None else few.sum()
        return descend(partial(logistic_sums, sample, labels[some], few), total, point, lower, held, gap=gap)

    some = slice(None, None, SAMPLE_STRIDE)
    if columns.shape[1] >= SAMPLE_FROM and (weights is None or weights[some].sum() > 0):
        # as little as makes the optimum of a sample finite; a pull of its share of the rows keeps the sample's optimum
        # where that of all rows is
        weak = inner or Pull(units.inward(np.append(np.ones(len(columns)), 0.0)), 1e-3 * np.eye(len(point)))
        point = solved(some, Pull(weak.centre, weak.strength / SAMPLE_STRIDE), ROUGH_GAP).point
    found = solved(slice(None), inner, GAP)
    return found._replace(point=units.outward(found.point))


class Units(NamedTuple):
    """Columns in units of their spread around their mean: Newton's steps then lose no digits to a distant origin."""

    mean: Array
    spread: Array

    @classmethod
    def of(cls, columns: Array, weights: Array | None) -> Units:
        """Those of columns in memory."""
        mean = np.average(columns, axis=1, weights=weights)
        spread = np.sqrt(np.average((columns - mean[:, None]) ** 2, axis=1, weights=weights))
        return cls.made(mean, spread, np.abs(columns).max(axis=1, initial=0.0))

    @classmethod
    def made(cls, mean: Array, spread: Array, largest: Array) -> Units:
        """From the mean, spread and largest size of each column; a constant one keeps its unit."""
        # rounding must not blow a constant column up
        return cls(mean, np.where((spread <= 1e-12 * largest) | (spread == 0), 1.0, spread))

    def scale(self, columns: Array) -> Array:
        """Columns in these units."""
        return (columns - self.mean[:, None]) / self.spread[:, None]

    def inward(self, point: Array) -> Array:
        """Parameters for columns in these units."""
        return np.append(point[:-1] * self.spread, point[-1] + point[:-1] @ self.mean)

    def outward(self, point: Array) -> Array:
        """Parameters for columns as they were."""
        slopes = point[:-1] / self.spread
        return np.append(slopes, point[-1] - slopes @ self.mean)

    def pull(self, pull: Pull) -> Pull:
        """The same pull on parameters in these units."""
        back = np.diag(np.append(1.0 / self.spread, 1.0))
        back[-1, :-1] = -self.mean / self.spread
        return Pull(self.inward(pull.centre), back.T @ pull.strength @ back)


def descend(
    sums: Callable[[Array], tuple[Any, ...]],
    total: float,
    point: Array,
    lower: Array,
    pull: Pull | None,
    *,
    gap: float = GAP,
) -> LogisticFit:
    """Newton's method for one problem, whose `sums` are the loss, gradient and Hessian of rows of this total weight."""

    def evaluate(points: Array, which: Array) -> tuple[Array, Array, Array]:
        loss, gradient, hessian = sums(points[0])
        if pull is not None:
            offset = points[0] - pull.centre
            bent = pull.strength @ offset
            loss, gradient, hessian = loss + 0.5 * offset @ bent, gradient + bent, hessian + pull.strength
        return np.array([loss]), gradient[None], hessian[None]

    points, trace, converged = newton(evaluate, point[None], lower, gap=gap * total)
    return LogisticFit(points[0], np.array([value[0] for value in trace]) / total, bool(converged[0]))


def newton(
    evaluate: Callable[[Array, Array], tuple[Array, Array, Array]],
    start: Array,
    lower: Array,
    *,
    gap: float,
) -> tuple[Array, list[Array], Array]:
    """Newton's method for P small convex problems at once, from P×m points of which no entry falls below `lower` (m,).

    `evaluate(points, which)` gives the objectives, gradients and Hessians of the problems at the places `which`. A
    problem ends with the step that its local parabola says gains at most `gap`; those that have ended leave, so that a
    few hard ones do not hold up the rest. Returns the points, the objectives at each step, and which problems ended.
    """
    points = np.maximum(start, lower)
    moving, ended, trace = np.arange(len(points)), np.zeros(len(points), bool), []
    value, gradient, hessian = evaluate(points, moving)
    for _ in range(MAX_STEPS):
        trace.append(value)
        direction = _directions(points[moving], gradient, hessian, lower)
        done = -0.5 * np.einsum("pm,pm->p", gradient, direction) <= gap
        ended[moving[done]] = True
        points[moving[done]] = np.maximum(points[moving] + direction, lower)[done]
        if done.all():
            break
        moving, direction, value = moving[~done], direction[~done], value[~done]
        here, length = points[moving], np.ones(len(moving))
        for _ in range(40):
            candidate = np.maximum(here + length[:, None] * direction, lower)
            found = evaluate(candidate, moving)
            worse = found[0] > value + 1e-14 * np.abs(value)
            if not worse.any():
                break
            length[worse] *= 0.5
        # a problem that no step improves stays where it is
        moving, candidate = moving[~worse], candidate[~worse]
        value, gradient, hessian = (one[~worse] for one in found)
        points[moving] = candidate
        if not len(moving):
            break
    return points, trace, ended


def _directions(points: Array, gradient: Array, hessian: Array, lower: Array) -> Array:
    """The step of every problem to the minimum of its local parabola, with no coordinate below its bound.

    Coordinates that the step would take below their bound go to the bound, and the others are solved for again.
    """
    index = np.arange(len(lower))
    # collinear columns have flat directions, in which as little curvature as can be seen keeps the step finite
    floor = 1e-14 * np.einsum("pmm->p", hessian)[:, None] + 1e-300
    held = (points <= lower) & (gradient > 0)
    while True:
        direction = np.where(held, lower - points, 0.0)
        slope = gradient + np.einsum("pjk,pk->pj", hessian, direction)
        inner = np.where(held[:, :, None] | held[:, None, :], 0.0, hessian)
        inner[:, index, index] += np.where(held, 1.0, floor)
        direction -= np.linalg.solve(inner, np.where(held, 0.0, slope)[:, :, None])[:, :, 0]
        crossing = ~held & (points + direction < lower)
        if not crossing.any():
            return direction
        held |= crossing


def logistic_sums(columns: Array, labels: Array, weights: Array | None, point: Array) -> tuple[float, Array, Array]:
    """Summed log loss, its gradient (d + 1,) and its Hessian (d + 1, d + 1) at a point, on all cores."""

    def part(block: slice) -> tuple[Array, ...]:
        weight = None if weights is None else weights[block]
        return batch_sums(columns[None, :, block], labels[None, block], weight, point[None])

    loss, gradient, hessian = reduce(add, map_blocks(part, row_blocks(columns.shape[1], 1, BLOCK_ELEMENTS)))
    return loss[0], gradient[0], hessian[0]


def batch_sums(
    columns: Array,
    labels: Array,
    weights: Array | None,
    points: Array,
    offset: Array | float = 0.0,
) -> tuple[Array, Array, Array]:
    """Log loss (P,), gradient (P×m) and Hessian (P×m×m) of P problems at their points (P×m).

    Columns are P×d×n, or 1×d×n where all problems share them; points with d + 1 entries end with an intercept. Labels
    are P×n, of 0 and 1 or between; weights are n, P×n or None.
    """
    size = columns.shape[1]
    score = np.matmul(points[:, None, :size], columns)[:, 0] + offset
    if points.shape[1] > size:
        score += points[:, size:]
    small = np.exp(-np.abs(score))
    share = 1.0 / (1.0 + small)
    losses = np.maximum(score, 0.0) - labels * score
    losses -= np.log(share)
    residual = np.where(score >= 0, share, small * share) - labels
    curvature = small * share * share
    if weights is not None:
        losses, residual, curvature = losses * weights, residual * weights, curvature * weights
    gradient, hessian = np.empty(points.shape), np.empty((*points.shape, points.shape[1]))
    bent = columns * curvature[:, None]
    gradient[:, :size] = np.matmul(columns, residual[:, :, None])[:, :, 0]
    hessian[:, :size, :size] = np.matmul(bent, columns.transpose(0, 2, 1))
    if points.shape[1] > size:
        gradient[:, size] = residual.sum(axis=1)
        hessian[:, :size, size] = hessian[:, size, :size] = bent.sum(axis=2)
        hessian[:, size, size] = curvature.sum(axis=1)
    return losses.sum(axis=1), gradient, hessian


def is_separable(ends: Array, *, non_negative: bool = True) -> bool:
    """Return whether a threshold separates the labels 0 and 1, or one is absent: the likelihood has no maximum.

    `ends` (2, 2) are the lowest and highest score by label, (inf, −inf) without rows. Ties at the threshold change
    nothing. Without `non_negative` the positives may have the lower scores.
    """
    (low_0, high_0), (low_1, high_1) = ends
    if np.isinf(ends).any():
        return True
    above, below = high_0 <= low_1 and low_0 < high_1, high_1 <= low_0 and low_1 < high_0
    return bool(above or (below and not non_negative))


def smoothed_targets(negatives: float, positives: float) -> Array:
    """Platt's targets of the labels 0 and 1 by their weights n₀ and n₁: 1/(n₀ + 2) and (n₁ + 1)/(n₁ + 2).

    They are posterior means under a uniform prior. A fit to them is finite, and shifting and scaling the scores does
    not change its probabilities.
    """
    return np.array([1 / (negatives + 2), (positives + 1) / (positives + 2)])
