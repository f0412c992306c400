"""How well confidence separates right from wrong, and the error rate when only the most confident rows are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.metrics.groups import Groups, confidence_groups
from calibrant.metrics.inputs import ClassIndices, Probabilities, RowWeights, top_label
from calibrant.metrics.record import Redrawn, metric


def auroc_by_cell(draws: Any) -> np.ndarray:
    """Chance (R,) that a right row is in a higher cell than a wrong one, from their weights by cell (R, L)."""
    right, wrong = draws.positive, draws.weight - draws.positive
    below = np.cumsum(wrong, axis=1) - wrong / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        return (right * below).sum(axis=1) / (right.sum(axis=1) * wrong.sum(axis=1))


def aurc_by_cell(draws: Any) -> np.ndarray:
    """`aurc` (R,) of rows that count as tied within a cell."""
    kept = np.cumsum(draws.weight[:, ::-1], axis=1)
    errors = np.cumsum((draws.weight - draws.positive)[:, ::-1], axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        risk = np.where(kept > 0, errors / kept, 0.0)
    return (risk * draws.weight[:, ::-1]).sum(axis=1) / kept[:, -1]


@metric(
    "confidence AUROC",
    "conf AUROC",
    unit="%",
    better=1,
    meaning="how well confidence tells right from wrong",
    interval=Redrawn(auroc_by_cell, lowest=-np.inf),
    about="confidence",
)
def confidence_auroc(
    probabilities: Probabilities, labels: ClassIndices, *, sample_weight: RowWeights = None, from_logits: bool = False
) -> float:
    """Chance that a right prediction is more confident than a wrong one (Hendrycks & Gimpel 2017).

    The area under the ROC curve of confidence against correctness; ties count half. Where all are right or all are
    wrong there is nothing to tell apart and the answer is 0.5.

    Examples
    --------
    >>> from calibrant.metrics import confidence_auroc
    >>> confidence_auroc([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]], [0, 1, 0])
    0.5
    """
    return area_under_roc(confidence_groups(*top_label(probabilities, labels, sample_weight, from_logits)))


def area_under_roc(groups: Groups) -> float:
    """Chance that a right row is above a wrong one, ties counted half; ½ where either is absent."""
    wrong = groups.weight - groups.correct
    pairs = groups.correct.sum() * wrong.sum()
    if pairs <= 0:
        return 0.5
    return float(np.dot(groups.correct, np.cumsum(wrong) - wrong / 2) / pairs)


@dataclass(frozen=True)
class RiskCoverage:
    """Error rate among the most confident share, for every share that a confidence threshold can cut off."""

    coverage: np.ndarray
    """Share of samples kept, ascending, the last 1."""
    risk: np.ndarray
    """Error rate among those kept."""
    threshold: np.ndarray
    """Keep confidences of at least this."""

    def at(self, coverage: float) -> float:
        """Risk when at least this share is kept (ties are kept together)."""
        return float(self.risk[np.searchsorted(self.coverage, coverage - 1e-12)])


@metric()
def risk_coverage(
    probabilities: Probabilities, labels: ClassIndices, *, sample_weight: RowWeights = None, from_logits: bool = False
) -> RiskCoverage:
    """Error rate when only the most confident share is kept (El-Yaniv & Wiener 2010).

    Examples
    --------
    >>> from calibrant.metrics import risk_coverage
    >>> risk_coverage([[0.75, 0.25], [0.0, 1.0]], [1, 1]).risk.tolist()
    [0.0, 0.5]
    """
    groups = confidence_groups(*top_label(probabilities, labels, sample_weight, from_logits))
    kept = np.cumsum(groups.weight[::-1])
    wrong = np.cumsum((groups.weight - groups.correct)[::-1])
    return RiskCoverage(kept / kept[-1], wrong / kept, groups.confidence[::-1].copy())


@metric(
    "AURC",
    unit="%",
    meaning="mean error over all deferral rates",
    interval=Redrawn(aurc_by_cell, lowest=-np.inf),
    about="confidence",
)
def aurc(
    probabilities: Probabilities, labels: ClassIndices, *, sample_weight: RowWeights = None, from_logits: bool = False
) -> float:
    """Area under the risk-coverage curve (Geifman et al. 2019).

    ``1/n Σ_k risk(k)``, risk(k) the error rate of the k most confident samples. Samples of equal confidence come in
    no order: the mean over all their orders is taken. Weights are counts: a mean below 0.2 is an `InputError`.

    Examples
    --------
    >>> from calibrant.metrics import aurc
    >>> round(aurc([[0.75, 0.25], [0.0, 1.0]], [1, 1]), 4)
    0.25
    """
    groups = confidence_groups(*top_label(probabilities, labels, sample_weight, from_logits, weights_are="counts"))
    weight, wrong = groups.weight[::-1], (groups.weight - groups.correct)[::-1]
    rate = wrong / weight
    kept = np.concatenate(([0.0], np.cumsum(weight)))
    wrong_before = np.concatenate(([0.0], np.cumsum(wrong)[:-1]))
    # within a group risk(k) = rate + (wrong_before − rate·kept)/k, and Σ 1/k is a difference of harmonic numbers
    harmonic = np.diff(_digamma(kept + 1))
    return float((weight * rate + (wrong_before - rate * kept[:-1]) * harmonic).sum() / kept[-1])


def _digamma(x: np.ndarray) -> np.ndarray:
    """ψ(x) for x ≥ 1 to 1e-13; the import of scipy.special alone takes longer than all the rest of a measurement.

    ψ(x) = ψ(x+6) − Σ 1/(x+i), and the asymptotic series in 1/(x+6)² from there.
    """
    far = x + 6.0
    square = 1 / far**2
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square * (1 / 240 - square * (1 / 132)))))
    shift = sum(1 / (x + step) for step in range(6))
    return np.log(far) - 0.5 / far - series + square**6 * (691 / 32760) - shift
