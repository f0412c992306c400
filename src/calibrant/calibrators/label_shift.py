"""Calibrate for a class frequency that differs from the one of the fit data."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy import inf
from sklearn.base import clone

from calibrant.calibrators import maps
from calibrant.calibrators.base import Calibrator, of_inner
from calibrant.calibrators.confusion import ConfusionScaling
from calibrant.calibrators.learned import INNER, Learned
from calibrant.calibrators.solvers.likelihood import Dense, search
from calibrant.calibrators.solvers.temperature import fit_inverse_temperature
from calibrant.core.arrays import Array, check_matrix, check_values
from calibrant.core.errors import InputError
from calibrant.core.rows import Rows
from calibrant.core.statistic import statistic
from calibrant.kernels.shape import bent_sums

HALF_A_ROW = 0.5
"""Added to the count of every class, so that one absent from the fit data has a finite ratio."""

EM_STEPS, EM_TOLERANCE = 500, 1e-9


class LabelShift(Calibrator, requires_logits=of_inner("requires_logits"), cross_fits=of_inner("cross_fits")):
    """Any calibrator, for data in which class j has frequency π'_j instead of the fit data's π_j.

    The rows are weighted by π'_y/π_y, so that they count as if drawn from the target, and every logit gets the
    offset τ/β·log(π'_j/π_j), where β and τ minimise the weighted NLL of softmax(β·z + τ·log(π'/π)). τ = 1 is what
    Bayes' rule says of a network that learned π exactly; networks often learn π only in part, and need a smaller τ.
    The inner calibrator is fitted to what results.

    Parameters
    ----------
    calibrator : Calibrator
        What calibrates the corrected logits.
    target_prior : "uniform", array (K,), or array (m, K)
        π': all classes alike, given frequencies, or unlabelled logits of the target, from which π' is estimated by
        expectation maximisation (Saerens et al. 2002).

    Attributes
    ----------
    calibrator_ : the fitted inner calibrator.
    prior_, target_prior_ : (K,) π and π'.
    offset_ : (K,) what is added to the logits.

    Examples
    --------
    >>> import calibrant as cal
    >>> val = cal.open_predictions("cifar10-resnet18#val")
    >>> fitted = cal.LabelShift(cal.TemperatureScaling(), [0.55, *[0.05] * 9]).fit(val.logits, val.labels)
    >>> int(fitted.offset_.argmax())
    0
    """

    learns = {
        "calibrator_": INNER,
        "prior_": Learned(("K",), 0.0, 1.0),
        "target_prior_": Learned(("K",), 0.0, 1.0),
        "offset_": Learned(("K",)),
    }

    def __init__(self, calibrator: Calibrator, target_prior: Any = "uniform") -> None:
        self.calibrator = calibrator
        self.target_prior = target_prior

    @property
    def n_parameters_(self) -> int:
        """Those of the inner calibrator and τ."""
        return self.calibrator_.n_parameters_ + 1

    def _fit(self, rows: Rows) -> None:
        self.calibrator_ = clone(self.calibrator).fit_rows(self.corrected(rows))

    def _held_out(self, rows: Rows, fold: Array) -> Array:
        self.calibrator_ = clone(self.calibrator)
        return self.calibrator_.fit_held_out(self.corrected(rows), fold)

    def corrected(self, rows: Rows) -> Rows:
        """Learn the offset, and return the rows as the target would show them."""
        counts = rows.class_weight() + HALF_A_ROW
        self.prior_ = counts / counts.sum()
        self.target_prior_ = _target(self.target_prior, rows, self.prior_)
        ratio = self.target_prior_ / self.prior_
        weighted = rows.with_weights(rows.mass() * ratio[rows.labels])
        # a class the target does not have keeps a finite offset
        direction = np.log(np.maximum(ratio, 1e-6))
        self.offset_ = fit_offset(weighted, direction) * direction
        return replace(weighted, logits=rows.logits + self.offset_.astype(rows.logits.dtype))

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        return self.calibrator_._map(xp, logits + maps.like(xp, learned.offset_, logits), learned.calibrator_)


def _target(given: Any, rows: Rows, prior: Array) -> Array:
    if isinstance(given, str):
        if given != "uniform":
            raise InputError(f"target_prior must be 'uniform', K frequencies or unlabelled logits, got {given!r}")
        return np.full(rows.n_classes, 1.0 / rows.n_classes)
    array = np.asarray(given)
    if array.ndim == 2:
        unlabelled = check_matrix(array, "target_prior")
        if unlabelled.shape[1] != rows.n_classes:
            raise InputError(f"target_prior has {unlabelled.shape[1]} columns, but the logits have {rows.n_classes}")
        check_values(unlabelled, from_logits=True, name="target_prior")
        # expectation maximisation trusts the probabilities class by class, so they need their own biases
        source = ConfusionScaling(inf, penalty_bias=1.0).fit_rows(rows)
        return estimate_prior(source.predict_proba(unlabelled), prior)
    if array.shape != (rows.n_classes,) or array.dtype.kind not in "fiu":
        raise InputError(f"target_prior must hold one frequency for each of {rows.n_classes} classes, got {given!r}")
    if not np.isfinite(array).all() or array.min() < 0 or array.sum() <= 0:
        raise InputError("target_prior must hold frequencies of 0 or more with a positive sum")
    return array / array.sum()


def estimate_prior(probabilities: Array, prior: Array) -> Array:
    """π' of unlabelled data from calibrated probabilities (m×K) that assume π: expectation maximisation.

    Each step re-weights the probabilities by π'/π and takes their mean as the new π' (Saerens et al. 2002, eq. 2.11).
    """
    probabilities = probabilities.astype(np.float64)
    estimate = prior
    for _ in range(EM_STEPS):
        weighted = probabilities * (estimate / prior)
        following = (weighted / weighted.sum(axis=1, keepdims=True)).mean(axis=0)
        if np.abs(following - estimate).max() < EM_TOLERANCE:
            return following
        estimate = following
    return estimate


@statistic
def offset_sums(  # noqa: PLR0917 (a statistic takes its parameters by position)
    logits: Array, labels: Array, weights: Array, direction: Array, unit: float, point: Array
) -> tuple[float, Array, Array]:
    """Σ w·NLL of softmax(β·u·z + τ·v), its gradient (2,) and Hessian (2×2) by (β, τ); u is the unit of β."""
    scores = unit * logits.astype(np.float64)
    return bent_sums(np.stack([scores, np.broadcast_to(direction, scores.shape)]), labels, weights, point)


def fit_offset(rows: Rows, direction: Array) -> float:
    """τ/β of the lowest weighted NLL; 0 where the priors agree and τ means nothing, 1 where β is not positive."""
    if np.ptp(direction) < 1e-12:
        return 0.0

    start, ridge, unit = np.ones(2), 1e-12 * np.eye(2), fit_inverse_temperature(rows).value
    objective = Dense(lambda point, _: rows.total(offset_sums, direction, unit, point), rows.total_weight, ridge, start)
    slope, weight = search(objective, start).point
    # scores that do not rank the classes say nothing of τ: the priors alone decide
    return float(weight / (unit * slope)) if slope > 0 else 1.0
