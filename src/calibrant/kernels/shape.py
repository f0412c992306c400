"""Sums over rows that the fit of a shape needs, the losses of bent rows, and the bent rows themselves.

A shape θ (4,) bends log-probabilities l to u_j = Σ_m θ_m·φ_m(j); `features` are the φ.
"""

from typing import Any

import numpy as np
from array_api_compat import array_namespace

from calibrant.core.arrays import Array
from calibrant.core.softmax import log_softmax
from calibrant.core.statistic import kernel, statistic_with
from calibrant.kernels.affine import below_peak, every, mass_of, softmax_and_losses

FLOOR = 0.01
"""Probabilities well below this no longer bend the third feature."""

LARGEST_P, LARGEST_CONFIDENCE = 1 - 1e-7, 1 - 1e-6
"""Where log(1 − p) is cut off: a certain row stays finite."""

BLOCK_ELEMENTS = 1 << 15
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


def stacked_features(logits: Any) -> Any:
    """φ (4×n×K) in float64 of logits (n×K), for the fit; of an array or a tensor."""
    xp = array_namespace(logits)
    scores = below_peak(xp.astype(logits, xp.float64, copy=False))
    return xp.stack(features(xp, scores - xp.log(xp.sum(xp.exp(scores), axis=1, keepdims=True))))


@statistic_with(compiled_in="calibrant.kernels.compiled.shape", array_elements=BLOCK_ELEMENTS)
def shape_sums(logits: Any, labels: Any, weights: Any, shape: Any) -> tuple[Any, Any, Any]:
    """Σ w·NLL of the bent logits, its gradient (4,) and Hessian (4×4): a statistic for `Rows.total`."""
    return bent_sums(stacked_features(logits), labels, weights, shape)


def bent_sums(inputs: Any, labels: Any, weights: Any, shape: Any) -> tuple[Any, Any, Any]:
    """`shape_sums` of features φ (4×n×K)."""
    xp, each, size = array_namespace(inputs), every(labels), inputs.shape[0]
    weight = mass_of(inputs[0], weights)
    shares, losses = softmax_and_losses(xp.tensordot(shape, inputs, axes=1), labels)
    pulled = inputs * shares
    mean = xp.sum(pulled, axis=2)
    gradient = (mean - inputs[:, each, labels]) @ weight
    pulled *= weight[:, None]
    hessian = xp.reshape(pulled, (size, -1)) @ xp.reshape(inputs, (size, -1)).T - (mean * weight) @ mean.T
    return weight @ losses, gradient, hessian


@statistic_with(compiled_in="calibrant.kernels.compiled.shape")
def bent_losses_of(logits: Array, labels: Array, weights: Array | None, shape: Array) -> tuple[Array]:
    """NLL of each row (n,) of logits once they are bent."""
    scores = bent_scores(logits.astype(np.float64, copy=False), shape)
    return (-scores[np.arange(len(scores)), labels],)


@kernel(compiled_in="calibrant.kernels.compiled.shape")
def bent_scores(logits: Array, shape: Array) -> Array:
    """Log-probabilities (n×K) of the bent logits, in the dtype of the logits."""
    return log_softmax(np.tensordot(shape, stacked_features(logits), 1)).astype(logits.dtype, copy=False)
