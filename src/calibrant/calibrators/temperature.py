"""Temperature scaling."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from calibrant.calibrators.base import Calibrator, fact
from calibrant.calibrators.learned import RECORD, TEMPERATURE
from calibrant.calibrators.maps import keep_increasing, like
from calibrant.calibrators.solvers.grids import temperature_grid
from calibrant.calibrators.solvers.newton import InverseTemperature, solve_inverse_temperature
from calibrant.calibrators.solvers.temperature_search import (
    adaptive_errors,
    minimise_smooth,
    search_grid,
    soft_errors,
    width_errors,
)
from calibrant.core.bins import check_n_bins
from calibrant.core.errors import FitWarning, InputError
from calibrant.core.rows import Rows
from calibrant.core.threads import serial
from calibrant.kernels.dispatch import pick
from calibrant.kernels.scaling import temperature_sums
from calibrant.kernels.transform import scale_rows

FEWEST_ROWS, SAMPLE_ROWS, MOST_ROWS = 64, 1000, 20_000
"""A sample of 1,000 rows gives T within about 1%, which one pass makes exact; below 64 it is not worth its passes."""

SAMPLED_FROM = 1 << 15
"""Elements below which a pass over all rows costs no more than one over a sample."""

SERIAL_BELOW = 1 << 20
"""Elements below which a pass takes one core less time than waking the others."""

OBJECTIVES = ("nll", "ece", "adaptive_ece", "soft_ece")


class TemperatureScaling(Calibrator):
    """Divide all logits by one temperature T > 0 (Guo et al. 2017, eq. 9).

    Parameters
    ----------
    objective : {"nll", "ece", "adaptive_ece", "soft_ece"}
        What T minimises on the fit data: the negative log-likelihood (convex in 1/T, solved to its optimum), the
        equal-width or equal-mass ECE (a grid; ties go to the smallest T), or the soft-binned ECE of
        Karandikar et al. 2021 (app. C).
    grid : array of temperatures, or None
        For the calibration errors; None is 0.1, 0.2 … 10 for the two ECEs and a continuous search for "soft_ece".
    refine : bool
        Search the neighbourhood of the best grid value again at a tenth of the spacing, three times.
    n_bins : int
        Of the calibration errors.
    bandwidth, norm, weighting : float, float, {"bin", "label"}
        Of the soft-binned ECE: how soft its bins are, the order p, and the form (eq. 11 or eq. 12), as in
        `calibrant.metrics.soft_ece`. Other objectives do not use them.

    Attributes
    ----------
    temperature_ : float
        The learned T.

    Examples
    --------
    Three of four predictions at logit 4 are right, so the calibrated logit is log 3:

    >>> import numpy as np
    >>> from calibrant import TemperatureScaling
    >>> logits = np.array([[4.0, 0.0], [4.0, 0.0], [0.0, 4.0], [0.0, 4.0]])
    >>> fitted = TemperatureScaling().fit(logits, [0, 0, 1, 0])
    >>> bool(np.isclose(fitted.temperature_, 4 / np.log(3)))
    True
    """

    keeps_prediction = True
    few_parameters = True
    learns = {"temperature_": TEMPERATURE, "temperature_bounds_": RECORD}

    def __init__(
        self,
        objective: str = "nll",
        grid: Sequence[float] | np.ndarray | None = None,
        refine: bool = False,
        n_bins: int = 15,
        *,
        bandwidth: float = 0.01,
        norm: float = 2.0,
        weighting: str = "bin",
    ) -> None:
        self.objective = objective
        self.grid = grid
        self.refine = refine
        self.n_bins = n_bins
        self.bandwidth = bandwidth
        self.norm = norm
        self.weighting = weighting

    @fact
    def additive(self) -> bool:
        """Equal-mass bins need all rows at once."""
        return self.objective != "adaptive_ece"

    fits_on_device = True

    def _fit(self, rows: Rows) -> None:
        if self.objective not in OBJECTIVES:
            raise InputError(f"objective must be one of {', '.join(OBJECTIVES)}, got {self.objective!r}")
        if self.objective == "nll":
            found = fit_inverse_temperature(rows)
            warn_of_limit(found)
            self.temperature_ = 1.0 / found.value
            self.objective_trace_ = np.array(found.trace)
        else:
            self.temperature_, self.objective_trace_ = self._search(rows)
        self.n_iter_ = len(self.objective_trace_)

    def _search(self, rows: Rows) -> tuple[float, np.ndarray]:
        n_bins = check_n_bins(self.n_bins)
        if self.objective == "soft_ece":
            errors = soft_errors(rows, n_bins, *self._soft_options())
            if self.grid is None:
                return minimise_smooth(errors, 1.0 / fit_inverse_temperature(rows).value)
        else:
            errors = {"ece": width_errors, "adaptive_ece": adaptive_errors}[self.objective](rows, n_bins)
        return search_grid(errors, temperature_grid(self.grid), self.refine)

    def _soft_options(self) -> tuple[float, float, str]:
        if isinstance(self.bandwidth, str) or not 0 < self.bandwidth < float("inf"):
            raise InputError(f"bandwidth must be above 0 and finite, got {self.bandwidth!r}")
        if isinstance(self.norm, str) or not 1 <= self.norm < float("inf"):
            raise InputError(f"norm must be at least 1 and finite, got {self.norm!r}")
        if self.weighting not in ("bin", "label"):
            raise InputError(f"weighting must be 'bin' or 'label', got {self.weighting!r}")
        return float(self.bandwidth), float(self.norm), self.weighting

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        return keep_increasing(xp, logits * like(xp, 1.0 / learned.temperature_, logits), logits)

    def _transform(self, logits: np.ndarray) -> np.ndarray:
        inverse = np.full(logits.shape[1], 1.0 / self.temperature_)
        return scale_rows(logits, inverse, None, keep_prediction=True)


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


def warn_of_limit(found: InverseTemperature) -> None:
    """Say that the optimum lies at infinity, or that the fit did not converge."""
    if found.limit == "0":
        reason = "the NLL falls all the way to temperature 0 (every row is predicted right)"
    elif found.limit == "infinity":
        reason = "the NLL falls all the way to temperature infinity (the logits say nothing true about the labels)"
    elif not found.converged:
        reason = f"the temperature did not converge in {len(found.trace)} steps"
    else:
        return
    warnings.warn(f"{reason}; stopped at {1 / found.value:.3g}", FitWarning, stacklevel=5)
