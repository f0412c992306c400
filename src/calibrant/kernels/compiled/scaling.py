"""Compiled twins of `kernels/scaling.py`: one read of the logits per pass, row by row in the first-level cache.

Exponentials have the precision of the logits, sums over rows that of float64.
"""

from __future__ import annotations

import math

import numpy as np

from calibrant.kernels import scaling as plain
from calibrant.kernels.compiled.cached import njit
from calibrant.kernels.compiled.exponential import LOWEST, REASSOCIATE, exp_negative, row_peak

GROUP = 16
"""Rows summed in the precision of the logits before they join the float64 totals."""


@plain.temperature_sums.compiled
def temperature_sums(
    logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, inverse_temperature: float
) -> tuple[float, float, float, float, float]:
    """See the numpy twin."""
    return _temperature_sums(*_plain(logits, labels, weights), inverse_temperature)


@plain.temperature_confidences.compiled
def temperature_confidences(logits: np.ndarray, inverse_temperatures: np.ndarray) -> np.ndarray:
    """See the numpy twin."""
    return _temperature_confidences(_frozen(logits), _frozen(inverse_temperatures))


@plain.vector_sums.compiled
def vector_sums(
    logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, scale: np.ndarray, bias: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """See the numpy twin."""
    dtype = logits.dtype
    return _vector_sums(*_plain(logits, labels, weights), scale.astype(dtype), bias.astype(dtype))


@plain.vector_product.compiled
def vector_product(  # noqa: PLR0917 (a statistic takes its parameters by position)
    logits: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None,
    scale: np.ndarray,
    bias: np.ndarray,
    direction: np.ndarray,
) -> tuple[np.ndarray]:
    """See the numpy twin."""
    dtype = logits.dtype
    values, _, weight = _plain(logits, labels, weights)
    return (_vector_product(values, weight, scale.astype(dtype), bias.astype(dtype), direction.astype(dtype)),)


def _plain(
    logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    weight = np.ones(len(logits)) if weights is None else weights
    return _frozen(logits), _frozen(labels), _frozen(weight)


def _frozen(array: np.ndarray) -> np.ndarray:
    # strided views and read-only memory maps are types of their own to the compiler: with one type it compiles once
    view = np.ascontiguousarray(array).view(np.ndarray)
    view.flags.writeable = False
    return view


@njit(nogil=True, cache=True, fastmath=REASSOCIATE, error_model="numpy")
def _temperature_sums(logits, labels, weights, inverse_temperature):
    n_rows, n_classes = logits.shape
    beta, zero = logits.dtype.type(inverse_temperature), logits.dtype.type(0)
    lowest = logits.dtype.type(LOWEST)
    loss = slope = curvature = bend = tail = 0.0
    for i in range(n_rows):
        row = logits[i]
        peak = row_peak(row)
        mass = first = second = third = fourth = zero
        for j in range(n_classes):
            value = beta * (row[j] - peak)
            # a true zero: its products with powers of a large value stay zero, and with -Inf show as NaN
            weighted = zero if value < lowest else exp_negative(value)
            mass += weighted
            weighted *= value
            first += weighted
            weighted *= value
            second += weighted
            weighted *= value
            third += weighted
            fourth += weighted * value
        true = np.float64(beta * (row[labels[i]] - peak))
        total = np.float64(mass)
        mean, square = np.float64(first) / total, np.float64(second) / total
        skew = np.float64(third) / total - mean * (3.0 * square - 2.0 * mean * mean)
        loss += weights[i] * (math.log(total) - true)
        slope += weights[i] * (mean - true)
        curvature += weights[i] * max(square - mean * mean, 0.0)
        bend += weights[i] * skew
        tail += weights[i] * (np.float64(fourth) / total - 4.0 * mean * skew - 3.0 * square**2 + 2.0 * mean**4)
    return loss, slope, curvature, bend, tail


@njit(nogil=True, cache=True, fastmath=REASSOCIATE)
def _temperature_confidences(logits, inverse_temperatures):
    n_rows, n_classes = logits.shape
    confidences = np.empty((n_rows, len(inverse_temperatures)))
    shifted = np.empty(n_classes)
    for i in range(n_rows):
        peak = np.float64(row_peak(logits[i]))
        for j in range(n_classes):
            shifted[j] = np.float64(logits[i, j]) - peak
        for g in range(len(inverse_temperatures)):
            beta, mass = inverse_temperatures[g], 0.0
            for j in range(n_classes):
                mass += exp_negative(beta * shifted[j])
            confidences[i, g] = 1.0 / mass
    return confidences


@njit(nogil=True, cache=True, fastmath=REASSOCIATE)
def _row_softmax(row, scale, bias, exponentials):
    """Fill `exponentials` with exp(s∘z + b − peak); return the peak and their sum."""
    n_classes = len(row)
    for j in range(n_classes):
        exponentials[j] = scale[j] * row[j] + bias[j]
    peak = row_peak(exponentials)
    mass = row.dtype.type(0)
    for j in range(n_classes):
        exponential = exp_negative(exponentials[j] - peak)
        exponentials[j] = exponential
        mass += exponential
    return peak, mass


@njit(nogil=True, cache=True, fastmath=REASSOCIATE)
def _vector_sums(logits, labels, weights, scale, bias):
    n_rows, n_classes = logits.shape
    one = logits.dtype.type(1)
    exponentials = np.empty(n_classes, logits.dtype)
    group = np.zeros((5, n_classes), logits.dtype)
    totals = np.zeros((5, n_classes))
    loss = 0.0
    for i in range(n_rows):
        row, true = logits[i], labels[i]
        peak, mass = _row_softmax(row, scale, bias, exponentials)
        loss += weights[i] * (
            math.log(np.float64(mass)) + np.float64(peak) - np.float64(scale[true] * row[true] + bias[true])
        )
        inverse, weight = one / mass, logits.dtype.type(weights[i])
        for j in range(n_classes):
            value = row[j]
            probability = exponentials[j] * inverse
            part = weight * probability
            curved = part - part * probability
            group[0, j] += part * value
            group[1, j] += part
            group[2, j] += curved * value * value
            group[3, j] += curved * value
            group[4, j] += curved
        totals[0, true] -= weights[i] * row[true]
        totals[1, true] -= weights[i]
        if i % GROUP == GROUP - 1 or i == n_rows - 1:
            totals += group
            group[:] = 0
    return loss, totals[:2], totals[2:]


@njit(nogil=True, cache=True, fastmath=REASSOCIATE)
def _vector_product(logits, weights, scale, bias, direction):
    n_rows, n_classes = logits.shape
    exponentials = np.empty(n_classes, logits.dtype)
    group = np.zeros((2, n_classes), logits.dtype)
    totals = np.zeros((2, n_classes))
    for i in range(n_rows):
        row = logits[i]
        _, mass = _row_softmax(row, scale, bias, exponentials)
        mean = logits.dtype.type(0)
        for j in range(n_classes):
            mean += exponentials[j] * (direction[0, j] * row[j] + direction[1, j])
        mean /= mass
        factor = logits.dtype.type(weights[i]) / mass
        for j in range(n_classes):
            value = row[j]
            part = factor * exponentials[j] * (direction[0, j] * value + direction[1, j] - mean)
            group[0, j] += part * value
            group[1, j] += part
        if i % GROUP == GROUP - 1 or i == n_rows - 1:
            totals += group
            group[:] = 0
    return totals
