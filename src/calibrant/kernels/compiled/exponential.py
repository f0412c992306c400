"""exp(x) for x ≤ 0 in the precision of x, and the peak of a row: both as arithmetic that vectorises."""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import overload

from calibrant.kernels.compiled import elementary
from calibrant.kernels.compiled.cached import njit

REASSOCIATE = {"reassoc", "contract", "nsz", "arcp"}
"""Sums may be reordered into vector lanes; NaN and Inf keep their meaning."""

LOG2_E = np.float32(1.4426950408889634)
HALF = np.float32(0.5)
SMALLEST_EXPONENT = np.float32(-126.0)
"""Anything below 2^-126 counts as 2^-126: nothing beside the 1 of the row's peak."""

LOWEST = -87.0
"""Where a sum needs a true zero, exponentials below e^-87, the smallest normal float32, are left out."""

# minimax coefficients of 2^f on [-½, ½]: relative error 2e-9 before rounding
A0, A1, A2, A3, A4, A5, A6 = (
    np.float32(value)
    for value in (
        1.0000000005541778,
        0.6931472057372285,
        0.24022646890547314,
        0.055503287770283065,
        0.00961848896651429,
        0.0013399931198904882,
        0.00015345809474316235,
    )
)
MAGNITUDE_32 = np.int32(0x7FFFFFFF)
MAGNITUDE_64 = np.int64(0x7FFFFFFFFFFFFFFF)


@njit(nogil=True, cache=True, fastmath=REASSOCIATE)
def _exp_negative_32(x):
    # 2^y = 2^k·2^f, k the nearest whole number: the polynomial gives 2^f, the exponent bits give 2^k
    y = max(x * LOG2_E, SMALLEST_EXPONENT)
    whole = np.int32(y - HALF)
    f = y - np.float32(whole)
    polynomial = A0 + f * (A1 + f * (A2 + f * (A3 + f * (A4 + f * (A5 + f * A6)))))
    return polynomial * np.int32((whole + np.int32(127)) << np.int32(23)).view(np.float32)


@njit(nogil=True, cache=True)
def _exp_negative_64(x):
    return elementary.exp_negative(max(x, elementary.LOWEST_EXPONENT))


def exp_negative(x):
    """exp(x) for x ≤ 0; inside compiled code, a float32 is not widened."""
    return np.exp(x)


@overload(exp_negative, inline="always")
def _exp_negative(x):
    if x == types.float32:
        return lambda x: _exp_negative_32(x)  # noqa: PLW0108 (an overload returns python code)
    return lambda x: _exp_negative_64(x)  # noqa: PLW0108


def row_peak(row):
    """The largest value of a row of finite numbers."""
    return row.max()


@overload(row_peak, inline="always")
def _row_peak(row):
    if row.dtype == types.float32:
        return lambda row: np.int32(_highest(row.view(np.int32), MAGNITUDE_32)).view(np.float32)
    return lambda row: np.int64(_highest(row.view(np.int64), MAGNITUDE_64)).view(np.float64)


@njit(nogil=True, cache=True)
def _highest(bits, magnitude):
    # flipping the magnitude bits of negative numbers orders the integers like the numbers they spell
    highest = bits[0] if bits[0] >= 0 else bits[0] ^ magnitude
    for j in range(1, len(bits)):
        highest = max(highest, bits[j] if bits[j] >= 0 else bits[j] ^ magnitude)
    return highest if highest >= 0 else highest ^ magnitude
