"""A calibrator for every group of rows, shrunk towards the fit of all rows."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import clone

from calibrant.calibrators.grouped import GroupedCalibrator, row_losses, surely_gains
from calibrant.calibrators.learned import INNER, INNERS, RECORD, Learned
from calibrant.calibrators.solvers.folds import FOLDS, content_folds
from calibrant.core.errors import FitWarning, InputError
from calibrant.core.rows import Rows

STRENGTHS = (np.inf, 30_000.0, 10_000.0, 3000.0, 1000.0, 300.0, 100.0, 30.0, 10.0)
"""Rows that the pooled fit counts as, from all to few."""
PRIOR_WEIGHT = 5.0
PRIOR_ROWS = 200
"""A group is fitted together with about 200 rows of all groups that weigh 5 rows: without an error of its own a
temperature would go to 0."""
SURE = 1.0
"""Standard errors by which the held-out log loss must fall before groups are told apart."""
FEWEST_ROWS = 2


class GroupCalibrator(GroupedCalibrator):
    """Any method per group of rows, shrunk towards the pooled fit.

    With z⁰ the logits of the fit on all rows and zᵍ those of a fit on the rows of group g, a row of g gets

        (1 − λ_g)·z⁰ + λ_g·zᵍ,   λ_g = n_g/(n_g + k),

    a weighted mean of log-probabilities. k is the number of rows that the pooled fit counts as: k = 0 fits each group
    by itself, k = ∞ ignores the groups. Where k > 0, zᵍ is fitted to the rows of g and to some rows of all groups that
    weigh min(k, 5) rows together, so that a group without an error does not get an infinite confidence.
    `shrink="cv"` takes the k of the lowest held-out log loss over 5 folds, and ∞ unless that is lower than at ∞ by
    more than its standard error. A row of a group that the fit has not seen gets the pooled fit, with a warning.

    Parameters
    ----------
    calibrator : Calibrator
        What is fitted to all rows and to each group.
    shrink : "cv" or number
        k.
    seed : int
        Of the folds.

    Attributes
    ----------
    calibrator_ : the pooled fit.
    groups_ : names of the groups, in order.
    shares_ : λ of each group.
    calibrators_ : the fits of the groups whose λ is above 0, in order.
    strength_ : k.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant import GroupCalibrator, TemperatureScaling
    >>> rng = np.random.default_rng(0)
    >>> labels, ward = rng.integers(0, 3, 2000), rng.choice(["a", "b"], 2000)
    >>> logits = 2 * rng.normal(size=(2000, 3)) + 4 * np.eye(3)[labels]
    >>> logits[ward == "b"] *= 3
    >>> fitted = GroupCalibrator(TemperatureScaling()).fit(logits, labels, groups=ward)
    >>> bool(fitted.shares_.min() > 0.9), fitted.predict_proba(logits[:2], groups=ward[:2]).shape
    (True, (2, 3))
    """

    learns = {
        "calibrator_": INNER,
        "calibrators_": INNERS,
        "shares_": Learned(("G",), 0.0, 1.0, free=False),
        "groups_": RECORD,
        "columns_": RECORD,
        "strength_": RECORD,
    }

    def __init__(self, calibrator, *, shrink="cv", seed=0):
        self.calibrator = calibrator
        self.shrink = shrink
        self.seed = seed

    def _fit(self, rows: Rows) -> None:
        n_groups = len(self.groups_)
        self.strength_ = self._strength(rows)
        self.calibrator_ = clone(self.calibrator).fit_rows(rows)
        weight = _weights_of(rows, n_groups)
        shares = shares_of(weight, self.strength_) if n_groups > 1 else np.zeros(n_groups)
        prior = some_of_all(rows, min(self.strength_, PRIOR_WEIGHT), self.seed)
        self.calibrators_, self.shares_ = [], np.zeros(n_groups)
        for group in np.flatnonzero(shares > 0).tolist():
            if (fitted := self._one(rows, group, prior)) is not None:
                self.calibrators_.append(fitted)
                self.shares_[group] = shares[group]

    def _one(self, rows: Any, group: int, prior: Any) -> Any:
        """The fit of one group, or None where its rows allow none."""
        own = rows.take(np.flatnonzero(rows.groups == group))
        if own.n < FEWEST_ROWS or not own.total_weight > 0:
            return None
        own = own if prior is None else joined(own, prior)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)  # small groups are separable now and then: they are shrunk
            try:
                return clone(self.calibrator).fit_rows(own)
            except (InputError, np.linalg.LinAlgError):
                return None

    def _strength(self, rows: Rows) -> float:
        if isinstance(self.shrink, str) and self.shrink == "cv":
            return float("inf") if len(self.groups_) < 2 or rows.n < 4 * FOLDS else self._choose(rows)
        if isinstance(self.shrink, (str, bool)) or not self.shrink >= 0:
            raise InputError(f"shrink must be 'cv' or a number of at least 0, got {self.shrink!r}")
        return float(self.shrink)

    def _choose(self, rows: Any) -> float:
        """k of the lowest held-out log loss, by the rule of the class."""
        given = rows.logits
        fold = content_folds(rows, FOLDS, self.seed)
        pooled, own = np.empty((2, *given.shape))
        inside = np.zeros(rows.n)
        for part in np.unique(fold):
            kept, out = rows.take(np.flatnonzero(fold != part)), np.flatnonzero(fold == part)
            if not kept.total_weight > 0:
                return float("inf")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FitWarning)
                whole = clone(self.calibrator).fit_rows(kept)
            pooled[out] = own[out] = whole._calibrated(given[out])
            weight, prior = _weights_of(kept, len(self.groups_)), some_of_all(kept, PRIOR_WEIGHT, self.seed)
            for group in np.unique(rows.groups[out]):
                fitted, mine = self._one(kept, int(group), prior), out[rows.groups[out] == group]
                if fitted is not None:
                    own[mine] = fitted._calibrated(given[mine])
                    inside[mine] = weight[group]
        losses = [row_losses(_mix(pooled, own, shares_of(inside, k)), rows.labels) for k in STRENGTHS]
        mass = np.ones(rows.n) if rows.weights is None else rows.weights
        means = [float(np.average(loss, weights=mass)) for loss in losses]
        best = int(np.argmin(means))
        self.objective_trace_ = np.array(means)
        return float(STRENGTHS[best]) if surely_gains(losses[0] - losses[best], mass, SURE) else float("inf")

    def _answers(self, given: np.ndarray, codes: np.ndarray) -> np.ndarray:
        answers = self.calibrator_._calibrated(given)
        for fitted, group in zip(self.calibrators_, np.flatnonzero(self.shares_ > 0), strict=True):
            mine = np.flatnonzero(codes == group)
            if len(mine):
                own = fitted._calibrated(given[mine])
                answers[mine] = _mix(answers[mine], own, np.full(len(mine), self.shares_[group]))
        return answers

    def _map_groups(self, xp: Any, logits: Any, group: Any, learned: Any) -> Any:
        name = "_map_binary" if len(logits.shape) == 1 else "_map"
        answers = getattr(self.calibrator_, name)(xp, logits, learned.calibrator_)
        pooled, fits = answers, list(learned.calibrators_)
        for place, number in enumerate(np.flatnonzero(self.shares_ > 0).tolist()):
            own = getattr(self.calibrators_[place], name)(xp, logits, fits[place])
            share = float(self.shares_[number])
            mixed = own if share == 1.0 else share * own + (1.0 - share) * pooled
            here = group == number
            answers = xp.where(here if len(logits.shape) == 1 else here[:, None], mixed, answers)
        return answers

    def _check_learned(self) -> None:
        if len(self.shares_) != len(self.groups_) or len(self.calibrators_) != int((self.shares_ > 0).sum()):
            raise InputError(
                f"GroupCalibrator holds {len(self.groups_)} groups, {len(self.shares_)} shares and "
                f"{len(self.calibrators_)} fits, which do not belong together"
            )


def some_of_all(rows: Any, weight: float, seed: int) -> Any:
    """About 200 rows, picked by what they hold, that weigh `weight` together; None where that is nothing."""
    if weight <= 0:
        return None
    fold = content_folds(rows, max(1, int(rows.total_weight) // PRIOR_ROWS), seed)
    some = rows.take(np.flatnonzero(fold == 0))
    if not some.total_weight > 0:
        return None
    mass = np.ones(some.n) if some.weights is None else some.weights
    return replace(some, weights=mass * (weight / mass.sum()))


def joined(rows: Any, prior: Any) -> Any:
    """Rows of a group followed by the rows of all groups."""
    logits, labels = (np.concatenate([getattr(rows, key), getattr(prior, key)]) for key in ("logits", "labels"))
    return Rows(logits, labels, np.concatenate([rows.mass(), prior.weights]))


def shares_of(weight: np.ndarray, strength: float) -> np.ndarray:
    """λ = n/(n + k)."""
    if np.isinf(strength):
        return np.zeros(len(weight))
    return np.where(weight > 0, weight / np.maximum(weight + strength, 1e-300), 0.0)


def _mix(pooled: np.ndarray, own: np.ndarray, share: np.ndarray) -> np.ndarray:
    """(1 − λ)·pooled + λ·own, of which a part of no share counts nothing even where it is −∞."""
    share = share if pooled.ndim == 1 else share[:, None]
    with np.errstate(invalid="ignore"):
        mixed = (1 - share) * pooled + share * own
    return np.where(share == 0, pooled, np.where(share == 1, own, mixed)).astype(pooled.dtype, copy=False)


def _weights_of(rows: Any, n_groups: int) -> np.ndarray:
    return np.bincount(rows.groups, rows.weights, minlength=n_groups).astype(np.float64)
