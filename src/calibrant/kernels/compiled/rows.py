"""Compiled twins of `kernels.rows`.

Maxima are taken over the bit patterns: IEEE numbers of one sign are ordered as the integers that spell them, and
integer reductions vectorise where float maxima (which must mind NaN) do not. NaN and Inf spell integers beyond
every finite number, so the same maximum finds them.
"""

from __future__ import annotations

import numpy as np

from calibrant.core.arrays import PROBABILITY_TOLERANCE
from calibrant.kernels import rows as plain
from calibrant.kernels.compiled.cached import njit
from calibrant.kernels.compiled.elementary import LOWEST_EXPONENT, exp_negative, log_positive
from calibrant.kernels.compiled.prefetch import prefetch_row
from calibrant.kernels.rows import ALL, SCORES, TOP, RowColumns

REASSOCIATE = {"reassoc", "contract", "nsz"}
"""Sums may be reordered into the lanes of a vector; NaN and Inf keep their meaning."""


SMALLEST_NORMAL = 2.3e-308
"""A smaller probability adds nothing to the entropy, and its bits have no exponent to read."""


@plain.scan_probabilities.compiled
def scan_probabilities(probabilities: np.ndarray, labels: np.ndarray, level: int) -> tuple[RowColumns, bool]:
    """Columns of a block of probabilities, and whether any value looked wrong."""
    columns = _empty_columns(len(labels), level, probabilities.dtype)
    values, bits = _with_bits(probabilities)
    highest_allowed = _bits(np.array(1 + PROBABILITY_TOLERANCE, dtype=values.dtype))[()]
    tiny = float(np.finfo(values.dtype).tiny)
    highest = _bits(columns.confidence)
    suspicious = _probabilities(values, bits, frozen(labels), level, highest_allowed, tiny, highest, *columns[1:])
    return columns, bool(suspicious)


@plain.scan_logits.compiled
def scan_logits(logits: np.ndarray, labels: np.ndarray, level: int) -> tuple[RowColumns, bool]:
    """Columns of the softmax of a block of logits, and whether any value looked wrong."""
    columns = _empty_columns(len(labels), level, np.dtype(np.float64))
    values, bits = _with_bits(logits)
    infinity = _bits(np.array(np.inf, dtype=values.dtype))[()]
    magnitude = np.iinfo(bits.dtype).max
    at_zero = -float(np.log(np.float64(np.finfo(values.dtype).tiny)))
    suspicious = _logits(values, bits, frozen(labels), level, infinity, bits.dtype.type(magnitude), at_zero, *columns)
    return columns, bool(suspicious)


def _empty_columns(n: int, level: int, dtype: np.dtype) -> RowColumns:
    scores = n if level >= SCORES else 0
    return RowColumns(
        np.empty(n, dtype),
        np.empty(n if level >= TOP else 0, np.int64),
        np.empty(n, np.bool_),
        np.empty(scores),
        np.empty(scores),
        np.empty(n if level >= ALL else 0),
    )


def _bits(values: np.ndarray) -> np.ndarray:
    return values.view(np.int32 if values.dtype == np.float32 else np.int64)


def frozen(array: np.ndarray) -> np.ndarray:
    """A read-only view: memory maps are read-only, and showing every array so compiles one type, not two."""
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view


def _with_bits(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    view = frozen(values)
    return view, _bits(view)


@njit(nogil=True, cache=True, fastmath=REASSOCIATE, error_model="numpy")
def _probabilities(  # noqa: PLR0917
    values, bits, labels, level, highest_allowed, tiny, confidence_bits, prediction, correct, nll, brier, entropy
):
    n_rows, n_classes = values.shape
    row_bytes = n_classes * values.itemsize
    suspicious = False
    for row in range(n_rows):
        prefetch_row(values.ctypes.data + row * row_bytes, row_bytes)
        highest = bits[row, 0]
        lowest = bits[row, 0]
        total = values[row, 0]
        for j in range(1, n_classes):
            highest = max(highest, bits[row, j])
            lowest = min(lowest, bits[row, j])
            total += values[row, j]
        if lowest < 0 or highest > highest_allowed or not abs(total - 1.0) <= PROBABILITY_TOLERANCE:
            suspicious = True
        confidence_bits[row] = highest
        if level >= TOP:
            first = n_classes
            for j in range(n_classes):
                first = min(first, j if bits[row, j] == highest else n_classes)
            prediction[row] = first
            correct[row] = first == labels[row]
        else:
            # the label is predicted if it has the highest value and no class before it has the same
            before = bits[row, labels[row]] != highest
            if not before:
                for j in range(labels[row]):
                    before |= bits[row, j] == highest
            correct[row] = not before
        if level >= SCORES:
            squares = 0.0
            for j in range(n_classes):
                squares += np.float64(values[row, j]) * np.float64(values[row, j])
            of_label = np.float64(values[row, labels[row]])
            nll[row] = -np.log(max(of_label, tiny))
            brier[row] = max(squares - 2.0 * of_label + 1.0, 0.0)
        if level >= ALL:
            negative = 0.0
            for j in range(n_classes):
                p = np.float64(values[row, j])
                kept = p if p > SMALLEST_NORMAL else 1.0
                negative += kept * log_positive(kept)
            entropy[row] = max(-negative, 0.0)
    return suspicious


@njit(nogil=True, cache=True, fastmath=REASSOCIATE, error_model="numpy")
def _logits(  # noqa: PLR0917
    values, bits, labels, level, infinity, magnitude, at_zero, confidence, prediction, correct, nll, brier, entropy
):
    n_rows, n_classes = values.shape
    suspicious = False
    for row in range(n_rows):
        # flipping the magnitude bits of negative numbers orders the integers like the numbers
        highest = bits[row, 0] if bits[row, 0] >= 0 else bits[row, 0] ^ magnitude
        lowest = highest
        for j in range(1, n_classes):
            key = bits[row, j] if bits[row, j] >= 0 else bits[row, j] ^ magnitude
            highest = max(highest, key)
            lowest = min(lowest, key)
        # -Inf is a probability of 0, unless the whole row is
        if highest >= infinity or lowest < ~infinity or highest <= ~infinity:
            suspicious = True
            continue
        if highest == 0:
            # -0.0 spells an integer of its own, but ties with the +0.0 that is the peak here
            first = n_classes
            for j in range(n_classes):
                first = min(first, j if values[row, j] == 0 else n_classes)
        else:
            peak_bits = highest if highest >= 0 else highest ^ magnitude
            first = n_classes
            for j in range(n_classes):
                first = min(first, j if bits[row, j] == peak_bits else n_classes)
        peak = np.float64(values[row, first])
        total = 0.0
        squares = 0.0
        slope = 0.0
        for j in range(n_classes):
            behind_peak = np.float64(values[row, j]) - peak
            x = behind_peak if behind_peak > LOWEST_EXPONENT else LOWEST_EXPONENT
            e = exp_negative(x)
            total += e
            squares += e * e
            slope += e * x
        confidence[row] = 1.0 / total
        if level >= TOP:
            prediction[row] = first
        correct[row] = first == labels[row]
        if level >= SCORES:
            log_total = np.log(total)
            behind = peak - np.float64(values[row, labels[row]])
            nll[row] = log_total + behind if values[row, labels[row]] > -np.inf else at_zero
            of_label = np.exp(-behind) / total
            brier[row] = max(squares / (total * total) - 2.0 * of_label + 1.0, 0.0)
            if level >= ALL:
                entropy[row] = max(log_total - slope / total, 0.0)
    return suspicious
