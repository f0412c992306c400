"""Sums over the bins of the top label."""

from __future__ import annotations

import numpy as np

from calibrant.core.bins import BinSums, check_n_bins, mass_index, width_index
from calibrant.core.errors import InputError
from calibrant.core.threads import map_blocks, row_blocks
from calibrant.kernels.bins import index_sums, width_sums
from calibrant.metrics.inputs import ORDER_OF_ROWS, Checked

_ELEMENTS_PER_ROW = 4
"""A binned row costs about as much as this many elements of a matrix: from half a million rows on, compile."""


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


def bin_sums(rows: Checked, n_bins: int, binning: str = "width") -> BinSums:
    """Sums over the bins of the top label; those over bins of equal width add up over chunks."""
    n_bins = check_n_bins(n_bins)
    if check_choice("binning", binning, ("width", "mass")) == "width":
        return rows.total(width_bin_sums, n_bins)
    confidence, correct, weights = rows.every(ORDER_OF_ROWS).top()
    return BinSums(*index_sums(mass_index(confidence, n_bins, weights), confidence, correct, weights, n_bins))


def width_bin_sums(rows: Checked, n_bins: int) -> BinSums:
    """Sums over bins of equal width, on all cores."""
    confidence, correct, weights = rows.top()
    kernel = width_sums.form(_ELEMENTS_PER_ROW * len(confidence))

    def part(block: slice) -> np.ndarray:
        return kernel(confidence[block], correct[block], None if weights is None else weights[block], n_bins)

    blocks = row_blocks(len(confidence), _ELEMENTS_PER_ROW)
    return BinSums(*np.sum(map_blocks(part, blocks), axis=0))
