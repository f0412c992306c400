"""Compiled twins of `kernels.rows`."""

import numpy as np

from calibrant.core.arrays import PROBABILITY_TOLERANCE
from calibrant.kernels import rows as plain
from calibrant.kernels.compiled.cached import compiled_form, fast
from calibrant.kernels.compiled.exponential import (
    LOWEST_EXPONENT,
    bits_of,
    exp_negative,
    first_place,
    log_positive,
    row_peak,
)
from calibrant.kernels.rows import ALL, SCORES, TOP, RowColumns

SMALLEST_NORMAL = 2.3e-308
"""A smaller probability adds nothing to the entropy, and its bits have no exponent to read."""


@fast
def _empty_columns(n, level):
    """Prediction, correct, NLL, Brier score and entropy; of length 0 where they are not asked for."""
    scores = n * (level >= SCORES)
    prediction, correct = np.empty(n * (level >= TOP), np.int64), np.empty(n, np.bool_)
    return prediction, correct, np.empty(scores), np.empty(scores), np.empty(n * (level >= ALL))


@compiled_form(plain.scan_probabilities)
def scan_probabilities(values, labels, level):
    """Columns of a block of probabilities, and whether any value looked wrong."""
    n_rows, n_classes = values.shape
    confidence = np.empty(n_rows, values.dtype)
    prediction, correct, nll, brier, entropy = _empty_columns(n_rows, level)
    least, suspicious = np.float64(np.finfo(values.dtype).eps), False
    confidence_bits = bits_of(confidence)
    for i in range(n_rows):
        row, bits, label = values[i], bits_of(values[i]), labels[i]
        highest, lowest, total = bits[0], bits[0], row[0]
        for j in range(1, n_classes):
            highest = max(highest, bits[j])
            lowest = min(lowest, bits[j])
            total += row[j]
        # with none below 0 the sum also bounds each of them
        if lowest < 0 or not abs(total - 1.0) <= PROBABILITY_TOLERANCE:
            suspicious = True
        confidence_bits[i] = highest
        if level >= TOP:
            prediction[i] = first_place(bits, highest)
            correct[i] = prediction[i] == label
        else:
            # the label is predicted if it has the highest value and no class before it has the same
            before = bits[label] != highest
            if not before:
                for j in range(label):
                    before |= bits[j] == highest
            correct[i] = not before
        of_label = np.float64(row[label])
        if level >= SCORES:
            squares = 0.0
            for j in range(n_classes):
                squares += np.float64(row[j]) * np.float64(row[j])
            nll[i] = -np.log(max(of_label, least))
            brier[i] = max(squares - 2.0 * of_label + 1.0, 0.0)
        if level >= ALL:
            negative = 0.0
            for j in range(n_classes):
                p = np.float64(row[j])
                kept = p if p > SMALLEST_NORMAL else 1.0
                negative += kept * log_positive(kept)
            entropy[i] = max(-negative, 0.0)
    return RowColumns(confidence, prediction, correct, nll, brier, entropy), suspicious


@compiled_form(plain.scan_logits)
def scan_logits(values, labels, level):
    """Columns of the softmax of a block of logits, and whether any value looked wrong."""
    n_rows, n_classes = values.shape
    confidence = np.empty(n_rows)
    prediction, correct, nll, brier, entropy = _empty_columns(n_rows, level)
    at_zero = -np.log(np.float64(np.finfo(values.dtype).eps))
    suspicious = False
    for i in range(n_rows):
        row, label = values[i], labels[i]
        highest = row_peak(row)
        peak = np.float64(highest)
        total = squares = slope = 0.0
        for j in range(n_classes):
            behind = np.float64(row[j]) - peak
            # NaN stays, and shows in the slope
            x = LOWEST_EXPONENT if behind < LOWEST_EXPONENT else behind
            e = exp_negative(x)
            total += e
            squares += e * e
            slope += e * x
        # -Inf is a probability of 0, unless the whole row is
        if not (abs(peak) < np.inf and slope <= 0.0):
            suspicious = True
            continue
        first = first_place(row, highest)
        confidence[i] = 1.0 / total
        if level >= TOP:
            prediction[i] = first
        correct[i] = first == label
        if level >= SCORES:
            log_total, behind = np.log(total), peak - np.float64(row[label])
            nll[i] = log_total + behind if row[label] > -np.inf else at_zero
            of_label = np.exp(-behind) / total
            brier[i] = max(squares / (total * total) - 2.0 * of_label + 1.0, 0.0)
            if level >= ALL:
                entropy[i] = max(log_total - slope / total, 0.0)
    return RowColumns(confidence, prediction, correct, nll, brier, entropy), suspicious
