"""Expected calibration error of the top label over bins, and what is read off the same bins.

A confidence on the edge of two equal-width bins belongs to the lower one, (lo, hi], as in the papers and in
scikit-learn; torchmetrics and netcal put it into the upper one, which makes a difference on few samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from calibrant.core.bin_sums import BinSums, over, under
from calibrant.metrics.binning import bin_index, bin_sums, check_choice, check_norm
from calibrant.metrics.inputs import ClassIndices, Probabilities, RowWeights, top_label


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
    confidence, correct, weights = top_label(probabilities, labels, sample_weight, from_logits)
    return ece_of(confidence, correct, weights, n_bins=n_bins, norm=norm, binning=binning, weighting=weighting)


def ece_of(
    confidence: np.ndarray,
    correct: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    n_bins: int = 15,
    norm: float = 1,
    binning: str = "width",
    weighting: str = "bin",
) -> float:
    """`ece` of columns: confidence (n,), correct (n,) and weights (n,) or None."""
    p = check_norm(norm)
    if check_choice("weighting", weighting, ("bin", "label")) == "bin":
        return float(bin_sums(confidence, correct, weights, n_bins, binning).norm(p))
    index = bin_index(confidence, weights, n_bins, binning)
    sums = bin_sums(confidence, correct, weights, n_bins, binning)
    accuracy = sums.correct / np.where(sums.weight > 0, sums.weight, 1.0)
    gap = np.abs(accuracy[index] - confidence)
    if np.isinf(p):
        return float(gap.max() if weights is None else gap[weights > 0].max())
    powers = gap**p
    mean = powers.mean() if weights is None else np.dot(powers, weights) / weights.sum()
    return float(mean ** (1 / p))


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
    confidence, correct, weights = top_label(probabilities, labels, sample_weight, from_logits)
    return ece_of(confidence, correct, weights, n_bins=n_bins, norm=norm, binning="mass")


adaptive_ece_of = partial(ece_of, binning="mass")
"""`adaptive_ece` of columns."""


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
    return mce_of(*top_label(probabilities, labels, sample_weight, from_logits), n_bins=n_bins, binning=binning)


mce_of = partial(ece_of, norm=np.inf)
"""`mce` of columns."""


@dataclass(frozen=True)
class OverUnderConfidence:
    """The two parts of the ECE: bins whose confidence is too high, and bins whose confidence is too low."""

    over: float
    under: float


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
    confidence, correct, weights = top_label(probabilities, labels, sample_weight, from_logits)
    return over_under_confidence_of(confidence, correct, weights, n_bins=n_bins, binning=binning)


def over_under_confidence_of(
    confidence: np.ndarray,
    correct: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    n_bins: int = 15,
    binning: str = "width",
) -> OverUnderConfidence:
    """`over_under_confidence` of columns."""
    return over_under_of_sums(bin_sums(confidence, correct, weights, n_bins, binning))


def over_under_of_sums(sums: BinSums) -> OverUnderConfidence:
    """The split of one row of bin sums."""
    return OverUnderConfidence(float(over(sums.excess)), float(under(sums.excess)))


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
    confidence, correct, weights = top_label(probabilities, labels, sample_weight, from_logits, weights_are="counts")
    return debiased_ece_of(confidence, correct, weights, n_bins=n_bins, binning=binning)


def debiased_ece_of(
    confidence: np.ndarray,
    correct: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    n_bins: int = 15,
    binning: str = "width",
) -> float:
    """`debiased_ece` of columns."""
    return float(debiased_norm(bin_sums(confidence, correct, weights, n_bins, binning)))


def debiased_norm(sums: BinSums) -> np.ndarray:
    """The debiased ℓ2 norm of bin sums, over the last axis."""
    share = sums.weight / sums.weight.sum(axis=-1, keepdims=True)
    squares = np.where(sums.weight >= 2, share * sums.gap**2, 0.0).sum(axis=-1)
    return np.sqrt(np.maximum(squares - sums.noise_squared, 0.0))
