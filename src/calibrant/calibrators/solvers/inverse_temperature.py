"""The temperature of the lowest NLL."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from calibrant.core.rows import Rows
from calibrant.core.statistic import use_compiled
from calibrant.core.threads import serial
from calibrant.kernels.scaling import ShiftedRows, temperature_sums

FEWEST_ROWS, SAMPLE_ROWS, MOST_ROWS = 64, 1000, 20_000
"""A sample of 1,000 rows gives T within about 1%, which one pass makes exact; below 64 it is not worth its passes."""

ROUGH_STEP = 0.25
"""A relative step that is trusted on a sample: what it leaves, about its fourth power, is less than chance makes."""

SAMPLED_FROM = 1 << 15
"""Elements below which a pass over all rows costs no more than one over a sample."""

SERIAL_BELOW = 1 << 20
"""Elements below which a pass takes one core less time than waking the others."""

NEAR_SLOPE = 0.1
"""Slopes of the loss by log β above this belong to no neighbourhood of an optimum."""

Moments = Callable[[float], tuple[float, float, float, float, float]]
"""β → the mean NLL and β^k times its k-th derivative, k = 1 … 4."""


def fit_inverse_temperature(rows: Rows) -> InverseTemperature:
    """β = 1/T of the lowest mean NLL: estimates from ever larger samples, then one or two passes over all rows."""
    solved = rows.solved_temperature()
    if solved is not None:
        return InverseTemperature(solved.value, [solved.loss] * solved.n_passes, "", True)
    n_elements = rows.n * rows.n_classes
    with serial() if n_elements < SERIAL_BELOW else nullcontext():
        return solve_inverse_temperature(_means(rows), _first_estimate(rows))


def _first_estimate(rows: Rows) -> float:
    """β of a sample; 1 where there is none."""
    size = min(rows.n // 8, MOST_ROWS)
    if rows.n >= 4 * SAMPLE_ROWS:
        size = max(size, SAMPLE_ROWS)
    if size < FEWEST_ROWS or rows.n * rows.n_classes < SAMPLED_FROM:
        return 1.0
    sample = rows.sample(size)
    if not sample.total_weight > 0:
        return 1.0
    start = _first_estimate(sample)
    means = _means(sample)
    if sample.in_memory and not use_compiled(sample.n * sample.n_classes):
        shifted = ShiftedRows(sample.logits, sample.labels, sample.weights)
        if start == 1.0 and math.isfinite(spread := shifted.spread()):
            # logits in unusual units: at the optimum their spread is seldom far from 2
            start = min(max(start, 1 / max(spread, 1e-3)), 4 / max(spread, 1e-3))
        means = _means_of(shifted.totals, sample.total_weight)
    found = solve_inverse_temperature(means, start, step_tolerance=ROUGH_STEP)
    return 1.0 if found.limit else found.value


def _means(rows: Rows) -> Moments:
    return _means_of(lambda beta: rows.total(temperature_sums, beta), rows.total_weight)


def _means_of(totals: Callable[[float], Any], weight: float) -> Moments:
    def moments(inverse_temperature: float) -> tuple[float, float, float, float, float]:
        loss, slope, curvature, bend, tail = totals(inverse_temperature)
        return loss / weight, slope / weight, curvature / weight, bend / weight, tail / weight

    return moments


@dataclass(frozen=True)
class InverseTemperature:
    """Where the scalar solver stopped. `limit` is "" at a proper optimum, else where the optimum lies."""

    value: float
    trace: list[float]
    limit: str
    converged: bool


def solve_inverse_temperature(
    moments: Callable[[float], tuple[float, float, float, float, float]],
    start: float,
    *,
    tolerance: float = 1e-9,
    step_tolerance: float = 1e-2,
    max_iter: int = 100,
) -> InverseTemperature:
    """Minimise a convex loss over β > 0, given the loss and β^k times its k-th derivative, k = 1 … 4, at any β.

    Householder's third-order steps on the slope, held inside the bracket found so far and to a factor of 8. Where a
    step did not halve the slope, or leaves the bracket, the middle of the bracket in log β: far from the optimum the
    curvature of sharp logits is nothing but rounding. Near it, a relative step below `step_tolerance` is trusted: what
    it leaves is of the order of its fourth power.
    """
    beta, low, high, previous = _short(start), 0.0, math.inf, math.inf
    trace: list[float] = []
    for _ in range(max_iter):
        loss, slope, *higher = moments(beta)
        trace.append(loss)
        if slope == 0:
            return InverseTemperature(beta, trace, "" if higher[0] > 0 or low == 0 else "0", True)
        low, high = (beta, high) if slope < 0 else (low, beta)
        step_size = _householder_step(slope, *higher)
        proposed = beta + beta * step_size
        if abs(step_size) <= step_tolerance and abs(slope) <= NEAR_SLOPE:
            return InverseTemperature(proposed, trace, "", True)
        if abs(slope) <= tolerance and (low == 0 or math.isinf(high)):
            return InverseTemperature(beta, trace, "0" if low > 0 else "infinity", True)
        following = _short(min(max(proposed, beta / 8), beta * 8))
        if not low < following < high or abs(slope / beta) > previous / 2:
            following = math.sqrt(low * high) if low > 0 and high < math.inf else beta * (8 if slope < 0 else 1 / 8)
        beta, previous = _short(following), abs(slope / beta)
    return InverseTemperature(beta, trace, "", False)


def _householder_step(slope: float, curvature: float, bend: float, tail: float) -> float:
    """The relative step to where the slope is 0, by its value and its next three derivatives."""
    numerator = 3 * slope * (slope * bend - 2 * curvature * curvature)
    denominator = 6 * curvature**3 - 6 * slope * curvature * bend + slope * slope * tail
    if denominator > 0 and numerator * slope < 0:
        return numerator / denominator
    return -slope / curvature if curvature > 0 else math.copysign(math.inf, -slope)


def _short(beta: float) -> float:
    """β with the 24 bits that float32 holds, so that kernels of either precision work at this very number."""
    mantissa, exponent = math.frexp(beta)
    return math.ldexp(round(mantissa * 2**24), exponent - 24)
