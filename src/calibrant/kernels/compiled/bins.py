"""Compiled twins of `kernels.bins`.

The bin is guessed by a multiplication and corrected by a comparison with the edges, so that it obeys the bin rule to
the last bit.
"""

import numpy as np

from calibrant.kernels import bins as plain
from calibrant.kernels.compiled.cached import compiled_form, fast


@fast
def _edges(values, n_bins):
    """`core.bins.width_edges`."""
    return (np.arange(n_bins + 1) / n_bins).astype(values.dtype)


@fast
def _bin(value, edges):
    last = len(edges) - 2
    index = min(max(int(value * (last + 1)), 0), last)
    while index > 0 and value <= edges[index]:
        index -= 1
    while index < last and value > edges[index + 1]:
        index += 1
    return index


@compiled_form(plain.width_sums)
def width_sums(confidence, correct, weights, n_bins):
    """Σw, Σw·confidence and Σw·correct of each equal-width bin, as a (3, n_bins) array."""
    sums, edges = np.zeros((3, n_bins)), _edges(confidence, n_bins)
    for row in range(len(confidence)):
        index, weight = _bin(confidence[row], edges), weights[row]
        sums[0, index] += weight
        sums[1, index] += weight * confidence[row]
        sums[2, index] += weight * correct[row]
    return sums


@compiled_form(plain.class_width_sums)
def class_width_sums(probabilities, labels, weights, n_bins):
    """Σw, Σw·p_j and Σw·1{y=j} of each class and equal-width bin, as a (3, K, n_bins) array."""
    n_rows, n_classes = probabilities.shape
    sums, edges = np.zeros((3, n_classes, n_bins)), _edges(probabilities, n_bins)
    for row in range(n_rows):
        weight = weights[row]
        for j in range(n_classes):
            p = probabilities[row, j]
            # with many classes almost every probability is in the first bin
            index = 0 if p <= edges[1] else _bin(p, edges)
            sums[0, j, index] += weight
            sums[1, j, index] += weight * p
            if j == labels[row]:
                sums[2, j, index] += weight
    return sums
