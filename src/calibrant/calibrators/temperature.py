"""Temperature scaling."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.learned import TEMPERATURE
from calibrant.calibrators.maps import like
from calibrant.calibrators.solvers.temperature import (
    adaptive_errors,
    fit_inverse_temperature,
    minimise_smooth,
    search_grid,
    soft_errors,
    temperature_grid,
    width_errors,
)
from calibrant.core.arrays import Array
from calibrant.core.bins import check_n_bins
from calibrant.core.errors import InputError
from calibrant.core.rows import Rows
from calibrant.kernels.scaling import scale_rows

OBJECTIVES = ("nll", "ece", "adaptive_ece", "soft_ece")


class TemperatureScaling(
    Calibrator,
    keeps_prediction=True,
    few_parameters=True,
    fits_on_device=True,
    # equal-mass bins need all rows at once
    additive=lambda own: own.objective != "adaptive_ece",
):
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
    norm : float, or None
        The order p of the calibration errors; None is 2 for "soft_ece" and 1 for the other two.
    bandwidth, weighting : float, {"bin", "label"}
        Of the soft-binned ECE: how soft its bins are, and the form (eq. 11 or eq. 12), as in
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

    learns = {"temperature_": TEMPERATURE}

    def __init__(
        self,
        objective: str = "nll",
        grid: Sequence[float] | Array | None = None,
        refine: bool = False,
        n_bins: int = 15,
        *,
        bandwidth: float = 0.01,
        norm: float | None = None,
        weighting: str = "bin",
    ) -> None:
        self.objective = objective
        self.grid = grid
        self.refine = refine
        self.n_bins = n_bins
        self.bandwidth = bandwidth
        self.norm = norm
        self.weighting = weighting

    def _fit(self, rows: Rows) -> None:
        if self.objective not in OBJECTIVES:
            raise InputError(f"objective must be one of {', '.join(OBJECTIVES)}, got {self.objective!r}")
        if self.objective == "nll":
            found = fit_inverse_temperature(rows)
            found.warn()
            self.temperature_ = 1.0 / found.value
            self.objective_trace_ = np.array(found.trace)
        else:
            self.temperature_, self.objective_trace_ = self._search(rows)
        self.n_iter_ = len(self.objective_trace_)

    def _search(self, rows: Rows) -> tuple[float, Array]:
        found: Any = {"ece": width_errors, "adaptive_ece": adaptive_errors, "soft_ece": soft_errors}[self.objective]
        soft = self.objective == "soft_ece"
        norm = 1.0 + soft if self.norm is None else self.norm
        if isinstance(norm, str) or not 1 <= norm < float("inf"):
            raise InputError(f"norm must be at least 1 and finite, got {norm!r}")
        errors = partial(found, rows, check_n_bins(self.n_bins), norm=norm)
        if soft:
            if isinstance(self.bandwidth, str) or not 0 < self.bandwidth < float("inf"):
                raise InputError(f"bandwidth must be above 0 and finite, got {self.bandwidth!r}")
            if self.weighting not in ("bin", "label"):
                raise InputError(f"weighting must be 'bin' or 'label', got {self.weighting!r}")
            errors = partial(errors, bandwidth=self.bandwidth, weighting=self.weighting)
            if self.grid is None:
                return minimise_smooth(errors, fit_inverse_temperature(rows))
        return search_grid(errors, temperature_grid(self.grid), self.refine)

    def _map(self, xp, logits, learned):
        return xp.keep_increasing(logits * like(xp, 1.0 / learned.temperature_, logits), logits)

    def _transform(self, logits: Array) -> Array:
        inverse = np.full(logits.shape[1], 1.0 / self.temperature_)
        return scale_rows(logits, inverse, None, keep_prediction=True)
