"""Sums over rows that the likelihood fits of scaled logits need: loss, gradient and curvature in one pass.

Each function is a statistic for `Rows.total`: it returns sums, never means, and works in float64 whatever the
dtype of the logits.
"""

from __future__ import annotations

import numpy as np

from calibrant.core.threads import row_blocks

CACHE_ELEMENTS = 1 << 15
"""Elements handled at a time: the temporaries of a pass stay in the second-level cache."""


def temperature_sums(
    logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, inverse_temperature: float
) -> tuple[float, float, float, float]:
    """Σ w·NLL of softmax(β·z), and its first three derivatives by β = 1/T.

    With z measured from the row's peak and E the mean under softmax(β·z): the loss of a row is
    log Σ exp(β·z) − β·z_y, its derivatives are E[z] − z_y and the second and third central moment of z.
    """
    totals = np.zeros(4)
    for block in row_blocks(len(logits), logits.shape[1], CACHE_ELEMENTS):
        shifted, true = _from_peak(logits[block], labels[block])
        exponentials = np.exp(inverse_temperature * shifted)
        mass = exponentials.sum(axis=1)
        mean = np.einsum("ij,ij->i", exponentials, shifted) / mass
        exponentials *= shifted
        second = np.einsum("ij,ij->i", exponentials, shifted) / mass
        exponentials *= shifted
        third = np.einsum("ij,ij->i", exponentials, shifted) / mass
        loss = np.log(mass) - inverse_temperature * true
        spread = np.maximum(second - mean * mean, 0.0)
        skew = third - mean * (3 * second - 2 * mean * mean)
        moments = np.stack([loss, mean - true, spread, skew])
        totals += moments.sum(axis=1) if weights is None else moments @ weights[block]
    return float(totals[0]), float(totals[1]), float(totals[2]), float(totals[3])


def temperature_confidences(logits: np.ndarray, inverse_temperatures: np.ndarray) -> np.ndarray:
    """The top confidence of softmax(β·z) for every row and β, n×G in float64: 1 / Σ exp(β·(z − peak))."""
    confidences = np.empty((len(logits), len(inverse_temperatures)))
    for block in row_blocks(len(logits), logits.shape[1], CACHE_ELEMENTS):
        shifted = logits[block].astype(np.float64)
        shifted -= shifted.max(axis=1, keepdims=True)
        for index, beta in enumerate(inverse_temperatures):
            confidences[block, index] = 1.0 / np.exp(beta * shifted).sum(axis=1)
    return confidences


def vector_sums(
    logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, scale: np.ndarray, bias: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Σ w·NLL of softmax(s∘z + b), its gradient (2×K: by s, by b) and the diagonal blocks of its Hessian.

    The blocks (3×K) are Σ w·q(1−q)·(z², z, 1): the curvature of class j's own scale and bias.
    """
    n_classes = logits.shape[1]
    loss, gradient, blocks = 0.0, np.zeros((2, n_classes)), np.zeros((3, n_classes))
    for block in row_blocks(len(logits), logits.shape[1], CACHE_ELEMENTS):
        values, true = logits[block].astype(np.float64, copy=False), labels[block]
        weight = np.ones(len(values)) if weights is None else weights[block]
        probabilities, log_mass, score = _scaled_softmax(values, true, scale, bias)
        loss += float(weight @ (log_mass - score))
        curvature = probabilities * (1 - probabilities)
        probabilities[np.arange(len(values)), true] -= 1
        gradient[0] += np.einsum("i,ij,ij->j", weight, probabilities, values)
        gradient[1] += weight @ probabilities
        blocks[2] += weight @ curvature
        curvature *= values
        blocks[1] += weight @ curvature
        blocks[0] += np.einsum("i,ij,ij->j", weight, curvature, values)
    return loss, gradient, blocks


def vector_newton(
    logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, scale: np.ndarray, bias: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Loss and gradient of `vector_sums` and the whole Hessian (2K×2K, scales first).

    The Hessian is Σ w·D(diag q − q·qᵀ)D' with D the factors z and 1: diagonal blocks less one product of tall
    matrices. Exponentials and that product run in the precision of the logits, sums over rows in float64.
    """
    n_classes, dtype = logits.shape[1], logits.dtype
    loss, gradient = 0.0, np.zeros((2, n_classes))
    own, coupled = np.zeros((3, n_classes)), np.zeros((2 * n_classes, 2 * n_classes))
    for block in row_blocks(len(logits), n_classes, 2 * CACHE_ELEMENTS):
        values, true = logits[block], labels[block]
        weight = np.ones(len(values)) if weights is None else weights[block]
        narrow, log_mass, score = _scaled_softmax(values, true, scale.astype(dtype), bias.astype(dtype))
        factors = np.empty((len(values), 2 * n_classes), dtype)
        factors[:, n_classes:] = narrow
        np.multiply(narrow, values, out=factors[:, :n_classes])
        probabilities = narrow.astype(np.float64)
        if weights is not None:
            probabilities *= weight[:, None]
        weighted = probabilities * values
        own += [np.einsum("ij,ij->j", weighted, values), weighted.sum(axis=0), probabilities.sum(axis=0)]
        loss += float(weight @ (log_mass - score))
        np.subtract.at(gradient[0], true, weight * values[np.arange(len(values)), true])
        np.subtract.at(gradient[1], true, weight)
        if weights is not None:
            factors *= np.sqrt(weight)[:, None].astype(dtype)
        coupled += factors.T @ factors
    gradient += own[1:]
    hessian = -coupled.reshape(2, n_classes, 2, n_classes)
    each = np.arange(n_classes)
    hessian[0, each, 0, each] += own[0]
    hessian[0, each, 1, each] += own[1]
    hessian[1, each, 0, each] += own[1]
    hessian[1, each, 1, each] += own[2]
    return loss, gradient, hessian.reshape(2 * n_classes, 2 * n_classes)


def vector_product(  # noqa: PLR0917 (a statistic takes its parameters by position)
    logits: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None,
    scale: np.ndarray,
    bias: np.ndarray,
    direction: np.ndarray,
) -> tuple[np.ndarray]:
    """The Hessian of `vector_sums` times a direction (2×K), as 2×K."""
    product = np.zeros((2, logits.shape[1]))
    for block in row_blocks(len(logits), logits.shape[1], CACHE_ELEMENTS):
        values = logits[block].astype(np.float64, copy=False)
        probabilities, _, _ = _scaled_softmax(values, labels[block], scale, bias)
        change = values * direction[0] + direction[1]
        change -= np.einsum("ij,ij->i", probabilities, change)[:, None]
        change *= probabilities
        if weights is not None:
            change *= weights[block, None]
        product[1] += change.sum(axis=0)
        product[0] += np.einsum("ij,ij->j", change, values)
    return (product,)


def _from_peak(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    return shifted, shifted[np.arange(len(shifted)), labels]


def _scaled_softmax(
    values: np.ndarray, labels: np.ndarray, scale: np.ndarray, bias: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    scores = values * scale + bias
    scores -= scores.max(axis=1, keepdims=True)
    true = scores[np.arange(len(scores)), labels]
    np.exp(scores, out=scores)
    mass = scores.sum(axis=1)
    scores /= mass[:, None]
    return scores, np.log(mass), true
