"""Probabilities of exactly 0: the one rule for what they count as.

A logit of −inf says that a class is impossible, which no finite sample shows. Files with 3 or 4 decimals are full of
such zeros. They count as half the smallest positive probability that the fit data hold in the same column; the floor is
learned by `fit`, stored with the calibrator and applied to whatever it is given later.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from calibrant.core.errors import FitWarning, InputError
from calibrant.core.odds import odds_floor, sigmoid
from calibrant.core.softmax import logsumexp

SMALLEST = float(np.finfo(np.float64).tiny)
"""No floor lies below the smallest normal number."""


@dataclass(frozen=True)
class Minima:
    """The smallest finite log-probability of each column (K,), +inf where there is none, and how many rows have a zero.

    + merges those of two sets of rows.
    """

    values: np.ndarray
    n_zero: int

    def __add__(self, other: Minima) -> Minima:
        return Minima(np.minimum(self.values, other.values), self.n_zero + other.n_zero)


def floor_of(minima: np.ndarray) -> np.ndarray:
    """Half the smallest positive probability of each column (K,); a column without one takes the smallest of all."""
    known = np.isfinite(minima)
    lowest = minima[known].min() if known.any() else -np.log(len(minima))
    return np.maximum(0.5 * np.exp(np.where(known, minima, lowest)), SMALLEST)


def scores_floor(scores: np.ndarray) -> np.ndarray:
    """The floor (2,: of 1 − p and of p) of scores (n,), the log-odds of p."""
    low, high = odds_floor(scores.astype(np.float64))
    return np.maximum(sigmoid(np.array([-high, low])), SMALLEST)


def raised(logits: np.ndarray, floor: np.ndarray | None) -> np.ndarray:
    """The same logits with every −inf (and, of scores (n,), +inf) replaced by that of the floor."""
    infinite = np.isinf(logits)
    if not infinite.any():
        return logits
    if floor is None:
        raise InputError(
            "logits contain -Inf (a probability of 0), but this calibrator was fitted before zeros had a floor: "
            "fit it again"
        )
    if logits.ndim == 1:
        of_zero, of_one = np.log(floor[1]) - np.log1p(-floor[1]), np.log1p(-floor[0]) - np.log(floor[0])
        return np.where(infinite, np.where(logits < 0, of_zero, of_one), logits).astype(logits.dtype)
    result = logits.copy()
    rows = np.flatnonzero(infinite.any(axis=1))
    wanted = logsumexp(logits[rows].astype(np.float64))[:, None] + np.log(floor)
    result[rows] = np.where(infinite[rows], wanted, logits[rows])
    return result


def warn_of_zeros(n_zero: int, n_rows: int, floor: np.ndarray, stacklevel: int = 4) -> None:
    """Say once per fit that there were zeros, and what they count as."""
    if n_zero:
        warnings.warn(
            f"{n_zero} of {n_rows} rows hold a probability of 0: it counts as half the smallest positive one of its "
            f"column ({floor.min():.2g} to {floor.max():.2g})",
            FitWarning,
            stacklevel=stacklevel,
        )
