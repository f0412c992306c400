"""Compiled twin of `kernels/column_minima.py`."""

from __future__ import annotations

import math

import numpy as np

from calibrant.core.zeros import Minima
from calibrant.kernels import column_minima as plain
from calibrant.kernels.compiled.cached import njit
from calibrant.kernels.compiled.exponential import REASSOCIATE, exp_negative, row_peak


@plain.column_minima.compiled
def column_minima(logits: np.ndarray) -> Minima:
    """See the numpy twin."""
    values = np.ascontiguousarray(logits).view(np.ndarray)
    values.flags.writeable = False
    minima = np.full(values.shape[1], np.inf, dtype=values.dtype)
    bits = values.view(np.int32 if values.dtype == np.float32 else np.int64)
    negative_infinity = np.array(-np.inf, dtype=values.dtype).view(bits.dtype)[()]
    n_zero = _column_minima(values, bits, negative_infinity, minima)
    return Minima(minima.astype(np.float64), int(n_zero))


@njit(nogil=True, cache=True, fastmath=REASSOCIATE, error_model="numpy")
def _column_minima(values, bits, negative_infinity, minima):
    n_rows, n_classes = values.shape
    infinity = values.dtype.type(np.inf)
    n_zero = 0
    for i in range(n_rows):
        row = values[i]
        peak = row_peak(row)
        mass = values.dtype.type(0)
        for j in range(n_classes):
            mass += exp_negative(row[j] - peak)
        zeros = 0
        for j in range(n_classes):
            zeros += 1 if bits[i, j] == negative_infinity else 0
        log_mass = values.dtype.type(np.float64(peak) + math.log(np.float64(mass)))
        if zeros:
            n_zero += 1
            for j in range(n_classes):
                if row[j] != -infinity:
                    minima[j] = min(minima[j], row[j] - log_mass)
        else:
            for j in range(n_classes):
                log_p = row[j] - log_mass
                minima[j] = log_p if log_p < minima[j] else minima[j]
    return n_zero
