"""What the methods share that map the probability of one positive class: knots, steps and features, and their maps."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.calibrators.learned import CHANCE
from calibrant.core.rows import Rows
from calibrant.core.softmax import sigmoid, softplus
from calibrant.kernels.isotonic import ScoreGroups, isotonic_values
from calibrant.kernels.logistic import LogisticFit, Pull, fit_logistic
from calibrant.kernels.rows import RowColumns

SHAPE_PULL = 2.0
"""Strength of the pull of a shape to the identity; n rows have the weight n beside it."""

LARGEST_LOG_ODDS = 14.0
"""Where log(1 − p) is cut off: about p = 1 − 1e-6."""


def positive_columns(rows: Rows) -> RowColumns:
    """p of the positive class as the confidence, and the label as correctness."""
    nothing = np.empty(0)
    return RowColumns(sigmoid(rows.logits.astype(np.float64)), rows.labels, rows.labels == 1, nothing, nothing, nothing)


def isotonic_knots(groups: ScoreGroups) -> tuple[np.ndarray, np.ndarray]:
    """Scores at which the isotonic fit bends, and its values there, inside (0, 1).

    A share of 0 becomes half a row of all, or, where the scores themselves say less, the constant of their log loss; a
    share of 1 likewise. So no outcome gets probability 0, and no row of such a block loses to its own score.
    """
    values = isotonic_values(groups)
    margin = min(0.5, 0.5 / float(groups.weight.sum()))
    for end, sign in ((0.0, 1.0), (1.0, -1.0)):
        block = values == end
        if block.any():
            stated = -np.expm1(-np.average(softplus(sign * groups.scores[block]), weights=groups.weight[block]))
            values[block] = abs(end - max(min(margin, stated), CHANCE[0]))
    values = np.clip(values, min(margin, values[0]), max(1.0 - margin, values[-1]))
    bends = np.ones(len(values), dtype=bool)
    bends[1:-1] = (values[1:-1] != values[:-2]) | (values[1:-1] != values[2:])
    return groups.scores[bends], values[bends]


def interpolate(xp: Any, points: Any, knots: Any, values: Any) -> Any:
    """Linear interpolation (n,) over the array API, constant beyond the outer knots."""
    count = knots.shape[0]
    if count == 1:
        return values[0] + xp.zeros_like(points)
    upper = xp.clip(xp.searchsorted(knots, points, side="right"), 1, count - 1)
    left, right = xp.take(knots, upper - 1), xp.take(knots, upper)
    low, high = xp.take(values, upper - 1), xp.take(values, upper)
    share = xp.clip((points - left) / (right - left), 0.0, 1.0)
    return low + share * (high - low)


def step_value(xp: Any, points: Any, edges: Any, values: Any) -> Any:
    """Value of the bin (lo, hi] of each point (n,), the outer bins open-ended, over the array API."""
    inner = edges[1:-1]
    if inner.shape[0] == 0:
        return values[0] + xp.zeros_like(points)
    return xp.take(values, xp.searchsorted(inner, points, side="left"))


def sigmoid_map(xp: Any, log_odds: Any) -> Any:
    """1/(1 + exp(−s)) without overflow, over the array API."""
    small = xp.exp(-xp.abs(log_odds))
    return xp.where(log_odds >= 0, 1.0 / (1.0 + small), small / (1.0 + small))


def positive_features(xp: Any, log_odds: Any) -> tuple[Any, ...]:
    """s, −log(1 − p), log(p + 0.01) and s·log(1 − max(p, 1 − p))/5 of log-odds (n,), over the array API."""
    rest = xp.log1p(xp.exp(-xp.abs(log_odds)))
    zero = xp.zeros_like(log_odds)
    capped = xp.minimum(log_odds, zero + LARGEST_LOG_ODDS)
    opposite = xp.maximum(capped, zero) + xp.log1p(xp.exp(-xp.abs(capped)))
    sureness = -xp.minimum(xp.abs(log_odds) + rest, zero + LARGEST_LOG_ODDS) / 5.0
    return log_odds, opposite, xp.log(sigmoid_map(xp, log_odds) + 0.01), log_odds * sureness


def fit_positive_shape(log_odds: np.ndarray, rows: Rows) -> LogisticFit:
    """θ (5,) of the lowest log loss of sigmoid(θ·features), with a pull to the identity (1, 0, 0, 0, 0)."""
    columns = np.stack(positive_features(np, log_odds.astype(np.float64)))
    identity = np.array([1.0, 0.0, 0.0, 0.0, 0.0])
    pull = Pull(identity, SHAPE_PULL * np.eye(5))
    return fit_logistic(columns, rows.labels, rows.weights, pull=pull)
