"""How often a calibrator changes which of two samples is the more confident."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from calibrant.core.arrays import as_array, check_counts, check_matrix, check_weights
from calibrant.core.errors import InputError
from calibrant.kernels.rows import scan
from calibrant.metrics.inputs import RowWeights
from calibrant.metrics.record import documented


@documented
def rank_changes(
    before: ArrayLike, after: ArrayLike, *, sample_weight: RowWeights = None, from_logits: bool = False
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
    check_counts(weights)
    total = float(len(first)) if weights is None else float(weights.sum())
    if len(first) == 1 and total <= 1:
        return 0.0
    if total <= 1:
        raise InputError(f"sample_weight sums to {total:g}, but pairs need more than 1: give counts of copies")
    return reversed_pairs(first, second, weights) / (total * (total - 1) / 2)


def reversed_pairs(before: np.ndarray, after: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Σ w_i·w_j over the pairs that strictly change their order: the inversions a merge sort meets."""
    # rows tied before stand in the order of after, rows tied after in the order of before: no inversion among them
    order = np.lexsort((after, before))
    places = np.argsort(after[order], kind="stable")
    size = 1 << (len(places) - 1).bit_length()
    # padding that stands last in both orders is never inverted; it makes every level a table of equal rows
    keys = np.arange(0, 2 * size, 2)
    keys[: len(places)] = 2 * places
    mass = np.zeros(size)
    mass[: len(places)] = 1.0 if weights is None else weights[order]
    inversions = 0.0
    half = 1
    while half < size:
        rows = keys.reshape(-1, 2 * half)
        rows &= ~1
        rows[:, half:] |= 1  # the lowest bit remembers the half: the right one holds the higher ranks
        rows.sort(axis=1)
        of_row = mass[rows >> 1]
        from_right = of_row * (rows & 1)
        passed = np.cumsum(from_right).reshape(rows.shape)
        passed -= passed[:, :1] - from_right[:, :1]
        inversions += float(np.einsum("ij,ij->", passed, of_row - from_right))
        half *= 2
    return inversions


def _confidences(values: ArrayLike, name: str, from_logits: bool) -> np.ndarray:
    array = as_array(values, name)
    if array.ndim == 2:
        return scan(check_matrix(array, name), None, from_logits=from_logits, columns="correct", name=name).confidence
    if array.ndim != 1 or array.dtype.kind not in "fiu" or len(array) == 0:
        raise InputError(f"{name} must be confidences (n,) or a matrix (n, K), got shape {array.shape}")
    if not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array))[0])
        raise InputError(f"{name} is {array[row]} in row {row}: confidences must be finite")
    return array
