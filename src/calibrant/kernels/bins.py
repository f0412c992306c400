"""Sums over equal-width bins: of the top label's confidence, and of every class's probability."""

from __future__ import annotations

import numpy as np

from calibrant.core.bins import width_index
from calibrant.core.statistic import kernel


@kernel(compiled_in="calibrant.kernels.compiled.bins")
def width_sums(confidence: np.ndarray, correct: np.ndarray, weights: np.ndarray | None, n_bins: int) -> np.ndarray:
    """Σw, Σw·confidence and Σw·correct of each equal-width bin, as a (3, n_bins) array."""
    return index_sums(width_index(confidence, n_bins), confidence, correct, weights, n_bins)


def index_sums(
    index: np.ndarray, confidence: np.ndarray, correct: np.ndarray, weights: np.ndarray | None, n_bins: int
) -> np.ndarray:
    """Σw, Σw·confidence and Σw·correct of the rows that share an index, as a (3, n_bins) array."""
    weighted = confidence if weights is None else weights * confidence
    hits = correct if weights is None else weights * correct
    sums = np.empty((3, n_bins))
    sums[0] = np.bincount(index, weights, minlength=n_bins)
    sums[1] = np.bincount(index, weighted, minlength=n_bins)
    sums[2] = np.bincount(index, hits, minlength=n_bins)
    return sums


@kernel(compiled_in="calibrant.kernels.compiled.bins")
def class_width_sums(
    probabilities: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, n_bins: int
) -> np.ndarray:
    """Σw, Σw·p_j and Σw·1{y=j} of each class and equal-width bin, as a (3, K, n_bins) array."""
    n_rows, n_classes = probabilities.shape
    index = width_index(probabilities.ravel(), n_bins).reshape(n_rows, n_classes)
    of_label = index[np.arange(n_rows), labels] + labels * n_bins
    cell = (index + np.arange(n_classes) * n_bins).ravel()
    spread = None if weights is None else np.repeat(weights, n_classes)
    mass = probabilities.ravel() if weights is None else (probabilities * weights[:, None]).ravel()
    sums = np.empty((3, n_classes * n_bins))
    sums[0] = np.bincount(cell, spread, minlength=n_classes * n_bins)
    sums[1] = np.bincount(cell, mass, minlength=n_classes * n_bins)
    sums[2] = np.bincount(of_label, weights, minlength=n_classes * n_bins)
    return sums.reshape(3, n_classes, n_bins)
