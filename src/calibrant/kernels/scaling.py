"""Sums over rows that the likelihood fits of scaled logits need: loss, gradient and curvature in one pass.

Each function is a statistic for `Rows.total`: it returns sums, never means, and works in float64 whatever the
dtype of the logits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import array_namespace

from calibrant.core.arrays import Array
from calibrant.core.statistic import kernel, statistic
from calibrant.core.threads import even_blocks, row_blocks
from calibrant.kernels.affine import every, mass_of, softmax_and_losses

CACHE_ELEMENTS = 1 << 15
"""Elements handled at a time: the temporaries of a pass stay in the second-level cache."""

PASS_ELEMENTS = 1 << 18
"""Elements of a temperature pass that are handled at a time: fewer calls are worth more than a nearer cache."""

NARROW_ELEMENTS = 1 << 15
"""From here on the rounding of float32 exponentials averages out; fewer are taken in float64."""


@statistic(compiled_in="calibrant.kernels.compiled.scaling", shows_bad_values=5)
def temperature_sums(
    logits: Array, labels: Array, weights: Array | None, inverse_temperature: float
) -> tuple[float, float, float, float, float]:
    """Σ w·NLL of softmax(β·z), and its first four derivatives by β = 1/T, the k-th times β^k.

    With x = β·(z − peak) and E the mean under softmax(x): the loss of a row is log Σ exp(x) − x_y, its derivatives are
    E[x] − x_y and the second to fourth cumulant of x. Exponentials have the precision of the logits, unless there are
    so few that their rounding would not average out.
    """
    totals = np.zeros(5)
    for block in even_blocks(len(logits), logits.shape[1], PASS_ELEMENTS):
        weight = None if weights is None else weights[block]
        totals += ShiftedRows(logits[block], labels[block], weight, _precision(logits)).totals(inverse_temperature)
    if logits.dtype == np.float32 and not np.isfinite(totals).all():
        # the gap of two finite logits may exceed float32
        return temperature_sums(logits.astype(np.float64), labels, weights, inverse_temperature)
    loss, slope, curvature, bend, tail = map(float, totals)
    return loss, slope, curvature, bend, tail


class ShiftedRows:
    """Logits minus the peak of their row, for `temperature_sums` at several temperatures.

    Parameters
    ----------
    logits, labels, weights : arrays (n, K), (n,) and (n,) or None
    dtype : dtype of the exponentials
    """

    def __init__(self, logits: Array, labels: Array, weights: Array | None, dtype: np.dtype | None = None) -> None:
        values = logits.astype(dtype or _precision(logits), copy=False)
        with np.errstate(over="ignore", invalid="ignore"):
            self.shifted = values - values.max(axis=1, keepdims=True)
        self.true, self.weights = self.shifted[np.arange(len(labels)), labels], weights

    def spread(self) -> float:
        """The standard deviation of the logits of a row, over all rows."""
        n_rows, n_classes = self.shifted.shape
        with np.errstate(over="ignore", invalid="ignore"):
            mean = self.shifted @ np.full(n_classes, 1.0 / n_classes, self.shifted.dtype)
            square = np.vdot(self.shifted, self.shifted) / self.shifted.size
            return float(np.sqrt(np.maximum(square - np.vdot(mean, mean) / n_rows, 0.0)))

    def totals(self, inverse_temperature: float) -> Array:
        """The five sums (5,)."""
        with np.errstate(over="ignore", invalid="ignore"):
            return _totals(self.shifted, self.true, self.weights, inverse_temperature)


def _precision(logits: Array) -> np.dtype:
    return np.dtype(np.float64) if logits.size < NARROW_ELEMENTS else logits.dtype


def _totals(
    shifted: Array,
    true: Array,
    weights: Array | None,
    inverse_temperature: float,
    out: Array | None = None,
) -> Array:
    """The five sums of logits that are shifted row by row to about 0; `true` are those of the labels."""
    beta, ones = shifted.dtype.type(inverse_temperature), np.ones(shifted.shape[1], shifted.dtype)
    scaled = np.multiply(shifted, beta, out=out)
    weighted = np.exp(scaled)
    # a product with ones is a sum by BLAS, four times as fast as `sum(axis=1)`
    sums = np.empty((5, len(scaled)))
    sums[0] = weighted @ ones
    for power in range(1, 5):
        weighted *= scaled
        sums[power] = weighted @ ones
    derivatives = _loss_derivatives(sums, true * beta)
    return derivatives.sum(axis=1) if weights is None else derivatives @ weights


@kernel(compiled_in="calibrant.kernels.compiled.scaling")
def row_moments(logits: Array, inverse_temperature: Array) -> Array:
    """Σ_j exp(β·x_j)·x_j^k for k = 0 … 4 with x = z − max z, of each row, as (n, 5) in float64.

    With S_k these sums: the confidence at temperature 1/β is 1/S₀, its derivative by β −S₁/S₀²; log S₀ is the
    log-partition, S₁/S₀ its first derivative, S₂/S₀ − (S₁/S₀)² its second.
    """
    moments = np.empty((len(logits), 5))
    for block in row_blocks(len(logits), logits.shape[1], CACHE_ELEMENTS):
        moments[block] = block_moments(logits[block].astype(np.float64), inverse_temperature[block])
    return moments


def block_moments(values: Any, inverse_temperature: Any) -> Any:
    """`row_moments` of float64 logits: arrays or tensors."""
    xp = array_namespace(values)
    shifted = values - xp.max(values, axis=1, keepdims=True)
    weighted = xp.exp(inverse_temperature[:, None] * shifted)
    moments = [xp.sum(weighted, axis=1)]
    for _ in range(4):
        weighted *= shifted
        moments.append(xp.sum(weighted, axis=1))
    return xp.stack(moments, axis=1)


@kernel(compiled_in="calibrant.kernels.compiled.scaling")
def temperature_confidences(logits: Array, inverse_temperatures: Array) -> Array:
    """The top confidence of softmax(β·z) for every row and β, n×G in float64: 1 / Σ exp(β·(z − peak))."""
    confidences = np.empty((len(logits), len(inverse_temperatures)))
    for block in row_blocks(len(logits), logits.shape[1], CACHE_ELEMENTS):
        confidences[block] = block_confidences(logits[block].astype(np.float64), inverse_temperatures)
    return confidences


def block_confidences(values: Any, inverse_temperatures: Any) -> Any:
    """`temperature_confidences` of float64 logits: arrays or tensors."""
    xp = array_namespace(values)
    shifted = values - xp.max(values, axis=1, keepdims=True)
    return xp.stack([1.0 / xp.sum(xp.exp(beta * shifted), axis=1) for beta in inverse_temperatures], axis=1)


@statistic(compiled_in="calibrant.kernels.compiled.scaling", array_elements=CACHE_ELEMENTS)
def vector_sums(logits: Any, labels: Any, weights: Any, scale: Any, bias: Any) -> tuple[Any, Any, Any]:
    """Σ w·NLL of softmax(s∘z + b), its gradient (2×K: by s, by b) and the diagonal blocks of its Hessian.

    The blocks (3×K) are Σ w·q(1−q)·(z², z, 1): the curvature of class j's own scale and bias.
    """
    xp, weight = array_namespace(logits), mass_of(logits, weights)
    shares, losses = softmax_and_losses(logits * scale + bias, labels)
    curve = shares * (1 - shares)
    shares[every(labels), labels] -= 1
    bent = curve * logits
    gradient = xp.stack([weight @ (shares * logits), weight @ shares])
    return weight @ losses, gradient, xp.stack([weight @ (bent * logits), weight @ bent, weight @ curve])


@statistic(array_elements=CACHE_ELEMENTS)
def column_moments(logits: Any, labels: Any, weights: Any) -> tuple[Any, Any, Any]:
    """Σ w·z, Σ w·|z| and Σ w·z² of each class (K,); the squares may be infinite."""
    weight = mass_of(logits, weights)
    with np.errstate(over="ignore"):
        return weight @ logits, weight @ abs(logits), weight @ (logits * logits)


@statistic
def vector_newton(  # noqa: PLR0917 (a statistic takes its parameters by position)
    logits: Array,
    labels: Array,
    weights: Array | None,
    scale: Array,
    bias: Array,
    with_hessian: bool = True,
) -> tuple[float, Array, Array]:
    """Loss and gradient of `vector_sums` and, if wanted, the whole Hessian (2K×2K, scales first; else 0×0).

    The Hessian is Σ w·D(diag q − q·qᵀ)D' with D the factors z and 1: diagonal blocks less one product of tall
    matrices. Exponentials and that product run in the precision of the logits, sums over rows in float64. Inside, a
    class is a row, so that loops run along the samples: logits that lie in memory class by class are the fastest.
    """
    (n_rows, n_classes), dtype = logits.shape, logits.dtype
    loss, own = 0.0, np.zeros((3, n_classes))
    coupled = np.zeros((2 * n_classes, 2 * n_classes) if with_hessian else (0, 0))
    columns = scale.astype(dtype)[:, None], bias.astype(dtype)[:, None]
    for block in row_blocks(n_rows, n_classes, 4 * CACHE_ELEMENTS):
        values, true = logits[block].T, labels[block]
        root = None if weights is None else np.sqrt(weights[block])
        factors = np.empty((2, n_classes, len(true)), dtype)
        log_mass, score = _class_softmax(values, true, *columns, factors[1])
        loss += float((log_mass - score).sum() if weights is None else weights[block] @ (log_mass - score))
        if root is not None:
            factors[1] *= root.astype(dtype)
        np.multiply(factors[1], values, out=factors[0])
        weighted = factors if root is None else factors * root
        own[1:] += weighted.sum(axis=2, dtype=np.float64)
        if with_hessian:
            own[0] += np.einsum("jm,jm->j", weighted[0], values)
            flat = factors.reshape(2 * n_classes, -1)
            coupled += flat @ flat.T
    of_label = logits[np.arange(n_rows), labels].astype(np.float64)
    gradient = own[1:] - np.stack(
        [
            np.bincount(labels, of_label if weights is None else weights * of_label, n_classes),
            np.bincount(labels, weights, n_classes),
        ]
    )
    if not with_hessian:
        return loss, gradient, coupled
    hessian = -coupled.reshape(2, n_classes, 2, n_classes)
    each = np.arange(n_classes)
    hessian[0, each, 0, each] += own[0]
    hessian[0, each, 1, each] += own[1]
    hessian[1, each, 0, each] += own[1]
    hessian[1, each, 1, each] += own[2]
    return loss, gradient, hessian.reshape(2 * n_classes, 2 * n_classes)


@statistic(compiled_in="calibrant.kernels.compiled.scaling", array_elements=CACHE_ELEMENTS)
def vector_product(  # noqa: PLR0917 (a statistic takes its parameters by position)
    logits: Any, labels: Any, weights: Any, scale: Any, bias: Any, direction: Any
) -> tuple[Any]:
    """The Hessian of `vector_sums` times a direction (2×K), as 2×K."""
    xp, weight = array_namespace(logits), mass_of(logits, weights)
    shares, _ = softmax_and_losses(logits * scale + bias, labels)
    change = logits * direction[0] + direction[1]
    change -= xp.sum(shares * change, axis=1, keepdims=True)
    change *= shares
    return (xp.stack([weight @ (change * logits), weight @ change]),)


def _loss_derivatives(sums: Array, true: Array) -> Array:
    """log Σ exp(x) − x_y, E[x] − x_y and the cumulants of x of each row (5×n) from Σ exp(x)·x^k, k = 0 … 4,
    which are overwritten."""
    derivatives = np.empty_like(sums)
    np.log(sums[0], out=derivatives[0])
    derivatives[0] -= true
    mean, second, third, fourth = np.divide(sums[1:], sums[0], out=sums[1:])
    square = mean * mean
    np.subtract(mean, true, out=derivatives[1])
    np.maximum(second - square, 0.0, out=derivatives[2])
    skew = np.subtract(third, mean * (3 * second - 2 * square), out=derivatives[3])
    np.subtract(fourth - 4 * mean * skew, 3 * second * second - 2 * square * square, out=derivatives[4])
    return derivatives


def _class_softmax(
    values: Array, labels: Array, scale: Array, bias: Array, probabilities: Array
) -> tuple[Array, Array]:
    """Fill `probabilities` (K×n) with the softmax of s∘z + b; return log mass and label's score of each sample."""
    np.multiply(values, scale, out=probabilities)
    probabilities += bias
    probabilities -= probabilities.max(axis=0)
    true = probabilities[labels, np.arange(len(labels))].astype(np.float64)
    np.exp(probabilities, out=probabilities)
    # a product with ones is a sum by BLAS; that of `sum` adds class by class, and rounds twice as much in float32
    mass = np.ones(len(values), values.dtype) @ probabilities
    probabilities *= 1 / mass
    return np.log(mass, dtype=np.float64), true
