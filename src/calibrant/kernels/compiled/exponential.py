"""exp, log and the peak of a row as branch-free arithmetic, so that LLVM turns a loop over them into vector code."""

import math
from functools import partial

import numpy as np
from numba import types
from numba.extending import overload

from calibrant.kernels.compiled.cached import fast, njit

LOWEST = -87.0
"""Where a sum needs a true zero, exponentials below e^-87, the smallest normal float32, are left out."""

LOWEST_EXPONENT = -708.0
"""exp of anything lower is taken as exp(−708) ≈ 3e-308: zero beside the 1 of the row's maximum."""

exact = partial(njit, error_model="numpy", fastmath={"contract"})
"""Flags are stated, because a function that says nothing takes over its caller's fast-math flags, and reordering the
additions would undo the rounding step."""

_LOG2_E = 1.4426950408889634
_LN2_HIGH = 0.693147180369123816490
_LN2_LOW = 1.90821492927058770002e-10
_ROUNDER = 6755399441055744.0  # 1.5·2⁵²: adding it leaves the nearest whole number in the low bits
_TAYLOR = tuple(1.0 / math.factorial(k) for k in range(12, -1, -1))
_ARTANH = tuple(1.0 / k for k in range(19, 0, -2))

_LOG2_E_32 = np.float32(_LOG2_E)
_HALF = np.float32(0.5)
_SMALLEST_32 = np.float32(-126.0)
"""Anything below 2^-126 counts as 2^-126: nothing beside the 1 of the row's peak."""

# minimax coefficients of 2^f on [-½, ½], highest power first: relative error 2e-9 before rounding
_MINIMAX = tuple(
    np.array(
        [
            0.00015345809474316235,
            0.0013399931198904882,
            0.00961848896651429,
            0.055503287770283065,
            0.24022646890547314,
            0.6931472057372285,
            1.0000000005541778,
        ],
        np.float32,
    )
)
MAGNITUDE_32 = np.int32(0x7FFFFFFF)
MAGNITUDE_64 = np.int64(0x7FFFFFFFFFFFFFFF)


@fast
def exp_negative_32(x):
    """exp(x) of a float32 x ≤ 0."""
    # 2^y = 2^k·2^f, k the nearest whole number: the polynomial gives 2^f, the exponent bits give 2^k
    y = max(x * _LOG2_E_32, _SMALLEST_32)
    whole = np.int32(y - _HALF)
    f = y - np.float32(whole)
    polynomial = np.float32(0)
    for coefficient in _MINIMAX:
        polynomial = polynomial * f + coefficient
    return polynomial * np.int32((whole + np.int32(127)) << np.int32(23)).view(np.float32)


@exact
def exp_negative_64(x):
    """exp(x) for x ≤ 0, to about 2e-16: 2^k · Taylor(x − k ln 2)."""
    x = max(x, LOWEST_EXPONENT)
    rounded = x * _LOG2_E + _ROUNDER
    k = rounded - _ROUNDER
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    series = 0.0
    for coefficient in _TAYLOR:
        series = series * r + coefficient
    # the exponent field of the series is raised by k, which stands in the low bits of `rounded`
    spelled = np.float64(series).view(np.int64) + (np.float64(rounded).view(np.int64) << 52)
    return np.int64(spelled).view(np.float64)


@exact
def log_positive(x):
    """log(x) for normal x > 0, to about 2e-16: k ln 2 + 2 artanh((m − 1)/(m + 1)), m within √½ … √2."""
    bits = np.float64(x).view(np.int64)
    # √½ as bits: subtracting it first puts the cut between exponents at √½ instead of 1
    offset = bits - np.int64(0x3FE6A09E667F3BCD)
    k = offset >> 52
    m = np.int64(bits - (k << 52)).view(np.float64)
    s = (m - 1.0) / (m + 1.0)
    series = 0.0
    for coefficient in _ARTANH:
        series = series * (s * s) + coefficient
    return k * _LN2_HIGH + (k * _LN2_LOW + 2.0 * s * series)


def exp_negative(x):
    """exp(x) for x ≤ 0; inside compiled code, a float32 is not widened."""
    return np.exp(x)


@overload(exp_negative, inline="always")
def _exp_negative(x):
    if x == types.float32:
        return lambda x: exp_negative_32(x)  # noqa: PLW0108 (an overload returns python code)
    return lambda x: exp_negative_64(x)  # noqa: PLW0108


def bits_of(values):
    """The integers that spell an array of numbers."""
    return values.view(np.int32 if values.dtype == np.float32 else np.int64)


@overload(bits_of, inline="always")
def _bits_of(values):
    if values.dtype == types.float32:
        return lambda values: values.view(np.int32)
    return lambda values: values.view(np.int64)


def row_peak(row):
    """The largest value of a row of finite numbers."""
    return row.max()


@overload(row_peak, inline="always")
def _row_peak(row):
    if row.dtype == types.float32:
        return lambda row: np.int32(_highest(row.view(np.int32), MAGNITUDE_32)).view(np.float32)
    return lambda row: np.int64(_highest(row.view(np.int64), MAGNITUDE_64)).view(np.float64)


@njit
def _highest(bits, magnitude):
    # IEEE numbers of one sign are ordered as the integers that spell them; flipping the magnitude bits of negative ones
    # orders all, and integer maxima vectorise where float maxima (which must mind NaN) do not
    highest = bits[0] if bits[0] >= 0 else bits[0] ^ magnitude
    for j in range(1, len(bits)):
        highest = max(highest, bits[j] if bits[j] >= 0 else bits[j] ^ magnitude)
    return highest if highest >= 0 else highest ^ magnitude


@fast
def first_place(row, value):
    """The first place of a value that the row holds; the last place where it holds none."""
    first = len(row) - 1
    for j in range(len(row)):
        first = min(first, j if row[j] == value else len(row))
    return first
