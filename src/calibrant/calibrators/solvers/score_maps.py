"""Maximum likelihood for maps of one score, from arrays or from scores that are read pass by pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from calibrant.calibrators.solvers.binary_likelihood import fit_map, pull_to, strength_of, warn_unless_converged
from calibrant.core.rows import Rows, score_range
from calibrant.core.statistic import add, statistic
from calibrant.core.threads import map_blocks, row_blocks
from calibrant.kernels.logistic import LogisticFit, Units, descend, fit_logistic, logistic_sums

Columns = Callable[[np.ndarray], np.ndarray]
"""Scores (n,) → features (d, n), each non-decreasing in the score; it must be possible to send it to a process."""

SAMPLE_ROWS = 20_000
"""Rows of the fit that the passes over all rows start from."""

BLOCK_ROWS = 1 << 16


def fit_scores(
    name: str, rows: Rows, make: Columns, identity: np.ndarray, penalty: float, **options: bool
) -> LogisticFit:
    """`fit_map` of the columns that `make` gives; scores on disk are summed over in a few passes.

    The optimum is the same: the first pass finds the units of the columns, and each step of Newton's method is one.
    """
    if rows.in_memory:
        return fit_map(name, rows, make(rows.logits), identity, penalty, **options)
    return _streamed(name, rows, make, identity, penalty, **options)


def _streamed(
    name: str,
    rows: Rows,
    make: Columns,
    identity: np.ndarray,
    penalty: float,
    *,
    non_negative: bool = True,
) -> LogisticFit:
    found_range, positives = score_range(rows), float(rows.mass() @ rows.labels)
    negatives, ends, low, high = rows.total_weight - positives, found_range.ends, found_range.low, found_range.high
    fewest = min(positives, negatives)
    if fewest > 0 and low == high:
        two = Rows(np.full(2, low), np.array([0, 1]), np.array([negatives, positives]))
        return fit_map(name, two, make(two.logits), identity, penalty, non_negative=non_negative)
    apart = fewest == 0 or ends[0, 1] <= ends[1, 0] or (not non_negative and ends[1, 1] <= ends[0, 0])
    strength = strength_of(name, penalty, bool(apart), fewest)
    middle, *outer = make(np.array([(low + high) / 2, low, high])).T
    mass, first, second = rows.total(column_sums, make, middle)
    variances = np.maximum(second / mass - (first / mass) ** 2, 0.0)
    units = Units.made(middle + first / mass, np.sqrt(variances), np.abs(outer).max(axis=0))
    pull = pull_to(identity, variances, strength)
    found = descend(
        lambda point: rows.total(score_sums, make, units.mean, units.spread, point),
        rows.total_weight,
        units.inward(_first_estimate(rows, make, identity, variances, non_negative)),
        np.append(np.full(len(middle), 0.0 if non_negative else -np.inf), -np.inf),
        None if pull is None else units.pull(pull),
    )
    warn_unless_converged(name, found)
    return LogisticFit(units.outward(found.point), found.trace, found.converged)


def _first_estimate(
    rows: Rows, make: Columns, identity: np.ndarray, variances: np.ndarray, non_negative: bool
) -> np.ndarray:
    """The fit of a sample, with as little of a pull as makes it finite."""
    sample = rows.sample(SAMPLE_ROWS)
    if not sample.total_weight > 0:
        return identity
    weak = pull_to(identity, variances, 1e-3)
    return fit_logistic(make(sample.logits), sample.labels, sample.weights, non_negative=non_negative, pull=weak).point


@statistic
def column_sums(
    scores: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, make: Columns, middle: np.ndarray
) -> tuple[Any, ...]:
    """Σw, Σw·(x − middle) and Σw·(x − middle)² of the columns."""
    weight = np.ones(len(scores)) if weights is None else weights

    def part(block: slice) -> tuple[Any, ...]:
        away = make(scores[block]) - middle[:, None]
        return weight[block].sum(), away @ weight[block], (away * away) @ weight[block]

    return reduce(add, map_blocks(part, row_blocks(len(scores), 1, BLOCK_ROWS)))


@statistic
def score_sums(  # noqa: PLR0917 (a statistic takes its parameters by position)
    scores: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None,
    make: Columns,
    mean: np.ndarray,
    spread: np.ndarray,
    point: np.ndarray,
) -> tuple[Any, ...]:
    """Summed log loss, gradient and Hessian at a point, in units of the columns."""

    def part(block: slice) -> tuple[Any, ...]:
        columns = (make(scores[block]) - mean[:, None]) / spread[:, None]
        return logistic_sums(columns, labels[block], None if weights is None else weights[block], point)

    return reduce(add, map_blocks(part, row_blocks(len(scores), 1, BLOCK_ROWS)))


def line_columns(scores: np.ndarray) -> np.ndarray:
    """The score itself (1, n)."""
    return scores.astype(np.float64)[None]
