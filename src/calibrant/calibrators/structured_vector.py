"""Structured vector scaling, and what it shares with structured matrix scaling."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from sklearn.base import clone

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.learned import RECORD, Learned
from calibrant.calibrators.maps import like
from calibrant.calibrators.solvers.likelihood import Solution, warn_unless_converged
from calibrant.calibrators.solvers.penalties import check_penalty, choose, warn_of_folds
from calibrant.calibrators.solvers.scales import common_unit, fit_vector
from calibrant.calibrators.temperature import fit_inverse_temperature
from calibrant.core.rows import Rows
from calibrant.kernels.scaling import vector_sums
from calibrant.kernels.transform import scale_rows

STRENGTHS = (1e6, 3000.0, 1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0)
"""What cross-validation tries; the first leaves a temperature and nothing else."""


class StructuredScaling(Calibrator):
    """Base of the two forms: one strength of all penalties, given or chosen by cross-validated NLL.

    A form writes `_solve` (the point of lowest penalised NLL), `_loss` (its NLL over rows) and `_keep`.
    """

    requires_logits = True
    most_logits: ClassVar[float] = np.inf
    strength: float | str
    penalty_diagonal: float
    penalty_bias: float
    seed: int

    def _fit(self, rows: Rows) -> None:
        strength = check_penalty(self.strength, "strength")
        unit = common_unit(rows)
        self.strength_ = self._walk(rows, unit) if isinstance(strength, str) else strength
        point, solution = self._solve(rows, unit, self.strength_)
        self._keep(point)
        warn_unless_converged(type(self).__name__, solution)
        self.n_iter_ = max(1, solution.n_iter)
        self.objective_trace_ = solution.trace

    def _settled(self) -> Calibrator:
        return clone(self).set_params(strength=self.strength_)

    def _walk(self, rows: Rows, unit: float) -> float:
        # one unit for all folds: of a fold whose rows are all predicted right, the best T is 0 and no unit
        diverging: list[bool] = []

        def fit(part: Rows, strength: Any, start: np.ndarray | None) -> np.ndarray:
            point, solution = self._solve(part, unit, strength, start, polish=False)
            # a temperature at its limit is where the search stopped, and nothing more
            diverging.append(solution.diverging or (start is None and bool(fit_inverse_temperature(part).limit)))
            return point

        found: float = choose(rows, STRENGTHS, fit, self._loss, seed=self.seed, most_logits=self.most_logits)
        warn_of_folds(type(self).__name__, diverging)
        return found

    def _solve(
        self, rows: Rows, unit: float, strength: float, start: np.ndarray | None = None, *, polish: bool = True
    ) -> tuple[np.ndarray, Solution]:
        """Scales and biases (2×K) at a strength."""
        halves = 0.5 * strength / rows.total_weight * rows.n_classes
        scale, bias, solution = fit_vector(
            rows, penalty_scale=halves * self.penalty_diagonal, penalty_bias=halves * self.penalty_bias, unit=unit
        )
        return np.stack([scale, bias]), solution

    def _loss(self, rows: Rows, point: np.ndarray) -> float:
        return rows.total(vector_sums, *point)[0]

    def _keep(self, point: np.ndarray) -> None:
        raise NotImplementedError


class StructuredVectorScaling(StructuredScaling):
    """A temperature, and a scale and a bias per class as far as they lower the held-out NLL (Berta et al. 2025).

    u_j = (s + d_j)·z_j + b_j minimises mean NLL + (strength/n)·½·(ρ_d·Σ d² + ρ_b·Σ b²), d in units of the best 1/T:
    the diagonal form of structured matrix scaling. A strong penalty leaves temperature scaling.

    Parameters
    ----------
    strength : number or "cv"
        Of both penalties; "cv" chooses it by cross-validated NLL, temperature scaling included.
    penalty_diagonal, penalty_bias : numbers
        ρ_d and ρ_b: their proportions.
    seed : int
        Of the folds of the cross-validation.

    Attributes
    ----------
    scale_, bias_ : (K,) the learned s + d and b.
    strength_ : the strength of the fit.

    Examples
    --------
    >>> import calibrant as cal
    >>> val = cal.open_predictions("cifar10-resnet18#val")
    >>> fitted = cal.StructuredVectorScaling(strength=100).fit(val.logits, val.labels)
    >>> fitted.scale_.round(1)
    array([0.7, 0.7, 0.6, 0.5, 0.7, 0.6, 0.7, 0.7, 0.7, 0.7])
    """

    fits_on_device = "unweighted"  # folds cut heavy rows into pieces, on the host
    learns = {"scale_": Learned(("K",)), "bias_": Learned(("K",)), "strength_": RECORD}

    def __init__(
        self, strength: float | str = "cv", *, penalty_diagonal: float = 1.0, penalty_bias: float = 1.0, seed: int = 0
    ) -> None:
        self.strength = strength
        self.penalty_diagonal = penalty_diagonal
        self.penalty_bias = penalty_bias
        self.seed = seed

    def _keep(self, point: np.ndarray) -> None:
        self.scale_, self.bias_ = point

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        return logits * like(xp, learned.scale_, logits) + like(xp, learned.bias_, logits)

    def _transform(self, logits: np.ndarray) -> np.ndarray:
        return scale_rows(logits, self.scale_, self.bias_)
