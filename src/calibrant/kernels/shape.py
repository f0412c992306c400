"""Sums over rows that the fit of a shape needs, the losses of bent rows, and the bent rows themselves.

A shape θ (4,) bends log-probabilities l to u_j = Σ_m θ_m·φ_m(j); `features` are the φ.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
from array_api_compat import numpy as numpy_namespace

from calibrant.core.softmax import log_softmax
from calibrant.core.statistic import add, kernel, statistic
from calibrant.core.threads import row_blocks

FLOOR = 0.01
"""Probabilities well below this no longer bend the third feature."""

LARGEST_P, LARGEST_CONFIDENCE = 1 - 1e-7, 1 - 1e-6
"""Where log(1 − p) is cut off: a certain row stays finite."""

BLOCK_ELEMENTS = 1 << 17
"""Elements handled at a time: the features of a block are 32 bytes per element."""


def features(xp: Any, log_probabilities: Any) -> tuple[Any, Any, Any, Any]:
    """φ, four matrices (n×K), of log-probabilities (n×K)."""
    probabilities = xp.exp(log_probabilities)
    peak = xp.max(probabilities, axis=1, keepdims=True)
    sureness = xp.log1p(-xp.minimum(peak, xp.full_like(peak, LARGEST_CONFIDENCE))) / 5
    return (
        log_probabilities,
        -xp.log1p(-xp.minimum(probabilities, xp.full_like(probabilities, LARGEST_P))),
        xp.log(probabilities + FLOOR),
        log_probabilities * sureness,
    )


def stacked_features(logits: np.ndarray) -> np.ndarray:
    """φ (4×n×K) of logits (n×K), for the fit."""
    return np.stack(features(numpy_namespace, log_softmax(logits.astype(np.float64))))


@statistic(compiled_in="calibrant.kernels.compiled.shape")
def shape_sums(
    logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, shape: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Σ w·NLL of the bent logits, its gradient (4,) and Hessian (4×4): a statistic for `Rows.total`."""
    parts = []
    for block in row_blocks(len(logits), logits.shape[1], BLOCK_ELEMENTS):
        inputs = stacked_features(logits[block])
        parts.append(bent_sums(inputs, labels[block], None if weights is None else weights[block], shape))
    return reduce(add, parts)


def bent_sums(
    inputs: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, shape: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """`shape_sums` of features φ (4×n×K)."""
    every = np.arange(len(labels))
    weight = np.ones(len(labels)) if weights is None else weights
    scores = log_softmax(np.tensordot(shape, inputs, 1))
    loss = -float(weight @ scores[every, labels])
    probabilities = np.exp(scores)
    mean = np.einsum("nk,mnk->mn", probabilities, inputs)
    gradient = (mean - inputs[:, every, labels]) @ weight
    probabilities *= weight[:, None]
    weighted = (inputs * probabilities).reshape(len(shape), -1)
    return loss, gradient, weighted @ inputs.reshape(len(shape), -1).T - (mean * weight) @ mean.T


@shape_sums.on_device
def _(rows: Any, shape: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    from array_api_compat import torch as xp

    from calibrant.kernels.torch.row_passes import bent_sums

    return bent_sums(rows, lambda log_p: features(xp, log_p), shape)


@statistic(compiled_in="calibrant.kernels.compiled.shape")
def bent_losses_of(
    logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, shape: np.ndarray
) -> tuple[np.ndarray]:
    """NLL of each row (n,) of logits once they are bent."""
    losses = np.empty(len(logits))
    for block in row_blocks(len(logits), logits.shape[1], BLOCK_ELEMENTS):
        scores = bent_scores(logits[block].astype(np.float64, copy=False), shape)
        losses[block] = -scores[np.arange(len(scores)), labels[block]]
    return (losses,)


@kernel(compiled_in="calibrant.kernels.compiled.shape")
def bent_scores(logits: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """Log-probabilities (n×K) of the bent logits, in the dtype of the logits."""
    return log_softmax(np.tensordot(shape, stacked_features(logits), 1)).astype(logits.dtype, copy=False)
