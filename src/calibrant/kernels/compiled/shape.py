"""Compiled twins of `kernels/shape.py`: a row stays in the cache, and no feature is ever written to memory."""

from __future__ import annotations

import math

import numpy as np

from calibrant.kernels import shape as plain
from calibrant.kernels.compiled.cached import njit
from calibrant.kernels.compiled.elementary import LOWEST_EXPONENT, exp_negative, log_positive
from calibrant.kernels.compiled.exponential import REASSOCIATE, row_peak
from calibrant.kernels.shape import FLOOR, LARGEST_CONFIDENCE, LARGEST_P


@plain.shape_sums.compiled
def shape_sums(
    logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, shape: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """See the numpy twin."""
    weight = np.ones(len(logits)) if weights is None else weights
    gradient, hessian = np.zeros(4), np.zeros((4, 4))
    loss = _shape_sums(_frozen(logits), _frozen(labels), _frozen(weight), _frozen(shape), gradient, hessian)
    return float(loss), gradient, hessian


@plain.bent_losses_of.compiled
def bent_losses_of(
    logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, shape: np.ndarray
) -> tuple[np.ndarray]:
    """See the numpy twin."""
    losses = np.empty(len(logits))
    _bent_losses(_frozen(logits), _frozen(labels), _frozen(shape), losses)
    return (losses,)


@plain.bent_scores.compiled
def bent_scores(logits: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """See the numpy twin."""
    scores = np.empty(logits.shape, logits.dtype)
    _bent_scores(_frozen(logits), _frozen(shape), scores)
    return scores


def _frozen(array: np.ndarray) -> np.ndarray:
    view = np.ascontiguousarray(array).view(np.ndarray)
    view.flags.writeable = False
    return view


@njit(nogil=True, cache=True, fastmath=REASSOCIATE, error_model="numpy")
def _bend_row(row, shape, parts):
    """Fill the rows of `parts` with l, −log(1 − p), log(p + 0.01) and the bent score; return log(1 − c)/5."""
    n_classes = len(row)
    first, second, third, score = parts[0], parts[1], parts[2], parts[3]
    peak = np.float64(row_peak(row))
    mass = 0.0
    for j in range(n_classes):
        behind = np.float64(row[j]) - peak
        exponential = exp_negative(behind if behind > LOWEST_EXPONENT else LOWEST_EXPONENT)
        first[j] = behind
        second[j] = exponential
        mass += exponential
    inverse, log_mass = 1.0 / mass, math.log(mass)
    sureness = math.log1p(-min(inverse, LARGEST_CONFIDENCE)) / 5
    slope = shape[0] + shape[3] * sureness
    by_second, by_third = shape[1], shape[2]
    for j in range(n_classes):
        log_p, p = first[j] - log_mass, second[j] * inverse
        opened = -log_positive(1.0 - (p if p < LARGEST_P else LARGEST_P))
        lifted = log_positive(p + FLOOR)
        first[j] = log_p
        second[j] = opened
        third[j] = lifted
        score[j] = slope * log_p + by_second * opened + by_third * lifted
    return sureness


@njit(nogil=True, cache=True, fastmath=REASSOCIATE, error_model="numpy")
def _log_mass(score):
    """log Σ exp(u) of a row of scores."""
    peak = row_peak(score)
    mass = 0.0
    for j in range(len(score)):
        behind = score[j] - peak
        mass += exp_negative(behind if behind > LOWEST_EXPONENT else LOWEST_EXPONENT)
    return peak + math.log(mass)


@njit(nogil=True, cache=True, fastmath=REASSOCIATE, error_model="numpy")
def _shape_sums(logits, labels, weights, shape, gradient, hessian):  # noqa: PLR0917
    n_rows, n_classes = logits.shape
    parts = np.empty((4, n_classes))
    first, second, third, score = parts[0], parts[1], parts[2], parts[3]
    mean, square = np.empty(4), np.empty((4, 4))
    loss = 0.0
    for i in range(n_rows):
        sureness = _bend_row(logits[i], shape, parts)
        peak = row_peak(score)
        mass = m0 = m1 = m2 = s00 = s01 = s02 = s11 = s12 = s22 = 0.0
        for j in range(n_classes):
            behind = score[j] - peak
            exponential = exp_negative(behind if behind > LOWEST_EXPONENT else LOWEST_EXPONENT)
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
        mean[0], mean[1], mean[2], mean[3] = m0 * inverse, m1 * inverse, m2 * inverse, sureness * m0 * inverse
        square[0, 0], square[0, 1], square[0, 2], square[0, 3] = s00, s01, s02, sureness * s00
        square[1, 1], square[1, 2], square[1, 3] = s11, s12, sureness * s01
        square[2, 2], square[2, 3], square[3, 3] = s22, sureness * s02, sureness * sureness * s00
        gradient[0] += weight * (mean[0] - first[label])
        gradient[1] += weight * (mean[1] - second[label])
        gradient[2] += weight * (mean[2] - third[label])
        gradient[3] += weight * (mean[3] - sureness * first[label])
        for a_ in range(4):
            for b_ in range(a_, 4):
                hessian[a_, b_] += weight * (square[a_, b_] * inverse - mean[a_] * mean[b_])
    for a_ in range(4):
        for b_ in range(a_):
            hessian[a_, b_] = hessian[b_, a_]
    return loss


@njit(nogil=True, cache=True, fastmath=REASSOCIATE, error_model="numpy")
def _bent_losses(logits, labels, shape, losses):
    parts = np.empty((4, logits.shape[1]))
    for i in range(len(logits)):
        _bend_row(logits[i], shape, parts)
        losses[i] = _log_mass(parts[3]) - parts[3, labels[i]]


@njit(nogil=True, cache=True, fastmath=REASSOCIATE, error_model="numpy")
def _bent_scores(logits, shape, scores):
    parts = np.empty((4, logits.shape[1]))
    for i in range(len(logits)):
        _bend_row(logits[i], shape, parts)
        score, log_mass = parts[3], _log_mass(parts[3])
        for j in range(logits.shape[1]):
            scores[i, j] = score[j] - log_mass
