"""Soft-binned ECE: every sample belongs to every bin, with a weight."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from calibrant.core.bins import BinSums, check_n_bins
from calibrant.core.errors import InputError
from calibrant.core.threads import map_blocks, row_blocks
from calibrant.kernels.soft_bins import memberships
from calibrant.metrics.binning import check_choice, check_norm
from calibrant.metrics.inputs import ORDER_OF_ROWS, Checked, ClassIndices, Probabilities, RowWeights, check
from calibrant.metrics.record import Gaps, metric
from calibrant.metrics.top_label import within_and_between


def soft_membership(cells: Any, value: float) -> np.ndarray:
    """Memberships (L, M) of cells in the soft bins."""
    return memberships(cells.confidence, 15, 0.01)


@metric(
    "soft ECE",
    "soft",
    unit="%",
    meaning="gap over soft bins, as the training loss measures it",
    interval=Gaps(soft_membership, lambda g, share: np.sqrt((g**2 / share).sum(axis=-1))),
)
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
    rows = check(probabilities, labels, sample_weight, from_logits)
    p = check_norm(norm)
    softness = bin_temperature(n_bins, temperature, decay)
    *sums, squares = rows.total(soft_sums, n_bins, softness)
    bins = BinSums(*sums)
    if check_choice("weighting", weighting, ("bin", "label")) == "bin":
        return float(bins.norm(p))
    if p == 2:
        return within_and_between(bins, squares)
    accuracy = bins.correct / np.where(bins.weight > 0, bins.weight, 1.0)
    confidence, _, weights = rows.every(ORDER_OF_ROWS).top()

    def part(block: slice) -> float:
        gap = np.abs(accuracy - confidence[block, None].astype(np.float64))
        membership = memberships(confidence[block], n_bins, softness)
        if np.isinf(p):
            counted = membership > 0 if weights is None else (membership > 0) & (weights[block, None] > 0)
            return float(np.where(counted, gap, 0.0).max())
        rows = (membership * gap**p).sum(axis=1)
        return float(rows.sum() if weights is None else np.dot(rows, weights[block]))

    parts = map_blocks(part, row_blocks(len(confidence), n_bins))
    return max(parts) if np.isinf(p) else float((sum(parts) / bins.weight.sum()) ** (1 / p))


def soft_sums(rows: Checked, n_bins: int, temperature: float) -> np.ndarray:
    """Σw·u, Σw·u·c, Σw·u·a and Σw·u·c² of the soft bins (4, M), eq. 8-10."""
    confidence, correct, weights = rows.top()

    def part(block: slice) -> np.ndarray:
        c = confidence[block].astype(np.float64)
        w = np.ones(len(c)) if weights is None else weights[block]
        return np.stack([w, w * c, w * correct[block], w * c * c]) @ memberships(c, n_bins, temperature)

    return np.sum(map_blocks(part, row_blocks(len(confidence), n_bins)), axis=0)


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
