"""The effect of a threshold on one probability per row: rows flagged, positives found, net benefit of acting."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from calibrant.core.errors import InputError
from calibrant.kernels.isotonic import ScoreGroups, score_groups
from calibrant.metrics.inputs import BinaryLabels, PositiveProbabilities, RowWeights, check_binary
from calibrant.metrics.record import metric

THRESHOLDS = np.arange(1, 100) / 100
"""1% … 99%."""


@dataclass(frozen=True)
class DecisionCurve:
    """Net benefit of acting on the model, on everyone and on no one, at each threshold."""

    thresholds: np.ndarray
    model: np.ndarray
    treat_all: np.ndarray
    treat_none: np.ndarray


@dataclass(frozen=True)
class ThresholdMetrics:
    """What flagging p ≥ threshold does; numbers, or arrays where several thresholds were asked for. NaN where the
    denominator is 0."""

    threshold: float | np.ndarray
    sensitivity: float | np.ndarray
    """Share of the positives that are flagged."""
    specificity: float | np.ndarray
    """Share of the negatives that are not flagged."""
    ppv: float | np.ndarray
    """Share of the flagged that are positive."""
    npv: float | np.ndarray
    """Share of the others that are negative."""
    flagged: float | np.ndarray
    """Share of all rows that are flagged."""


@metric(about="score")
def net_benefit(
    probabilities: PositiveProbabilities,
    labels: BinaryLabels,
    thresholds: ArrayLike = THRESHOLDS,
    *,
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> np.ndarray:
    """Net benefit of acting where p ≥ t, ``TP/n − FP/n · t/(1 − t)``, at each threshold (Vickers & Elkin 2006).

    Acting on everyone has ``π − (1 − π)·t/(1 − t)``, π the share of positives, and acting on no one has 0:
    `decision_curve` gives all three.

    Parameters
    ----------
    thresholds : array
        Numbers in [0, 1).

    Examples
    --------
    >>> from calibrant.metrics import net_benefit
    >>> net_benefit([0.1, 0.6, 0.8], [0, 0, 1], [0.5]).round(4).tolist()
    [0.0]
    """
    return decision_curve(probabilities, labels, thresholds, sample_weight=sample_weight, from_logits=from_logits).model


@metric(about="score")
def decision_curve(
    probabilities: PositiveProbabilities,
    labels: BinaryLabels,
    thresholds: ArrayLike = THRESHOLDS,
    *,
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> DecisionCurve:
    """Net benefit of the model beside treating all and treating none (Vickers & Elkin 2006).

    Parameters
    ----------
    thresholds : array
        Numbers in [0, 1).

    Examples
    --------
    >>> from calibrant.metrics import decision_curve
    >>> decision_curve([0.1, 0.6, 0.8, 0.2], [0, 0, 1, 0], [0.25]).treat_all.tolist()
    [0.0]
    """
    cuts = check_thresholds(thresholds)
    if (cuts >= 1).any():
        raise InputError(f"thresholds reach {cuts.max():g}, but the net benefit needs thresholds below 1")
    checked = check_binary(probabilities, labels, sample_weight, from_logits)
    groups = score_groups(checked.probability, checked.positive, checked.weights)
    found, flagged = flagged_above(groups, cuts)
    total, positive = groups.weight.sum(), groups.positive.sum()
    odds = cuts / (1 - cuts)
    prevalence = positive / total
    return DecisionCurve(
        cuts, (found - (flagged - found) * odds) / total, prevalence - (1 - prevalence) * odds, np.zeros(cuts.shape)
    )


@metric(about="score")
def threshold_metrics(
    probabilities: PositiveProbabilities,
    labels: BinaryLabels,
    threshold: ArrayLike = 0.5,
    *,
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> ThresholdMetrics:
    """Sensitivity, specificity, predictive values and the share flagged where p ≥ threshold is flagged.

    Parameters
    ----------
    threshold : number or array
        In [0, 1]; an array gives arrays.

    Examples
    --------
    >>> from calibrant.metrics import threshold_metrics
    >>> found = threshold_metrics([0.1, 0.6, 0.8, 0.2], [0, 0, 1, 0], 0.5)
    >>> found.sensitivity, found.ppv, found.flagged
    (1.0, 0.5, 0.5)
    """
    cuts = check_thresholds(threshold)
    checked = check_binary(probabilities, labels, sample_weight, from_logits)
    groups = score_groups(checked.probability, checked.positive, checked.weights)
    found, flagged = flagged_above(groups, cuts)
    total, positive = groups.weight.sum(), groups.positive.sum()
    spared = total - flagged - (positive - found)
    with np.errstate(invalid="ignore", divide="ignore"):
        columns = (
            found / positive,
            spared / (total - positive),
            found / flagged,
            spared / (total - flagged),
            flagged / total,
        )
    if np.ndim(threshold) == 0:
        return ThresholdMetrics(float(cuts), *(float(column) for column in columns))
    return ThresholdMetrics(cuts, *columns)


def check_thresholds(thresholds: ArrayLike) -> np.ndarray:
    """Thresholds as float64."""
    cuts = np.asarray(thresholds, dtype=np.float64)
    if cuts.size == 0 or not ((cuts >= 0) & (cuts <= 1)).all():
        shown = "none" if cuts.size == 0 else f"{cuts.min():g} to {cuts.max():g}"
        raise InputError(f"thresholds must lie in [0, 1], got {shown}")
    return cuts


def flagged_above(groups: ScoreGroups, thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weight of positives, and of all rows, at or above each threshold."""
    # thresholds are rounded as the probabilities were, so that a float32 0.2 is at a threshold of 0.2
    narrowed = thresholds.astype(groups.scores.dtype).astype(np.float64)
    first = np.searchsorted(groups.scores.astype(np.float64), narrowed, side="left")
    found = np.append(np.cumsum(groups.positive[::-1])[::-1], 0.0)
    flagged = np.append(np.cumsum(groups.weight[::-1])[::-1], 0.0)
    return found[first], flagged[first]
