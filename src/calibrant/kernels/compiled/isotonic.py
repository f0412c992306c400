"""Compiled twin of `kernels.isotonic`: one merge of two sorted columns."""

from __future__ import annotations

import numpy as np
from numba import njit

from calibrant.kernels import isotonic as plain
from calibrant.kernels.compiled.rows import frozen
from calibrant.kernels.isotonic import ScoreGroups


@plain.merge_groups.compiled
def merge_groups(positive: np.ndarray, negative: np.ndarray) -> ScoreGroups:
    """Groups of the sorted scores of positive and of negative rows."""
    n_rows = len(positive) + len(negative)
    scores, weight, hits = np.empty(n_rows, positive.dtype), np.empty(n_rows), np.empty(n_rows)
    size = _merge(frozen(positive), frozen(negative), scores, weight, hits)
    return ScoreGroups(scores[:size].copy(), weight[:size].copy(), hits[:size].copy())


@njit(nogil=True, cache=True)
def _merge(positive, negative, scores, weight, hits):
    i, j, size = 0, 0, 0
    while i < len(positive) or j < len(negative):
        first = j >= len(negative) or (i < len(positive) and positive[i] <= negative[j])
        value = positive[i] if first else negative[j]
        begin = i
        while i < len(positive) and positive[i] == value:
            i += 1
        found = i - begin
        begin = j
        while j < len(negative) and negative[j] == value:
            j += 1
        scores[size], weight[size], hits[size] = value, found + j - begin, found
        size += 1
    return size
