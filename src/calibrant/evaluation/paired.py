"""Differences between two results on the same rows: far less noisy than either figure by itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.core.arrays import Array
from calibrant.evaluation.bootstrap import percentile_interval
from calibrant.evaluation.table import Estimate, Figures

ROUNDING = 1e-6
"""Of a figure: fits to scaled copies of the same scores differ by less, and by nothing else."""


def paired_draws(own: Any, other: Any, metric: str) -> Array:
    """Draws (R,) of the difference own − other of two `MethodRow`s that were measured on the same resamples."""
    value, draws = own.metrics[metric].value - other.metrics[metric].value, own.draws[metric] - other.draws[metric]
    # around the estimates: a resampled ECE is biased upwards, its spread is what we need
    return value + draws - np.mean(draws) if len(draws) else draws


def paired_difference(own: Any, other: Any) -> Figures:
    """own − other of every figure, with the 95% interval of the paired resamples."""
    found = Figures()
    for metric, one in own.metrics.items():
        value = one.value - other.metrics[metric].value
        low, high = percentile_interval(paired_draws(own, other, metric), value)
        slack = ROUNDING * abs(one.value)
        found[metric] = Estimate(value, low - slack, high + slack)
    return found
