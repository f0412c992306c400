"""The ℓ2 calibration error with its upward bias taken out."""

from __future__ import annotations

import numpy as np

from calibrant.core.bin_sums import BinSums
from calibrant.metrics.binning import bin_sums
from calibrant.metrics.inputs import ClassIndices, Probabilities, RowWeights, top_label


def debiased_ece(
    probabilities: Probabilities,
    labels: ClassIndices,
    *,
    n_bins: int = 15,
    binning: str = "width",
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> float:
    """ℓ2 ECE minus what sampling noise alone adds to it (Kumar et al. 2019, def. 5.1).

    ``√max(0, Σ_b (n_b/n)·[(C_b − A_b)² − A_b(1 − A_b)/(n_b − 1)])``; bins of fewer than 2 samples count 0.
    Weights are counts: a mean below 0.2 is an `InputError`.

    Examples
    --------
    >>> from calibrant.metrics import debiased_ece
    >>> debiased_ece([[0.75, 0.25]] * 4, [1, 1, 1, 1])
    0.75
    """
    confidence, correct, weights = top_label(probabilities, labels, sample_weight, from_logits, weights_are="counts")
    return debiased_ece_of(confidence, correct, weights, n_bins=n_bins, binning=binning)


def debiased_ece_of(
    confidence: np.ndarray,
    correct: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    n_bins: int = 15,
    binning: str = "width",
) -> float:
    """`debiased_ece` of columns."""
    return float(debiased_norm(bin_sums(confidence, correct, weights, n_bins, binning)))


def debiased_norm(sums: BinSums) -> np.ndarray:
    """The debiased ℓ2 norm of bin sums, over the last axis."""
    share = sums.weight / sums.weight.sum(axis=-1, keepdims=True)
    squares = np.where(sums.weight >= 2, share * sums.gap**2, 0.0).sum(axis=-1)
    return np.sqrt(np.maximum(squares - sums.noise_squared, 0.0))
