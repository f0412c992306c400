"""Compiled twin of `kernels/row_moments.py`: one read of the logits, exponentials in the precision of the logits."""

from __future__ import annotations

import numpy as np

from calibrant.kernels import row_moments as plain
from calibrant.kernels.compiled.cached import njit
from calibrant.kernels.compiled.exponential import LOWEST, REASSOCIATE, exp_negative, row_peak


@plain.row_moments.compiled
def row_moments(logits: np.ndarray, inverse_temperature: np.ndarray) -> np.ndarray:
    """See the numpy twin."""
    values = np.ascontiguousarray(logits).view(np.ndarray)
    # a read-only view, whatever came in: the compiler then meets one type per dtype
    values.flags.writeable = False
    moments = np.empty((len(values), 5))
    _row_moments(values, inverse_temperature.astype(values.dtype), moments)
    return moments


@njit(nogil=True, cache=True, fastmath=REASSOCIATE, error_model="numpy")
def _row_moments(values, inverse_temperature, moments):
    zero, lowest = values.dtype.type(0), values.dtype.type(LOWEST)
    for i in range(len(values)):
        row = values[i]
        peak, beta = row_peak(row), inverse_temperature[i]
        mass = first = second = third = fourth = zero
        for j in range(len(row)):
            # powers of β·x stay within float32 whatever the size of the logits, and a true zero keeps them so
            value = beta * (row[j] - peak)
            weighted = zero if value < lowest else exp_negative(value)
            mass += weighted
            weighted *= value
            first += weighted
            weighted *= value
            second += weighted
            weighted *= value
            third += weighted
            fourth += weighted * value
        wide = np.float64(beta)
        moments[i, 0] = mass
        moments[i, 1] = first / wide
        moments[i, 2] = second / wide**2
        moments[i, 3] = third / wide**3
        moments[i, 4] = fourth / wide**4
