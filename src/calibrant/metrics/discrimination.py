"""How well one probability per row separates positives from negatives."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.metrics.groups import confidence_groups
from calibrant.metrics.inputs import BinaryLabels, PositiveProbabilities, RowWeights, check_binary
from calibrant.metrics.record import Redrawn, metric
from calibrant.metrics.selective import area_under_roc, auroc_by_cell


@metric(
    "ROC AUC",
    "AUC",
    better=1,
    meaning="chance that a positive gets a higher p than a negative",
    interval=Redrawn(auroc_by_cell),
    about="score",
)
def roc_auc(
    probabilities: PositiveProbabilities,
    labels: BinaryLabels,
    *,
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> float:
    """Chance that a positive has a higher probability than a negative, ties counted half (Hanley & McNeil 1982).

    The area under the ROC curve; where one of the classes is absent there is nothing to tell apart, and it is 0.5.

    Examples
    --------
    >>> from calibrant.metrics import roc_auc
    >>> roc_auc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    0.75
    """
    checked = check_binary(probabilities, labels, sample_weight, from_logits)
    return area_under_roc(confidence_groups(checked.scores, checked.positive, checked.weights))


def precision_by_cell(draws: Any) -> np.ndarray:
    """`average_precision` (R,) of rows that count as tied within a cell."""
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.cumsum(draws.positive[:, ::-1], axis=1)
        precision = found / np.cumsum(draws.weight[:, ::-1], axis=1)
        return np.nansum(draws.positive[:, ::-1] * precision, axis=1) / draws.positive.sum(axis=1)


@metric(
    "average precision",
    "AP",
    better=1,
    meaning="area under the precision-recall curve",
    interval=Redrawn(precision_by_cell),
    about="score",
)
def average_precision(
    probabilities: PositiveProbabilities,
    labels: BinaryLabels,
    *,
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> float:
    """Area under the precision-recall curve as a step function, ``Σ_k (R_k − R_{k−1})·P_k`` over the distinct scores.

    Without positives there is no recall, and the answer is 0.

    Examples
    --------
    >>> from calibrant.metrics import average_precision
    >>> round(average_precision([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]), 4)
    0.8333
    """
    checked = check_binary(probabilities, labels, sample_weight, from_logits)
    groups = confidence_groups(checked.scores, checked.positive, checked.weights)
    found, flagged = groups.correct[::-1], groups.weight[::-1]
    total = found.sum()
    if total <= 0:
        return 0.0
    return float((found * np.cumsum(found) / np.cumsum(flagged)).sum() / total)
