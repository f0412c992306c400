"""Patches for groups of rows after any calibrator, until no group gains from one more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone

from calibrant.calibrators import maps
from calibrant.calibrators.group import GroupedCalibrator, group_names, row_losses, surely_gains
from calibrant.calibrators.learned import INNER, RECORD, Learned
from calibrant.calibrators.second_stage import top_label
from calibrant.calibrators.solvers.folds import FOLDS, content_folds
from calibrant.core.arrays import Array
from calibrant.core.errors import InputError
from calibrant.metrics.clinical import weighted_quantile

QUANTILES = (0.05, 0.275, 0.5, 0.725, 0.95)
"""Where the knots of a patch lie among the log-odds of the fit rows."""
MOST_ROUNDS = 40
RATE = 0.5
"""Part of a Newton step that a round takes."""
PRIOR_ROWS = 30.0
"""Rows of ordinary variance that each value of a patch is pulled to 0 by."""
SURE = 2.0
"""Standard errors by which the held-out log loss must fall before anything is patched."""


class Multicalibration(
    GroupedCalibrator,
    # as the inner calibrator; a patch of one score per row moves it across 1/2 where that is right
    keeps_prediction=lambda own: own.task_ != "binary" and getattr(own, "calibrator_", own.calibrator).keeps_prediction,
):
    """Any calibrator, then patches of its confidence for groups of rows (multicalibration; Hébert-Johnson et al. 2018).

    With s the log-odds of the inner calibrator's confidence (of the positive class, for one score per row), a row of
    the groups g ∋ i gets s + Σ_g h_g(s), each h_g piecewise linear over five knots. In each round the group whose
    patch lowers the log loss most is patched by half a penalised Newton step: boosting over groups. The groups are
    the given ones, all rows together, and, where two columns are given, the values of either column and their
    intersections. The number of rounds is that of the lowest held-out log loss over 5 folds, and 0 unless that is
    lower than without patches by more than its standard error; so held-out log loss never rises. Of several classes
    the confidence of the predicted one is patched, and the others share what is left.

    Parameters
    ----------
    calibrator : Calibrator
        What comes before the patches.
    seed : int
        Of the folds.

    Attributes
    ----------
    calibrator_ : the fitted inner calibrator.
    groups_ : names of the finest groups, in order.
    knots_, values_ : the patch of each finest group, and of an unknown one: values ((G+1)×M) at the knots (M,).
    rounds_ : number of rounds.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant import Multicalibration, TemperatureScaling
    >>> rng = np.random.default_rng(0)
    >>> scores, ward = 2 * rng.normal(size=3000), rng.choice(["a", "b"], 3000)
    >>> labels = (rng.random(3000) < 1 / (1 + np.exp(-scores - np.where(ward == "b", 1.0, -1.0)))).astype(int)
    >>> fitted = Multicalibration(TemperatureScaling()).fit(scores, labels, groups=ward)
    >>> p = fitted.predict_proba(scores, groups=ward)[:, 1]
    >>> bool(abs(p[ward == "b"].mean() - labels[ward == "b"].mean()) < 0.01)
    True
    """

    learns = {
        "calibrator_": INNER,
        "knots_": Learned(("M",), increasing=True),
        "values_": Learned(("G+1", "M"), -1e3, 1e3),
        "groups_": RECORD,
        "columns_": RECORD,
        "rounds_": RECORD,
    }

    def __init__(self, calibrator, *, seed=0):
        self.calibrator = calibrator
        self.seed = seed

    @property
    def n_parameters_(self) -> int:
        """Those of the inner calibrator and of the patches."""
        return self.calibrator_.n_parameters_ + (self.values_[:-1].size if self.rounds_ else 0)

    def _group_numbers(self, groups: Any, n_rows: int) -> Array:
        codes = super()._group_numbers(groups, n_rows)
        self._owners = []
        for column in groups.values() if isinstance(groups, Mapping) and len(groups) == 2 else ():
            # which value of this column each intersection of the two belongs to
            owner = np.zeros(len(self.groups_), dtype=np.intp)
            owner[codes] = np.unique(group_names(column, n_rows), return_inverse=True)[1]
            self._owners.append(owner)
        return codes

    def _fit(self, rows: Any) -> None:
        self.calibrator_ = clone(self.calibrator)
        inner = self.calibrator_.fit_for_next(rows, self.seed)
        log_odds, correct, weights = inner, rows.labels == 1, rows.mass()
        if inner.ndim == 2:
            top = top_label(inner)
            log_odds, correct = top.log_odds, top.prediction == rows.labels
        log_odds = log_odds.astype(np.float64)
        finite = np.flatnonzero(np.isfinite(log_odds) & (weights > 0))
        mass = None if rows.weights is None else weights[finite]
        knots = weighted_quantile(np.array(QUANTILES), log_odds[finite], mass) if len(finite) else np.zeros(1)
        self.knots_ = np.unique(knots)
        # with these weights (n×M) the values at the knots make up a piecewise linear function, constant outside
        hats = np.stack([np.interp(log_odds, self.knots_, unit) for unit in np.eye(len(self.knots_))], axis=1)
        data, members = Patched(hats, log_odds, correct, weights, rows.groups), self._members()
        self.rounds_ = self._rounds(rows, inner, data, members)
        *_, values = patch_path(data, members, self.rounds_)
        losses = data.losses(data.shift(values))
        self.objective_trace_ = np.array([float(np.average(losses, weights=weights))])
        self.values_ = np.vstack([values, np.zeros(len(self.knots_))])
        self.n_iter_ = max(1, self.rounds_)

    def _members(self) -> Array:
        """Which finest groups make up each group that may be patched (P, G): all rows, columns, intersections."""
        n_groups = len(self.groups_)
        sets = [np.ones((1, n_groups), dtype=bool), np.eye(n_groups, dtype=bool)]
        for owner in self.__dict__.pop("_owners", ()):
            sets.append(np.arange(owner.max() + 1)[:, None] == owner)
        return np.unique(np.concatenate(sets), axis=0)

    def _rounds(self, rows: Any, inner: Array, data: Patched, members: Array) -> int:
        """The number of rounds of the lowest held-out log loss, by the rule of the class."""
        if rows.total_weight < 8 * FOLDS:
            return 0
        fold = content_folds(rows, FOLDS, self.seed)
        shifts = np.zeros((MOST_ROUNDS + 1, rows.n))
        for part in np.unique(fold):
            out = np.flatnonzero(fold == part)
            kept, held_out = data.take(np.flatnonzero(fold != part)), data.take(out)
            if not kept.weights.sum() > 0:
                return 0
            for step, values in enumerate(patch_path(kept, members, MOST_ROUNDS)):
                shifts[step, out] = held_out.shift(values)
        best = int(np.argmin(data.losses(shifts) @ data.weights))
        if best == 0:
            return 0
        shift = shifts[best]
        if inner.ndim == 1:
            patched = inner + shift.astype(inner.dtype)
        else:
            patched = maps.with_mapped_confidence(maps.numpy_space, inner, lambda present: present + shift[:, None])
        # the whole log loss decides: room that other classes make may cost more than the patch gains
        gain = row_losses(inner, rows.labels) - row_losses(patched, rows.labels)
        return best if surely_gains(gain, data.weights, SURE) else 0

    def _check_learned(self) -> None:
        if len(self.values_) != len(self.groups_) + 1:
            raise InputError(f"Multicalibration holds {len(self.groups_)} groups, but {len(self.values_)} patches")

    def _map_groups(self, xp: Any, logits: Any, group: Any, learned: Any) -> Any:
        binary = len(logits.shape) == 1
        answers = self._map(xp, logits, learned)
        if not self.rounds_:
            return answers
        n_groups, size = len(self.values_) - 1, len(self.knots_)
        table = xp.reshape(learned.values_, ((n_groups + 1) * size,))
        known = (group >= 0) & (group < n_groups)
        place = size * xp.where(known, group, 0 * group + n_groups)

        def change(log_odds: Any) -> Any:
            """Log-odds (n, 1) and the patch of each row's group at them, knot by knot."""
            values = [table[place + m][:, None] for m in range(size)]
            shift = values[0]
            for m in range(size - 1):
                along = (log_odds - float(self.knots_[m])) / float(self.knots_[m + 1] - self.knots_[m])
                along = xp.minimum(xp.maximum(along, xp.zeros_like(along)), xp.ones_like(along))
                shift = shift + (values[m + 1] - values[m]) * along
            return log_odds + xp.astype(shift, log_odds.dtype)

        return change(answers[:, None])[:, 0] if binary else maps.with_mapped_confidence(xp, answers, change)


class Patched(NamedTuple):
    """Rows as patches see them: hat functions (n×M), log-odds, outcome, weight and finest group of each."""

    basis: Array
    log_odds: Array
    correct: Array
    weights: Array
    groups: Array

    def take(self, index: Array) -> Patched:
        """The rows at these places."""
        return Patched(*(column[index] for column in self))

    def shift(self, values: Array) -> Array:
        """What patches of these values (G×M) add to the log-odds of each row (n,)."""
        return (self.basis * values[self.groups]).sum(axis=1)

    def losses(self, shift: Array) -> Array:
        """Log loss of each row, the log-odds shifted by so much."""
        return np.logaddexp(0.0, np.where(self.correct, -1.0, 1.0) * (self.log_odds + shift))


def patch_path(data: Patched, members: Array, rounds: int) -> Iterator[Array]:
    """Values (G×M) after 0, 1, …, `rounds` rounds; a patch is for a union of finest groups, members (P, G)."""
    n_groups, size = members.shape[1], data.basis.shape[1]
    values, score, curves = np.zeros((n_groups, size)), data.log_odds.copy(), np.zeros((n_groups, size, size))
    yield values.copy()
    for _ in range(rounds):
        chance = np.exp(-np.logaddexp(0.0, -score))
        residual, curve = data.weights * (data.correct - chance), data.weights * chance * (1 - chance)
        # gradient (P, M) and curvature (P, M, M) of each group's patch
        slopes = members @ np.stack([np.bincount(data.groups, residual * hat, n_groups) for hat in data.basis.T], 1)
        for i in range(size):
            # hats overlap with their neighbours only
            for j in range(i, min(i + 2, size)):
                product = data.basis[:, i] * data.basis[:, j]
                curves[:, i, j] = curves[:, j, i] = np.bincount(data.groups, curve * product, n_groups)
        prior = PRIOR_ROWS * max(float(curve.sum() / data.weights.sum()), 1e-6) * np.eye(size)
        steps = np.linalg.solve(np.einsum("pg,gij->pij", members, curves) + prior, slopes[:, :, None])[:, :, 0]
        best = int(np.argmax((slopes * steps).sum(axis=1)))
        values[members[best]] += RATE * steps[best]
        mine = np.flatnonzero(members[best][data.groups])
        score[mine] += RATE * (data.basis[mine] @ steps[best])
        yield values.copy()
