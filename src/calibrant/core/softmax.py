"""Stable softmax, log-softmax and log-sum-exp over the last axis; the dtype is kept."""

from __future__ import annotations

import numpy as np


def logsumexp(logits: np.ndarray) -> np.ndarray:
    """log Σ_j exp(z_j) of each row."""
    peak = logits.max(axis=-1, keepdims=True)
    return (np.log(np.exp(_below(logits, peak)).sum(axis=-1, keepdims=True)) + peak)[..., 0]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """z − logsumexp(z) of each row."""
    shifted = _below(logits, logits.max(axis=-1, keepdims=True))
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def softmax(logits: np.ndarray) -> np.ndarray:
    """exp(z) / Σ_j exp(z_j) of each row."""
    exponentials = _below(logits, logits.max(axis=-1, keepdims=True))
    np.exp(exponentials, out=exponentials)
    exponentials /= exponentials.sum(axis=-1, keepdims=True)
    return exponentials


def log_stored(probabilities: np.ndarray) -> np.ndarray:
    """The logarithms of stored probabilities; of a zero −inf, which `core.zeros` gives a value."""
    with np.errstate(divide="ignore"):
        return np.log(probabilities)


def log_probabilities(probabilities: np.ndarray) -> np.ndarray:
    """Logits that softmax maps back to these probabilities; a zero becomes the smallest normal number."""
    return np.log(np.maximum(probabilities, np.finfo(probabilities.dtype).tiny))


def _below(logits: np.ndarray, peak: np.ndarray) -> np.ndarray:
    # the gap of two finite logits may exceed the dtype: as −Inf its exponential is the same 0
    with np.errstate(over="ignore"):
        return logits - peak


def log_odds(probabilities: np.ndarray) -> np.ndarray:
    """log p − log(1 − p) of every element; −inf at 0 and inf at 1."""
    one = probabilities.dtype.type(1)
    return log_stored(probabilities) - log_stored(one - probabilities)
