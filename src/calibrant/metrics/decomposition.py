"""A proper score as miscalibration minus discrimination plus uncertainty."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrant.kernels.isotonic import ScoreGroups, isotonic_values, score_groups
from calibrant.metrics.binning import check_choice
from calibrant.metrics.inputs import BinaryLabels, PositiveProbabilities, RowWeights, check_binary, weighted_mean
from calibrant.metrics.record import Figure, metric


@dataclass(frozen=True)
class ScoreDecomposition:
    """score = miscalibration − discrimination + uncertainty, each 0 or more."""

    miscalibration: float
    """What the best monotone map of the same rows would take off the score: 0 for calibrated probabilities, but
    biased upwards in small samples."""
    discrimination: float
    """What the probabilities, once calibrated, tell beyond the base rate."""
    uncertainty: float
    """The score of the base rate."""
    score: float


@metric(
    figures=(
        # biased upwards by an amount that resampling does not show: no interval
        Figure(
            "miscalibration", "miscalibration", "MSC", False, -1, "part of the log loss that a map can mend",
            field="miscalibration",
        ),
        Figure(
            "discrimination", "discrimination", "DSC", False, 1, "what p tells beyond the base rate, in nats",
            field="discrimination",
        ),
        Figure("uncertainty", "uncertainty", "UNC", False, 0, "log loss of the base rate", field="uncertainty"),
    ),
    about="score",
)  # fmt: skip
def score_decomposition(
    probabilities: PositiveProbabilities,
    labels: BinaryLabels,
    *,
    score: str = "nll",
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> ScoreDecomposition:
    """CORP decomposition of the log loss or the Brier score (Dimitriadis, Gneiting & Jordan 2021).

    With p̂ the isotonic fit of the labels to p and π the base rate: ``MSC = S(p) − S(p̂)``, ``DSC = S(π) − S(p̂)``,
    ``UNC = S(π)``. Where p = 0 meets y = 1 the log loss and with it the miscalibration are infinite.

    Parameters
    ----------
    score : {"nll", "brier"}
        The log loss in nats, or mean (p − y)².

    Examples
    --------
    >>> from calibrant.metrics import score_decomposition
    >>> parts = score_decomposition([0.25, 0.25, 0.75, 0.75], [0, 0, 1, 0], score="brier")
    >>> parts.miscalibration, parts.discrimination, parts.uncertainty, parts.score
    (0.0625, 0.0625, 0.1875, 0.1875)
    """
    check_choice("score", score, ("nll", "brier"))
    checked = check_binary(probabilities, labels, sample_weight, from_logits)
    if score == "nll":
        given = weighted_mean(checked.losses(), checked.weights)
    else:
        given = weighted_mean((checked.probability.astype(np.float64) - checked.positive) ** 2, checked.weights)
    return _parts(given, score_groups(checked.scores, checked.positive, checked.weights), score)


def _parts(given: float, groups: ScoreGroups, score: str) -> ScoreDecomposition:
    total = groups.weight.sum()
    share = groups.positive / groups.weight
    fitted = float(groups.weight @ _score_at(share, isotonic_values(groups), score) / total)
    rate = np.array([groups.positive.sum() / total])
    base = float(_score_at(rate, rate, score)[0])
    return ScoreDecomposition(max(given - fitted, 0.0), max(base - fitted, 0.0), base, given)


def _score_at(share: np.ndarray, fitted: np.ndarray, score: str) -> np.ndarray:
    """Mean score (k,) of groups of rows with these shares of positives that are all given the fitted probability."""
    if score == "brier":
        return share * (1 - fitted) ** 2 + (1 - share) * fitted**2
    with np.errstate(divide="ignore", invalid="ignore"):
        of_positive = np.where(share > 0, share * np.log(fitted), 0.0)
        of_negative = np.where(share < 1, (1 - share) * np.log1p(-fitted), 0.0)
    return -(of_positive + of_negative)
