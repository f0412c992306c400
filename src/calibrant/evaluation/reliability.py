"""The numbers behind a reliability diagram: per bin the stated confidence, the accuracy, and what chance allows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrant.core.bins import check_n_bins, width_edges, width_index
from calibrant.evaluation.consistency import drawn_right

NORMAL_975 = 1.959963984540054


@dataclass(frozen=True)
class ReliabilityBins:
    """Equal-width bins (M,); an empty bin has count 0 and NaN elsewhere.

    lower, upper : the edges; a bin is (lower, upper].
    count, weight : rows and their weight.
    confidence, accuracy : weighted means.
    accuracy_low, accuracy_high : 95% Wilson interval of the accuracy.
    noise_low, noise_high : where the accuracy of a calibrated model would lie in 95% of data sets like this one.
    """

    lower: np.ndarray
    upper: np.ndarray
    count: np.ndarray
    weight: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray
    accuracy_low: np.ndarray
    accuracy_high: np.ndarray
    noise_low: np.ndarray
    noise_high: np.ndarray


def reliability_bins(
    confidence: np.ndarray,
    correct: np.ndarray,
    *,
    n_bins: int = 15,
    weights: np.ndarray | None = None,
    draws: int = 400,
    seed: int = 0,
) -> ReliabilityBins:
    """Bin the top-label confidences (n,) and set beside each bin's accuracy its interval and the noise band.

    Examples
    --------
    >>> bins = reliability_bins(np.array([0.9, 0.9, 0.4, 0.6]), np.array([1, 1, 0, 1]), n_bins=2)
    >>> bins.count.tolist(), bins.accuracy.tolist()
    ([1, 3], [0.0, 1.0])
    """
    confidence = np.asarray(confidence)
    index = width_index(confidence, check_n_bins(n_bins))
    confidence = np.clip(confidence.astype(np.float64), 0.0, 1.0)
    mass = np.ones(len(confidence)) if weights is None else np.asarray(weights, dtype=np.float64)
    count = np.bincount(index, minlength=n_bins)
    weight = np.bincount(index, mass, minlength=n_bins)
    squares = np.bincount(index, mass**2, minlength=n_bins)
    drawn = drawn_right(confidence, index, n_bins, weights, draws=draws, seed=seed)
    with np.errstate(invalid="ignore", divide="ignore"):
        accuracy = np.bincount(index, mass * correct, minlength=n_bins) / weight
        stated = np.bincount(index, mass * confidence, minlength=n_bins) / weight
        low, high = wilson_interval(accuracy, weight**2 / squares)
        noise_low, noise_high = np.quantile(drawn, [0.025, 0.975], axis=0) / weight
    edges = width_edges(n_bins)
    return ReliabilityBins(edges[:-1], edges[1:], count, weight, stated, accuracy, low, high, noise_low, noise_high)


def wilson_interval(share: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """95% Wilson score interval of shares out of (effective) counts.

    >>> low, high = wilson_interval(np.array([0.5]), np.array([100.0]))
    >>> round(float(low[0]), 3), round(float(high[0]), 3)
    (0.404, 0.596)
    """
    square = NORMAL_975**2
    centre = (share + square / (2 * count)) / (1 + square / count)
    half = NORMAL_975 / (1 + square / count) * np.sqrt(share * (1 - share) / count + square / (4 * count**2))
    return np.clip(centre - half, 0.0, 1.0), np.clip(centre + half, 0.0, 1.0)
