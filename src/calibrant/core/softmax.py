"""Logits and probabilities, both ways and without overflow: softmax of rows, sigmoid of single log-odds.

Softmax, log-softmax and log-sum-exp work over the last axis and keep the dtype. Log-odds of exact zeros and ones are
infinite, and get a floor where a finite number is needed.
"""

from __future__ import annotations

import numpy as np

from calibrant.core.arrays import Array


def logsumexp(logits: Array) -> Array:
    """log Σ_j exp(z_j) of each row."""
    peak = logits.max(axis=-1, keepdims=True)
    return (np.log(np.exp(_below(logits, peak)).sum(axis=-1, keepdims=True)) + peak)[..., 0]


def log_softmax(logits: Array) -> Array:
    """z − logsumexp(z) of each row."""
    shifted = _below(logits, logits.max(axis=-1, keepdims=True))
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def softmax(logits: Array) -> Array:
    """exp(z) / Σ_j exp(z_j) of each row."""
    exponentials = _below(logits, logits.max(axis=-1, keepdims=True))
    np.exp(exponentials, out=exponentials)
    exponentials /= exponentials.sum(axis=-1, keepdims=True)
    return exponentials


def log_stored(probabilities: Array) -> Array:
    """The logarithms of stored probabilities; of a zero −inf, which `core.zeros` gives a value."""
    with np.errstate(divide="ignore"):
        return np.log(probabilities)


def log_probabilities(probabilities: Array) -> Array:
    """Logits that softmax maps back to these probabilities; a zero becomes the smallest normal number."""
    return np.log(np.maximum(probabilities, np.finfo(probabilities.dtype).tiny))


def _below(logits: Array, peak: Array) -> Array:
    # the gap of two finite logits may exceed the dtype: as −Inf its exponential is the same 0
    with np.errstate(over="ignore"):
        return logits - peak


def log_odds(probabilities: Array) -> Array:
    """log p − log(1 − p) of every element; −inf at 0 and inf at 1."""
    one = probabilities.dtype.type(1)
    return log_stored(probabilities) - log_stored(one - probabilities)


def sigmoid(log_odds: Array) -> Array:
    """1/(1 + exp(−s)) without overflow; ±inf give 1 and 0.

    >>> sigmoid(np.array([-np.inf, 0.0, 800.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    small = np.exp(-np.abs(log_odds))
    share = 1.0 / (1.0 + small)
    return np.where(log_odds >= 0, share, small * share)


def softplus(log_odds: Array) -> Array:
    """log(1 + exp(s)): minus the log of the probability that the sign of s speaks against."""
    return np.maximum(log_odds, 0.0) + np.log1p(np.exp(-np.abs(log_odds)))


def probability_log_odds(probability: Array) -> Array:
    """log p − log(1 − p) in float64; −inf at 0 and inf at 1."""
    wide = np.asarray(probability, dtype=np.float64)
    with np.errstate(divide="ignore"):
        return np.log(wide) - np.log1p(-wide)


def finite_log_odds(log_odds: Array, floor: tuple[float, float] | None = None) -> Array:
    """±inf replaced by the log-odds of a floor: of half the smallest positive p and half the smallest 1 − p.

    `floor` gives the lowest and the highest log-odds that infinite values take; None reads them off these values.
    """
    wide = np.asarray(log_odds, dtype=np.float64)
    infinite = np.isinf(wide)
    if not infinite.any():
        return wide
    lowest, highest = odds_floor(wide) if floor is None else floor
    return np.where(infinite, np.where(wide < 0, lowest, highest), wide)


def odds_floor(log_odds: Array) -> tuple[float, float]:
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
