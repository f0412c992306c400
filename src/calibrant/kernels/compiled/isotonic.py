"""Compiled twins of `kernels.isotonic`."""

import numpy as np

from calibrant.kernels import isotonic as plain
from calibrant.kernels.compiled.cached import compiled_form, njit

slopes_with_one_more = njit(plain.slopes_with_one_more)


@compiled_form(plain.merge_groups)
def merge_groups(positive, negative):
    """Groups of the sorted scores of positive and of negative rows: one merge of two sorted columns."""
    n_rows = len(positive) + len(negative)
    scores, weight, hits = np.empty(n_rows, positive.dtype), np.empty(n_rows), np.empty(n_rows)
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
    return plain.ScoreGroups(scores[:size].copy(), weight[:size].copy(), hits[:size].copy())
