"""The temperature of the lowest NLL."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from calibrant.calibrators.solvers.newton import InverseTemperature, solve_inverse_temperature
from calibrant.core.rows import Rows
from calibrant.core.threads import serial
from calibrant.kernels.dispatch import pick
from calibrant.kernels.scaling import temperature_sums

FEWEST_ROWS, SAMPLE_ROWS, MOST_ROWS = 64, 1000, 20_000
"""A sample of 1,000 rows gives T within about 1%, which one pass makes exact; below 64 it is not worth its passes."""

SAMPLED_FROM = 1 << 15
"""Elements below which a pass over all rows costs no more than one over a sample."""

SERIAL_BELOW = 1 << 20
"""Elements below which a pass takes one core less time than waking the others."""


def fit_inverse_temperature(rows: Rows) -> InverseTemperature:
    """β = 1/T of the lowest mean NLL: estimates from ever larger samples, then one or two passes over all rows."""
    solved = rows.solved_temperature()
    if solved is not None:
        return InverseTemperature(solved.value, [solved.loss] * solved.n_passes, "", True)
    n_elements = rows.n * rows.n_classes
    statistic = pick(temperature_sums, n_elements)
    with serial() if n_elements < SERIAL_BELOW else nullcontext():
        return solve_inverse_temperature(_means(rows, statistic), _first_estimate(rows, statistic))


def _first_estimate(rows: Rows, statistic: Callable[..., Any]) -> float:
    size = min(rows.n // 8, MOST_ROWS)
    if rows.n >= 4 * SAMPLE_ROWS:
        size = max(size, SAMPLE_ROWS)
    if size < FEWEST_ROWS or rows.n * rows.n_classes < SAMPLED_FROM:
        return 1.0
    sample = rows.sample(size)
    if not sample.total_weight > 0:
        return 1.0
    start = _first_estimate(sample, statistic)
    found = solve_inverse_temperature(_means(sample, statistic), start, step_tolerance=0.1)
    return 1.0 if found.limit else found.value


def _means(rows: Rows, statistic: Callable[..., Any]) -> Callable[[float], tuple[float, float, float, float, float]]:
    total = rows.total_weight

    def moments(inverse_temperature: float) -> tuple[float, float, float, float, float]:
        loss, slope, curvature, bend, tail = rows.total(statistic, inverse_temperature)
        return loss / total, slope / total, curvature / total, bend / total, tail / total

    return moments
