"""Affine maps of the logits: vector, matrix, Dirichlet and structured scaling, each one convex fit."""

from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from sklearn.base import clone

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.learned import PER_CLASS, RECORD, SCALE_MATRIX, SCALES
from calibrant.calibrators.maps import like
from calibrant.calibrators.solvers.likelihood import (
    PATIENCE,
    Ridge,
    Solution,
    check_penalty,
    choose,
    common_unit,
    fit_matrix,
    fit_vector,
    on_numpy,
)
from calibrant.core.arrays import Array
from calibrant.core.rows import Rows
from calibrant.kernels.affine import Features, affine_sums
from calibrant.kernels.scaling import scale_rows, vector_sums

BIAS_STRENGTHS = np.logspace(2, -5, 15)
"""What cross-validation tries times K for the μ of vector scaling, strongest first."""

ODIR_STRENGTHS = np.logspace(2, -4, 13)
"""The same for matrices, times K(K−1) for λ and times K for μ.

The factors make one value mean the same pull on one weight whatever the number of classes.
"""

STRENGTHS = (1e6, 3000.0, 1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0)
"""What cross-validation tries for structured scaling; the first leaves a temperature and nothing else."""


def logit_features(xp: Any, logits: Any) -> Features:
    """The logits themselves."""
    return Features(logits)


def log_features(xp: Any, logits: Any) -> Features:
    """The log-probabilities."""
    return Features(xp.log_softmax_of_rows(logits))


class AffineScaling(Calibrator, is_base=True, requires_logits=True):
    """Base of all forms: penalties, given or chosen by cross-validated NLL, and the fit at them.

    A form writes `_penalty(rows)`, what its fit takes, and `_solve(rows, penalty)`, which for a fold also gets
    `start=` and `polish=`. Points are scales and biases (2×K), or (W | b), K×(K+1).
    """

    most_logits: ClassVar[float] = np.inf
    _features = staticmethod(logit_features)
    _full: ClassVar[Any] = False
    """Whether the map has a whole matrix."""
    _penalty: Any
    _solve: Any
    seed: int

    def _fit(self, rows: Rows) -> None:
        solution = self._solve(rows, self._penalty(rows))
        self._keep(solution.point)
        solution.report(self)

    def _choose(self, rows: Rows, candidates: list[Any], **walk: Any) -> Any:
        """The candidate of the lowest held-out NLL."""
        own = {"seed": self.seed, "most_logits": self.most_logits, **walk}
        return choose(rows, candidates, self._fold_point, self._loss, **own)

    def _fold_point(self, rows: Rows, penalty: Any, start: Array | None) -> Array:
        return self._solve(rows, penalty, start=start, polish=False).point

    def _make(self) -> Any:
        return partial(on_numpy, self._features)

    def _loss(self, rows: Rows, point: Array) -> float:
        return (rows.total(affine_sums, self._make(), point) if self._full else rows.total(vector_sums, *point))[0]

    def _keep(self, point: Array) -> None:
        if self._full:
            self.matrix_, self.bias_ = point[:, :-1], point[:, -1]
        else:
            self.scale_, self.bias_ = point

    def _map(self, xp, logits, learned):
        bias = like(xp, learned.bias_, logits)
        if self._full:
            return xp.matmul(self._features(xp, logits).shared, like(xp, learned.matrix_, logits).T) + bias
        return logits * like(xp, learned.scale_, logits) + bias

    def _transform(self, logits: Array) -> Array:
        if self._full:
            return super()._transform(logits)
        learned = self._ready()
        return scale_rows(logits, learned.scale_, learned.bias_)


class VectorScaling(AffineScaling, additive=True):
    """A scale and a bias per class, s∘z + b (Guo et al. 2017, §4.2).

    Minimises mean NLL + μ·mean b_j²: convex, solved to the optimum.

    Parameters
    ----------
    penalty_bias : number or "cv"
        μ; "cv" chooses it by cross-validated NLL. 0 is plain vector scaling. A class without fit rows gets the
        middle of the scales and no bias, whatever μ is.
    seed : int
        Of the folds of the cross-validation.

    Attributes
    ----------
    scale_, bias_ : (K,) the learned s and b; without a penalty the biases sum to 0.

    Examples
    --------
    >>> import calibrant as cal
    >>> val = cal.open_predictions("cifar10-resnet18#val")
    >>> cal.VectorScaling().fit(val.logits, val.labels).scale_.round(1)
    array([0.7, 0.8, 0.6, 0.5, 0.7, 0.5, 0.7, 0.8, 0.7, 0.7])
    """

    learns = {"scale_": SCALES, "bias_": PER_CLASS}

    def __init__(self, penalty_bias: float | str = 0.0, *, seed: int = 0) -> None:
        self.penalty_bias = penalty_bias
        self.seed = seed

    def _penalty(self, rows: Rows) -> float:
        penalty = check_penalty(self.penalty_bias, "penalty_bias")
        if penalty == "cv":
            tried = [float(strength * rows.n_classes) for strength in BIAS_STRENGTHS]
            penalty = self._choose(rows, tried, patience=len(tried))
        return penalty

    def _solve(self, rows: Rows, penalty: Any, **path: Any) -> Solution:
        return fit_vector(rows, penalty_bias=penalty)


class StructuredVectorScaling(
    AffineScaling,
    cross_fits=True,
    # folds cut heavy rows into pieces, on the host
    fits_on_device="unweighted",
):
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

    learns = {"scale_": SCALES, "bias_": PER_CLASS, "strength_": RECORD}

    def __init__(
        self, strength: float | str = "cv", *, penalty_diagonal: float = 1.0, penalty_bias: float = 1.0, seed: int = 0
    ) -> None:
        self.strength = strength
        self.penalty_diagonal = penalty_diagonal
        self.penalty_bias = penalty_bias
        self.seed = seed

    def _penalty(self, rows: Rows) -> tuple[float, float]:
        """The strength, and the unit of the scales: one for all folds."""
        self.strength_ = check_penalty(self.strength, "strength")
        unit = common_unit(rows)
        if self.strength_ == "cv":
            self.strength_, _ = self._choose(rows, [(strength, unit) for strength in STRENGTHS])
        return self.strength_, unit

    def _settled(self) -> Calibrator:
        return clone(self).set_params(strength=self.strength_)

    def _solve(self, rows: Rows, penalty: Any, **path: Any) -> Solution:
        strength, unit = penalty
        halves = 0.5 * strength / rows.total_weight * rows.n_classes
        scale, bias = halves * self.penalty_diagonal, halves * self.penalty_bias
        return fit_vector(rows, penalty_scale=scale, penalty_bias=bias, unit=unit)


def matrix_ridge(n_classes: int, diagonal: float, off_diagonal: float, bias: float) -> Ridge:
    """Strengths of the diagonal about its mean, of the rest of a matrix and of the biases, over points (W | b)."""
    strength = np.full((n_classes, n_classes + 1), off_diagonal)
    np.fill_diagonal(strength, diagonal)
    strength[:, -1] = bias
    return Ridge(strength, np.eye(n_classes, n_classes + 1, dtype=bool))


class MatrixScaling(AffineScaling, additive=True):
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

    _full = True
    learns = {"matrix_": SCALE_MATRIX, "bias_": PER_CLASS, "penalties_": RECORD}

    def __init__(
        self, penalty_off_diagonal: float | str | None = None, penalty_bias: float | str | None = None, seed: int = 0
    ) -> None:
        self.penalty_off_diagonal = penalty_off_diagonal
        self.penalty_bias = penalty_bias
        self.seed = seed

    def _penalty(self, rows: Rows) -> tuple[float, float]:
        n_classes = rows.n_classes
        counts, found = (n_classes * (n_classes - 1), n_classes), []
        usual = counts[0] / 10, n_classes / 100
        for name, value in zip(("penalty_off_diagonal", "penalty_bias"), usual, strict=True):
            given = getattr(self, name)
            found.append(check_penalty(value if given is None else given, name))
        penalties: Any = tuple(own if one == "cv" else one for one, own in zip(found, usual, strict=True))
        # λ is chosen beside the usual μ, then μ beside the chosen λ: every one, since strong μ all mean "no bias", a
        # plateau on which the walk must not end
        for place in np.flatnonzero([one == "cv" for one in found]):
            tried = [float(strength * counts[place]) for strength in ODIR_STRENGTHS]
            candidates = [(*penalties[:place], one, *penalties[place + 1 :]) for one in tried]
            penalties = self._choose(rows, candidates, patience=(PATIENCE, len(tried))[place])
        self.penalties_ = penalties
        return penalties

    def _settled(self) -> Calibrator:
        off_diagonal, bias = self.penalties_
        return clone(self).set_params(penalty_off_diagonal=off_diagonal, penalty_bias=bias)

    def _solve(self, rows: Rows, penalty: Any, **path: Any) -> Solution:
        (off_diagonal, bias), n_classes = penalty, rows.n_classes
        ridge = matrix_ridge(n_classes, 0.0, 2 * off_diagonal / (n_classes * (n_classes - 1)), 2 * bias / n_classes)
        return fit_matrix(rows, self._make(), ridge, **path)


class DirichletCalibration(MatrixScaling, requires_logits=False):
    """Matrix scaling of the log-probabilities, W·log p + b (Kull et al. 2019, eq. 9, with ODIR).

    Minimises mean NLL + λ·mean_{i≠j} w_ij² + μ·mean b_j². Unlike matrix scaling it needs only probabilities: a
    constant added to all logits of a row changes nothing.

    Parameters (`penalty_off_diagonal` is λ, `penalty_bias` is μ, `seed`) and what is learned (`matrix_` W, `bias_` b,
    `penalties_`) are those of `MatrixScaling`.

    Examples
    --------
    >>> import numpy as np
    >>> import calibrant as cal
    >>> val = cal.open_predictions("cifar10-resnet18#val")
    >>> fitted = cal.DirichletCalibration().fit(val.logits, val.labels)
    >>> bool(np.allclose(fitted.predict_proba(val.logits), fitted.predict_proba(val.logits + 7), atol=1e-5))
    True
    """

    _features = staticmethod(log_features)


class StructuredMatrixScaling(StructuredVectorScaling, fits_on_device=False):
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

    most_logits = 1 << 24  # above, a part of the rows chooses: the strength is a prior, worth the same whatever n
    learns = {"matrix_": SCALE_MATRIX, "bias_": PER_CLASS, "strength_": RECORD}

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
        super().__init__(strength, penalty_diagonal=penalty_diagonal, penalty_bias=penalty_bias, seed=seed)
        self.penalty_off_diagonal = penalty_off_diagonal
        self.off_diagonal = off_diagonal

    @property
    def _full(self) -> bool:
        return self.off_diagonal

    @property
    def n_parameters_(self) -> int:
        """K² weights and K biases; 2K without the off-diagonal."""
        return self._n_classes * (self._n_classes + 1 if self.off_diagonal else 2)

    def _solve(self, rows: Rows, penalty: Any, **path: Any) -> Solution:
        if not self.off_diagonal:
            return super()._solve(rows, penalty)
        strength, unit = penalty
        share = strength / rows.total_weight
        own, off = (share * one / unit**2 for one in (self.penalty_diagonal, self.penalty_off_diagonal))
        return fit_matrix(rows, self._make(), matrix_ridge(rows.n_classes, own, off, share * self.penalty_bias), **path)

    def _keep(self, point: Array) -> None:
        super()._keep(point)
        if not self.off_diagonal:
            self.matrix_ = np.diag(self.__dict__.pop("scale_"))

    def _learned(self) -> SimpleNamespace:
        found = super()._learned()
        # without the off-diagonal the matrix is a scale per class
        return found if self.off_diagonal else SimpleNamespace(scale_=np.diag(found.matrix_), bias_=found.bias_)
