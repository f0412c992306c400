"""The largest gap of any bin."""

from __future__ import annotations

import numpy as np

from calibrant.metrics.inputs import ClassIndices, Probabilities, RowWeights, top_label
from calibrant.metrics.top_label import ece_of


def mce(
    probabilities: Probabilities,
    labels: ClassIndices,
    *,
    n_bins: int = 15,
    binning: str = "width",
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> float:
    """Maximum calibration error: the largest gap between confidence and accuracy of any bin (Guo et al. 2017, eq. 5).

    ``max_b |A_b − C_b|`` over the bins that hold rows; the same as `ece` with ``norm=inf``.

    Examples
    --------
    >>> from calibrant.metrics import mce
    >>> round(mce([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]], [0, 1, 1]), 4)
    0.4
    """
    confidence, correct, weights = top_label(probabilities, labels, sample_weight, from_logits)
    return mce_of(confidence, correct, weights, n_bins=n_bins, binning=binning)


def mce_of(
    confidence: np.ndarray,
    correct: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    n_bins: int = 15,
    binning: str = "width",
) -> float:
    """`mce` of columns."""
    return ece_of(confidence, correct, weights, n_bins=n_bins, norm=np.inf, binning=binning)
