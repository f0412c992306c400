"""Compiled twin of `kernels/transform.py`."""

from __future__ import annotations

import numpy as np

from calibrant.kernels import transform as plain
from calibrant.kernels.compiled.cached import njit
from calibrant.kernels.compiled.exponential import REASSOCIATE, row_peak


@plain.scale_block.compiled
def scale_block(
    logits: np.ndarray, scale: np.ndarray, bias: np.ndarray, scaled: np.ndarray, keep_prediction: bool
) -> bool:
    """See the numpy twin."""
    values = np.ascontiguousarray(logits).view(np.ndarray)
    values.flags.writeable = False
    small = values.dtype == np.float32
    bits = values.view(np.int32 if small else np.int64)
    exponent = np.int32(0x7F800000) if small else np.int64(0x7FF0000000000000)
    return _scale_block(values, bits, exponent, scale, bias, scaled, keep_prediction)


@njit(nogil=True, cache=True, fastmath=REASSOCIATE)
def _scale_block(values, bits, exponent, scale, bias, scaled, keep_prediction):  # noqa: PLR0917
    n_rows, n_classes = values.shape
    highest = exponent & 0
    for i in range(n_rows):
        for j in range(n_classes):
            # NaN and Inf are the numbers whose exponent bits are all set
            highest = max(highest, bits[i, j] & exponent)
            scaled[i, j] = scale[j] * values[i, j] + bias[j]
        if keep_prediction:
            # one positive scale keeps the order, so the prediction is in danger only where the peak is shared
            peak = row_peak(scaled[i])
            sharing = 0
            for j in range(n_classes):
                sharing += 1 if scaled[i, j] == peak else 0
            if sharing > 1:
                _restore(values[i], scaled[i], peak)
    return highest != exponent


@njit(nogil=True, cache=True)
def _restore(values, scaled, peak):
    prediction = 0
    for j in range(1, len(values)):
        if values[j] > values[prediction]:
            prediction = j
    for j in range(prediction):
        if scaled[j] == peak:
            scaled[prediction] = np.nextafter(peak, values.dtype.type(np.inf))
            return
