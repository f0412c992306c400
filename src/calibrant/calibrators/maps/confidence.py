"""The confidence of the predicted class: its bin, a new value for it, and how the other classes make room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from calibrant.calibrators.helpers import top_label
from calibrant.calibrators.helpers.one_vs_rest import class_probabilities
from calibrant.calibrators.maps.rows import (
    device_of,
    entry,
    is_numpy,
    keep_prediction,
    like,
    log_probabilities,
    prediction,
    softmax,
    wide,
    with_entry,
)
from calibrant.core import bins
from calibrant.kernels.rows import scan

EDGE_ROOM = 1e-12
"""A fit row may lie exactly on an edge; the last bit of another exponential must not put it into the next bin."""


def confidence(xp: Any, logits: Any) -> Any:
    """Largest probability of each row (n, 1) in float64; numpy takes the scan that the fits take, for the same bits."""
    if is_numpy(xp):
        return scan(logits, None, from_logits=True, columns="top").confidence[:, None]
    return xp.max(softmax(xp, wide(xp, logits)), axis=1, keepdims=True)


def place(xp: Any, values: Any, edges: Any) -> Any:
    """Bin (n, 1) of values (n, 1) between edges (M + 1,): (lo, hi], the outer bins open-ended."""
    if is_numpy(xp):
        return bins.place(values, edges)
    inner = edges[1:-1] * (1 + EDGE_ROOM)
    if inner.shape[0] == 0:
        return xp.astype(xp.zeros_like(values), xp.int64)
    above = xp.astype(values > inner[None, :], values.dtype)
    return xp.astype(xp.sum(above, axis=1, keepdims=True), xp.int64)


def look_up(table: Any, index: Any) -> Any:
    """table[index] for a table (M,) and indices of any shape."""
    return table[index]


def interpolate(xp: Any, points: Any, knots: Any, values: Any) -> Any:
    """The piecewise linear map through (knots, values) at points (n, 1), constant outside, as numpy.interp."""
    if is_numpy(xp):
        return np.interp(points, knots, values)
    if knots.shape[0] == 1:
        return xp.zeros_like(points) + values[0]
    slopes = _slopes(xp, knots, values)
    inside = xp.minimum(xp.maximum(points, knots[:1]), knots[-1:])
    reached = xp.astype(inside >= knots[None, :-1], points.dtype)
    index = xp.astype(xp.sum(reached, axis=1, keepdims=True), xp.int64) - 1
    return look_up(slopes, index) * (inside - look_up(knots[:-1], index)) + look_up(values[:-1], index)


def _slopes(xp: Any, knots: Any, values: Any) -> Any:
    """Slope between neighbouring knots; 0 between knots at the same place."""
    gaps = knots[..., 1:] - knots[..., :-1]
    ones = xp.ones_like(gaps)
    return xp.where(gaps > 0, (values[..., 1:] - values[..., :-1]) / xp.where(gaps > 0, gaps, ones), 0 * ones)


def softplus(xp: Any, values: Any) -> Any:
    """log(1 + exp(x)), without overflow."""
    if is_numpy(xp):
        return np.logaddexp(0.0, values)
    return xp.maximum(values, xp.zeros_like(values)) + xp.log1p(xp.exp(-xp.abs(values)))


def share_place(xp: Any, scores: Any, winner: Any, kept: Any) -> Any:
    """Log-probabilities in which the classes at two columns (n, 1) both have the mean of their probabilities."""
    if is_numpy(xp):
        shared, moved = scores.copy(), np.flatnonzero(winner[:, 0] != kept[:, 0])
        first, second = winner[moved, 0], kept[moved, 0]
        both = np.logaddexp(scores[moved, first], scores[moved, second]) - np.log(2.0)
        shared[moved, first] = shared[moved, second] = both
        return shared
    first, second = entry(xp, scores, winner), entry(xp, scores, kept)
    both = second + softplus(xp, first - second) - float(np.log(2.0))
    moved = winner != kept
    shared = with_entry(xp, scores, winner, xp.where(moved, both, first))
    return with_entry(xp, shared, kept, xp.where(moved, both, second))


def log_odds(xp: Any, values: Any) -> Any:
    """log(c / (1 − c)) of confidences strictly inside (0, 1)."""
    return xp.log(values) - xp.log1p(-values)


def with_confidence(xp: Any, logits: Any, new_log_odds: Any) -> Any:
    """Log-probabilities (n×K) whose predicted class has the confidence of these log-odds (n, 1)."""
    if is_numpy(xp):
        return top_label.with_confidence(logits, new_log_odds[:, 0])
    return _rebuilt(xp, logits, lambda _: new_log_odds)


def with_mapped_confidence(xp: Any, logits: Any, change: Callable[[Any], Any]) -> Any:
    """Log-probabilities (n×K) whose predicted class has log-odds change(u), u (n, 1) its present ones."""
    if is_numpy(xp):
        return top_label.with_mapped_confidence(logits, lambda present: change(present[:, None])[:, 0])
    return _rebuilt(xp, logits, change)


def _rebuilt(xp: Any, logits: Any, change: Callable[[Any], Any]) -> Any:
    exact, column = wide(xp, logits), prediction(xp, logits)
    others = with_entry(xp, exact, column, -xp.inf)
    peak = xp.max(others, axis=1, keepdims=True)
    total = peak + xp.log(xp.sum(xp.exp(others - peak), axis=1, keepdims=True))
    present = xp.max(exact, axis=1, keepdims=True) - total
    # the least confidence a predicted class can have is 1/K
    least = -float(np.log(logits.shape[1] - 1.0))
    odds = xp.maximum(change(present), xp.full_like(present, least))
    top, rest = -softplus(xp, -odds), -softplus(xp, odds)
    shares = others + (rest - total)
    shares = xp.minimum(shares + water_level(xp, shares, top, rest), top)
    return keep_prediction(xp, like(xp, with_entry(xp, shares, column, top), logits), column)


def water_level(xp: Any, shares: Any, cap: Any, total: Any) -> Any:
    """log λ (n, 1) such that the shares min(λ·q, cap) of a row keep their sum; all arguments are logarithms.

    With the m largest at the cap, λ_m = (sum − m·cap) / (sum of the rest); the answer is the first m at which the
    largest of the rest fits below the cap. In logs, because the rest may be too small for a float. The ONNX writer
    brings its own form: its operators have no running sum of logarithms.
    """
    if hasattr(xp, "water_level"):
        return xp.water_level(shares, cap, total)
    descending = xp.flip(xp.sort(shares, axis=1), axis=1)
    tails = xp.flip(xp.logcumsumexp(xp.flip(descending, axis=1), 1), axis=1)
    counts = xp.arange(shares.shape[1], dtype=shares.dtype, **device_of(shares))[None, :]
    left = xp.maximum(xp.exp(total) - counts * xp.exp(cap), xp.zeros_like(shares))
    levels = xp.log(left) - tails
    over = levels + descending > cap + EDGE_ROOM
    # NaN (nothing left of nothing) is not above the cap, so such a place counts as fitting
    first = xp.argmax(xp.astype(~over, xp.int32), axis=1, keepdims=True)
    chosen = entry(xp, levels, first)
    # where nothing but the predicted class's −inf is left, all others are at the cap
    chosen = xp.where(xp.isfinite(chosen), chosen, xp.full_like(chosen, 1e300))
    crowded = xp.max(shares, axis=1, keepdims=True) > cap
    return xp.where(crowded, chosen, xp.zeros_like(chosen))


def class_chances(xp: Any, logits: Any) -> Any:
    """Probability of every class (n×K) in float64; in numpy with the bits that the fits see."""
    if is_numpy(xp):
        return np.stack(list(class_probabilities(logits)), axis=1)
    return softmax(xp, wide(xp, logits))


def steps_by_class(xp: Any, chances: Any, edges: Any, values: Any) -> Any:
    """Each column of probabilities (n×K) through the steps of its own bins: edges (K×(M+1)), values (K×M)."""
    if is_numpy(xp):
        columns = zip(chances.T, edges, values, strict=True)
        return np.stack([heights[bins.place(column, own)] for column, own, heights in columns], axis=1)
    if values.shape[1] == 1:
        return 0 * chances + values[:, 0]
    inner = edges[:, 1:-1] * (1 + EDGE_ROOM)
    above = xp.astype(chances[:, :, None] > inner[None, :, :], chances.dtype)
    return _by_class(xp, values, xp.astype(xp.sum(above, axis=2), xp.int64))


def lines_by_class(xp: Any, chances: Any, knots: Any, values: Any) -> Any:
    """Each column of probabilities (n×K) through its own piecewise linear map; tables K×W, the last knot repeated."""
    if is_numpy(xp):
        columns = zip(chances.T, knots, values, strict=True)
        return np.stack([np.interp(column, own, heights) for column, own, heights in columns], axis=1)
    if knots.shape[1] == 1:
        return 0 * chances + values[:, 0]
    inside = xp.minimum(xp.maximum(chances, knots[:, 0]), knots[:, -1])
    reached = xp.astype(inside[:, :, None] >= knots[None, :, :-1], chances.dtype)
    index = xp.astype(xp.sum(reached, axis=2), xp.int64) - 1
    slope, left, bottom = (_by_class(xp, table, index) for table in (_slopes(xp, knots, values), knots, values))
    return slope * (inside - left) + bottom


def _by_class(xp: Any, table: Any, index: Any) -> Any:
    """table[j, index[·, j]] of each column j."""
    n_classes, width = table.shape
    starts = width * xp.arange(n_classes, dtype=xp.int64, **device_of(table))
    return look_up(xp.reshape(table, (n_classes * width,)), index + starts)


def normalised(xp: Any, mapped: Any, logits: Any) -> Any:
    """Log-probabilities of rows of positive numbers (n×K), divided by their sum."""
    return like(xp, log_probabilities(xp, mapped / xp.sum(mapped, axis=1, keepdims=True)), logits)
