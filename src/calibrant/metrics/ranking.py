"""How often a calibrator changes which of two samples is the more confident."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from calibrant.core.arrays import check_matrix, check_weights
from calibrant.core.errors import InputError
from calibrant.kernels.rows import scan


def rank_changes(
    before: ArrayLike,
    after: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
    from_logits: bool = False,
) -> float:
    """Share of sample pairs whose confidence order was reversed (Frenkel & Goldberger 2022, §4).

    ``Σ_{i<j} 1{(c_i − c_j)(c'_i − c'_j) < 0} / (n(n−1)/2)``, by counting inversions in O(n log n). A pair tied before
    or after is not reversed. Weights count copies: n is their sum, which must exceed 1.

    Parameters
    ----------
    before, after : array (n,) or (n, K)
        Confidences of the same samples, or the matrices they are the row maxima of.
    from_logits : bool
        The matrices hold logits.

    Examples
    --------
    >>> from calibrant.metrics import rank_changes
    >>> round(rank_changes([0.5, 0.6, 0.7], [0.5, 0.9, 0.8]), 4)
    0.3333
    """
    first = _confidences(before, "before", from_logits)
    second = _confidences(after, "after", from_logits)
    if len(first) != len(second):
        raise InputError(f"before has {len(first)} rows, but after has {len(second)}")
    weights = check_weights(sample_weight, len(first))
    total = float(len(first)) if weights is None else float(weights.sum())
    if len(first) == 1 and total <= 1:
        return 0.0
    if total <= 1:
        raise InputError(f"sample_weight sums to {total:g}, but pairs need more than 1: give counts of copies")
    return reversed_pairs(first, second, weights) / (total * (total - 1) / 2)


def reversed_pairs(before: np.ndarray, after: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Σ w_i·w_j over the pairs that strictly change their order."""
    rank = np.unique(after, return_inverse=True)[1].astype(np.int64)
    # rows tied before are put in the order of after: no inversion among them
    order = np.lexsort((rank, before))
    rank = rank[order]
    mass = np.ones(len(rank)) if weights is None else weights[order]
    inversions = 0.0
    # each inverted pair is counted at the highest bit in which its ranks differ; rows that agree on all higher bits
    # stand together, in their original order
    for bit in range(int(rank.max()).bit_length() - 1, -1, -1):
        high = rank >> (bit + 1)
        is_one = (rank >> bit) & 1 == 1
        opens = np.concatenate(([True], high[1:] != high[:-1]))
        first = np.flatnonzero(opens)
        sizes = np.diff(first, append=len(rank))
        ones_mass = np.cumsum(np.where(is_one, mass, 0.0))
        before_block = np.repeat(np.concatenate(([0.0], ones_mass[first[1:] - 1])), sizes)
        inversions += float((mass * (ones_mass - before_block))[~is_one].sum())
        # stable partition of each block: its zeros first
        zeros = np.cumsum(~is_one)
        zeros_before = np.repeat(np.concatenate(([0], zeros[first[1:] - 1])), sizes)
        zeros_in_block = np.repeat(np.add.reduceat(~is_one, first, dtype=np.int64), sizes)
        start = np.repeat(first, sizes)
        zero_place = start + zeros - zeros_before - 1
        one_place = zeros_in_block + np.arange(len(rank)) - (zeros - zeros_before)
        place = np.where(is_one, one_place, zero_place)
        moved_rank, moved_mass = np.empty_like(rank), np.empty_like(mass)
        moved_rank[place], moved_mass[place] = rank, mass
        rank, mass = moved_rank, moved_mass
    return inversions


def _confidences(values: ArrayLike, name: str, from_logits: bool) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim == 2:
        return scan(check_matrix(array, name), None, from_logits=from_logits, columns="top", name=name).confidence
    if array.ndim != 1 or array.dtype.kind not in "fiu" or len(array) == 0:
        raise InputError(f"{name} must be confidences (n,) or a matrix (n, K), got shape {array.shape}")
    if not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array))[0])
        raise InputError(f"{name} is {array[row]} in row {row}: confidences must be finite")
    return array
