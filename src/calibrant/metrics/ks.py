"""The Kolmogorov-Smirnov and the Kuiper calibration error: no bins at all."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.metrics.groups import confidence_groups
from calibrant.metrics.inputs import ClassIndices, Probabilities, RowWeights, top_label
from calibrant.metrics.record import Gaps, metric


def by_cell(cells: Any, value: float) -> np.ndarray:
    """Residuals as they are, one per cell of confidences."""
    return np.eye(len(cells.confidence))


def path_range(residual: np.ndarray) -> np.ndarray:
    """max_k S_k − min_k S_k of the cumulated residuals S (…, L), S_0 = 0 included."""
    path = np.cumsum(residual, axis=-1)
    return np.maximum(path.max(axis=-1), 0.0) - np.minimum(path.min(axis=-1), 0.0)


@metric(
    "KS error",
    "KS",
    unit="%",
    meaning="largest gap accumulated over confidence, without bins",
    interval=Gaps(by_cell, lambda g, share: np.abs(np.cumsum(g, axis=-1)).max(axis=-1)),
)
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
    groups = confidence_groups(*top_label(probabilities, labels, sample_weight, from_logits))
    return float(np.abs(np.cumsum(groups.excess)).max() / groups.weight.sum())


@metric(
    "Kuiper error",
    "Kuiper",
    unit="%",
    meaning="largest gap over any range of p, without bins",
    interval=Gaps(by_cell, lambda g, share: path_range(g)),
    about="score",
)
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
    groups = confidence_groups(*top_label(probabilities, labels, sample_weight, from_logits))
    return float(path_range(groups.excess) / groups.weight.sum())
