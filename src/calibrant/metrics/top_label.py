"""Expected calibration error of the top label over bins, and what is read off the same bins.

A confidence on the edge of two equal-width bins belongs to the lower one, (lo, hi], as in the papers and in
scikit-learn; torchmetrics and netcal put it into the upper one, which makes a difference on few samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrant.core.bins import BinSums, over, total_gap, under, width_index
from calibrant.metrics.binning import bin_index, bin_sums, check_choice, check_norm
from calibrant.metrics.inputs import ORDER_OF_ROWS, Checked, ClassIndices, Probabilities, RowWeights, check
from calibrant.metrics.record import Figure, Gaps, metric


@metric(
    "ECE",
    unit="%",
    meaning="mean gap between confidence and accuracy",
    interval=Gaps("width", lambda g, share: total_gap(g), shrunk=True),
    compared=1,
)
def ece(
    probabilities: Probabilities,
    labels: ClassIndices,
    *,
    n_bins: int = 15,
    norm: float = 1,
    binning: str = "width",
    weighting: str = "bin",
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> float:
    """Mean gap between confidence and accuracy over bins (Guo et al. 2017, eq. 3).

    ``(Σ_b (n_b/n)·|A_b − C_b|^p)^(1/p)`` with ``weighting="bin"`` (Karandikar et al. 2021, eq. 6), or
    ``(1/n Σ_i |A_{b(i)} − c_i|^p)^(1/p)`` with ``weighting="label"`` (eq. 7).

    Parameters
    ----------
    n_bins : int
        Number of bins.
    norm : {1, 2, inf}
        p; ``inf`` is the maximum calibration error (MCE).
    binning : {"width", "mass"}
        Bins of equal width over [0, 1], or of equal numbers of samples.
    weighting : {"bin", "label"}
        Compare accuracy with a bin's mean confidence, or with each sample's own.

    Examples
    --------
    >>> from calibrant.metrics import ece
    >>> round(ece([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]], [0, 1, 1]), 4)
    0.4
    """
    rows, p = check(probabilities, labels, sample_weight, from_logits), check_norm(norm)
    sums = bin_sums(rows, n_bins, binning)
    if check_choice("weighting", weighting, ("bin", "label")) == "bin":
        return float(sums.norm(p))
    if binning == "width" and p == 2:
        return within_and_between(sums, rows.total(square_sums, n_bins))
    confidence, _, weights = rows.every(ORDER_OF_ROWS).top()
    accuracy = sums.correct / np.where(sums.weight > 0, sums.weight, 1.0)
    gap = np.abs(accuracy[bin_index(confidence, weights, n_bins, binning)] - confidence)
    if np.isinf(p):
        return float(gap.max() if weights is None else gap[weights > 0].max())
    return float(np.average(gap**p, weights=weights) ** (1 / p))


def square_sums(rows: Checked, n_bins: int) -> np.ndarray:
    """Σw·c² of each bin (M,)."""
    confidence, _, weights = rows.top()
    squares = confidence.astype(np.float64) ** 2
    squares = squares if weights is None else squares * weights
    return np.bincount(width_index(confidence, n_bins), squares, minlength=n_bins)


def within_and_between(sums: BinSums, squares: np.ndarray) -> float:
    """√ of the mean of (A_b − c_i)²: Σ_b n_b·(A_b − C_b)² plus the variance of confidence within each bin."""
    weight = np.where(sums.weight > 0, sums.weight, 1.0)
    within = squares - sums.confidence**2 / weight
    # equal confidences vary by rounding only
    within = np.where(within > 8 * np.finfo(np.float64).eps * squares, within, 0.0)
    between = (sums.confidence - sums.correct) ** 2 / weight
    return float(np.sqrt((within + between).sum() / sums.weight.sum()))


@dataclass(frozen=True)
class OverUnderConfidence:
    """The two parts of the ECE: bins whose confidence is too high, and bins whose confidence is too low."""

    over: float
    under: float


@metric(
    figures=(
        Figure(
            "over_confidence", "overconfidence", "over", True, 0, "the part of ECE where confidence is too high",
            Gaps("width", lambda g, share: over(g)), field="over", compared=7,
        ),
        Figure(
            "under_confidence", "underconfidence", "under", True, 0, "the part of ECE where confidence is too low",
            Gaps("width", lambda g, share: under(g)), field="under", compared=8,
        ),
    )
)  # fmt: skip
def over_under_confidence(
    probabilities: Probabilities,
    labels: ClassIndices,
    *,
    n_bins: int = 15,
    binning: str = "width",
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> OverUnderConfidence:
    """Split the ECE into over- and under-confidence (Frenkel & Goldberger 2021, eq. 3-4).

    ``over = Σ_b (n_b/n)·max(0, C_b − A_b)``, ``under = Σ_b (n_b/n)·max(0, A_b − C_b)``; they add up to the ECE, and
    their difference is the mean confidence minus the accuracy.

    Examples
    --------
    >>> from calibrant.metrics import over_under_confidence
    >>> over_under_confidence([[0.75, 0.25], [0.0, 1.0]], [0, 0])
    OverUnderConfidence(over=0.5, under=0.125)
    """
    sums = bin_sums(check(probabilities, labels, sample_weight, from_logits), n_bins, binning)
    return OverUnderConfidence(float(over(sums.excess)), float(under(sums.excess)))


@metric(
    "largest bin (MCE)",
    "MCE",
    unit="%",
    meaning="gap of the worst bin",
    interval=Gaps("width", lambda g, share: (np.abs(g) / share).max(axis=-1)),
)
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
    return float(bin_sums(check(probabilities, labels, sample_weight, from_logits), n_bins, binning).norm(np.inf))


@metric(
    "adaptive ECE",
    "ada",
    unit="%",
    meaning="the same gap over bins of equal size",
    interval=Gaps("mass", lambda g, share: total_gap(g), shrunk=True),
    compared=2,
)
def adaptive_ece(
    probabilities: Probabilities,
    labels: ClassIndices,
    *,
    n_bins: int = 15,
    norm: float = 1,
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> float:
    """ECE of the top label over bins of equal mass (Nguyen & O'Connor 2015).

    ``Σ_b (n_b/n)·|A_b − C_b|`` with bin ``floor(M·rank/n)``; tied confidences share the lowest rank of their
    group, so the answer does not depend on the order of the rows.

    Examples
    --------
    >>> from calibrant.metrics import adaptive_ece
    >>> round(adaptive_ece([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]], [0, 1, 1], n_bins=3), 4)
    0.4333
    """
    rows = check(probabilities, labels, sample_weight, from_logits)
    return float(bin_sums(rows, n_bins, "mass").norm(check_norm(norm)))


@metric(
    "debiased ECE",
    "debiased",
    unit="%",
    meaning="the gap with its sampling noise subtracted",
    interval=Gaps("width", lambda g, share: np.sqrt((g**2 / share).sum(axis=-1)), debiased=True),
)
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
    sums = bin_sums(check(probabilities, labels, sample_weight, from_logits, weights_are="counts"), n_bins, binning)
    share = sums.weight / sums.weight.sum()
    squares = np.where(sums.weight >= 2, share * sums.gap**2, 0.0).sum()
    return float(np.sqrt(np.maximum(squares - sums.noise_squared, 0.0)))
