"""Soft-binned ECE: every sample belongs to every bin, with a weight."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from calibrant.core.bin_sums import BinSums
from calibrant.core.bins import check_n_bins
from calibrant.core.errors import InputError
from calibrant.core.threads import map_blocks, row_blocks
from calibrant.kernels.soft_bins import memberships
from calibrant.metrics.binning import check_choice, check_norm
from calibrant.metrics.inputs import ClassIndices, Probabilities, RowWeights, top_label


def soft_ece(
    probabilities: Probabilities,
    labels: ClassIndices,
    *,
    n_bins: int = 15,
    temperature: float = 0.01,
    norm: float = 2,
    weighting: str = "bin",
    decay: float | None = None,
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> float:
    """SB-ECE: ECE over soft bins (Karandikar et al. 2021, eq. 8-12).

    Memberships ``u_ij = softmax_j(−(c_i − ξ_j)²/T)`` of M equal bins with centres ξ_j give sizes S_j and means C_j,
    A_j. ``(Σ_j (S_j/n)·|A_j − C_j|^p)^(1/p)`` with ``weighting="bin"`` (eq. 11), and
    ``(1/n Σ_ij u_ij·|A_j − c_i|^p)^(1/p)`` with ``weighting="label"`` (eq. 12).

    Parameters
    ----------
    temperature : float
        T; towards 0 the bins turn hard.
    weighting : {"bin", "label"}
        "bin" is the counterpart of the ECE and the default here; the training loss `calibrant.losses.soft_ece`
        defaults to "label", the form that the paper trains.
    decay : float, optional
        d > 1 sets T = 1/(M² ln d): at a centre the neighbour's membership is 1/d of its own.

    Examples
    --------
    >>> from calibrant.metrics import soft_ece
    >>> round(soft_ece([[0.75, 0.25]] * 4, [0, 0, 1, 1]), 4)
    0.25
    """
    confidence, correct, weights = top_label(probabilities, labels, sample_weight, from_logits)
    return soft_ece_of(
        confidence,
        correct,
        weights,
        n_bins=n_bins,
        temperature=temperature,
        norm=norm,
        weighting=weighting,
        decay=decay,
    )


def soft_ece_of(
    confidence: np.ndarray,
    correct: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    n_bins: int = 15,
    temperature: float = 0.01,
    norm: float = 2,
    weighting: str = "bin",
    decay: float | None = None,
) -> float:
    """`soft_ece` of columns."""
    p = check_norm(norm)
    softness = bin_temperature(n_bins, temperature, decay)
    sums = soft_sums(confidence, correct, weights, n_bins, softness)
    if check_choice("weighting", weighting, ("bin", "label")) == "bin":
        return float(sums.bins.norm(p))
    accuracy = sums.bins.correct / np.where(sums.bins.weight > 0, sums.bins.weight, 1.0)

    def part(block: slice) -> float:
        gap = np.abs(accuracy - confidence[block, None].astype(np.float64))
        membership = memberships(confidence[block], n_bins, softness)
        if np.isinf(p):
            counted = membership > 0 if weights is None else (membership > 0) & (weights[block, None] > 0)
            return float(np.where(counted, gap, 0.0).max())
        rows = (membership * gap**p).sum(axis=1)
        return float(rows.sum() if weights is None else np.dot(rows, weights[block]))

    parts = map_blocks(part, row_blocks(len(confidence), n_bins))
    return max(parts) if np.isinf(p) else float((sum(parts) / sums.bins.weight.sum()) ** (1 / p))


class SoftSums(NamedTuple):
    """Sums over soft bins; they add up over chunks."""

    bins: BinSums
    square: np.ndarray
    """Σ_i w·u_ij·c_i² of each bin."""

    def __add__(self, other: object) -> SoftSums:
        if not isinstance(other, SoftSums):
            return NotImplemented
        return SoftSums(self.bins + other.bins, self.square + other.square)

    def label_norm(self) -> float:
        """Eq. 12 at p = 2: Σ_j S_j·(A_j − C_j)² plus the variance of confidence within each bin."""
        weight = np.where(self.bins.weight > 0, self.bins.weight, 1.0)
        within = np.maximum(self.square - self.bins.confidence**2 / weight, 0.0)
        between = (self.bins.confidence - self.bins.correct) ** 2 / weight
        return float(np.sqrt((within + between).sum() / self.bins.weight.sum()))


def soft_sums(
    confidence: np.ndarray, correct: np.ndarray, weights: np.ndarray | None, n_bins: int, temperature: float
) -> SoftSums:
    """Sizes and sums of the soft bins, eq. 8-10."""

    def part(block: slice) -> np.ndarray:
        c = confidence[block].astype(np.float64)
        w = np.ones(len(c)) if weights is None else weights[block]
        return np.stack([w, w * c, w * correct[block], w * c * c]) @ memberships(c, n_bins, temperature)

    sums = np.sum(map_blocks(part, row_blocks(len(confidence), n_bins)), axis=0)
    return SoftSums(BinSums(*sums[:3]), sums[3])


def bin_temperature(n_bins: int, temperature: float, decay: float | None) -> float:
    """T, or 1/(M² ln d) where a decay d is given: at a centre the neighbour's membership is then 1/d of its own."""
    check_n_bins(n_bins)
    if decay is not None:
        if not decay > 1:
            raise InputError(f"decay must be above 1, got {decay!r}")
        return 1 / (n_bins**2 * math.log(decay))
    if not temperature > 0:
        raise InputError(f"temperature must be above 0, got {temperature!r}")
    return float(temperature)
