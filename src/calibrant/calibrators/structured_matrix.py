"""Structured matrix scaling."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from calibrant.calibrators.learned import RECORD, Learned
from calibrant.calibrators.maps import like
from calibrant.calibrators.matrix import logit_features
from calibrant.calibrators.solvers.likelihood import Ridge, Solution, fit_matrix, on_numpy
from calibrant.calibrators.structured_vector import StructuredScaling
from calibrant.core.rows import Rows
from calibrant.kernels.affine import affine_sums

MOST_LOGITS = 1 << 24
"""Above, a part of the rows chooses the strength: it is a prior, worth the same whatever the number of rows."""


class StructuredMatrixScaling(StructuredScaling):
    """A temperature, and departures from it as far as they lower the held-out NLL (Berta et al. 2025).

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
    >>> import calibrant as cal
    >>> val = cal.open_predictions("cifar10-resnet18#val")
    >>> fitted = cal.StructuredMatrixScaling(strength=100).fit(val.logits, val.labels)
    >>> fitted.matrix_.shape, round(float(fitted.matrix_.diagonal().mean()), 2)
    ((10, 10), 0.66)
    """

    most_logits = MOST_LOGITS
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

    def _solve(
        self, rows: Rows, unit: float, strength: float, start: np.ndarray | None = None, *, polish: bool = True
    ) -> tuple[np.ndarray, Solution]:
        """(W | b) at a strength; scales and biases (2×K) without the off-diagonal."""
        if not self.off_diagonal:
            return super()._solve(rows, unit, strength)
        share, n_classes = strength / rows.total_weight, rows.n_classes
        ridge = np.full((n_classes, n_classes + 1), share * self.penalty_off_diagonal / unit**2)
        np.fill_diagonal(ridge, share * self.penalty_diagonal / unit**2)
        ridge[:, -1] = share * self.penalty_bias
        balanced = np.eye(n_classes, n_classes + 1, dtype=bool)
        solution = fit_matrix(rows, partial(on_numpy, logit_features), Ridge(ridge, balanced), start, polish=polish)
        return solution.point, solution

    def _loss(self, rows: Rows, point: np.ndarray) -> float:
        return (
            rows.total(affine_sums, partial(on_numpy, logit_features), point)[0]
            if self.off_diagonal
            else super()._loss(rows, point)
        )

    def _keep(self, point: np.ndarray) -> None:
        matrix, bias = (point[:, :-1], point[:, -1]) if self.off_diagonal else (np.diag(point[0]), point[1])
        self.matrix_: np.ndarray = matrix
        self.bias_: np.ndarray = bias

    def _learned(self) -> SimpleNamespace:
        found = super()._learned()
        # without the off-diagonal the matrix is a scale per class
        return found if self.off_diagonal else SimpleNamespace(scale=np.diag(found.matrix_), bias_=found.bias_)

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        bias = like(xp, learned.bias_, logits)
        if not self.off_diagonal:
            return logits * like(xp, learned.scale, logits) + bias
        return xp.matmul(logits, like(xp, learned.matrix_, logits).T) + bias
