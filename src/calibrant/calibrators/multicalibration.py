"""Patches for groups of rows after any calibrator, until no group gains from one more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.base import clone

from calibrant.calibrators import maps
from calibrant.calibrators.group import GroupedCalibrator, group_names, row_losses, surely_gains
from calibrant.calibrators.learned import INNER, RECORD, Learned
from calibrant.calibrators.second_stage import top_label
from calibrant.calibrators.solvers.folds import FOLDS, content_folds
from calibrant.calibrators.solvers.patches import Patched, fit_patches, hats, patch_path
from calibrant.core.arrays import Array
from calibrant.core.errors import InputError
from calibrant.metrics.clinical import weighted_quantile

QUANTILES = (0.05, 0.275, 0.5, 0.725, 0.95)
"""Where the knots of a patch lie among the log-odds of the fit rows."""
MOST_ROUNDS = 40
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
        log_odds, correct = self._top(inner, rows.labels)
        weights = rows.mass()
        finite = np.flatnonzero(np.isfinite(log_odds) & (weights > 0))
        mass = None if rows.weights is None else weights[finite]
        knots = weighted_quantile(np.array(QUANTILES), log_odds[finite], mass) if len(finite) else np.zeros(1)
        self.knots_ = np.unique(knots)
        members = self._members()
        data = Patched(hats(log_odds, self.knots_), log_odds, correct, weights, rows.groups)
        self.rounds_ = self._rounds(rows, inner, data, members)
        values, self.objective_trace_ = fit_patches(data, members, self.rounds_)
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
            kept = data.take(np.flatnonzero(fold != part))
            if not kept.weights.sum() > 0:
                return 0
            for step, values in enumerate(patch_path(kept, members, MOST_ROUNDS)):
                shifts[step, out] = (data.basis[out] * values[rows.groups[out]]).sum(axis=1)
        losses = np.logaddexp(0.0, np.where(data.correct, -1.0, 1.0) * (data.log_odds + shifts))
        means = losses @ data.weights / data.weights.sum()
        best = int(np.argmin(means))
        if best == 0:
            return 0
        # the whole log loss decides: room that other classes make may cost more than the patch gains
        gain = row_losses(inner, rows.labels) - row_losses(self._shifted(inner, shifts[best]), rows.labels)
        return best if surely_gains(gain, data.weights, SURE) else 0

    def _top(self, inner: Array, labels: Array) -> tuple[Array, Array]:
        if inner.ndim == 1:
            return inner.astype(np.float64), labels == 1
        top = top_label(inner)
        return top.log_odds, top.prediction == labels

    def _shifted(self, inner: Array, shift: Array) -> Array:
        if inner.ndim == 1:
            return inner + shift.astype(inner.dtype)
        return maps.with_mapped_confidence(maps.numpy_space, inner, lambda present: present + shift[:, None])

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
            shift = _shift_at(xp, log_odds, self.knots_, lambda m: table[place + m][:, None])
            return log_odds + xp.astype(shift, log_odds.dtype)

        return change(answers[:, None])[:, 0] if binary else maps.with_mapped_confidence(xp, answers, change)


def _shift_at(xp: Any, log_odds: Any, knots: Array, values: Any) -> Any:
    """The patch (n, 1) of log-odds (n, 1), from a function that gives the values (n, 1) at a knot."""
    shift = values(0)
    for place in range(len(knots) - 1):
        along = (log_odds - float(knots[place])) / float(knots[place + 1] - knots[place])
        along = xp.minimum(xp.maximum(along, xp.zeros_like(along)), xp.ones_like(along))
        shift = shift + (values(place + 1) - values(place)) * along
    return shift
