"""Class temperature scaling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calibrant.calibrators.base import Calibrator, fact
from calibrant.calibrators.learned import RECORD, SMALL, Learned
from calibrant.calibrators.maps import like
from calibrant.calibrators.solvers.class_search import class_search
from calibrant.calibrators.solvers.scales import fit_vector
from calibrant.calibrators.solvers.temperature import temperature_grid
from calibrant.core.arrays import check_whole
from calibrant.core.bins import check_n_bins
from calibrant.core.errors import InputError
from calibrant.core.progress import step
from calibrant.core.rows import Rows

SMALLEST_SCALE = 1e-6
"""Temperatures stay positive: no scale 1/T falls below this share of its unit."""


class ClassTemperatureScaling(Calibrator):
    """Divide the logits of each class by a temperature of its own, z_j / T_j (CTS; Frenkel & Goldberger 2021, eq. 6).

    Parameters
    ----------
    objective : {"ece", "nll"}
        "ece": the greedy grid search of algorithm 1. All temperatures start at the one grid value of lowest ECE.
        Classes are visited in index order; each takes the grid value of lowest ECE with all others frozen, if that
        lowers the ECE by more than 1e-12 (ties: the smallest value). Sweeps go on until nothing changes.
        "nll": the minimiser of the mean negative log-likelihood over all class temperatures.
    preserve_accuracy : bool
        Allow only grid values whose fit accuracy is not below the accuracy before the class was visited.
        False is the unconstrained U-CTS.
    accuracy_tolerance : float
        Fit accuracy that the whole search may give away, as a share of the rows: 0 is CTS, 1 is U-CTS, 0.002 lies
        between them. Only with `preserve_accuracy`.
    max_sweeps : int
        Most rounds over all classes.
    n_bins : int
        Equal-width bins of the ECE.
    grid : sequence of temperatures, or None for 0.1, 0.2, …, 10

    Attributes
    ----------
    temperatures_ : array (K,)
    ece_trace_, accuracy_trace_ : array (n_iter_ + 1,)
        Fit-set ECE and accuracy at the start and after each sweep; the ECE never rises. Empty for "nll".
    n_iter_ : number of sweeps, or of Newton steps.

    Notes
    -----
    The answer equals a search that recomputes all confidences for every trial, in float64;
    `calibrators/solvers/class_search.py` shows how it avoids doing so. By "ece", `fit` searches a map of
    the file, or of a scratch copy on disk (n·K numbers), and keeps about 250 bytes per row in memory; by "nll" it goes
    chunk by chunk.

    Examples
    --------
    >>> import calibrant as cal
    >>> val = cal.open_predictions("cifar10-resnet18#val")
    >>> cal.ClassTemperatureScaling().fit(val.logits, val.labels).ece_trace_.round(4)
    array([0.0081, 0.0055, 0.0037, 0.0037])
    """

    requires_logits = True
    learns = {"temperatures_": Learned(("K",), SMALL), "ece_trace_": RECORD, "accuracy_trace_": RECORD}

    def __init__(
        self,
        objective: str = "ece",
        *,
        preserve_accuracy: bool = True,
        accuracy_tolerance: float = 0.0,
        max_sweeps: int = 5,
        n_bins: int = 15,
        grid: Sequence[float] | np.ndarray | None = None,
    ) -> None:
        self.objective = objective
        self.preserve_accuracy = preserve_accuracy
        self.accuracy_tolerance = accuracy_tolerance
        self.max_sweeps = max_sweeps
        self.n_bins = n_bins
        self.grid = grid

    @fact
    def additive(self) -> bool:
        """The search for the lowest ECE moves single rows."""
        return self.objective == "nll"

    fits_on_device = True

    def _fit(self, rows: Rows) -> None:
        if self.objective == "ece":
            self._fit_ece(rows)
        elif self.objective == "nll":
            self._fit_nll(rows)
        else:
            raise InputError(f"objective must be 'ece' or 'nll', got {self.objective!r}")

    def _fit_ece(self, rows: Rows) -> None:
        max_sweeps = check_whole(self.max_sweeps, "max_sweeps", 0)
        if isinstance(self.accuracy_tolerance, str) or not 0 <= self.accuracy_tolerance <= 1:
            raise InputError(f"accuracy_tolerance must lie in [0, 1], got {self.accuracy_tolerance!r}")
        search = class_search(rows, temperature_grid(self.grid), check_n_bins(self.n_bins))
        search.start()
        outcomes = [search.refresh()]
        fewest_hits = np.inf
        if self.accuracy_tolerance > 0:
            fewest_hits = (outcomes[0].accuracy - self.accuracy_tolerance) * rows.total_weight
        n_steps = rows.n_classes * max_sweeps
        for sweep in range(max_sweeps):
            done = sweep * rows.n_classes

            def tell(visited: int, done: int = done, sweep: int = sweep) -> None:
                step("class temperatures", done + visited, n_steps, f"sweep {sweep + 1}")

            changed = search.sweep(self.preserve_accuracy, fewest_hits, tell)
            outcomes.append(search.refresh())
            if not changed:
                break
        self.temperatures_ = search.temperatures
        self.ece_trace_ = np.array([outcome.ece for outcome in outcomes])
        self.accuracy_trace_ = np.array([outcome.accuracy for outcome in outcomes])
        self.objective_trace_ = self.ece_trace_
        self.n_iter_ = len(outcomes) - 1

    def _fit_nll(self, rows: Rows) -> None:
        solution = fit_vector(rows, with_bias=False, lower=SMALLEST_SCALE)
        self.temperatures_ = 1.0 / solution.point[0]
        self.ece_trace_ = self.accuracy_trace_ = np.empty(0)
        solution.report(self)

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        # division, not a product with 1/T: logits that tie in the search tie here
        return logits / like(xp, learned.temperatures_, logits)
