"""Folds that depend on what a row holds, not on where it stands."""

from __future__ import annotations

import numpy as np

from calibrant.core.threads import map_blocks, row_blocks

FOLDS = 5
"""Of every cross-fit."""

_ODD = np.uint64(0x9E3779B97F4A7C15)


def content_folds(values: np.ndarray, n_folds: int, seed: int) -> np.ndarray:
    """Fold 0 … n_folds − 1 of each row of a matrix, from a hash of its values.

    Equal rows share a fold and neither the order of rows nor that of columns matters, so a weight of 2 equals the row
    twice in a cross-fitted method too.
    """
    salt = np.uint64((2 * seed + 1) * int(_ODD) % 2**64)

    def part(block: slice) -> np.ndarray:
        # adding 0 makes −0 and 0 one value
        bits = (values[block].astype(np.float64) + 0.0).view(np.uint64)
        return _mix(_mix(bits ^ salt).sum(axis=1, dtype=np.uint64))

    hashes = np.concatenate(map_blocks(part, row_blocks(len(values), values.shape[1], 1 << 18)))
    return ((hashes >> np.uint64(33)) % np.uint64(n_folds)).astype(np.int64)


def _mix(bits: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        bits = (bits ^ (bits >> np.uint64(32))) * _ODD
        return (bits ^ (bits >> np.uint64(29))) * _ODD
