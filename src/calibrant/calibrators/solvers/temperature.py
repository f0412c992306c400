"""One temperature for all logits: of the lowest NLL by derivatives, of the lowest calibration error by a search."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibrant.core.arrays import Array
from calibrant.core.bins import BinSums, mass_index
from calibrant.core.errors import InputError, NoOptimumWarning, warn_user
from calibrant.core.progress import step
from calibrant.core.rows import Rows
from calibrant.core.statistic import kernel, statistic
from calibrant.core.threads import serial
from calibrant.kernels.bins import index_sums, memberships, soft_bin_sums, width_sums
from calibrant.kernels.scaling import temperature_confidences, temperature_sums

FEWEST_ROWS, SAMPLE_ROWS, MOST_ROWS = 64, 1000, 20_000
"""A sample of 1,000 rows gives T within about 1%, which one pass makes exact; below 64 it is not worth its passes."""

ROUGH_STEP = 0.25
"""A relative step that is trusted on a sample: what it leaves, about its fourth power, is less than chance makes."""

SAMPLED_FROM = 1 << 15
"""Elements below which a pass over all rows costs no more than one over a sample."""

SERIAL_BELOW = 1 << 20
"""Elements below which a pass takes one core less time than waking the others."""

TOLERANCE = 1e-9
"""A slope this small on one side of all that was tried means that the optimum is at 0 or at infinity."""

NEAR_SLOPE = 0.1
"""Slopes of the loss by log β above this belong to no neighbourhood of an optimum."""

MAX_STEPS = 100

PRIOR_SPREAD = 0.5
"""Standard deviation of log T under the weak prior, which is used only if the likelihood has no maximum."""

BATCH = 16
ZOOMS = 3

Moments = Callable[[float], tuple[float, ...]]
"""β → the mean NLL and β^k times its k-th derivative, k = 1 … 4."""

Errors = Callable[[Array], Array]
"""Temperatures (G,) → the calibration error at each (G,)."""


def warn_no_optimum(reason: str, result: str = "the fit is the mode under a weak prior") -> None:
    """Report that a fit has no optimum. All methods issue this warning here."""
    warn_user(f"{reason}: no optimum exists, and {result}; `auto` is more reliable for such data", NoOptimumWarning)


@dataclass(frozen=True)
class InverseTemperature:
    """Result of the scalar solver. `limit` is "" at a proper optimum, else the temperature where the optimum lies."""

    value: float
    trace: list[float]
    limit: str
    converged: bool

    def warn(self) -> None:
        """Warn if the likelihood has no maximum or the fit did not converge."""
        if self.limit:
            warn_no_optimum(
                "all rows are predicted correctly, and the likelihood rises until temperature 0"
                if self.limit == "0"
                else "the logits do not predict the labels, and the likelihood rises until temperature infinity"
            )
        elif not self.converged:
            warn_user(f"the temperature did not converge in {len(self.trace)} steps")


def fit_inverse_temperature(rows: Rows) -> InverseTemperature:
    """β = 1/T of the lowest mean NLL: estimates from ever larger samples, then one or two passes over all rows.

    If the likelihood has no maximum, β is the mode under the prior log T ~ N(0, `PRIOR_SPREAD`²).
    """
    solved = rows.solved_temperature()
    if solved is not None:
        return InverseTemperature(solved.value, [solved.loss] * solved.n_passes, "", True)
    with serial() if rows.n * rows.n_classes < SERIAL_BELOW else nullcontext():
        moments = _means(rows)
        found = solve_inverse_temperature(moments, _first_estimate(rows))
        if not found.limit or not rows.has_prior:
            return found
        return replace(found, value=_prior_mode(moments, found, rows.total_weight))


def _prior_mode(moments: Moments, found: InverseTemperature, weight: float) -> float:
    """β of the mode that is nearest to T = 1."""
    from scipy.optimize import brentq

    def slope(place: float) -> float:
        return moments(math.exp(place))[1] + place / (PRIOR_SPREAD**2 * weight)

    stop = step = 1.0 if found.limit == "0" else -1.0
    while slope(stop) * step < 0:
        stop += step
    return math.exp(brentq(slope, *sorted((0.0, stop)), xtol=1e-12))


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
    found = solve_inverse_temperature(_means(sample), _first_estimate(sample), step_tolerance=ROUGH_STEP)
    return 1.0 if found.limit else found.value


def _means(rows: Rows) -> Moments:
    weight = rows.total_weight
    return lambda beta: tuple(value / weight for value in rows.total(temperature_sums, beta))


def solve_inverse_temperature(moments: Moments, start: float, *, step_tolerance: float = 2e-2) -> InverseTemperature:
    """Minimise a convex loss over β > 0, given the loss and β^k times its k-th derivative, k = 1 … 4, at any β.

    Householder's third-order steps on the slope, held inside the bracket found so far and to a factor of 8. Where a
    step did not halve the slope, or leaves the bracket, the middle of the bracket in log β: far from the optimum the
    curvature of sharp logits is nothing but rounding. Near it, a relative step below `step_tolerance` is trusted: what
    it leaves is of the order of its fourth power.
    """
    beta, low, high, previous = _short(start), 0.0, math.inf, math.inf
    trace: list[float] = []
    for _ in range(MAX_STEPS):
        loss, slope, *higher = moments(beta)
        trace.append(loss)
        if slope == 0:
            return InverseTemperature(beta, trace, "" if higher[0] > 0 or low == 0 else "0", True)
        low, high = (beta, high) if slope < 0 else (low, beta)
        step_size = _householder_step(slope, *higher)
        proposed = beta + beta * step_size
        if abs(step_size) <= step_tolerance and abs(slope) <= NEAR_SLOPE:
            return InverseTemperature(proposed, trace, "", True)
        # small logits at a small β also have a small slope, but even less curvature
        if abs(slope) <= TOLERANCE and (low == 0 or (math.isinf(high) and higher[0] >= -slope)):
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


def temperature_grid(grid: Any = None) -> Array:
    """Ascending temperatures > 0; None is 0.1, 0.2, …, 10. A leading 0, where no temperature exists, is dropped."""
    if grid is None:
        return np.arange(1, 101) / 10
    try:
        values = np.unique(np.asarray(grid, dtype=np.float64).ravel())
    except (TypeError, ValueError):
        raise InputError(f"grid must hold temperatures, got {grid!r}") from None
    if not np.isfinite(values).all() or (values < 0).any() or not values.any():
        raise InputError(f"grid must hold finite temperatures above 0, got {grid!r}")
    return values[values > 0]


def width_errors(rows: Rows, n_bins: int, temperatures: Array, norm: float) -> Array:
    """Equal-width ECE of the top label at given temperatures."""
    return _norms(_sums(rows, temperatures, width_sums, [(n_bins,)] * len(temperatures)), norm)


def soft_errors(rows: Rows, n_bins: int, temperatures: Array, bandwidth: float, norm: float, weighting: str) -> Array:  # noqa: PLR0917
    """Soft-binned ECE of the top label at given temperatures; the label form passes over the rows twice."""
    sums = _sums(rows, temperatures, soft_bin_sums, [(n_bins, bandwidth)] * len(temperatures))
    if weighting == "bin":
        return _norms(sums, norm)
    accuracy = sums[:, 2] / np.maximum(sums[:, 0], np.finfo(np.float64).tiny)
    total = _sums(rows, temperatures, _label_sums, [(one, bandwidth, norm) for one in accuracy])
    return (total / rows.total_weight) ** (1 / norm)


def adaptive_errors(rows: Any, n_bins: int, temperatures: Array, norm: float) -> Array:
    """Equal-mass ECE of the top label at given temperatures; needs all rows at once, to rank them."""

    def sums(confidence: Array, correct: Array, weights: Array | None) -> Array:
        return index_sums(mass_index(confidence, n_bins, weights), confidence, correct, weights, n_bins)

    columns = rows.gather(_confidences, *_form(rows, temperatures))
    (found,) = _stacked(columns, rows.weights, sums, [()] * len(temperatures))
    return _norms(found, norm)


def _norms(sums: Array, norm: float) -> Array:
    """The error at each temperature, of sums (G, 3, M)."""
    return BinSums(*sums.swapaxes(0, 1)).norm(norm)


def search_grid(errors: Errors, grid: Array, refine: bool) -> tuple[float, Array]:
    """The grid value of the lowest error, ties to the smallest, and the trace of best errors.

    With `refine`, the neighbourhood of the best value is searched again at a tenth of the spacing, three times.
    """
    temperature, best = _best_of(errors, grid)
    warn_of_edge(temperature, grid)
    trace = [best]
    spacing = float(np.diff(grid).max(initial=0.0))
    for _ in range(ZOOMS if refine and spacing > 0 else 0):
        zoomed = temperature + spacing * np.arange(-10, 11) / 10
        temperature, best = _best_of(errors, zoomed[zoomed > 0])
        spacing /= 10
        trace.append(best)
    return temperature, np.array(trace)


def warn_of_edge(temperature: float, grid: Array) -> None:
    """Warn if a search ended at the edge of its grid."""
    if len(grid) > 2 and temperature in (grid[0], grid[-1]):
        warn_no_optimum(
            f"the calibration error is lowest at T = {temperature:.3g}, the edge of the grid", "that value was taken"
        )


def minimise_smooth(errors: Errors, plain: InverseTemperature) -> tuple[float, Array]:
    """The minimiser of a smooth error: the best of a geometric grid around the T of a likelihood, then Brent's method.

    If all rows are predicted correctly the error falls until T = 0, and the T of the likelihood is the result.
    """
    from scipy.optimize import minimize_scalar

    plain.warn()
    around = 1.0 / plain.value
    if plain.limit == "0":
        return around, errors(np.array([around]))
    exponents = np.linspace(-2.5, 2.5, 41)
    temperature, best = _best_of(errors, around * np.exp(exponents))
    width, centre = exponents[1] - exponents[0], np.log(temperature)
    found = minimize_scalar(
        lambda s: errors(np.exp(np.array([s])))[0],
        bounds=(centre - width, centre + width),
        method="bounded",
        options={"xatol": 1e-9},
    )
    if found.fun < best:
        temperature = float(np.exp(found.x))
    return temperature, np.array([best, min(best, float(found.fun))])


def _best_of(errors: Errors, grid: Array) -> tuple[float, float]:
    found = []
    for start in range(0, len(grid), BATCH):
        found.append(errors(grid[start : start + BATCH]))
        step("temperatures", min(start + BATCH, len(grid)), len(grid))
    values = np.concatenate(found)
    # errors equal up to rounding are a tie, and a tie goes to the smallest temperature
    index = int(np.flatnonzero(values <= values.min() + 1e-12)[0])
    return float(grid[index]), float(values[index])


def _form(rows: Rows, temperatures: Array) -> tuple[Any, Array]:
    return temperature_confidences.form(rows.n * rows.n_classes), 1.0 / temperatures


def _sums(rows: Rows, temperatures: Array, sums: Callable[..., Any], parameters: list[Any]) -> Array:
    return rows.total(_at_temperatures, *_form(rows, temperatures), sums, parameters)[0]


@kernel()
def _confidences(logits, labels, weights, form, betas):
    return form(logits, betas), logits.argmax(axis=1) == labels


@_confidences.on_device
def _device_confidences(rows, _, betas):
    return rows.confidences_at(betas), rows.top()[2]


@statistic
def _at_temperatures(logits, labels, weights, form, betas, sums, parameters):  # noqa: PLR0917
    """`sums(confidence, correct, weights, *parameters)` at each β, stacked; the parameters differ by β."""
    return _stacked(_confidences(logits, labels, weights, form, betas), weights, sums, parameters)


@_at_temperatures.on_device
def _(rows, form, betas, sums, parameters):
    return _stacked(_device_confidences(rows, form, betas), rows.weights, sums, parameters)


def _stacked(columns, weights, sums, parameters):
    confidences, correct = columns
    each = zip(np.ascontiguousarray(confidences.T), parameters, strict=True)
    return (np.stack([sums(confidence, correct, weights, *given) for confidence, given in each]),)


def _label_sums(confidence, correct, weights, accuracy, bandwidth, norm):  # noqa: PLR0917
    """Σ_i w_i Σ_j m_ij·|A_j − c_i|^p (eq. 12), A_j being the accuracy of all rows in bin j."""
    mass = np.ones(len(confidence)) if weights is None else weights
    gaps = np.abs(accuracy - confidence[:, None].astype(np.float64)) ** norm
    return mass @ (memberships(confidence, len(accuracy), bandwidth) * gaps).sum(axis=1)
