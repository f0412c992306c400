"""Choose a calibrator by cross-validation, or average several, and say why."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone

from calibrant.calibrators.base import Calibrator, Identity
from calibrant.calibrators.kept_classes import KeptClasses
from calibrant.calibrators.label_shift import LabelShift
from calibrant.calibrators.learned import INNER, RECORD
from calibrant.calibrators.pool import PRIOR_ROWS, LinearPool, pool_rows, pool_weights
from calibrant.calibrators.registry import get
from calibrant.calibrators.solvers.folds import content_folds
from calibrant.core import progress
from calibrant.core.arrays import Array
from calibrant.core.errors import FitWarning, InputError
from calibrant.core.rows import Rows, two_columns
from calibrant.kernels.rows import scan
from calibrant.metrics.record import facts, sign

FEW_CLASSES = 40
"""Up to this many classes the default also fits two matrices at once (`joint`) and a scale for each class (`svs`)."""

SHIFTED_CANDIDATES = ("ts", "shape")
"""Tried under label shift: rare classes weigh much there, and are too few to learn parameters of their own from."""

BY_ROW = {"nll": "nll", "brier": "brier", "accuracy": "correct"}
"""Criteria that are means over rows, and the column they are the mean of."""

NOISE = 2.0
"""Standard errors by which held-out accuracy may fall before a method that changes predictions is refused."""


def default_candidates(n_classes: int, keep_predictions: bool = False) -> tuple[str, ...]:
    """What is averaged by default for K classes: from no parameter to penalised matrices.

    >>> default_candidates(2), default_candidates(100)
    (('bend',), ('none', 'ts', 'shape', 'conf+shape+top'))
    """
    kept = "+keep" if keep_predictions else ""
    if n_classes == 2:
        # it averages fits from free to nearly the identity, and a temperature has no lower limit on a few rows
        return (f"bend{kept}",)
    if n_classes > FEW_CLASSES:
        return ("none", "ts", "shape", f"conf+shape{kept}+top")
    return ("none", "ts", "shape", f"svs{kept}", f"conf+shape{kept}+top", f"joint+shape{kept}+top")


class AutoCalibrator(
    Calibrator, cross_fits=True, keeps_prediction=lambda own: own.keep_predictions and own.target_prior is None
):
    """Averages several methods, weighted by stratified cross-validation inside the fit data, or picks one of them.

    Every candidate predicts each row from a fit that has not seen it (`fit_held_out`) and is fitted to all rows. A
    candidate that changes predictions and thereby lowers held-out accuracy by more than two standard errors is refused.

    The default candidates are averaged: q = Σ_m w_m·p_m with the weights that make the held-out labels most likely, and
    a prior of a quarter of a row for each candidate; see `LinearPool`. Where nearly all rows are right, the likelihood
    hardly differs between candidates; the average then limits the loss from those that are overconfident.

    Candidates of your own, and those judged by another criterion than NLL, are picked from by the one-standard-error
    rule (Breiman et al. 1984, §3.4.3): of all whose criterion is within one standard error of the lowest, the one with
    the fewest parameters. The error is that of the paired difference over the rows, which is far smaller than that of
    either figure, so that a real improvement is not given away.

    On two columns the answer is that of the binary problem with the score z₁ − z₀.

    Parameters
    ----------
    candidates : sequence of short names or calibrators, or None
        None takes `bend` for two classes, `none ts shape svs conf+shape+top joint+shape+top` up to 40 classes,
        `none ts shape conf+shape+top` above, and `ts shape` under label shift.
    criterion : str or function
        "nll" (a proper score), or any other metric of `calibrant.metrics`, or a function of that signature; lower is
        better, except for accuracy and confidence_auroc.
    cv : int, or array (n,)
        Number of folds, stratified by the network's prediction, or the fold of each row. Stratified by the label they
        would confirm its chance counts: class parameters learned from them would look better than they are. Two classes
        are stratified by the label too.
    keep_predictions : bool
        Only methods that never change the predicted class. `reason_` says what that costs on these data.
    target_prior : None, "uniform", array (K,), or unlabelled logits (m, K)
        Class frequencies of the data to come, where they differ from the fit data's; see `LabelShift`.
    average : bool or None
        Average the candidates (True) or pick one (False); None averages the default ones. With another criterion than
        "nll" one is picked.
    seed : int
        Seed of the folds.

    Attributes
    ----------
    calibrator_ : the chosen calibrator or the average (`LinearPool`), fitted on all rows.
    chosen_ : its name; of an average "0.70 joint+shape+top + 0.30 shape".
    scores_ : cross-validated criterion of each candidate that worked, and of the average.
    standard_errors_ : standard error of each one's difference to the lowest.
    failures_ : why the others did not work.
    reason_ : one to three sentences.

    Examples
    --------
    >>> generator = np.random.default_rng(0)
    >>> labels = generator.integers(0, 3, 600)
    >>> logits = 4 * np.eye(3)[labels] + 4 * generator.normal(size=(600, 3))
    >>> AutoCalibrator(candidates=["none", "ts"]).fit(logits, labels).chosen_
    'ts'
    """

    learns = {
        "calibrator_": INNER,
        "chosen_": RECORD,
        "scores_": RECORD,
        "standard_errors_": RECORD,
        "failures_": RECORD,
        "reason_": RECORD,
    }

    def __init__(
        self,
        candidates: Sequence[Any] | None = None,
        criterion: str | Callable[..., float] = "nll",
        *,
        cv: Any = 5,
        keep_predictions: bool = False,
        target_prior: Any = None,
        average: bool | None = None,
        seed: int = 0,
    ) -> None:
        self.candidates = candidates
        self.criterion = criterion
        self.cv = cv
        self.keep_predictions = keep_predictions
        self.target_prior = target_prior
        self.average = average
        self.seed = seed

    def _fit(self, rows: Rows) -> None:
        self.calibrator_: Any
        if rows.n_classes == 2:
            rows = Rows(two_columns(rows.logits[:, 1] - rows.logits[:, 0]), rows.labels, rows.weights)
        shift = None
        if self.target_prior is not None:
            shift = LabelShift(Identity(), self.target_prior).fit_rows(rows)
            rows = shift.corrected(rows)
        candidates = self._candidates(rows.n_classes)
        self._metric()
        rows = replace(rows, every_class=shift is None)
        data = _Data(rows, self._folds(rows), rows.logits.argmax(axis=1) == rows.labels)
        self.failures_: dict[str, str] = {}
        trials: dict[str, _Trial] = {}
        for name, candidate in progress.each("cross-validating", candidates):
            try:
                trials[name] = self._try(clone(candidate), data)
            except Exception as error:
                self.failures_[name] = " ".join(str(error).split()) or type(error).__name__
        if not trials:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.failures_.items())
            raise InputError(f"none of the {len(candidates)} candidates could be fitted: {reasons}")
        self._choose(trials, data, self._pool(trials, data))
        if self.keep_predictions and self.candidates is None and shift is None:
            self.reason_ += self._price(trials[self.chosen_], data)
        for message in trials[self.chosen_].said:
            warnings.warn(message, stacklevel=4)
        if shift is not None:
            shift.calibrator, shift.calibrator_ = clone(self.calibrator_), self.calibrator_
            self.calibrator_ = shift
        elif 1 < len(rows.present()) < rows.n_classes:
            self.calibrator_ = KeptClasses.around(self.calibrator_, rows)

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        return self.calibrator_._map(xp, logits, learned.calibrator_)

    def _try(self, candidate: Any, data: _Data) -> _Trial:
        """Fit a candidate to all rows, and score its held-out answers."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FitWarning)
            held_out = candidate.fit_held_out(data.rows, data.fold)
        return self._judge(candidate, held_out, data, [one.message for one in caught])

    def _judge(self, calibrator: Any, held_out: Array, data: _Data, said: list[Any]) -> _Trial:
        """What held-out answers are worth: their loss, and what they change in being right."""
        rows = data.rows
        gain = (held_out.argmax(axis=1) == rows.labels).astype(np.float64) - data.right
        lowers = np.average(gain, weights=rows.weights) < -NOISE * _standard_error(gain, rows.weights)
        losses = self._losses(held_out, data)
        mean = float(np.average(losses, weights=self._row_weights(rows)))
        return _Trial(calibrator, held_out, losses, mean, gain, bool(lowers), said)

    def _pool(self, trials: dict[str, _Trial], data: _Data) -> str | None:
        """Add the average of the candidates to the trials; its name, or that of the one that has all the weight."""
        if self.criterion != "nll" or not (self.candidates is None if self.average is None else self.average):
            return None
        used = [name for name, one in trials.items() if not one.lowers]
        if len(used) < 2:
            return None
        # the losses are held-out log-probabilities of the true class with the other sign
        own = np.stack([-trials[name].losses for name in used], axis=1)
        weights, _ = pool_weights(own, data.rows.weights, PRIOR_ROWS)
        order = [place for place in np.argsort(-weights, kind="stable") if weights[place] > 0]
        if len(order) == 1:
            return used[order[0]]
        members = [trials[used[place]] for place in np.flatnonzero(weights)]
        pool = LinearPool.of([one.calibrator for one in members], weights[weights > 0])
        held_out = pool_rows([one.held_out for one in members], pool.weights_)
        name = " + ".join(f"{weights[place]:.2f} {used[place]}" for place in order)
        # what shakes a member of little weight does not shake the average
        heavy = [one for one, weight in zip(members, pool.weights_, strict=True) if weight >= 0.5]
        said = [message for one in heavy for message in one.said]
        trials[name] = self._judge(pool, held_out, data, said)
        return name

    def _price(self, kept: _Trial, data: _Data) -> str:
        """What keeping predictions costs: the best method that may change them beside the chosen one."""
        name = default_candidates(data.rows.n_classes)[-1]
        try:
            free = self._try(get(name), data)
        except Exception:
            return ""
        if kept.mean <= free.mean:
            return f" Keeping predictions costs nothing here: {name} is no better."
        points = 100 * np.average(free.gain - kept.gain, weights=data.rows.weights)
        return (
            f" Keeping predictions costs {kept.mean - free.mean:.4f} in {self._criterion_name} and {points:.2f} points "
            f"of accuracy: {name} would reach {self._sign * free.mean:.4f}."
        )

    def _transform(self, logits: Array) -> Array:
        return self.calibrator_._transform(logits)

    def _candidates(self, n_classes: int) -> dict[str, Any]:
        given = self.candidates
        if given is None:
            shifted = self.target_prior is not None
            given = SHIFTED_CANDIDATES if shifted else default_candidates(n_classes, self.keep_predictions)
        if isinstance(given, str):
            raise InputError(f"candidates must be a list, got the text {given!r}: give [{given!r}]")
        built: dict[str, Any] = {}
        for one in given:
            name, calibrator = (one, get(one)) if isinstance(one, str) else (type(one).__name__, clone(one))
            while name in built:
                name += "'"
            built[name] = calibrator
        if self.keep_predictions:
            built = {name: one for name, one in built.items() if one.keeps_prediction}
        if not built:
            rule = " that keep every prediction" if self.keep_predictions else ""
            raise InputError(f"no candidates{rule} among {len(given)}: give at least one, for example 'ts'")
        return built

    def _folds(self, rows: Rows) -> Array:
        """The fold of each row (n,)."""
        if isinstance(self.cv, (int, np.integer)) and not isinstance(self.cv, bool) and self.cv >= 2:
            return content_folds(rows, min(int(self.cv), rows.n), self.seed)
        given = np.asarray(self.cv)
        if given.dtype.kind not in "iu" or given.shape != (rows.n,):
            raise InputError(f"cv must be a whole number of at least 2, or the fold of each row, got {self.cv!r}")
        return given

    def _losses(self, held_out: Array, data: _Data) -> Array:
        """Loss of every held-out row, or of every fold where the criterion is no mean over rows."""
        rows, fold = data.rows, data.fold
        if self.criterion in BY_ROW:
            columns = scan(held_out, rows.labels, from_logits=True, columns="scores")
            losses = getattr(columns, BY_ROW[self.criterion]).astype(np.float64)
        else:
            figures = []
            for part in np.unique(fold):
                held, answers = rows.take(fold == part), held_out[fold == part]
                figures.append(self._metric()(answers, held.labels, sample_weight=held.weights, from_logits=True))
            losses = np.array(figures, dtype=np.float64)
        return self._sign * losses

    @property
    def _sign(self) -> float:
        return sign(self.criterion) if isinstance(self.criterion, str) else 1.0

    def _metric(self) -> Callable[..., float]:
        if callable(self.criterion):
            return self.criterion
        from calibrant import metrics

        name = facts(self.criterion).name
        function = getattr(metrics, name, None)
        if not callable(function) or isinstance(function, type):
            raise InputError(
                f"criterion {self.criterion!r} is not a metric: use nll, brier, ece or another name of one"
            )
        return function

    def _row_weights(self, rows: Rows) -> Array | None:
        """Weights of the losses: those of the rows where there is one loss per row."""
        return rows.weights if self.criterion in BY_ROW else None

    @property
    def _criterion_name(self) -> str:
        return self.criterion if isinstance(self.criterion, str) else self.criterion.__name__

    def _choose(self, trials: dict[str, _Trial], data: _Data, pool: str | None) -> None:
        weights = data.rows.weights
        allowed = [name for name, one in trials.items() if not one.lowers] or list(trials)
        lowest = min(allowed, key=lambda name: trials[name].mean)
        self.standard_errors_ = {
            name: _standard_error(one.losses - trials[lowest].losses, self._row_weights(data.rows))
            for name, one in trials.items()
        }
        near = [name for name in allowed if trials[name].mean <= trials[lowest].mean + self.standard_errors_[name]]
        simplest = min(near, key=lambda name: (trials[name].calibrator.n_parameters_, trials[name].mean))
        self.chosen_ = pool if pool in allowed else simplest
        chosen = trials[self.chosen_]
        self.calibrator_ = chosen.calibrator
        self.scores_ = {name: self._sign * one.mean for name, one in trials.items()}
        self.reason_ = self._reason(lowest, trials, len(np.unique(data.fold)), pool)
        for name, one in trials.items():
            if name not in allowed and one.mean < trials[lowest].mean:
                lost = -100 * np.average(one.gain, weights=weights)
                self.reason_ += f" {name} was refused: it lowers held-out accuracy by {lost:.2f} points."
        if chosen.gain.any():
            points = 100 * np.average(chosen.gain, weights=weights)
            self.reason_ += f" It changes predictions: held-out accuracy {points:+.2f} points."

    def _reason(self, lowest: str, trials: dict[str, _Trial], n_folds: int, pool: str | None) -> str:
        criterion, chosen, scores = self._criterion_name, self.chosen_, self.scores_
        if chosen == pool and isinstance(trials[chosen].calibrator, LinearPool):
            alone = min((name for name in scores if name != pool), key=lambda name: scores[name])
            return (
                f"{chosen}: this average has the cross-validated nll {scores[chosen]:.4f} over {n_folds} folds; the "
                f"best of {len(scores) - 1} methods alone, {alone}, has {scores[alone]:.4f}."
            )
        among = f"of {len(scores)} methods over {n_folds} folds"
        if len(trials) == 1:
            return f"{chosen} has the cross-validated {criterion} {scores[chosen]:.4f} over {n_folds} folds."
        if chosen == lowest:
            return f"{chosen} has the best cross-validated {criterion}, {scores[chosen]:.4f}, {among}."
        return (
            f"{chosen} ({criterion} {scores[chosen]:.4f}, {_parameters(trials[chosen].calibrator)}) is within one "
            f"standard error ({self.standard_errors_[chosen]:.4f}) of the best {among}, {lowest} "
            f"({scores[lowest]:.4f}, {_parameters(trials[lowest].calibrator)}), and simpler."
        )


class _Data(NamedTuple):
    """The rows, the fold of each, and whether the network itself is right."""

    rows: Rows
    fold: Array
    right: Array


class _Trial(NamedTuple):
    """A candidate fitted to all rows, and what its held-out answers are worth.

    `gain` is the change of each row in being right, and `lowers` says whether accuracy falls beyond noise.
    """

    calibrator: Any
    held_out: Array
    losses: Array
    mean: float
    gain: Array
    lowers: bool
    said: list[Any]


def _standard_error(difference: Array, weights: Array | None) -> float:
    """Of a mean; a weight of 2 counts as the row twice."""
    mass = np.ones(len(difference)) if weights is None else weights
    total = mass.sum()
    if len(difference) < 2 or total <= 0:
        return 0.0
    # weights that sum to less than 2 cannot be counts: then it is their spread that says how many rows there are
    count = total if total >= 2 else total**2 / (mass**2).sum()
    mean = np.average(difference, weights=mass)
    variance = np.average((difference - mean) ** 2, weights=mass)
    return float(np.sqrt(variance / max(count - 1, 1e-12)))


def _parameters(calibrator: Any) -> str:
    count = int(calibrator.n_parameters_)
    return f"{count} parameter{'' if count == 1 else 's'}"
