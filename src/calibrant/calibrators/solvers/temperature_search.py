"""The temperature of the lowest calibration error: a search, because binned errors have no gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from calibrant.core.bins import mass_index, total_gap
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

    def errors(temperatures: np.ndarray) -> np.ndarray:
        sums = _sums(rows, temperatures, width_sums, [(n_bins,)] * len(temperatures))
        return total_gap(sums[:, 1] - sums[:, 2], rows.total_weight)

    return errors


def soft_errors(
    rows: Rows, n_bins: int, bandwidth: float = SOFTNESS, norm: float = SOFT_NORM, weighting: str = "bin"
) -> Errors:
    """Soft-binned ECE of the top label at given temperatures; the label form passes over the rows twice."""

    def errors(temperatures: np.ndarray) -> np.ndarray:
        sums = _sums(rows, temperatures, soft_bin_sums, [(n_bins, bandwidth)] * len(temperatures))
        if weighting == "bin":
            return np.array([soft_bin_error(part, norm) for part in sums])
        accuracy = sums[:, 2] / np.maximum(sums[:, 0], np.finfo(np.float64).tiny)
        total = _sums(rows, temperatures, _label_sums, [(one, bandwidth, norm) for one in accuracy])
        return (total / rows.total_weight) ** (1 / norm)

    return errors


def _sums(rows: Rows, temperatures: np.ndarray, sums: Callable[..., Any], parameters: list[Any]) -> np.ndarray:
    kernel = temperature_confidences.form(rows.n * rows.n_classes)
    return rows.total(_at_temperatures, kernel, 1.0 / temperatures, sums, parameters)[0]


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
def _at_temperatures(logits, labels, weights, kernel, betas, sums, parameters):  # noqa: PLR0917
    """`sums(confidence, correct, weights, *parameters)` at each β, stacked; the parameters differ by β."""
    return _stacked(kernel(logits, betas), logits.argmax(axis=1) == labels, weights, sums, parameters)


@_at_temperatures.on_device
def _(rows, _, betas, sums, parameters):
    return _stacked(rows.confidences_at(betas), rows.top()[2], rows.weights, sums, parameters)


def _stacked(confidences, correct, weights, sums, parameters):
    columns = zip(np.ascontiguousarray(confidences.T), parameters, strict=True)
    return (np.stack([sums(confidence, correct, weights, *given) for confidence, given in columns]),)


def _label_sums(confidence, correct, weights, accuracy, bandwidth, norm):  # noqa: PLR0917
    """Σ_i w_i Σ_j m_ij·|A_j − c_i|^p (eq. 12), A_j being the accuracy of all rows in bin j."""
    mass = np.ones(len(confidence)) if weights is None else weights
    gaps = np.abs(accuracy - confidence[:, None].astype(np.float64)) ** norm
    return mass @ (memberships(confidence, len(accuracy), bandwidth) * gaps).sum(axis=1)
