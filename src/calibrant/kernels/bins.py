"""Sums over equal-width bins: of the top label's confidence, and of every class's probability.

In soft bins every confidence belongs a little to every bin (Karandikar et al. 2021, §4).
"""

import numpy as np

from calibrant.core.arrays import Array
from calibrant.core.bins import width_index
from calibrant.core.softmax import softmax
from calibrant.core.statistic import kernel


@kernel(compiled_in="calibrant.kernels.compiled.bins")
def width_sums(confidence: Array, correct: Array, weights: Array | None, n_bins: int) -> Array:
    """Σw, Σw·confidence and Σw·correct of each equal-width bin, as a (3, n_bins) array."""
    return index_sums(width_index(confidence, n_bins), confidence, correct, weights, n_bins)


def index_sums(index: Array, confidence: Array, correct: Array, weights: Array | None, n_bins: int) -> Array:
    """Σw, Σw·confidence and Σw·correct of the rows that share an index, as a (3, n_bins) array."""
    columns = (confidence, correct) if weights is None else (weights * confidence, weights * correct)
    return np.array([np.bincount(index, one, minlength=n_bins) for one in (weights, *columns)], np.float64)


@kernel(compiled_in="calibrant.kernels.compiled.bins")
def class_width_sums(probabilities: Array, labels: Array, weights: Array | None, n_bins: int) -> Array:
    """Σw, Σw·p_j and Σw·1{y=j} of each class and equal-width bin, as a (3, K, n_bins) array."""
    n_rows, n_classes = probabilities.shape
    index = width_index(probabilities.ravel(), n_bins).reshape(n_rows, n_classes)
    of_label = index[np.arange(n_rows), labels] + labels * n_bins
    cell = (index + np.arange(n_classes) * n_bins).ravel()
    spread = None if weights is None else np.repeat(weights, n_classes)
    mass = probabilities.ravel() if weights is None else (probabilities * weights[:, None]).ravel()
    columns = (cell, spread), (cell, mass), (of_label, weights)
    sums = [np.bincount(place, column, minlength=n_classes * n_bins) for place, column in columns]
    return np.array(sums, np.float64).reshape(3, n_classes, n_bins)


def soft_bin_sums(confidence: Array, correct: Array, weights: Array | None, n_bins: int, temperature: float) -> Array:
    """Σ w·m, Σ w·m·confidence and Σ w·m·correct of each soft bin, (3, n_bins).

    The memberships m of a confidence c are softmax_j(−(c − ξ_j)²/T) over the centres ξ_j of n_bins equal bins.
    """
    mass = np.ones(len(confidence)) if weights is None else weights
    columns = np.stack([mass, mass * confidence, mass * correct])
    return columns @ memberships(confidence, n_bins, temperature)


def memberships(confidence: Array, n_bins: int, temperature: float) -> Array:
    """How much each confidence (n,) belongs to each bin, (n, M); rows sum to 1."""
    centres = (np.arange(n_bins) + 0.5) / n_bins
    return softmax(-((confidence[:, None].astype(np.float64) - centres) ** 2) / temperature)
