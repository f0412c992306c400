"""Compiled twins of `kernels/scaling.py`: one read of the logits per pass, row by row in the
first-level cache.

Exponentials have the precision of the logits, sums over rows that of float64.
"""

import math
from typing import Any

import numpy as np

from calibrant.core.arrays import Array
from calibrant.kernels import scaling as plain
from calibrant.kernels.compiled.cached import compiled_form, fast, frozen
from calibrant.kernels.compiled.exponential import LOWEST, exp_negative, first_place, row_peak

GROUP = 16
"""Rows summed in the precision of the logits before they join the float64 totals."""


@fast
def _exponential_sums(row, peak, beta):
    """Σ exp(x)·x^k of x = β·(z − peak), k = 0 … 4."""
    mass = first = second = third = fourth = row.dtype.type(0)
    for j in range(len(row)):
        value = beta * (row[j] - peak)
        # a true zero: its products with powers of a large value stay zero, and with -Inf show as NaN
        weighted = row.dtype.type(0) if value < row.dtype.type(LOWEST) else exp_negative(value)
        mass += weighted
        weighted *= value
        first += weighted
        weighted *= value
        second += weighted
        weighted *= value
        third += weighted
        fourth += weighted * value
    return np.float64(mass), np.float64(first), np.float64(second), np.float64(third), np.float64(fourth)


@compiled_form(plain.temperature_sums)
def temperature_sums(logits, labels, weights, inverse_temperature):
    """See the numpy twin."""
    beta = logits.dtype.type(inverse_temperature)
    loss = slope = curvature = bend = tail = 0.0
    for i in range(len(logits)):
        row, peak = logits[i], row_peak(logits[i])
        total, first, second, third, fourth = _exponential_sums(row, peak, beta)
        true = np.float64(beta * (row[labels[i]] - peak))
        mean, square = first / total, second / total
        skew = third / total - mean * (3.0 * square - 2.0 * mean * mean)
        loss += weights[i] * (math.log(total) - true)
        slope += weights[i] * (mean - true)
        curvature += weights[i] * max(square - mean * mean, 0.0)
        bend += weights[i] * skew
        tail += weights[i] * (fourth / total - 4.0 * mean * skew - 3.0 * square**2 + 2.0 * mean**4)
    return loss, slope, curvature, bend, tail


@compiled_form(plain.row_moments)
def row_moments(logits, inverse_temperature):
    """See the numpy twin."""
    moments = np.empty((len(logits), 5))
    for i in range(len(logits)):
        # powers of β·x stay within float32 whatever the size of the logits
        beta = logits.dtype.type(inverse_temperature[i])
        sums, power = _exponential_sums(logits[i], row_peak(logits[i]), beta), 1.0
        for k in range(5):
            moments[i, k] = sums[k] / power
            power *= np.float64(beta)
    return moments


@compiled_form(plain.temperature_confidences)
def temperature_confidences(logits, inverse_temperatures):
    """See the numpy twin."""
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


@fast
def _row_softmax(row, scale, bias, exponentials):
    """Fill `exponentials` with exp(s∘z + b − peak); return the peak and their sum."""
    for j in range(len(row)):
        exponentials[j] = scale[j] * row[j] + bias[j]
    peak = row_peak(exponentials)
    mass = row.dtype.type(0)
    for j in range(len(row)):
        exponential = exp_negative(exponentials[j] - peak)
        exponentials[j] = exponential
        mass += exponential
    return peak, mass


@compiled_form(plain.vector_sums)
def vector_sums(logits, labels, weights, scale, bias):
    """See the numpy twin."""
    (n_rows, n_classes), dtype = logits.shape, logits.dtype
    factor, offset = scale.astype(dtype), bias.astype(dtype)
    exponentials = np.empty(n_classes, dtype)
    group, totals = np.zeros((5, n_classes), dtype), np.zeros((5, n_classes))
    loss = 0.0
    for i in range(n_rows):
        row, true = logits[i], labels[i]
        peak, mass = _row_softmax(row, factor, offset, exponentials)
        own = np.float64(factor[true] * row[true] + offset[true])
        loss += weights[i] * (math.log(np.float64(mass)) + np.float64(peak) - own)
        inverse, weight = dtype.type(1) / mass, dtype.type(weights[i])
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


@compiled_form(plain.vector_product)
def vector_product(logits, labels, weights, scale, bias, direction):  # noqa: PLR0917 (as the numpy twin)
    """See the numpy twin."""
    (n_rows, n_classes), dtype = logits.shape, logits.dtype
    factor, offset, step = scale.astype(dtype), bias.astype(dtype), direction.astype(dtype)
    exponentials = np.empty(n_classes, dtype)
    group, totals = np.zeros((2, n_classes), dtype), np.zeros((2, n_classes))
    for i in range(n_rows):
        row = logits[i]
        _, mass = _row_softmax(row, factor, offset, exponentials)
        mean = dtype.type(0)
        for j in range(n_classes):
            mean += exponentials[j] * (step[0, j] * row[j] + step[1, j])
        mean /= mass
        share = dtype.type(weights[i]) / mass
        for j in range(n_classes):
            value = row[j]
            part = share * exponentials[j] * (step[0, j] * value + step[1, j] - mean)
            group[0, j] += part * value
            group[1, j] += part
        if i % GROUP == GROUP - 1 or i == n_rows - 1:
            totals += group
            group[:] = 0
    return (totals,)


@plain.scale_block.compiled
def scale_block(logits: Array, *rest: Any) -> None:
    """See the numpy twin."""
    _scale_block(frozen(logits), *rest)


@fast
def _scale_block(logits, scale, bias, scaled, keep_prediction):
    n_rows, n_classes = logits.shape
    for i in range(n_rows):
        for j in range(n_classes):
            scaled[i, j] = scale[j] * logits[i, j] + bias[j]
        if keep_prediction:
            # one positive scale keeps the order: the class of the old peak still has the new one, but rounding may
            # have lifted a class before it to the same value
            peak, top = row_peak(scaled[i]), row_peak(logits[i])
            if logits[i, first_place(scaled[i], peak)] < top:
                scaled[i, first_place(logits[i], top)] = np.nextafter(peak, logits.dtype.type(np.inf))
