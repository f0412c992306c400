"""The Kolmogorov-Smirnov and the Kuiper calibration error: no bins at all."""

from __future__ import annotations

import numpy as np

from calibrant.metrics.groups import confidence_groups
from calibrant.metrics.inputs import ClassIndices, Probabilities, RowWeights, top_label


def ks_error(
    probabilities: Probabilities, labels: ClassIndices, *, sample_weight: RowWeights = None, from_logits: bool = False
) -> float:
    """Largest gap between the cumulated confidences and the cumulated right predictions (Gupta et al. 2020, eq. 7).

    ``max_t |Σ_{c_i ≤ t} (c_i − a_i)|/n`` over the confidences t; ties are summed before the maximum is taken.

    Examples
    --------
    >>> from calibrant.metrics import ks_error
    >>> ks_error([[0.75, 0.25], [0.0, 1.0]], [1, 1])
    0.375
    """
    return ks_error_of(*top_label(probabilities, labels, sample_weight, from_logits))


def ks_error_of(confidence: np.ndarray, correct: np.ndarray, weights: np.ndarray | None = None) -> float:
    """`ks_error` of columns."""
    groups = confidence_groups(confidence, correct, weights)
    return float(np.abs(np.cumsum(groups.excess)).max() / groups.weight.sum())


def kuiper_error(
    probabilities: Probabilities, labels: ClassIndices, *, sample_weight: RowWeights = None, from_logits: bool = False
) -> float:
    """Range of the cumulated gaps, ``max_k S_k − min_k S_k`` with ``S_k = 1/n Σ_{c_i ≤ t_k} (a_i − c_i)`` and S_0 = 0.

    The largest gap of any interval of confidences (Arrieta-Ibarra et al. 2022); tied confidences are summed first.

    Examples
    --------
    >>> from calibrant.metrics import kuiper_error
    >>> kuiper_error([0.25, 0.75], [1, 0])
    0.375
    """
    return kuiper_error_of(*top_label(probabilities, labels, sample_weight, from_logits))


def kuiper_error_of(confidence: np.ndarray, correct: np.ndarray, weights: np.ndarray | None = None) -> float:
    """`kuiper_error` of columns."""
    groups = confidence_groups(confidence, correct, weights)
    path = np.cumsum(groups.excess)
    return float((max(path.max(), 0.0) - min(path.min(), 0.0)) / groups.weight.sum())
