"""Compiled twins of `kernels/shape.py`: a row stays in the cache, and no feature is ever written to memory."""

import math

import numpy as np

from calibrant.kernels import shape as plain
from calibrant.kernels.compiled.cached import compiled_form, fast
from calibrant.kernels.compiled.exponential import exp_negative, log_positive, row_peak
from calibrant.kernels.shape import FLOOR, LARGEST_CONFIDENCE, LARGEST_P

SOURCE = (0, 1, 2, 0)
"""Which of the three features of a class each of the four is a multiple of."""


@fast
def _bend_row(row, shape, parts):
    """Fill the rows of `parts` with l, −log(1 − p), log(p + 0.01) and the bent score; return log(1 − c)/5."""
    first, second, third, score = parts[0], parts[1], parts[2], parts[3]
    peak, mass = np.float64(row_peak(row)), 0.0
    for j in range(len(row)):
        first[j] = np.float64(row[j]) - peak
        second[j] = exp_negative(first[j])
        mass += second[j]
    inverse, log_mass = 1.0 / mass, math.log(mass)
    sureness = math.log1p(-min(inverse, LARGEST_CONFIDENCE)) / 5
    slope = shape[0] + shape[3] * sureness
    by_second, by_third = shape[1], shape[2]
    for j in range(len(row)):
        log_p, p = first[j] - log_mass, second[j] * inverse
        opened = -log_positive(1.0 - (p if p < LARGEST_P else LARGEST_P))
        lifted = log_positive(p + FLOOR)
        first[j] = log_p
        second[j] = opened
        third[j] = lifted
        score[j] = slope * log_p + by_second * opened + by_third * lifted
    return sureness


@fast
def _log_mass(score):
    """log Σ exp(u) of a row of scores."""
    peak, mass = row_peak(score), 0.0
    for j in range(len(score)):
        mass += exp_negative(score[j] - peak)
    return peak + math.log(mass)


@compiled_form(plain.shape_sums)
def shape_sums(logits, labels, weights, shape):
    """See the numpy twin."""
    n_rows, n_classes = logits.shape
    parts = np.empty((4, n_classes))
    loss, gradient, hessian = 0.0, np.zeros(4), np.zeros((4, 4))
    first, second, third, score = parts[0], parts[1], parts[2], parts[3]
    for i in range(n_rows):
        sureness = _bend_row(logits[i], shape, parts)
        peak = row_peak(score)
        mass = m0 = m1 = m2 = s00 = s01 = s02 = s11 = s12 = s22 = 0.0
        for j in range(n_classes):
            exponential = exp_negative(score[j] - peak)
            a, b, c = first[j], second[j], third[j]
            by_a, by_b, by_c = exponential * a, exponential * b, exponential * c
            mass += exponential
            m0 += by_a
            m1 += by_b
            m2 += by_c
            s00 += by_a * a
            s01 += by_a * b
            s02 += by_a * c
            s11 += by_b * b
            s12 += by_b * c
            s22 += by_c * c
        label, weight, inverse = labels[i], weights[i], 1.0 / mass
        loss += weight * (peak + math.log(mass) - score[label])
        # the fourth feature is the first times the sureness of the row
        factor, mean = (1.0, 1.0, 1.0, sureness), (m0 * inverse, m1 * inverse, m2 * inverse)
        square = ((s00, s01, s02), (s01, s11, s12), (s02, s12, s22))
        for m in range(4):
            one = SOURCE[m]
            gradient[m] += weight * factor[m] * (mean[one] - parts[one, label])
            for n in range(4):
                other = SOURCE[n]
                spread = square[one][other] * inverse - mean[one] * mean[other]
                hessian[m, n] += weight * factor[m] * factor[n] * spread
    return loss, gradient, hessian


@compiled_form(plain.bent_losses_of)
def bent_losses_of(logits, labels, weights, shape):
    """See the numpy twin."""
    parts, losses = np.empty((4, logits.shape[1])), np.empty(len(logits))
    for i in range(len(logits)):
        _bend_row(logits[i], shape, parts)
        losses[i] = _log_mass(parts[3]) - parts[3, labels[i]]
    return (losses,)


@compiled_form(plain.bent_scores)
def bent_scores(logits, shape):
    """See the numpy twin."""
    parts, scores = np.empty((4, logits.shape[1])), np.empty(logits.shape, logits.dtype)
    for i in range(len(logits)):
        _bend_row(logits[i], shape, parts)
        score, log_mass = parts[3], _log_mass(parts[3])
        for j in range(logits.shape[1]):
            scores[i, j] = score[j] - log_mass
    return scores
