"""Temperature scaling."""

from __future__ import annotations

import warnings

import numpy as np

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.newton import InverseTemperature, solve_inverse_temperature
from calibrant.core.arrays import check_values
from calibrant.core.errors import FitWarning, InputError
from calibrant.core.rows import Rows
from calibrant.kernels.dispatch import pick
from calibrant.kernels.scaling import temperature_sums


class TemperatureScaling(Calibrator):
    """Divide all logits by one temperature T > 0 (Guo et al. 2017, eq. 9).

    Attributes
    ----------
    temperature_ : the learned T.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant import TemperatureScaling
    >>> logits = np.array([[4.0, 0.0], [4.0, 0.0], [0.0, 4.0], [0.0, 4.0]])
    >>> fitted = TemperatureScaling().fit(logits, [0, 0, 1, 0])
    >>> round(fitted.temperature_, 4)
    3.641
    """

    keeps_prediction = True
    additive = True

    def __init__(self, objective="nll", grid=None, refine=False, n_bins=15, seed=0):
        self.objective = objective
        self.grid = grid
        self.refine = refine
        self.n_bins = n_bins
        self.seed = seed

    @property
    def n_parameters_(self) -> int:
        """One temperature."""
        return 1

    def _fit(self, rows: Rows) -> None:
        if self.objective != "nll":
            raise InputError(f"objective must be 'nll', got {self.objective!r}")
        found = fit_inverse_temperature(rows)
        warn_of_limit(found)
        self.temperature_ = 1.0 / found.value
        self.n_iter_ = len(found.trace)
        self.objective_trace_ = np.array(found.trace)

    def _transform(self, logits: np.ndarray) -> np.ndarray:
        check_values(logits, from_logits=True)
        return logits * logits.dtype.type(1.0 / self.temperature_)


def fit_inverse_temperature(rows: Rows) -> InverseTemperature:
    """β = 1/T of the lowest mean NLL."""
    statistic = pick(temperature_sums, rows.n * rows.n_classes)

    def moments_over(part: Rows):
        total = part.total_weight

        def moments(beta: float) -> tuple[float, float, float, float]:
            loss, slope, curvature, bend = part.total(statistic, beta)
            return loss / total, slope / total, curvature / total, bend / total

        return moments

    start = 1.0
    if rows.n > 4000:
        sample = rows.sample(1000)
        if sample.total_weight > 0:
            start = solve_inverse_temperature(moments_over(sample), 1.0, step_tolerance=1e-2).value
    return solve_inverse_temperature(moments_over(rows), start)


def warn_of_limit(found: InverseTemperature) -> None:
    """Say that the optimum lies at infinity, or that the fit did not converge."""
    if found.limit == "0":
        warnings.warn(
            "the NLL falls all the way to temperature 0 (every row is predicted right); "
            f"stopped at {1 / found.value:.3g}",
            FitWarning,
            stacklevel=4,
        )
    elif found.limit == "infinity":
        warnings.warn(
            "the NLL falls all the way to temperature infinity (the logits say less than nothing about the labels); "
            f"stopped at {1 / found.value:.3g}",
            FitWarning,
            stacklevel=4,
        )
    elif not found.converged:
        warnings.warn(f"the temperature did not converge in {len(found.trace)} steps", FitWarning, stacklevel=4)
