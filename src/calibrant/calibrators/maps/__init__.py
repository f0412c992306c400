"""What the maps of the methods share, over the array API: one function for numpy, torch and the ONNX writer.

`xp` is the array namespace; columns have the shape (n, 1). Where numpy has a faster way to the same answer (a compiled
scan, an update in place), the function takes it, and `tests/contracts/test_maps.py` holds the two together. First rows
of logits (softmax, mixtures, the rule by which a prediction is kept), then the confidence of the predicted class: its
bin, a new value for it, and how the other classes make room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from calibrant.calibrators.helpers import confidence_bins, top_label
from calibrant.calibrators.solvers.temperature_network import top_logits
from calibrant.core import bins
from calibrant.core import softmax as numpy_softmax
from calibrant.kernels.rows import scan
from calibrant.kernels.transform import restore_prediction

MARGIN = 8
"""By how many rounding steps a kept prediction leads: what a softmax in the same precision still shows."""

EDGE_ROOM = 1e-12
"""A fit row may lie exactly on an edge; the last bit of another exponential must not put it into the next bin."""


def is_numpy(xp: Any) -> bool:
    """Whether a namespace is numpy's."""
    return xp.__name__ == "array_api_compat.numpy"


def device_of(array: Any) -> dict[str, Any]:
    """The keyword that makes a new array where another one is; empty where there is only one place."""
    device = getattr(array, "device", "cpu")
    return {} if device == "cpu" else {"device": device}


def like(xp: Any, values: Any, logits: Any) -> Any:
    """Learned numbers in the dtype of the logits."""
    return xp.astype(values, logits.dtype, copy=False)


def wide(xp: Any, logits: Any) -> Any:
    """Logits in float64, for sums and logarithms that need it."""
    return xp.astype(logits, xp.float64, copy=False)


def single_precision(xp: Any, values: Any) -> Any:
    """Values in float32 where the namespace wants it: ONNX runtimes multiply matrices of float64 at half the speed."""
    return xp.single_precision(values) if hasattr(xp, "single_precision") else values


def softmax(xp: Any, logits: Any) -> Any:
    """exp(z) / Σ_j exp(z_j) of each row; a namespace may bring its own."""
    if hasattr(xp, "softmax_of_rows"):
        return xp.softmax_of_rows(logits)
    if is_numpy(xp):
        return numpy_softmax.softmax(logits)
    exponentials = xp.exp(logits - xp.max(logits, axis=1, keepdims=True))
    return exponentials / xp.sum(exponentials, axis=1, keepdims=True)


def log_softmax(xp: Any, logits: Any) -> Any:
    """z − log Σ_j exp(z_j) of each row; a namespace may bring its own."""
    if hasattr(xp, "log_softmax_of_rows"):
        return xp.log_softmax_of_rows(logits)
    if is_numpy(xp):
        return numpy_softmax.log_softmax(logits)
    below = logits - xp.max(logits, axis=1, keepdims=True)
    return below - xp.log(xp.sum(xp.exp(below), axis=1, keepdims=True))


def log_probabilities(xp: Any, probabilities: Any) -> Any:
    """Logits that softmax maps back to these probabilities; a zero becomes the smallest normal number."""
    if is_numpy(xp):
        return numpy_softmax.log_probabilities(probabilities)
    tiny = float(xp.finfo(probabilities.dtype).smallest_normal)
    return xp.log(xp.maximum(probabilities, xp.full_like(probabilities, tiny)))


def prediction(xp: Any, logits: Any) -> Any:
    """Column of the largest logit of each row (n, 1); the first of equals."""
    return xp.argmax(logits, axis=1, keepdims=True)


def largest(xp: Any, logits: Any, count: int) -> Any:
    """The largest logits of each row (n×count), in descending order."""
    if hasattr(xp, "largest"):
        return xp.largest(logits, count)
    return top_logits(logits, count) if is_numpy(xp) else xp.topk(logits, count, dim=1).values


def entry(xp: Any, matrix: Any, column: Any) -> Any:
    """The entry of each row at a column (n, 1)."""
    # torch's take_along_dim fixes the number of rows when a module is exported; its gather does not
    return xp.gather(matrix, 1, column) if hasattr(xp, "gather") else xp.take_along_axis(matrix, column, axis=1)


def with_entry(xp: Any, matrix: Any, column: Any, value: Any) -> Any:
    """The matrix (n×K) with a number or a column (n, 1) in place of the entry of each row at a column (n, 1)."""
    if hasattr(xp, "with_entry"):
        return xp.with_entry(matrix, column, value)
    places = xp.arange(matrix.shape[1], dtype=xp.int64, **device_of(matrix))
    return xp.where(places[None, :] == column, value, matrix)


def keep_prediction(xp: Any, scores: Any, column: Any) -> Any:
    """Scores whose given column (n, 1) leads every other by a few rounding steps at least.

    The one rule for a kept prediction: it is the first maximum of the raw logits, whatever rounding did to the scores.
    """
    if is_numpy(xp):
        return confidence_bins.keep_prediction(scores.copy(), column[:, 0])
    others = xp.max(with_entry(xp, scores, column, -xp.inf), axis=1, keepdims=True)
    step = MARGIN * float(xp.finfo(scores.dtype).eps)
    ahead = others + step * xp.maximum(xp.abs(others), xp.ones_like(others))
    return with_entry(xp, scores, column, xp.maximum(entry(xp, scores, column), ahead))


def keep_increasing(xp: Any, scores: Any, logits: Any) -> Any:
    """Scores that rise with the logits within a row, with the prediction restored where rounding tied it.

    In the ONNX graph, which computes in float64, float32 logits that differ stay apart, and its last nodes take the
    prediction from the logits.
    """
    if hasattr(xp, "keeps_order") and xp.keeps_order:
        return scores
    if is_numpy(xp):
        restore_prediction(logits, scores)
        return scores
    column = prediction(xp, logits)
    moved = prediction(xp, scores) != column
    return xp.where(moved, keep_prediction(xp, scores, column), scores)


def mix_with_uniform(xp: Any, logits: Any, weight: Any) -> Any:
    """log(α·softmax(z) + (1 − α)/K), α a number or a column; the predicted class stays ahead even at α = 0."""
    share = like(xp, weight, logits)
    mixed = softmax(xp, logits) * share + (1 - share) / logits.shape[1]
    return keep_prediction(xp, log_probabilities(xp, mixed), prediction(xp, logits))


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
    return slopes[index] * (inside - knots[:-1][index]) + values[:-1][index]


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
        return np.stack(list(confidence_bins.class_probabilities(logits)), axis=1)
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
    return xp.reshape(table, (n_classes * width,))[index + starts]


def normalised(xp: Any, mapped: Any, logits: Any) -> Any:
    """Log-probabilities of rows of positive numbers (n×K), divided by their sum."""
    return like(xp, log_probabilities(xp, mapped / xp.sum(mapped, axis=1, keepdims=True)), logits)
