"""Matrix scaling with off-diagonal and intercept regularisation."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from sklearn.base import clone

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.learned import RECORD, Learned
from calibrant.calibrators.maps import like
from calibrant.calibrators.solvers.likelihood import Ridge, fit_matrix, on_numpy, warn_unless_converged
from calibrant.calibrators.solvers.penalties import check_penalty, choose
from calibrant.core.rows import Rows
from calibrant.kernels.affine import Features, MakeFeatures, affine_sums

STRENGTHS = np.logspace(2, -4, 13)
"""Cross-validation tries these times K(K−1) for λ and times K for μ, strongest first.

The factors make one value mean the same pull on one weight whatever the number of classes.
"""


def logit_features(xp: Any, logits: Any) -> Features:
    """The logits themselves."""
    return Features(logits)


class MatrixScaling(Calibrator):
    """A full matrix and a bias, W·z + b, held to the diagonal (Guo et al. 2017, §4.2; Kull et al. 2019, ODIR).

    Minimises mean NLL + λ·mean_{i≠j} w_ij² + μ·mean b_j²: convex, solved to the optimum.

    Parameters
    ----------
    penalty_off_diagonal : number, "cv" or None
        λ; "cv" chooses it by cross-validated NLL, None takes K(K−1)/10. At 0 the matrix overfits badly.
    penalty_bias : number, "cv" or None
        μ; None takes K/100.
    seed : int
        Of the folds of the cross-validation.

    Attributes
    ----------
    matrix_ : (K, K) the learned W.
    bias_ : (K,) the learned b.
    penalties_ : (λ, μ) of the fit.

    Examples
    --------
    >>> import calibrant as cal
    >>> val = cal.open_predictions("cifar10-resnet18#val")
    >>> cal.MatrixScaling().fit(val.logits, val.labels).matrix_.diagonal().round(1)
    array([0.7, 0.7, 0.6, 0.5, 0.7, 0.6, 0.7, 0.8, 0.7, 0.7])
    """

    additive = True
    requires_logits = True
    learns = {"matrix_": Learned(("K", "K")), "bias_": Learned(("K",)), "penalties_": RECORD}
    _features = staticmethod(logit_features)

    def __init__(
        self, penalty_off_diagonal: float | str | None = None, penalty_bias: float | str | None = None, seed: int = 0
    ) -> None:
        self.penalty_off_diagonal = penalty_off_diagonal
        self.penalty_bias = penalty_bias
        self.seed = seed

    def _fit(self, rows: Rows) -> None:
        self.penalties_ = self._penalties(rows)
        solution = fit_matrix(rows, self._make(), odir(*self.penalties_, rows.n_classes))
        self.matrix_, self.bias_ = solution.point[:, :-1], solution.point[:, -1]
        warn_unless_converged(type(self).__name__, solution)
        self.n_iter_ = max(1, solution.n_iter)
        self.objective_trace_ = solution.trace

    def _make(self) -> MakeFeatures:
        return partial(on_numpy, self._features)

    def _settled(self) -> Calibrator:
        off_diagonal, bias = self.penalties_
        return clone(self).set_params(penalty_off_diagonal=off_diagonal, penalty_bias=bias)

    def _penalties(self, rows: Rows) -> tuple[float, float]:
        n_classes = rows.n_classes
        pairs = n_classes * (n_classes - 1)
        off_diagonal, off_diagonal_by_cv = _penalty(self.penalty_off_diagonal, "penalty_off_diagonal", pairs / 10)
        bias, bias_by_cv = _penalty(self.penalty_bias, "penalty_bias", n_classes / 100)
        if off_diagonal_by_cv:
            off_diagonal, _ = self._walk(rows, [(float(strength * pairs), bias) for strength in STRENGTHS])
        if bias_by_cv:
            _, bias = self._walk(rows, [(off_diagonal, float(strength * n_classes)) for strength in STRENGTHS])
        return off_diagonal, bias

    def _walk(self, rows: Rows, candidates: list[tuple[float, float]]) -> tuple[float, float]:
        def fit(part: Rows, candidate: Any, start: np.ndarray | None) -> np.ndarray:
            ridge = odir(candidate[0], candidate[1], part.n_classes)
            return fit_matrix(part, self._make(), ridge, start, polish=False).point

        def loss(part: Rows, point: np.ndarray) -> float:
            return part.total(affine_sums, self._make(), point)[0]

        return choose(rows, candidates, fit, loss, seed=self.seed)

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        inputs = self._features(xp, logits).shared
        return xp.matmul(inputs, like(xp, learned.matrix_, logits).T) + like(xp, learned.bias_, logits)


def odir(off_diagonal: float, bias: float, n_classes: int) -> Ridge:
    """The ridge whose value is λ·mean_{i≠j} w² + μ·mean b²."""
    strength = np.full((n_classes, n_classes + 1), 2 * off_diagonal / (n_classes * (n_classes - 1)))
    np.fill_diagonal(strength, 0.0)
    strength[:, -1] = 2 * bias / n_classes
    return Ridge(strength)


def _penalty(given: Any, name: str, usual: float) -> tuple[float, bool]:
    """A penalty, or the usual one as long as cross-validation has not chosen it; and whether it does."""
    checked = check_penalty(usual if given is None else given, name)
    return (usual, True) if isinstance(checked, str) else (checked, False)
