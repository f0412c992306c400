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


def features(xp: Any, shifted: Any) -> tuple[Any, Any, Any, Any]:
    """φ of logits (n×K) minus the peak of their row: three matrices (n×K), and log(1 − c)/5 (n, 1).

    The fourth feature is the first times the latter.
    """
    exponentials = xp.exp(shifted)
    mass = xp.sum(exponentials, axis=1, keepdims=True)
    probabilities, confidence = exponentials / mass, 1.0 / mass
    return (
        shifted - xp.log(mass),
        -xp.log1p(-xp.minimum(probabilities, xp.full_like(probabilities, LARGEST_P))),
        xp.log(probabilities + FLOOR),
        xp.log1p(-xp.minimum(confidence, xp.full_like(confidence, LARGEST_CONFIDENCE))) / 5,
    )


def stacked_features(logits: Any) -> Any:
    """φ (4×n×K) in float64 of logits (n×K), for the fit; of an array or a tensor."""
    xp = array_namespace(logits)
    first, second, third, sureness = features(xp, below_peak(xp.astype(logits, xp.float64, copy=False)))
    return xp.stack([first, second, third, first * sureness])


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
