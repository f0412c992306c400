"""The smallest probability of each column, in one pass."""

from __future__ import annotations

import numpy as np

from calibrant.core.threads import row_blocks

CACHE_ELEMENTS = 1 << 17
"""Elements handled at a time: the temporaries of a pass stay in the second-level cache."""

SMALLEST_MASS = 1e-30
"""Below it the exponentials of a row may have lost digits, and the row is shifted by its largest logit first."""


def column_minima(logits: np.ndarray) -> tuple[np.ndarray, int]:
    """The smallest finite log-probability of each column (K,), +inf where there is none, and the rows with a zero."""
    minima, n_zero = np.full(logits.shape[1], np.inf), 0
    for block in row_blocks(len(logits), logits.shape[1], CACHE_ELEMENTS):
        log_p = _log_probabilities(logits[block])
        lowest = _lowest(log_p.copy() if np.isneginf(log_p.min()) else log_p)
        if np.isneginf(lowest).any():
            zero = np.isneginf(logits[block])
            n_zero += int(zero.any(axis=1).sum())
            lowest = np.where(zero, np.inf, log_p).min(axis=0)
        np.minimum(minima, lowest, out=minima)
    return minima, n_zero


def _log_probabilities(values: np.ndarray) -> np.ndarray:
    ones, result = np.ones(values.shape[1], values.dtype), np.empty_like(values)
    # exponentials below half the exponent range add up without overflow
    direct = values.max() < 0.5 * np.log(np.finfo(values.dtype).max)
    if not direct:
        values = values - values.max(axis=1, keepdims=True)
    # a product with ones is a sum by BLAS, four times as fast as `sum(axis=1)`
    mass = np.exp(values, out=result) @ ones
    if direct and mass.min() <= SMALLEST_MASS:
        values = values - values.max(axis=1, keepdims=True)
        mass = np.exp(values, out=result) @ ones
    return np.subtract(values, np.log(mass)[:, None], out=result)


def _lowest(values: np.ndarray) -> np.ndarray:
    """The minimum of each column; overwrites the values. Halves against halves: long loops, where `min` has short."""
    left = len(values)
    while left > 1:
        half = left // 2
        np.minimum(values[:half], values[left - half : left], out=values[:half])
        left -= half
    return values[0]
