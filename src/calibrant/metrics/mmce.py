"""Maximum mean calibration error, in O(n log n) time and O(n) memory."""

from __future__ import annotations

import numpy as np

from calibrant.core.errors import InputError
from calibrant.metrics.groups import confidence_groups
from calibrant.metrics.inputs import ClassIndices, Probabilities, RowWeights, top_label

NARROWEST = 0.01
"""The smallest width: exp(1/width) must be finite."""


def mmce(
    probabilities: Probabilities,
    labels: ClassIndices,
    *,
    width: float = 0.4,
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> float:
    """Maximum mean calibration error with a Laplacian kernel (Kumar et al. 2018, eq. 5).

    ``√(Σ_ij (a_i − c_i)(a_j − c_j)·exp(−|c_i − c_j|/width)) / n``, the diagonal included.

    Parameters
    ----------
    width : float
        Distance over which confidences are compared, at least 0.01.

    Examples
    --------
    >>> from calibrant.metrics import mmce
    >>> mmce([[0.75, 0.25]] * 4, [0, 0, 1, 1])
    0.25
    """
    return mmce_of(*top_label(probabilities, labels, sample_weight, from_logits), width=width)


def mmce_of(
    confidence: np.ndarray, correct: np.ndarray, weights: np.ndarray | None = None, *, width: float = 0.4
) -> float:
    """`mmce` of columns."""
    if not width >= NARROWEST:
        raise InputError(f"width must be at least {NARROWEST}, got {width!r}")
    groups = confidence_groups(confidence, correct, weights)
    residual = groups.excess
    # for sorted c the kernel of a pair splits into exp(−c_i/width)·exp(c_j/width): a running sum replaces the matrix
    near, far = residual * np.exp(-groups.confidence / width), residual * np.exp(groups.confidence / width)
    before = np.cumsum(far) - far
    form = np.dot(residual, residual) + 2 * np.dot(near, before)
    return float(np.sqrt(max(form, 0.0)) / groups.weight.sum())
