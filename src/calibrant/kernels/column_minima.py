"""The smallest probability of each column, in one pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.core.statistic import kernel
from calibrant.core.threads import row_blocks
from calibrant.core.zeros import Minima

CACHE_ELEMENTS = 1 << 17
"""Elements handled at a time: the temporaries of a pass stay in the second-level cache."""

SMALLEST_MASS = 1e-30
"""Below it the exponentials of a row may have lost digits, and the row is shifted by its largest logit first."""


@kernel(compiled_in="calibrant.kernels.compiled.column_minima")
def column_minima(logits: np.ndarray) -> Minima:
    """The smallest finite log-probability of each column, and how many rows have a zero."""
    minima, n_zero = np.full(logits.shape[1], np.inf), 0
    for block in row_blocks(len(logits), logits.shape[1], CACHE_ELEMENTS):
        log_p = log_probabilities(logits[block])
        lowest = lowest_of(log_p)
        if np.isneginf(lowest).any():
            zero = np.isneginf(logits[block])
            n_zero += int(zero.any(axis=1).sum())
            lowest = np.where(zero, np.inf, log_p).min(axis=0)
        np.minimum(minima, lowest, out=minima)
    return Minima(minima, n_zero)


def log_probabilities(values: np.ndarray) -> np.ndarray:
    """log softmax of each row, in the dtype of the values; −inf stays −inf."""
    ones, result = np.ones(values.shape[1], values.dtype), np.empty(values.shape, values.dtype)
    # exponentials whose sum cannot overflow need no shift by the largest logit of each row: one shift does for all
    most = np.log(np.finfo(values.dtype).max) - np.log(values.shape[1]) - 1
    peak: Any = values.dtype.type(max(np.ceil(values.max() - most), 0))
    # a product with ones is a sum by BLAS, four times as fast as `sum(axis=1)`
    mass = np.exp(np.subtract(values, peak, out=result) if peak else values, out=result) @ ones
    if not mass.min() > SMALLEST_MASS:
        peak = values.max(axis=1)
        mass = np.exp(np.subtract(values, peak[:, None], out=result), out=result) @ ones
    return np.subtract(values, (peak + np.log(mass))[:, None], out=result)


def lowest_of(values: np.ndarray) -> np.ndarray:
    """The minimum of each column. Halves against halves: long loops, where `min` has short ones."""
    if len(values) < 2:
        return values[0]
    half = len(values) // 2
    lowest = np.minimum(values[:half], values[-half:])
    if len(values) % 2:
        np.minimum(lowest[0], values[half], out=lowest[0])
    left = half
    while left > 1:
        half = left // 2
        np.minimum(lowest[:half], lowest[left - half : left], out=lowest[:half])
        left -= half
    return lowest[0]
