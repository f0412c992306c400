"""Logits and probabilities, both ways and without overflow: softmax of rows, sigmoid of single log-odds.

Softmax, log-softmax and log-sum-exp work over the last axis and keep the dtype. Log-odds of exact zeros and ones are
infinite, and get a floor where a finite number is needed.
"""

import numpy as np

from calibrant.core.arrays import Array

FEW_ELEMENTS = 1 << 10
"""Up to so many the calls of numpy take longer than its loops."""


def logsumexp(logits: Array) -> Array:
    """log Σ_j exp(z_j) of each row."""
    shifted, peak = _shifted(logits)
    mass = np.exp(shifted, out=shifted).sum(axis=-1, keepdims=True)
    return (np.log(mass) + peak)[..., 0]


def log_softmax(logits: Array) -> Array:
    """z − logsumexp(z) of each row."""
    shifted, _ = _shifted(logits)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def softmax(logits: Array) -> Array:
    """exp(z) / Σ_j exp(z_j) of each row."""
    exponentials, _ = _shifted(logits)
    np.exp(exponentials, out=exponentials)
    exponentials /= exponentials.sum(axis=-1, keepdims=True)
    return exponentials


def _shifted(logits: Array) -> tuple[Array, Array]:
    """Logits minus the peak of their row, and the peak."""
    peak = row_peak(logits)
    # the gap of two finite logits may exceed the dtype: as −Inf its exponential is the same 0
    with np.errstate(over="ignore"):
        return logits - peak, peak


def row_peak(values: Array) -> Array:
    """The largest value of each row, as a column; NaN where there is one.

    By its place: numpy finds that of a short row eight times as fast as its `max`, which is faster on few rows.
    """
    if values.size <= FEW_ELEMENTS:
        return values.max(axis=-1, keepdims=True)
    rows = values.reshape(-1, values.shape[-1])
    return rows[np.arange(len(rows)), rows.argmax(axis=1)].reshape(*values.shape[:-1], 1)


def log_stored(probabilities: Array) -> Array:
    """The logarithms of stored probabilities; of a zero −inf, which `core.zeros` gives a value."""
    with np.errstate(divide="ignore"):
        return np.log(probabilities)


def log_probabilities(probabilities: Array) -> Array:
    """Logits that softmax maps back to these probabilities; a zero becomes the smallest normal number."""
    return np.log(np.maximum(probabilities, np.finfo(probabilities.dtype).tiny))


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
    return np.logaddexp(0.0, log_odds)


def probability_log_odds(probability: Array) -> Array:
    """log p − log(1 − p) in float64; −inf at 0 and inf at 1."""
    wide = np.asarray(probability, np.float64)
    with np.errstate(divide="ignore"):
        return np.log(wide) - np.log1p(-wide)


def finite_log_odds(log_odds: Array) -> Array:
    """±inf replaced by the log-odds of a floor: of half the smallest positive p and half the smallest 1 − p.

    Where all values are infinite nothing is known about their size, and p = ¼ and ¾ are taken.
    """
    wide = np.asarray(log_odds, np.float64)
    infinite = np.isinf(wide)
    if not infinite.any():
        return wide
    finite = wide[np.isfinite(wide)]
    lowest, highest = (_halved(finite.min()), -_halved(-finite.max())) if len(finite) else (-np.log(3.0), np.log(3.0))
    return np.where(infinite, np.where(wide < 0, lowest, highest), wide)


def _halved(log_odds: float) -> float:
    """The log-odds of p/2 from those of p: log p − log 2 − log(1 − p/2), and log p = −softplus(−s)."""
    log_p = -np.logaddexp(-log_odds, 0.0) - np.log(2.0)
    return log_p - np.log1p(-np.exp(log_p))
