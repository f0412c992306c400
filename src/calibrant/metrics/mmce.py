"""Maximum mean calibration error, in O(n log n) time and O(n) memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.metrics.groups import confidence_groups
from calibrant.metrics.inputs import ClassIndices, Probabilities, RowWeights, top_label
from calibrant.metrics.record import Gaps, metric

WIDTH = 0.4
NARROWEST = 0.01
"""The smallest width: exp(1/width) must be finite."""


def laplacian_root(cells: Any, value: float) -> np.ndarray:
    """F (L, L) with F Fᵀ = exp(−|c−c'|/0.4), for sorted confidences: Σ_ij g_i K_ij g_j is the sum of squares of g F.

    The kernel is the covariance of a Markov process, whose Cholesky factor has a closed form: what the point j adds
    to its predecessor, carried on to every later point i.
    """
    confidence = cells.confidence
    distance = np.abs(confidence[:, None] - confidence) / WIDTH
    # means of neighbouring cells may swap by a rounding error
    steps = np.maximum(np.diff(confidence, prepend=-np.inf), 0.0)
    return np.tril(np.exp(-distance)) * np.sqrt(-np.expm1(-2 * steps / WIDTH))


@metric(
    "MMCE",
    unit="%",
    meaning="kernel mean of the gap, without bins",
    interval=Gaps(laplacian_root, lambda g, share: np.sqrt((g**2).sum(axis=-1))),
)
def mmce(
    probabilities: Probabilities,
    labels: ClassIndices,
    *,
    width: float = WIDTH,
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
    if not width >= NARROWEST:
        raise InputError(f"width must be at least {NARROWEST}, got {width!r}")
    groups = confidence_groups(*top_label(probabilities, labels, sample_weight, from_logits))
    residual = groups.excess
    # for sorted c the kernel of a pair splits into exp(−c_i/width)·exp(c_j/width): a running sum replaces the matrix
    near, far = residual * np.exp(-groups.confidence / width), residual * np.exp(groups.confidence / width)
    before = np.cumsum(far) - far
    form = np.dot(residual, residual) + 2 * np.dot(near, before)
    return float(np.sqrt(max(form, 0.0)) / groups.weight.sum())
