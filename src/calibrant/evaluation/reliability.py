"""The numbers behind a reliability diagram: per bin the stated confidence, the accuracy, and what chance allows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from calibrant.evaluation.consistency import drawn_right
from calibrant.metrics.clinical import Z_95
from calibrant.metrics.reliability import Reliability, reliability
from calibrant.metrics.top_label import bin_index


def reliability_bins(
    confidence: np.ndarray,
    correct: np.ndarray,
    *,
    n_bins: int = 15,
    binning: str = "width",
    weights: np.ndarray | None = None,
    draws: int = 400,
    seed: int = 0,
) -> Reliability:
    """Bin the top-label confidences (n,) and set beside each bin's accuracy its interval and the noise band.

    The interval is Wilson's at 95%. The band holds 95% of the accuracies that labels drawn from the confidences
    themselves give (Bröcker & Smith 2007).

    Examples
    --------
    >>> bins = reliability_bins(np.array([0.9, 0.9, 0.4, 0.6]), np.array([1, 1, 0, 1]), n_bins=2)
    >>> bins.count.tolist(), bins.accuracy.tolist()
    ([1, 3], [0.0, 1.0])
    """
    confidence = np.asarray(confidence)
    mass = None if weights is None else np.asarray(weights, dtype=np.float64)
    bins = reliability(confidence, np.asarray(correct), sample_weight=mass, n_bins=n_bins, binning=binning)
    index = bin_index(confidence, mass, n_bins, binning)
    count = np.bincount(index, minlength=n_bins)
    squares = count if mass is None else np.bincount(index, mass**2, minlength=n_bins)
    stated = np.clip(confidence.astype(np.float64), 0.0, 1.0)
    drawn = drawn_right(stated, index, n_bins, mass, draws=draws, seed=seed)
    with np.errstate(invalid="ignore", divide="ignore"):
        # Kish's number of equally weighted rows that would be as noisy: the plain count where there are no weights
        low, high = wilson_interval(bins.accuracy, bins.weight**2 / squares)
        noise_low, noise_high = np.quantile(drawn, [0.025, 0.975], axis=0) / bins.weight
    return replace(bins, count=count, accuracy_low=low, accuracy_high=high, noise_low=noise_low, noise_high=noise_high)


def wilson_interval(share: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """95% Wilson score interval of shares out of (effective) counts.

    >>> low, high = wilson_interval(np.array([0.5]), np.array([100.0]))
    >>> round(float(low[0]), 3), round(float(high[0]), 3)
    (0.404, 0.596)
    """
    square = Z_95**2
    centre = (share + square / (2 * count)) / (1 + square / count)
    half = Z_95 / (1 + square / count) * np.sqrt(share * (1 - share) / count + square / (4 * count**2))
    return np.clip(centre - half, 0.0, 1.0), np.clip(centre + half, 0.0, 1.0)
