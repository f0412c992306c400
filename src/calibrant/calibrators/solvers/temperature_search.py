"""The temperature of the lowest calibration error: a search, because binned errors have no gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from calibrant.core.bin_sums import total_gap
from calibrant.core.bins import mass_index
from calibrant.core.errors import InputError
from calibrant.core.progress import step
from calibrant.core.rows import Rows
from calibrant.core.statistic import kernel, statistic
from calibrant.kernels.bins import index_sums, width_sums
from calibrant.kernels.scaling import temperature_confidences
from calibrant.kernels.soft_bins import memberships, soft_bin_error, soft_bin_sums

SOFTNESS, SOFT_NORM = 0.01, 2.0
"""Bin temperature and norm of the metric `soft_ece`."""

BATCH = 16
ZOOMS = 3

Errors = Callable[[np.ndarray], np.ndarray]
"""Temperatures (G,) → the calibration error at each (G,)."""


def temperature_grid(grid: Any = None) -> np.ndarray:
    """Ascending temperatures > 0; None is 0.1, 0.2, …, 10. A leading 0, where no temperature exists, is dropped."""
    if grid is None:
        return np.arange(1, 101) / 10
    try:
        values = np.unique(np.asarray(grid, dtype=np.float64).ravel())
    except (TypeError, ValueError):
        raise InputError(f"grid must hold temperatures, got {grid!r}") from None
    if not np.isfinite(values).all() or (values < 0).any():
        raise InputError(f"grid must hold finite temperatures above 0, got {values[0]:g} … {values[-1]:g}")
    values = values[values > 0]
    if not len(values):
        raise InputError("grid must hold at least one temperature above 0, got none")
    return values


def width_errors(rows: Rows, n_bins: int) -> Errors:
    """Equal-width ECE of the top label at given temperatures."""
    kernel = temperature_confidences.form(rows.n * rows.n_classes)

    def errors(temperatures: np.ndarray) -> np.ndarray:
        (sums,) = rows.total(_width_statistic, kernel, 1.0 / temperatures, n_bins)
        return total_gap(sums[:, 1] - sums[:, 2], rows.total_weight)

    return errors


def soft_errors(
    rows: Rows, n_bins: int, bandwidth: float = SOFTNESS, norm: float = SOFT_NORM, weighting: str = "bin"
) -> Errors:
    """Soft-binned ECE of the top label at given temperatures; the label form passes over the rows twice."""
    kernel = temperature_confidences.form(rows.n * rows.n_classes)

    def errors(temperatures: np.ndarray) -> np.ndarray:
        (sums,) = rows.total(_soft_statistic, kernel, 1.0 / temperatures, n_bins, bandwidth)
        if weighting == "bin":
            return np.array([soft_bin_error(part, norm) for part in sums])
        accuracy = sums[:, 2] / np.maximum(sums[:, 0], np.finfo(np.float64).tiny)
        (total,) = rows.total(_label_statistic, kernel, 1.0 / temperatures, accuracy, bandwidth, norm)
        return (total / rows.total_weight) ** (1 / norm)

    return errors


def adaptive_errors(rows: Any, n_bins: int) -> Errors:
    """Equal-mass ECE of the top label at given temperatures; needs all rows at once, to rank them."""
    weights, form = rows.weights, temperature_confidences.form(rows.n * rows.n_classes)

    def errors(temperatures: np.ndarray) -> np.ndarray:
        confidences, correct = rows.gather(_confidences, form, 1.0 / temperatures)
        found = np.empty(len(temperatures))
        for index, confidence in enumerate(np.ascontiguousarray(confidences.T)):
            bins = mass_index(confidence, n_bins, weights)
            sums = index_sums(bins, confidence, correct, weights, n_bins)
            found[index] = total_gap(sums[1] - sums[2], rows.total_weight)
        return found

    return errors


def search_grid(errors: Errors, grid: np.ndarray, refine: bool) -> tuple[float, np.ndarray]:
    """The grid value of the lowest error, ties to the smallest, and the trace of best errors.

    With `refine`, the neighbourhood of the best value is searched again at a tenth of the spacing, three times.
    """
    temperature, best = _best_of(errors, grid)
    trace = [best]
    spacing = float(np.diff(grid).max()) if len(grid) > 1 else 0.0
    for _ in range(ZOOMS if refine and spacing > 0 else 0):
        zoomed = temperature + spacing * np.arange(-10, 11) / 10
        temperature, best = _best_of(errors, zoomed[zoomed > 0])
        spacing /= 10
        trace.append(best)
    return temperature, np.array(trace)


def minimise_smooth(errors: Errors, around: float) -> tuple[float, np.ndarray]:
    """The minimiser of a smooth error: the best of a geometric grid around a temperature, then Brent's method."""
    from scipy.optimize import minimize_scalar

    exponents = np.linspace(-2.5, 2.5, 41)
    temperature, best = _best_of(errors, around * np.exp(exponents))
    width = exponents[1] - exponents[0]
    centre = np.log(temperature)
    found = minimize_scalar(
        lambda s: errors(np.exp(np.array([s])))[0],
        bounds=(centre - width, centre + width),
        method="bounded",
        options={"xatol": 1e-9},
    )
    if found.fun < best:
        temperature = float(np.exp(found.x))
    return temperature, np.array([best, min(best, float(found.fun))])


def _best_of(errors: Errors, grid: np.ndarray) -> tuple[float, float]:
    found = []
    for start in range(0, len(grid), BATCH):
        found.append(errors(grid[start : start + BATCH]))
        step("temperatures", min(start + BATCH, len(grid)), len(grid))
    values = np.concatenate(found)
    # errors equal up to rounding are a tie, and a tie goes to the smallest temperature
    index = int(np.flatnonzero(values <= values.min() + 1e-12)[0])
    return float(grid[index]), float(values[index])


@kernel()
def _confidences(logits, labels, weights, form, betas):
    return form(logits, betas), logits.argmax(axis=1) == labels


@_confidences.on_device
def _(rows, _, betas):
    return rows.confidences_at(betas), rows.top()[2]


@statistic
def _width_statistic(logits, labels, weights, kernel, inverse_temperatures, n_bins):  # noqa: PLR0917
    return stacked_width_sums(kernel(logits, inverse_temperatures), logits.argmax(axis=1) == labels, weights, n_bins)


@_width_statistic.on_device
def _(rows, _, betas, n_bins):
    return stacked_width_sums(rows.confidences_at(betas), rows.top()[2], rows.weights, n_bins)


def stacked_width_sums(confidences, correct, weights, n_bins):
    """`width_sums` of each column of confidences (n×G)."""
    columns = np.ascontiguousarray(confidences.T)
    return (np.stack([width_sums(confidence, correct, weights, n_bins) for confidence in columns]),)


@statistic
def _soft_statistic(logits, labels, weights, kernel, inverse_temperatures, n_bins, bandwidth):  # noqa: PLR0917
    correct = logits.argmax(axis=1) == labels
    return stacked_soft_sums(kernel(logits, inverse_temperatures), correct, weights, n_bins, bandwidth)


@_soft_statistic.on_device
def _(rows, _, betas, n_bins, bandwidth):
    return stacked_soft_sums(rows.confidences_at(betas), rows.top()[2], rows.weights, n_bins, bandwidth)


def stacked_soft_sums(confidences, correct, weights, n_bins, bandwidth):
    """`soft_bin_sums` of each column of confidences (n×G)."""
    columns = np.ascontiguousarray(confidences.T)
    return (np.stack([soft_bin_sums(confidence, correct, weights, n_bins, bandwidth) for confidence in columns]),)


@statistic
def _label_statistic(logits, labels, weights, kernel, inverse_temperatures, accuracy, bandwidth, norm):  # noqa: PLR0917
    """Σ_i w_i Σ_j m_ij·|A_j − c_i|^p at each temperature (eq. 12), A_j being the accuracy of all rows in bin j."""
    return stacked_label_sums(kernel(logits, inverse_temperatures), weights, accuracy, bandwidth, norm)


@_label_statistic.on_device
def _(rows, _, betas, accuracy, bandwidth, norm):
    return stacked_label_sums(rows.confidences_at(betas), rows.weights, accuracy, bandwidth, norm)


def stacked_label_sums(confidences, weights, accuracy, bandwidth, norm):
    """The sum over rows of the label form, for each column of confidences (n×G)."""
    mass = np.ones(len(confidences)) if weights is None else weights
    found = []
    for confidence, accuracies in zip(np.ascontiguousarray(confidences.T), accuracy, strict=True):
        membership = memberships(confidence, accuracy.shape[1], bandwidth)
        gaps = np.abs(accuracies - confidence[:, None].astype(np.float64)) ** norm
        found.append(mass @ (membership * gaps).sum(axis=1))
    return (np.array(found),)
