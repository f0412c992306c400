"""Fits from top-k predictions: what k logits per row and the log-sum-exp of the rest allow, and with which error.

Methods that read only the confidence and correctness of each row are exact. Temperature scaling is fitted to the middle
of the bounds of `core.top_k_bounds` and says how far the truth may be. Every other method is refused.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.calibrators.registry import methods
from calibrant.calibrators.temperature import TemperatureScaling
from calibrant.core.errors import InputError
from calibrant.core.rows import Columns
from calibrant.core.statistic import statistic
from calibrant.core.top_k_bounds import log_masses
from calibrant.data.chunked import ChunkedRows
from calibrant.data.top_k import columns_of, top_rows

if TYPE_CHECKING:
    from calibrant.calibrators.base import Calibrator

EXPONENTS = np.linspace(-3.0, 3.0, 33)
ZOOMS = 7
"""Each search of 33 values leaves a sixteenth of the range before: seven of them leave 3e-8."""


class TopKRows(ChunkedRows):
    """Chunked rows of which only the top is known."""

    def gather_top(self, columns: Columns) -> tuple[Any, ...]:
        """Confidence, prediction and correctness of each row, from the stored top instead of all logits."""
        return self.gather(partial(_top, n_classes=self.n_classes))

    def losses(self, inverse_temperatures: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bounds of the mean NLL at each β (G,)."""
        (sums,) = self.total(_losses, inverse_temperatures, self.n_classes)
        return sums[0] / self.total_weight, sums[1] / self.total_weight


def fit_top_k(calibrator: Calibrator, rows: TopKRows) -> None:
    """Fit a calibrator, or raise the InputError that names it."""
    predictions: Any = rows.predictions
    name = type(calibrator).__name__
    if isinstance(calibrator, TemperatureScaling) and calibrator.objective == "nll":
        _fit_temperature(calibrator, rows)
    elif calibrator.reads_only_top and calibrator.additive:
        calibrator.fit_rows(rows)  # type: ignore[arg-type]
        calibrator.tail_error_ = 0.0
    else:
        objective = getattr(calibrator, "objective", None)
        called = name if objective is None else f"{name}(objective={objective!r})"
        exact = dict.fromkeys(row["class"] for row in methods("multiclass") if row["reads_only_top"])
        raise predictions.refusal(f"{called}; TemperatureScaling by likelihood and {', '.join(exact)} work")


def _fit_temperature(calibrator: TemperatureScaling, rows: TopKRows) -> None:
    """T of the lowest middle of the bounds of the mean NLL.

    Learned besides: `tail_error_`, how far the mean NLL at T may be from that of all logits; and
    `temperature_bounds_`, between which the temperature of all logits lies for certain.
    """
    started = time.perf_counter()
    calibrator.n_features_in_, calibrator.classes_ = rows.n_classes, np.arange(rows.n_classes)
    inverse, trace = _lowest(lambda inverses: sum(rows.losses(inverses)) / 2)
    low, high = rows.losses(np.array([inverse]))
    calibrator.temperature_ = 1.0 / inverse
    calibrator.tail_error_ = float(high[0] - low[0]) / 2
    calibrator.temperature_bounds_ = _temperature_bounds(rows)
    calibrator.objective_trace_, calibrator.n_iter_ = np.array(trace), len(trace)
    calibrator.fit_seconds_ = time.perf_counter() - started


def _lowest(losses: Any) -> tuple[float, list[float]]:
    """The β of the lowest loss: the best of a geometric grid, then of finer ones around it."""
    centre, exponents, trace = 0.0, EXPONENTS, []
    for _ in range(ZOOMS):
        found = losses(np.exp(centre + exponents))
        centre += exponents[int(np.argmin(found))]
        exponents = exponents / 16
        trace.append(float(found.min()))
    return float(np.exp(centre)), trace


def _temperature_bounds(rows: TopKRows) -> tuple[float, float]:
    """Temperatures between which the minimiser of the true NLL lies.

    The true loss is convex in β and lies between its bounds. Let U be the lowest upper bound, at β₀. Where the lower
    bound exceeds U at some β > β₀, the loss is higher at β than at β₀, and convexity keeps it above U from there on: no
    minimiser lies beyond β. Likewise on the other side.
    """
    middle, trace = _lowest(lambda inverses: rows.losses(inverses)[1])
    away = np.geomspace(1e-6, 4.0, 64)
    bounds = []
    for sign in (1.0, -1.0):
        tried = middle * np.exp(sign * away)
        beyond = np.flatnonzero(rows.losses(tried)[0] > trace[-1])
        bounds.append(1.0 / tried[beyond[0]] if len(beyond) else (0.0 if sign > 0 else np.inf))
    return float(bounds[0]), float(bounds[1])


def _top(block, labels, weights, *, n_classes):
    columns = columns_of(block, labels, n_classes)
    return columns.confidence, columns.prediction.astype(np.int32), columns.correct


@statistic
def _losses(block, labels, weights, inverse_temperatures, n_classes):
    """Σw of the lower and the upper bound of the NLL at each β, 2×G."""
    rows = top_rows(block, labels, n_classes)
    if (missing := int(np.isnan(rows.label).sum())) > 0:
        raise InputError(f"the logits of {missing} labels are not among the stored ones: add label_values to the file")
    weights = np.ones(len(labels)) if weights is None else weights
    sums = np.empty((2, len(inverse_temperatures)))
    for index, inverse in enumerate(inverse_temperatures):
        low, high = log_masses(rows, inverse)
        true = weights @ (inverse * rows.label)
        sums[:, index] = weights @ low - true, weights @ high - true
    return (sums,)
