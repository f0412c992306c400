"""Rows of logits: softmax, mixtures, and the rule by which a prediction is kept."""

from __future__ import annotations

from typing import Any

from calibrant.calibrators.helpers import confidence_bins
from calibrant.calibrators.solvers.temperature_network import top_logits
from calibrant.core import softmax as numpy_softmax
from calibrant.kernels.transform import restore_prediction

MARGIN = 8
"""By how many rounding steps a kept prediction leads: what a softmax in the same precision still shows."""


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
