"""Compiled twin of `kernels/row_moments.py`: one read of the logits, exponentials in the precision of the logits."""

from __future__ import annotations

import numpy as np
from numba import njit

from calibrant.kernels.compiled.exponential import REASSOCIATE, exp_negative, row_peak


def row_moments(logits: np.ndarray, inverse_temperature: np.ndarray) -> np.ndarray:
    """See the numpy twin."""
    values = np.ascontiguousarray(logits).view(np.ndarray)
    # a read-only view, whatever came in: the compiler then meets one type per dtype
    values.flags.writeable = False
    moments = np.empty((len(values), 4))
    _row_moments(values, inverse_temperature.astype(values.dtype), moments)
    return moments


@njit(nogil=True, cache=True, fastmath=REASSOCIATE)
def _row_moments(values, inverse_temperature, moments):
    for i in range(len(values)):
        row = values[i]
        peak, beta = row_peak(row), inverse_temperature[i]
        mass = first = second = third = values.dtype.type(0)
        for j in range(len(row)):
            value = row[j] - peak
            exponential = exp_negative(beta * value)
            mass += exponential
            weighted = exponential * value
            first += weighted
            weighted *= value
            second += weighted
            third += weighted * value
        moments[i, 0] = mass
        moments[i, 1] = first
        moments[i, 2] = second
        moments[i, 3] = third
