"""Bins of the top label: their sums, and the norms of the gaps between confidence and accuracy in them.

Everything that is a function of the sums is additive: sums of chunks add up to the sums of the whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrant.core.bins import check_n_bins, mass_index, width_index
from calibrant.core.errors import InputError
from calibrant.core.threads import map_blocks, row_blocks
from calibrant.kernels.bins import index_sums, width_sums
from calibrant.kernels.dispatch import pick

_ELEMENTS_PER_ROW = 4
"""A binned row costs about as much as this many elements of a matrix: from half a million rows on, compile."""


@dataclass(frozen=True)
class BinSums:
    """Σw, Σw·confidence and Σw·correct of each bin; any leading axes (classes, resamples) are kept."""

    weight: np.ndarray
    confidence: np.ndarray
    correct: np.ndarray

    def __add__(self, other: BinSums) -> BinSums:
        return BinSums(self.weight + other.weight, self.confidence + other.confidence, self.correct + other.correct)

    @property
    def excess(self) -> np.ndarray:
        """Signed gap of each bin as a share of the whole: (n_b/n)·(C_b − A_b); over-confidence is positive."""
        return (self.confidence - self.correct) / self.weight.sum(axis=-1, keepdims=True)

    @property
    def gap(self) -> np.ndarray:
        """C_b − A_b; 0 in an empty bin."""
        return (self.confidence - self.correct) / np.where(self.weight > 0, self.weight, 1.0)

    def norm(self, p: float) -> np.ndarray:
        """(Σ_b (n_b/n)·|A_b − C_b|^p)^(1/p), over the last axis."""
        if p == 1:
            return np.abs(self.excess).sum(axis=-1)
        gap = np.abs(self.gap)
        if np.isinf(p):
            return np.where(self.weight > 0, gap, 0.0).max(axis=-1)
        share = self.weight / self.weight.sum(axis=-1, keepdims=True)
        return (share * gap**p).sum(axis=-1) ** (1 / p)


def check_norm(norm: float) -> float:
    """The p of an ℓp norm: 1, 2 or inf (any number from 1 on makes sense)."""
    if isinstance(norm, bool) or not isinstance(norm, (int, float, np.integer, np.floating)) or not norm >= 1:
        raise InputError(f"norm must be 1, 2 or inf, got {norm!r}")
    return float(norm)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    """One of a few words."""
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def bin_index(confidence: np.ndarray, weights: np.ndarray | None, n_bins: int, binning: str) -> np.ndarray:
    """The bin of each row: equal width, or equal mass."""
    if check_choice("binning", binning, ("width", "mass")) == "width":
        return width_index(confidence, check_n_bins(n_bins))
    return mass_index(confidence, check_n_bins(n_bins), weights)


def bin_sums(
    confidence: np.ndarray, correct: np.ndarray, weights: np.ndarray | None, n_bins: int, binning: str
) -> BinSums:
    """Sums over the bins of the whole, on all cores where the bins have equal width."""
    n_bins = check_n_bins(n_bins)
    if check_choice("binning", binning, ("width", "mass")) == "mass":
        index = mass_index(confidence, n_bins, weights)
        return BinSums(*index_sums(index, confidence, correct, weights, n_bins))
    kernel = pick(width_sums, _ELEMENTS_PER_ROW * len(confidence))

    def part(block: slice) -> np.ndarray:
        return kernel(confidence[block], correct[block], None if weights is None else weights[block], n_bins)

    blocks = row_blocks(len(confidence), _ELEMENTS_PER_ROW)
    return BinSums(*np.sum(map_blocks(part, blocks), axis=0))
