"""Probabilities of a positive class as log-odds, and back, without overflow; exact zeros and ones get a floor."""

from __future__ import annotations

import numpy as np


def sigmoid(log_odds: np.ndarray) -> np.ndarray:
    """1/(1 + exp(−s)) without overflow; ±inf give 1 and 0.

    >>> sigmoid(np.array([-np.inf, 0.0, 800.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    small = np.exp(-np.abs(log_odds))
    share = 1.0 / (1.0 + small)
    return np.where(log_odds >= 0, share, small * share)


def softplus(log_odds: np.ndarray) -> np.ndarray:
    """log(1 + exp(s)): minus the log of the probability that the sign of s speaks against."""
    return np.maximum(log_odds, 0.0) + np.log1p(np.exp(-np.abs(log_odds)))


def probability_log_odds(probability: np.ndarray) -> np.ndarray:
    """log p − log(1 − p) in float64; −inf at 0 and inf at 1."""
    wide = np.asarray(probability, dtype=np.float64)
    with np.errstate(divide="ignore"):
        return np.log(wide) - np.log1p(-wide)


def finite_log_odds(log_odds: np.ndarray, floor: tuple[float, float] | None = None) -> np.ndarray:
    """±inf replaced by the log-odds of a floor: of half the smallest positive p and half the smallest 1 − p.

    `floor` gives the lowest and the highest log-odds that infinite values take; None reads them off these values.
    """
    wide = np.asarray(log_odds, dtype=np.float64)
    infinite = np.isinf(wide)
    if not infinite.any():
        return wide
    lowest, highest = odds_floor(wide) if floor is None else floor
    return np.where(infinite, np.where(wide < 0, lowest, highest), wide)


def odds_floor(log_odds: np.ndarray) -> tuple[float, float]:
    """Log-odds that stand for p = 0 and p = 1: p half the smallest positive one, 1 − p half the smallest positive one.

    Where all values are infinite nothing is known about their size, and p = ¼ and ¾ are taken.
    """
    finite = log_odds[np.isfinite(log_odds)]
    if len(finite) == 0:
        return -float(np.log(3.0)), float(np.log(3.0))
    # p/2 has the log-odds log p − log 2 − log(1 − p/2), and log p = −softplus(−s)
    return _halved(float(finite.min())), -_halved(-float(finite.max()))


def _halved(log_odds: float) -> float:
    log_p = -float(softplus(np.array(-log_odds))) - np.log(2.0)
    return float(log_p - np.log1p(-np.exp(log_p)))
