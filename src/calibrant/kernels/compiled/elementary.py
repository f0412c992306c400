"""exp and log as branch-free arithmetic, so that LLVM turns a loop over them into vector instructions."""

from __future__ import annotations

import numpy as np

from calibrant.kernels.compiled.cached import njit

LOWEST_EXPONENT = -708.0
"""exp of anything lower is taken as exp(−708) ≈ 3e-308: zero beside the 1 of the row's maximum."""

CONTRACT = {"contract"}
"""Stated, because a function that says nothing takes over its caller's fast-math flags, and reordering the additions
would undo the rounding step."""

_LOG2_E = 1.4426950408889634
_LN2_HIGH = 0.693147180369123816490
_LN2_LOW = 1.90821492927058770002e-10
_ROUNDER = 6755399441055744.0  # 1.5·2⁵²: adding it leaves the nearest whole number in the low bits


@njit(nogil=True, cache=True, error_model="numpy", fastmath=CONTRACT)
def exp_negative(x):
    """exp(x) for −708 ≤ x ≤ 0, to about 2e-16: 2^k · Taylor(x − k ln 2)."""
    rounded = x * _LOG2_E + _ROUNDER
    k = rounded - _ROUNDER
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    series = 1.0 / 479001600.0
    series = series * r + 1.0 / 39916800.0
    series = series * r + 1.0 / 3628800.0
    series = series * r + 1.0 / 362880.0
    series = series * r + 1.0 / 40320.0
    series = series * r + 1.0 / 5040.0
    series = series * r + 1.0 / 720.0
    series = series * r + 1.0 / 120.0
    series = series * r + 1.0 / 24.0
    series = series * r + 1.0 / 6.0
    series = series * r + 0.5
    series = series * r + 1.0
    series = series * r + 1.0
    # the exponent field of the series is raised by k, which stands in the low bits of `rounded`
    spelled = np.float64(series).view(np.int64) + (np.float64(rounded).view(np.int64) << 52)
    return np.int64(spelled).view(np.float64)


@njit(nogil=True, cache=True, error_model="numpy", fastmath=CONTRACT)
def log_positive(x):
    """log(x) for normal x > 0, to about 2e-16: k ln 2 + 2 artanh((m − 1)/(m + 1)), m within √½ … √2."""
    bits = np.float64(x).view(np.int64)
    # √½ as bits: subtracting it first puts the cut between exponents at √½ instead of 1
    offset = bits - np.int64(0x3FE6A09E667F3BCD)
    k = offset >> 52
    m = np.int64(bits - (k << 52)).view(np.float64)
    s = (m - 1.0) / (m + 1.0)
    q = s * s
    series = 1.0 / 19.0
    series = series * q + 1.0 / 17.0
    series = series * q + 1.0 / 15.0
    series = series * q + 1.0 / 13.0
    series = series * q + 1.0 / 11.0
    series = series * q + 1.0 / 9.0
    series = series * q + 1.0 / 7.0
    series = series * q + 1.0 / 5.0
    series = series * q + 1.0 / 3.0
    series = series * q + 1.0
    return k * _LN2_HIGH + (k * _LN2_LOW + 2.0 * s * series)
