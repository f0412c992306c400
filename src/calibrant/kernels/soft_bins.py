"""Soft bins: every confidence belongs a little to every bin (Karandikar et al. 2021, §4)."""

from __future__ import annotations

import numpy as np

from calibrant.core.arrays import Array
from calibrant.core.softmax import softmax


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


def soft_bin_error(sums: Array, norm: float) -> float:
    """(Σ_j (S_j/n)·|A_j − C_j|^p)^(1/p) from the sums of `soft_bin_sums` (eq. 11)."""
    size, confidence, correct = sums
    occupied = size > 0
    gaps = np.abs(correct[occupied] - confidence[occupied]) / size[occupied]
    return float(((size[occupied] / size.sum()) @ gaps**norm) ** (1 / norm))
