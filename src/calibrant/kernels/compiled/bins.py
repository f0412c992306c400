"""Compiled twins of `kernels.bins`.

The bin is guessed by a multiplication and mended by a comparison with the edges, so that it obeys the bin rule to
the last bit.
"""

from __future__ import annotations

import numpy as np

from calibrant.core.bins import width_edges
from calibrant.kernels import bins as plain
from calibrant.kernels.compiled.cached import njit
from calibrant.kernels.compiled.rows import frozen


@plain.width_sums.compiled
def width_sums(confidence: np.ndarray, correct: np.ndarray, weights: np.ndarray | None, n_bins: int) -> np.ndarray:
    """Σw, Σw·confidence and Σw·correct of each equal-width bin, as a (3, n_bins) array."""
    sums = np.zeros((3, n_bins))
    edges = width_edges(n_bins, confidence.dtype)
    _width_sums(
        frozen(np.ascontiguousarray(confidence)), frozen(np.asarray(correct, np.float64)), _given(weights), edges, sums
    )
    return sums


@plain.class_width_sums.compiled
def class_width_sums(
    probabilities: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, n_bins: int
) -> np.ndarray:
    """Σw, Σw·p_j and Σw·1{y=j} of each class and equal-width bin, as a (3, K, n_bins) array."""
    sums = np.zeros((3, probabilities.shape[1], n_bins))
    edges = width_edges(n_bins, probabilities.dtype)
    _class_width_sums(frozen(np.ascontiguousarray(probabilities)), frozen(labels), _given(weights), edges, sums)
    return sums


def _given(weights: np.ndarray | None) -> np.ndarray:
    return frozen(np.empty(0) if weights is None else np.ascontiguousarray(weights))


@njit(nogil=True, cache=True)
def _bin(value, edges, n_bins):
    index = min(max(int(value * n_bins), 0), n_bins - 1)
    while index > 0 and value <= edges[index]:
        index -= 1
    while index < n_bins - 1 and value > edges[index + 1]:
        index += 1
    return index


@njit(nogil=True, cache=True)
def _width_sums(confidence, correct, weights, edges, sums):
    n_bins = sums.shape[1]
    for row in range(len(confidence)):
        index = _bin(confidence[row], edges, n_bins)
        weight = weights[row] if len(weights) else 1.0
        sums[0, index] += weight
        sums[1, index] += weight * confidence[row]
        sums[2, index] += weight * correct[row]


@njit(nogil=True, cache=True)
def _class_width_sums(probabilities, labels, weights, edges, sums):
    n_rows, n_classes = probabilities.shape
    n_bins = sums.shape[2]
    first_edge = edges[1]
    for row in range(n_rows):
        weight = weights[row] if len(weights) else 1.0
        for j in range(n_classes):
            p = probabilities[row, j]
            # with many classes almost every probability is in the first bin
            index = 0 if p <= first_edge else _bin(p, edges, n_bins)
            sums[0, j, index] += weight
            sums[1, j, index] += weight * p
            if j == labels[row]:
                sums[2, j, index] += weight
