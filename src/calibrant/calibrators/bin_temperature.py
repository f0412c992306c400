"""A temperature per confidence bin."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from calibrant.calibrators import maps
from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.confidence_bins import fill_empty, quantile_bins, top_columns
from calibrant.calibrators.learned import EDGES, SMALL, Learned
from calibrant.calibrators.solvers.bin_roots import BinEquations, KeptBinEquations, solve_roots
from calibrant.calibrators.solvers.temperature import temperature_grid
from calibrant.core.bins import check_n_bins
from calibrant.core.errors import FitWarning, InputError
from calibrant.core.progress import step
from calibrant.core.rows import Rows

GRID_GAIN = 1e-5
"""How much closer to the accuracy a grid temperature must bring a bin to be taken."""


class BinTemperatureScaling(Calibrator):
    """Divide the logits by a temperature that depends on the row's confidence bin.

    Parameters
    ----------
    objective : {"gap", "nll"}
        "gap": Confidence-CTS (Frenkel & Goldberger 2022, eq. 5). T_i solves C_i(T_i) = A_i, the mean confidence of
        bin i after scaling against its accuracy; the confidence falls in T, so there is one root.
        "nll": BTS (Ji et al. 2019). T_i minimises the negative log-likelihood of the rows of bin i.
    n_bins : int
        Equal-mass bins of the uncalibrated confidence.
    grid : sequence of temperatures, or None
        None solves exactly. With a grid, "gap" starts every bin at T = 1 and takes a grid value when it lowers
        |A_i − C_i| by more than 1e-5, A_i clipped to [0.01, 0.99], as the paper's tables do; "nll" takes the grid
        value of the lowest NLL.

    Attributes
    ----------
    temperatures_ : array (M,)
        A bin without fit rows takes the temperature of the nearest bin.
    edges_ : array (M + 1,)
        Bin i holds confidences in (edges_[i], edges_[i + 1]].
    objective_trace_ : weighted mean |A_i − C_i|, or mean NLL, at the start of each pass over the logits.

    Notes
    -----
    A bin of n rows that are all right has no finite answer (T = 0); it is solved for a confidence of 1 − 1/(2n). A bin
    no better than chance ends at the largest temperature, 10⁶: uniform, with the prediction still ahead.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant import BinTemperatureScaling
    >>> logits = np.array([[2.0, 0.0]] * 4)
    >>> BinTemperatureScaling(n_bins=1).fit(logits, [0, 0, 0, 1]).predict_proba(logits[:1]).round(4)
    array([[0.75, 0.25]])
    """

    keeps_prediction = True
    additive = True
    learns = {"temperatures_": Learned(("B",), SMALL), "edges_": EDGES}

    def __init__(
        self, objective: str = "gap", *, n_bins: int = 15, grid: Sequence[float] | np.ndarray | None = None
    ) -> None:
        self.objective = objective
        self.n_bins = n_bins
        self.grid = grid

    def _fit(self, rows: Rows) -> None:
        if self.objective not in {"gap", "nll"}:
            raise InputError(f"objective must be 'gap' or 'nll', got {self.objective!r}")
        n_bins = check_n_bins(self.n_bins)
        top = top_columns(rows)
        self.edges_, bins = quantile_bins(top, rows.weights, n_bins)
        gap = self.objective == "gap"
        equations: BinEquations
        if rows.in_memory:
            equations = KeptBinEquations(rows, self.edges_, bins, top.prediction, matches_accuracy=gap)
        else:
            equations = BinEquations(rows, self.edges_, bins, matches_accuracy=gap)
        if self.objective == "nll" and equations.matches_accuracy[bins.filled].all():
            warnings.warn(
                "every row is predicted right: the NLL falls all the way to temperature 0; "
                "each bin was fitted to a confidence just below 1 instead",
                FitWarning,
                stacklevel=4,
            )
        if self.grid is None:
            inverse, trace = solve_roots(equations)
            temperatures = 1.0 / inverse
            self.objective_trace_, self.n_iter_ = np.array(trace), len(trace)
        else:
            temperatures = self._search(equations, temperature_grid(self.grid))
        self.temperatures_ = fill_empty(temperatures, bins.filled)

    def _search(self, equations: Any, grid: np.ndarray) -> np.ndarray:
        best = np.ones(len(equations.target))
        accuracy = np.clip(equations.bins.accuracy, 0.01, 0.99)

        def badness(temperature: float) -> np.ndarray:
            confidence, losses = equations.means(np.full_like(best, 1.0 / temperature))
            return np.abs(accuracy - confidence) if self.objective == "gap" else losses

        lowest = badness(1.0) - GRID_GAIN if self.objective == "gap" else np.full_like(best, np.inf)
        for position, temperature in enumerate(grid):
            value = badness(temperature)
            taken = value < lowest
            best[taken] = temperature
            lowest[taken] = value[taken] - (GRID_GAIN if self.objective == "gap" else 0.0)
            step("bin temperatures", position + 1, len(grid))
        return best

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        bin_index = xp.place(xp.confidence(logits), learned.edges_)
        inverse = maps.like(xp, (1.0 / learned.temperatures_)[bin_index], logits)
        return maps.keep_prediction(xp, logits * inverse, maps.prediction(xp, logits))
