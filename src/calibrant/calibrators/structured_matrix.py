"""Structured matrix scaling."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from sklearn.base import clone

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.learned import RECORD, Learned
from calibrant.calibrators.maps import like
from calibrant.calibrators.solvers.affine import Ridge, fit_affine
from calibrant.calibrators.solvers.diagonal import common_unit, fit_vector
from calibrant.calibrators.solvers.newton import Solution, warn_unless_converged
from calibrant.calibrators.solvers.penalties import check_penalty, walk, warn_of_folds
from calibrant.calibrators.temperature import fit_inverse_temperature
from calibrant.core.rows import Rows
from calibrant.kernels.affine import affine_sums

STRENGTHS = (1e6, 3000.0, 1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0)
"""What cross-validation tries; the first leaves a temperature and nothing else."""

MOST_LOGITS = 1 << 24
"""Above, a part of the rows chooses the strength: it is a prior, worth the same whatever the number of rows."""


class StructuredMatrixScaling(Calibrator):
    """A temperature, and departures from it as far as the data pays for them (Berta et al. 2025).

    W = s·I + diag(d) + O with O off the diagonal, and a bias b; minimises
    mean NLL + (strength/n)·½·(ρ_d·Σd² + ρ_o·ΣO² + ρ_b·Σb²), W measured in units of the best 1/T (or of
    one over the spread of the logits where the best T is far above it). The penalty is
    a prior that fades as n grows; s is free, so a strong penalty leaves temperature scaling.

    Parameters
    ----------
    strength : number or "cv"
        Of all three penalties; "cv" chooses it by cross-validated NLL, temperature scaling included.
    penalty_diagonal, penalty_off_diagonal, penalty_bias : numbers
        ρ_d, ρ_o, ρ_b: their proportions.
    off_diagonal : bool
        False keeps O = 0: the vector form.
    seed : int
        Of the folds of the cross-validation.

    Attributes
    ----------
    matrix_ : (K, K) the learned W.
    bias_ : (K,) the learned b.
    strength_ : the strength of the fit.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant import StructuredMatrixScaling
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 3, 500)
    >>> logits = 4 * (rng.normal(size=(500, 3)) + 2 * np.eye(3)[labels])
    >>> StructuredMatrixScaling().fit(logits, labels).matrix_.shape
    (3, 3)
    """

    requires_logits = True
    learns = {"matrix_": Learned(("K", "K")), "bias_": Learned(("K",)), "strength_": RECORD}

    def __init__(
        self,
        strength: float | str = "cv",
        *,
        penalty_diagonal: float = 1.0,
        penalty_off_diagonal: float = 3.0,
        penalty_bias: float = 1.0,
        off_diagonal: bool = True,
        seed: int = 0,
    ) -> None:
        self.strength = strength
        self.penalty_diagonal = penalty_diagonal
        self.penalty_off_diagonal = penalty_off_diagonal
        self.penalty_bias = penalty_bias
        self.off_diagonal = off_diagonal
        self.seed = seed

    @property
    def n_parameters_(self) -> int:
        """K² weights and K biases; 2K without the off-diagonal."""
        return self._n_classes * (self._n_classes + 1 if self.off_diagonal else 2)

    def _fit(self, rows: Rows) -> None:
        strength = check_penalty(self.strength, "strength")
        unit = common_unit(rows)
        self.strength_ = self._walk(rows, unit) if isinstance(strength, str) else strength
        point, solution = self._solve(rows, unit, self.strength_, None)
        self.matrix_, self.bias_ = point[:, :-1], point[:, -1]
        warn_unless_converged("StructuredMatrixScaling", solution)
        self.n_iter_ = max(1, solution.n_iter)
        self.objective_trace_ = solution.trace

    def _settled(self) -> Calibrator:
        return clone(self).set_params(strength=self.strength_)

    def _solve(
        self, rows: Rows, unit: float, strength: float, start: np.ndarray | None, tolerance: float | None = None
    ) -> tuple[np.ndarray, Solution]:
        """(W | b) at a strength."""
        share = strength / rows.total_weight
        if self.off_diagonal:
            ridge = Ridge(
                off_diagonal=share * self.penalty_off_diagonal / unit**2,
                bias=share * self.penalty_bias,
                diagonal=share * self.penalty_diagonal / unit**2,
            )
            solution = fit_affine(rows, ridge, start=start, tolerance=tolerance)[2]
            return solution.point, solution
        halves = 0.5 * share * rows.n_classes
        scale, bias, solution = fit_vector(
            rows, penalty_scale=halves * self.penalty_diagonal, penalty_bias=halves * self.penalty_bias
        )
        return np.concatenate([np.diag(scale), bias[:, None]], axis=1), solution

    def _walk(self, rows: Rows, unit: float) -> float:
        diverging: list[bool] = []

        def fit(part: Rows, strength: Any, start: np.ndarray | None) -> np.ndarray:
            point, solution = self._solve(part, unit, strength, start, tolerance=1e-4)
            # a temperature at its limit is where the search stopped, and nothing more
            diverging.append(solution.diverging or (start is None and bool(fit_inverse_temperature(part).limit)))
            return point

        def loss(part: Rows, point: np.ndarray) -> float:
            return part.total(affine_sums, point, False)[0]

        found: float = walk(rows, STRENGTHS, fit, loss, seed=self.seed, most_logits=MOST_LOGITS)
        warn_of_folds("StructuredMatrixScaling", diverging)
        return found

    def _learned(self) -> SimpleNamespace:
        found = super()._learned()
        # without the off-diagonal the matrix is a scale per class
        return found if self.off_diagonal else SimpleNamespace(scale=np.diag(found.matrix_), bias_=found.bias_)

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        bias = like(xp, learned.bias_, logits)
        if not self.off_diagonal:
            return logits * like(xp, learned.scale, logits) + bias
        return xp.matmul(logits, like(xp, learned.matrix_, logits).T) + bias
