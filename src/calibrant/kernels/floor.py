"""What a probability of 0 counts as, from arrays in memory; `core.zeros` states the rule."""

from __future__ import annotations

from functools import reduce
from operator import add

import numpy as np

from calibrant.core.threads import map_blocks, row_blocks
from calibrant.core.zeros import floor_of, scores_floor
from calibrant.kernels.column_minima import column_minima


def learn_floor(logits: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray, int]:
    """The floor (K,) of a matrix of logits, or (2,: of 1 − p and of p) of scores (n,), and the rows with a zero.

    Rows of weight 0 are not there.
    """
    if weights is not None and not weights.all():
        logits = logits[weights > 0]
    if logits.ndim == 1:
        return scores_floor(logits), int(np.isinf(logits).sum())
    kernel, blocks = column_minima.form(logits.size), row_blocks(*logits.shape)
    minima = reduce(add, map_blocks(lambda block: kernel(logits[block]), blocks))
    n_zero = minima.n_zero
    if n_zero and logits.dtype == np.float32:
        # zeros get this value, and folds look at every bit of it: the order of the columns must not matter
        wide = map_blocks(lambda block: kernel(logits[block].astype(np.float64)), blocks)
        minima = reduce(add, wide)
    return floor_of(minima.values), n_zero
