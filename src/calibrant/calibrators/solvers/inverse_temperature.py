"""The temperature of the lowest NLL."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from calibrant.calibrators.solvers.newton import InverseTemperature, solve_inverse_temperature
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
