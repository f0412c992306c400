"""Calibrators that treat groups of rows differently: their base, and a fit per group shrunk towards that of all rows.

The base holds the names of groups and decides what rows get whose group is unknown.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import clone

from calibrant.calibrators.base import Calibrator, of_inner
from calibrant.calibrators.learned import INNER, INNERS, RECORD, Learned
from calibrant.calibrators.maps import numpy_space
from calibrant.calibrators.solvers.folds import FOLDS, content_folds
from calibrant.calibrators.solvers.likelihood import check_penalty
from calibrant.core.arrays import Array
from calibrant.core.errors import FitWarning, InputError, warn_user
from calibrant.core.rows import Rows, two_columns
from calibrant.core.schema import identifiers
from calibrant.core.softmax import log_softmax, softmax

UNKNOWN = -1
"""The number of a row whose group the fit has not seen."""


class GroupedCalibrator(
    Calibrator,
    is_base=True,
    cross_fits=True,
    takes_groups=True,
    requires_logits=of_inner("requires_logits"),
    # as the inner calibrator, in the task it was fitted to
    keeps_prediction=lambda own: getattr(own, "calibrator_", own.calibrator).keeps_prediction,
):
    """Base of calibrators whose `fit`, `transform`, `predict_proba` and `predict` take `groups`, one per row.

    `groups` is an array (n,) of names or numbers, or a mapping of two columns, whose intersections are the groups. A
    method writes `_fit` (of rows that carry group numbers), `_answers` and `_map_groups`.
    """

    def __init__(self, calibrator):
        self.calibrator = calibrator

    @property
    def tasks(self) -> tuple[str, ...]:  # type: ignore[override]
        """Those of the inner calibrator."""
        return self.calibrator.tasks

    def _group_numbers(self, groups: Any, n_rows: int) -> Array:
        """The number of each row's group; without groups all rows are one group."""
        if isinstance(groups, Mapping) and not 1 <= len(groups) <= 2:
            raise InputError(
                f"{type(self).__name__} needs one or two columns of groups, but there are {', '.join(groups)}: "
                "name them (by=, --groups)"
            )
        found, codes = np.unique(group_names(groups, n_rows), return_inverse=True)
        self.groups_ = found.astype(object)
        self.columns_ = [str(name) for name in groups] if isinstance(groups, Mapping) else []
        return codes

    def groups_in(self, predictions: Any) -> Any:
        """The columns of groups of some predictions, as the fit had them; an InputError where they lack one."""
        wanted = self.columns_ or list(predictions.groups)
        missing = [name for name in wanted if name not in predictions.groups]
        if missing:
            raise InputError(
                f"the calibrator was fitted by {' and '.join(wanted)}, but {predictions.name or 'the predictions'} has "
                f"no groups {', '.join(missing)}: name the column (by=, --groups)"
            )
        return {name: predictions.groups[name] for name in wanted} or None

    def _begin(self, rows: Rows) -> Rows:
        """Rows without group numbers are one group, and numbers that came without names get none."""
        if rows.labels.ndim == 2:
            raise InputError("groups of many labels are not calibrated: fit each label by itself, as task binary")
        if rows.groups is None or "groups_" not in vars(self):
            codes = np.zeros(rows.n, dtype=np.intp) if rows.groups is None else rows.groups
            self.groups_, self.columns_ = np.full(int(codes.max()) + 1, "", dtype=object), []
            rows = replace(rows, groups=codes)
        return super()._begin(rows)

    def transform(self, logits: Any, groups: Any = None) -> Array:
        """Calibrated logits of the input's shape and dtype; a row of an unseen group gets the pooled fit."""
        self._check_fitted()
        answers = self.transform_codes(logits, self.group_codes(groups, len(logits)))
        return answers[:, None] if self.task_ == "binary" and np.ndim(logits) == 2 else answers

    def predict_proba(self, logits: Any, groups: Any = None) -> Array:
        """Calibrated probabilities (n×K), or (n×2) of one score per row; rows sum to one."""
        calibrated = self.transform(logits, groups)
        return softmax(two_columns(calibrated.reshape(-1)) if self.task_ == "binary" else calibrated)

    def predict(self, logits: Any, groups: Any = None) -> Array:
        """The class of highest calibrated probability of each row; the first of equals."""
        return self._predicted(self.transform(logits, groups))

    def transform_codes(self, logits: Array, codes: Array) -> Array:
        """`transform` of rows whose group numbers are known already."""
        return self._answers(self._admitted(logits), codes)

    def group_codes(self, groups: Any, n_rows: int) -> Array:
        """The number of each row's group (n,), −1 where the fit has not seen it, with a warning."""
        if len(self.groups_) == 1 and (groups is None or self.groups_[0] == ""):
            return np.zeros(n_rows, dtype=np.intp)
        codes, found = np.full(n_rows, UNKNOWN), "no groups were given: all rows get the pooled fit"
        if groups is not None:
            code, names = identifiers(groups, n_rows, "groups")
            known = {str(name): place for place, name in enumerate(self.groups_)}
            codes = np.array([known.get(name, UNKNOWN) for name in names])[code]
            unseen = sorted(set(names).difference(known))
            listed = ", ".join([*unseen[:5], *["…"] * (len(unseen) > 5)])
            count = int((codes == UNKNOWN).sum())
            found = f"{count} rows are of groups that the fit has not seen ({listed}): they get the pooled fit"
        if (codes == UNKNOWN).any():
            warn_user(found)
        return codes

    def _fit_binary(self, rows: Rows) -> None:
        self._fit(rows)

    def _transform(self, logits: Array) -> Array:
        return self._answers(logits, np.full(len(logits), UNKNOWN if len(self.groups_) > 1 else 0))

    _transform_binary = _transform

    def _answers_on(self, rows: Any) -> Array:
        return self._answers(rows.logits, rows.groups)

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        """The pooled fit, which rows without a group get."""
        return self.calibrator_._map_either(xp, logits, learned.calibrator_)

    _map_binary = _map

    def _answers(self, given: Array, codes: Array) -> Array:
        """Calibrated logits of a matrix (n×K), or of scores (n,), whose rows belong to these groups."""
        return self._map_groups(numpy_space, given, codes, self._ready())

    def _map_groups(self, xp: Any, logits: Any, group: Any, learned: Any) -> Any:
        """`_answers` over the array API; `group` holds whole numbers (n,)."""
        raise NotImplementedError


def row_losses(answers: Array, labels: Array) -> Array:
    """Log loss of each row (n,) of calibrated logits (n×K) or scores (n,)."""
    matrix = (two_columns(answers) if answers.ndim == 1 else answers).astype(np.float64)
    return -np.maximum(log_softmax(matrix)[np.arange(len(labels)), labels], -745.0)


def surely_gains(gain: Array, weights: Array, n_errors: float) -> bool:
    """Whether the mean gain of the rows exceeds so many of its standard errors."""
    mean = np.average(gain, weights=weights)
    variance = np.average((gain - mean) ** 2, weights=weights)
    return bool(mean > n_errors * np.sqrt(variance / weights.sum()))


def group_names(groups: Any, n_rows: int) -> Array:
    """The name of each row's group (n,), as text; one nameless group where there are none."""
    if groups is None:
        return np.full(n_rows, "", dtype=str)
    code, names = identifiers(groups, n_rows, "groups")
    return np.array(names, dtype=str)[code]


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

    def _fit(self, rows: Any) -> None:
        n_groups = len(self.groups_)
        self.strength_ = check_penalty(self.shrink, "shrink", highest=np.inf)
        if self.strength_ == "cv":
            self.strength_ = np.inf if n_groups < 2 or rows.n < 4 * FOLDS else self._choose(rows)
        self.calibrator_ = clone(self.calibrator).fit_rows(rows)
        shares = shares_of(_weights_of(rows, n_groups), self.strength_ if n_groups > 1 else np.inf)
        prior = some_of_all(rows, min(self.strength_, PRIOR_WEIGHT), self.seed)
        self.calibrators_, self.shares_ = [], np.zeros(n_groups)
        for group in np.flatnonzero(shares):
            own = rows.take(rows.groups == group)
            if own.n < FEWEST_ROWS:
                continue
            if prior is not None:
                own = Rows(
                    np.concatenate([own.logits, prior.logits]),
                    np.concatenate([own.labels, prior.labels]),
                    np.concatenate([own.mass(), prior.mass()]),
                    rows_per_weight=rows.rows_per_weight,
                )
            with warnings.catch_warnings(), suppress(InputError, np.linalg.LinAlgError):
                warnings.simplefilter("ignore", FitWarning)  # small groups are separable now and then: they are shrunk
                self.calibrators_.append(clone(self.calibrator).fit_rows(own))
                self.shares_[group] = shares[group]

    def _choose(self, rows: Any) -> float:
        """k of the lowest held-out log loss, by the rule of the class."""
        given, fold = rows.logits, content_folds(rows, FOLDS, self.seed)
        pooled, own = np.empty((2, *given.shape))
        inside = np.zeros(rows.n)
        for part in np.unique(fold):
            kept, out = rows.take(fold != part), np.flatnonzero(fold == part)
            if not kept.total_weight > 0:
                return np.inf
            found = clone(self).set_params(shrink=PRIOR_WEIGHT)
            found.groups_, found.columns_ = self.groups_, self.columns_
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FitWarning)
                found.fit_rows(kept)
            pooled[out] = own[out] = found.calibrator_._calibrated(given[out])
            weight = _weights_of(kept, len(self.groups_))
            for fitted, group in found._fits():
                mine = out[rows.groups[out] == group]
                own[mine], inside[mine] = fitted._calibrated(given[mine]), weight[group]
        losses = [row_losses(_mix(pooled, own, shares_of(inside, k)), rows.labels) for k in STRENGTHS]
        self.objective_trace_ = np.average(losses, axis=1, weights=rows.mass())
        best = int(self.objective_trace_.argmin())
        return STRENGTHS[best] if surely_gains(losses[0] - losses[best], rows.mass(), SURE) else np.inf

    def _fits(self) -> Iterator[tuple[Any, int]]:
        """The fits of the groups, with the number of each group."""
        return zip(self.calibrators_, np.flatnonzero(self.shares_).tolist(), strict=True)

    def _answers(self, given: Array, codes: Array) -> Array:
        answers = self.calibrator_._calibrated(given)
        for fitted, group in self._fits():
            mine = np.flatnonzero(codes == group)
            if len(mine):
                own = fitted._calibrated(given[mine])
                answers[mine] = _mix(answers[mine], own, np.full(len(mine), self.shares_[group]))
        return answers

    def _map_groups(self, xp: Any, logits: Any, group: Any, learned: Any) -> Any:
        pooled = answers = self._map(xp, logits, learned)
        for (fitted, group_number), own in zip(self._fits(), learned.calibrators_, strict=True):
            share = float(self.shares_[group_number])
            mixed = fitted._map_either(xp, logits, own)
            mixed = mixed if share == 1.0 else share * mixed + (1.0 - share) * pooled
            here = group == group_number
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
    fold = content_folds(rows, max(1, int(rows.total_weight) // PRIOR_ROWS), seed) if weight > 0 else np.empty(0)
    some = rows.take(np.flatnonzero(fold == 0))
    if not some.total_weight > 0:
        return None
    return replace(some, weights=some.mass() * (weight / some.total_weight))


def shares_of(weight: Array, strength: float) -> Array:
    """λ = n/(n + k)."""
    return np.where(weight > 0, weight / np.maximum(weight + strength, 1e-300), 0.0)


def _mix(pooled: Array, own: Array, share: Array) -> Array:
    """(1 − λ)·pooled + λ·own, of which a part of no share counts nothing even where it is −∞."""
    share = share if pooled.ndim == 1 else share[:, None]
    with np.errstate(invalid="ignore"):
        mixed = (1 - share) * pooled + share * own
    return np.where(share == 0, pooled, np.where(share == 1, own, mixed)).astype(pooled.dtype, copy=False)


def _weights_of(rows: Any, n_groups: int) -> Array:
    return np.bincount(rows.groups, rows.weights, minlength=n_groups).astype(np.float64)
