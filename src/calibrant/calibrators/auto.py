"""Choose a calibrator by cross-validation, or average several, and say why."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone

from calibrant.calibrators import maps
from calibrant.calibrators.base import Calibrator, Identity
from calibrant.calibrators.label_shift import LabelShift
from calibrant.calibrators.learned import INNER, RECORD, Learned, scales_classes
from calibrant.calibrators.pool import PRIOR_ROWS, LinearPool, pool_rows, pool_weights
from calibrant.calibrators.posterior_temperature import PosteriorTemperatureScaling
from calibrant.calibrators.registry import get
from calibrant.calibrators.solvers.folds import content_folds, sample_rows
from calibrant.core import progress
from calibrant.core.arrays import Array
from calibrant.core.errors import FitWarning, InputError, NoOptimumWarning, warn_user
from calibrant.core.rows import Rows, two_columns, warn_of_selection
from calibrant.core.softmax import softmax
from calibrant.core.threads import row_blocks
from calibrant.core.zeros import LOG_EPS
from calibrant.kernels.rows import scan
from calibrant.metrics.record import facts, sign

FEW_CLASSES = 40
"""Up to this many classes the default also fits two matrices at once (`joint`) and a scale for each class (`svs`)."""

SHIFTED_CANDIDATES = ("ts", "shape")
"""Tried under label shift: rare classes weigh much there, and are too few to learn parameters of their own from."""

BY_ROW = {"nll": "nll", "brier": "brier", "accuracy": "correct"}
"""Criteria that are means over rows, and the column they are the mean of."""

EVIDENCE_FACTOR = 0.5
"""Part of the evidence that counts: half of it makes the weights robust to models that are all wrong."""

EVIDENCE_PRIOR = (3.0, 2.0, 1.0)
"""Prior weights of no calibration, a temperature and the average of the candidates."""

MIN_WEIGHT = 0.01
"""A method with a smaller weight is left out of the average."""

FEWEST_ROWS = 10
"""With fewer rows the predictions stay unchanged."""

OPTIONS = {"weights_are": ("rows", "counts"), "absent": (None, "keep", "never")}
"""Values of parameters that take one of a few."""

NOISE = 2.0
"""Standard errors by which held-out accuracy may fall before a method that changes predictions is refused."""


def default_candidates(n_classes: int, keep_predictions: bool = False) -> tuple[str, ...]:
    """What is averaged by default for K classes: from no parameter to penalised matrices.

    >>> default_candidates(2), default_candidates(100)
    (('bend',), ('none', 'ts', 'shape', 'conf+shape+top'))
    """
    kept = "+keep" if keep_predictions else ""
    if n_classes == 2:
        # it averages fits from free to nearly the identity; the average by evidence adds the temperature
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
    a prior of a quarter of a row for each candidate; see `LinearPool`.

    Few rows determine little. The average of the candidates is therefore averaged with no calibration and with
    `PosteriorTemperatureScaling`, with weights proportional to π·exp(L/2): π is 3 : 2 : 1 for no calibration,
    temperature and candidates; L is the log-likelihood of the rows without calibration, the log evidence of the
    temperature, and −n times the held-out log loss of the candidates. From some hundred rows on the candidates usually
    have all the weight. With fewer than 10 rows the predictions stay unchanged.

    Candidates of your own, and those judged by another criterion than NLL, are picked from by the one-standard-error
    rule (Breiman et al. 1984, §3.4.3): of all whose criterion is within one standard error of the lowest, the one with
    the fewest parameters. The error is that of the paired difference over the rows, which is far smaller than that of
    either figure, so that a real improvement is not given away.

    Of more than two classes, a class without fit rows gets its probability in the average of the members that treat all
    classes alike (no calibration, temperatures, `shape`), multiplied by 1/max(1, 3·(m − 2)), where m is the sum of that
    probability over the fit rows: the number of labels of the class that a calibrated model would have expected. The
    other classes share the rest. A class that few rows lack by chance keeps its probability; an option that is never
    right loses it as the rows increase. `PosteriorTemperatureScaling` replaces the average if it has no such member.

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
    absent : None, "keep" or "never"
        Classes without fit rows: "keep" replaces their factor by 1, "never" gives them the probability of a zero,
        exp(`log_floor_`). Not used with `target_prior`. Predictions may know the setting (`Predictions.absent`). Of two
        classes, a class without fit rows keeps its probability in the average unless the setting is "never".
    weights_are : {"rows", "counts"}
        "rows" rescales the weights in L so that they sum to the number of rows: weights of a survey are no copies.
        "counts" uses them unchanged: a weight of 2 stands for two rows.
    seed : int
        Seed of the folds.

    Attributes
    ----------
    calibrator_ : the chosen calibrator or the average (`LinearPool`), fitted on all rows.
    chosen_ : its name; of an average "0.58 none + 0.35 ts-bayes + 0.07 bend".
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
        "symmetric_": INNER._replace(optional=True),
        "factors_": Learned(("K",), -1.0, 1.0, free=False, optional=True),
        "least_": Learned((), 0.0, 1.0, free=False, optional=True),
        "expected_": RECORD,
        "absent_setting_": RECORD,
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
        absent: str | None = None,
        weights_are: str = "rows",
        seed: int = 0,
    ) -> None:
        self.candidates = candidates
        self.criterion = criterion
        self.cv = cv
        self.keep_predictions = keep_predictions
        self.target_prior = target_prior
        self.average = average
        self.absent = absent
        self.weights_are = weights_are
        self.seed = seed

    def _fit(self, rows: Rows) -> None:
        self.calibrator_: Any
        self._check_options()
        if rows.n_classes == 2:
            rows = replace(rows, logits=two_columns(rows.logits[:, 1] - rows.logits[:, 0]))
        chosen, shift, all_rows = sample_rows(rows, self.seed), None, rows
        if chosen is not None:
            rows = rows.take(chosen)
        fold = self._folds(rows, all_rows.n, slice(None) if chosen is None else chosen)
        if self.target_prior is not None:
            shift = LabelShift(Identity(), self.target_prior).fit_rows(rows)
            rows = shift.corrected(rows)
        rows = replace(rows, every_class=shift is None)
        all_rows = rows if chosen is None or shift is not None else replace(all_rows, every_class=True)
        data = _Data(rows, fold, rows.logits.argmax(axis=1) == rows.labels, all_rows)
        n_rows = self._n_rows(all_rows)
        is_enough = not self._averages_by_evidence or n_rows >= FEWEST_ROWS
        trials = self._fit_trials(self._candidates(rows.n_classes) if is_enough else {"none": Identity()}, data)
        weights, shares = self._candidate_weights(trials, data) or {self._simplest(trials, data): 1.0}, ""
        if self._averages_by_evidence and is_enough:
            weights, shares = self._weigh_evidence(trials, data, weights)
        self._choose(trials, data, weights)
        if not is_enough:
            self.reason_ = f"{n_rows:.6g} rows: predictions unchanged; calibration needs {FEWEST_ROWS} rows or more."
            return
        if shares:
            self.reason_ = f"{n_rows:,.6g} rows: {shares}. {self.reason_}"
        if chosen is not None:
            self.reason_ += f" Candidates were fitted to a sample of {rows.n:,} of {all_rows.n:,} rows."
        if self.keep_predictions and self.candidates is None and shift is None:
            self.reason_ += self._price(trials[self.chosen_], data)
        for message in trials[self.chosen_].said:
            # an average by evidence does not rely on a candidate without an optimum
            if not (self._averages_by_evidence and isinstance(message, NoOptimumWarning)):
                warnings.warn(message, stacklevel=4)
        if shift is not None:
            shift.calibrator, shift.calibrator_ = clone(self.calibrator_), self.calibrator_
            self.calibrator_ = shift
        else:
            self._limit_absent(all_rows)

    def _sample_rows(self, rows: Rows) -> Rows:
        # only the candidates are fitted to a sample
        return rows

    def _keep_floor(self, log_floor: float) -> None:
        is_unchanged = isinstance(self.calibrator_, Identity) and self.task_ != "multiclass"
        super()._keep_floor(min(log_floor, LOG_EPS) if is_unchanged else log_floor)

    def _check_options(self) -> None:
        """Raise InputError at a bad parameter, and forget an earlier fit."""
        self._metric()
        for name, values in OPTIONS.items():
            if getattr(self, name) not in values:
                raise InputError(f"{name} must be one of {values}, got {getattr(self, name)!r}")
        for name in ("symmetric_", "factors_", "least_"):
            self.__dict__.pop(name, None)

    def _fit_trials(self, candidates: dict[str, Any], data: _Data) -> dict[str, _Trial]:
        """The candidates that could be fitted."""
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
        return trials

    def _limit_absent(self, rows: Rows) -> None:
        """Learn the factors of the classes without fit rows."""
        absent, setting = rows.class_weight() == 0, self.absent or rows.absent or "expected"
        if not absent.any() or (rows.n_classes == 2 and setting != "never"):
            return
        rows = self._as_evidence(rows)
        self.symmetric_ = self._symmetric_average(rows)
        self.expected_ = np.sum(
            [
                rows.mass()[block] @ softmax(self.symmetric_._calibrated(rows.logits[block].astype(np.float64)))
                for block in row_blocks(*rows.shape)
            ],
            axis=0,
        )
        factors = {"keep": 1.0, "never": 0.0, "expected": 1 / np.maximum(1.0, 3 * (self.expected_ - 2))}[setting]
        # −1 stands for a class that has fit rows
        self.factors_, self.absent_setting_ = np.where(absent, factors, -1.0), setting
        self.least_ = float(np.exp(rows.log_floor)) if setting == "never" else 0.0

    def _symmetric_average(self, rows: Rows) -> Calibrator:
        """Average of the members that treat all classes alike, with their weights in `calibrator_`."""
        average = self.calibrator_
        is_pool = isinstance(average, LinearPool)
        members, weights = (average.calibrators_, average.weights_) if is_pool else ([average], np.ones(1))
        weights = np.where([scales_classes(one) for one in members], 0.0, weights)
        if not weights.any():
            return PosteriorTemperatureScaling().fit_rows(rows)
        return LinearPool.of(members, weights / weights.sum())

    def _warn_of_selection(self, rows: Rows) -> None:
        if not self.limits_absent:
            return super()._warn_of_selection(rows)
        warn_of_selection(rows, by_class=False)
        absent = np.flatnonzero(self.factors_ >= 0)
        listed = [", ".join(f"{one:.3g}" for one in values[absent[:5]]) for values in (self.expected_, self.factors_)]
        warn_user(
            f"{len(absent)} of {rows.n_classes} classes have no fit rows ({', '.join(map(str, absent[:5]))}"
            f"{', …' * (len(absent) > 5)}), where {listed[0]} labels were expected: their probabilities are multiplied "
            f"by {listed[1]} (absent={self.absent_setting_!r}). Use absent='keep' if the rows were selected by class, "
            "absent='never' if these classes are never right"
        )

    @property
    def n_parameters_(self) -> int:
        """Number of parameters of the chosen calibrator or the average."""
        return int(self.calibrator_.n_parameters_)

    @property
    def limits_absent(self) -> bool:
        """Whether the fit has classes without rows."""
        return "factors_" in vars(self)

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        answer = self.calibrator_._map(xp, logits, learned.calibrator_)
        if not self.limits_absent:
            return answer
        plain = xp.softmax_of_rows(maps.wide(xp, self.symmetric_._map(xp, logits, learned.symmetric_)))
        absent = learned.factors_ >= 0
        zero = xp.zeros_like(plain)
        shares = xp.where(absent, xp.maximum(plain * learned.factors_, zero + learned.least_), zero)
        rest = xp.log(xp.at_least(1.0 - xp.sum(shares, axis=1, keepdims=True), 1e-300))
        present = xp.log_softmax_of_rows(xp.where(absent, zero - xp.inf, maps.wide(xp, answer)))
        limited = maps.like(xp, xp.where(absent, maps.log_probabilities(xp, shares), present + rest), logits)
        return xp.keep_prediction(limited, maps.prediction(xp, logits)) if self.keeps_prediction else limited

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

    def _candidate_weights(self, trials: dict[str, _Trial], data: _Data) -> dict[str, float]:
        """Weights of the candidates in their average; empty if one candidate is chosen instead."""
        if self.criterion != "nll" or not (self.candidates is None if self.average is None else self.average):
            return {}
        used = [name for name, one in trials.items() if not one.lowers]
        if len(used) < 2:
            return {}
        # the losses are held-out log-probabilities of the true class with the other sign
        own = np.stack([-trials[name].losses for name in used], axis=1)
        weights, _ = pool_weights(own, data.rows.weights, PRIOR_ROWS)
        return {name: weight for name, weight in zip(used, weights.tolist(), strict=True) if weight > 0}

    @property
    def _averages_by_evidence(self) -> bool:
        """Whether the candidates are averaged with no calibration and a temperature."""
        return self.candidates is None and self.criterion == "nll" and self.average is not False

    def _n_rows(self, rows: Rows) -> float:
        """Number of rows that count."""
        return rows.total_weight * (1.0 if self.weights_are == "counts" else rows.rows_per_weight)

    def _as_evidence(self, rows: Rows) -> Rows:
        """The rows with weights that sum to the number of rows that count."""
        scale = self._n_rows(rows) / rows.total_weight
        return rows if scale == 1 else rows.with_weights(scale * rows.mass())

    def _weigh_evidence(
        self, trials: dict[str, _Trial], data: _Data, weights: dict[str, float]
    ) -> tuple[dict[str, float], str]:
        """Average the candidates with no calibration and a temperature: weights, and their description.

        The description is empty if the candidates have all the weight. The other two join the trials if they have some.
        """
        rows, (name, rich) = self._as_evidence(data.all_rows), self._average_trials(trials, data, weights)
        plain = trials.get("none") or self._judge(Identity().fit_rows(data.rows), data.rows.logits, data, [])
        posterior, n_rows = PosteriorTemperatureScaling().fit_rows(rows), rows.total_weight
        loss = plain.mean
        if rows.n != data.rows.n:
            losses = scan(rows.logits, rows.labels, from_logits=True, columns="scores").nll
            loss = float(np.average(losses, weights=rows.weights))
        # differences to no calibration are paired, so that a sample of the rows shows them well
        evidence = np.array([-n_rows * loss, posterior.log_evidence_, -n_rows * (loss + rich.mean - plain.mean)])
        shares = drop_small(softmax(EVIDENCE_FACTOR * evidence + np.log(EVIDENCE_PRIOR))).tolist()
        if shares[2] == 1:
            return weights, ""
        trials["none"], found = plain, {one: shares[2] * weight for one, weight in weights.items()}
        found["none"] = shares[0] + found.get("none", 0.0)
        if shares[1]:
            # one parameter: its loss on the fit rows is nearly that on held-out ones
            trials["ts-bayes"] = self._judge(posterior, posterior._calibrated(data.rows.logits), data, [])
            found["ts-bayes"] = shares[1]
        near = np.exp(posterior.weights_ @ np.log(posterior.temperatures_))
        candidates = f"average of {len(weights)} methods" if len(weights) > 1 else name
        named = sorted(
            zip(shares, ("unchanged", f"temperature near {near:.2g}", candidates), strict=True), reverse=True
        )
        parts = ", ".join(f"{words} ({share:.2f})" for share, words in named if share)
        kept = drop_small(np.array(list(found.values()))).tolist()
        found = {one: weight for one, weight in zip(found, kept, strict=True) if weight}
        return found, "mostly " * (0.5 <= max(shares) < 1) + parts

    def _average_trials(self, trials: dict[str, _Trial], data: _Data, weights: dict[str, float]) -> tuple[str, _Trial]:
        """The weighted average of some trials, with its name."""
        names = [name for name in trials if name in weights]
        if len(names) == 1:
            return names[0], trials[names[0]]
        members, shares = [trials[name] for name in names], np.array([weights[name] for name in names])
        pool = LinearPool.of([one.calibrator for one in members], shares)
        held_out = pool_rows([one.held_out for one in members], pool.weights_)
        # a warning about a member of little weight does not concern the average
        said = [message for one, share in zip(members, shares, strict=True) if share >= 0.5 for message in one.said]
        order = sorted(names, key=lambda name: -weights[name])
        return " + ".join(f"{weights[name]:.2f} {name}" for name in order), self._judge(pool, held_out, data, said)

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
        return super()._transform(logits) if self.limits_absent else self.calibrator_._transform(logits)

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

    def _folds(self, rows: Rows, n_given: int, chosen: Array | slice) -> Array:
        """The fold of each row (n,), the `chosen` of all given rows."""
        if isinstance(self.cv, (int, np.integer)) and not isinstance(self.cv, bool) and self.cv >= 2:
            return content_folds(rows, min(int(self.cv), rows.n), self.seed)
        given = np.asarray(self.cv)
        if given.dtype.kind not in "iu" or given.shape != (n_given,):
            raise InputError(f"cv must be a whole number of at least 2, or the fold of each row, got {self.cv!r}")
        return given[chosen]

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

    def _allowed(self, trials: dict[str, _Trial]) -> list[str]:
        """Trials that do not lower accuracy; all trials if each one does."""
        return [name for name, one in trials.items() if not one.lowers] or list(trials)

    def _differences(self, trials: dict[str, _Trial], data: _Data) -> tuple[str, dict[str, float]]:
        """The trial with the lowest criterion, and the standard error of the difference of each trial to it."""
        lowest = min(self._allowed(trials), key=lambda name: trials[name].mean)
        base, weights = trials[lowest].losses, self._row_weights(data.rows)
        return lowest, {name: _standard_error(one.losses - base, weights) for name, one in trials.items()}

    def _simplest(self, trials: dict[str, _Trial], data: _Data) -> str:
        """The trial with the fewest parameters within one standard error of the lowest criterion."""
        lowest, errors = self._differences(trials, data)
        near = [name for name in self._allowed(trials) if trials[name].mean <= trials[lowest].mean + errors[name]]
        return min(near, key=lambda name: (trials[name].calibrator.n_parameters_, trials[name].mean))

    def _choose(self, trials: dict[str, _Trial], data: _Data, weights: dict[str, float]) -> None:
        """Take the weighted average of the trials, and give the reason."""
        self.chosen_, chosen = self._average_trials(trials, data, weights)
        trials[self.chosen_] = chosen
        lowest, self.standard_errors_ = self._differences(trials, data)
        self.calibrator_ = chosen.calibrator
        self.scores_ = {name: self._sign * one.mean for name, one in trials.items()}
        self.reason_ = self._reason(lowest, trials, len(np.unique(data.fold)), len(weights) > 1)
        allowed = self._allowed(trials)
        for name, one in trials.items():
            if name not in allowed and one.mean < trials[lowest].mean:
                lost = -100 * np.average(one.gain, weights=data.rows.weights)
                self.reason_ += f" {name} was refused: it lowers held-out accuracy by {lost:.2f} points."
        if chosen.gain.any():
            points = 100 * np.average(chosen.gain, weights=data.rows.weights)
            self.reason_ += f" It changes predictions: held-out accuracy {points:+.2f} points."

    def _reason(self, lowest: str, trials: dict[str, _Trial], n_folds: int, is_average: bool) -> str:
        criterion, chosen, scores = self._criterion_name, self.chosen_, self.scores_
        if is_average:
            alone = min((name for name in scores if name != chosen), key=lambda name: scores[name])
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
    """The rows of the candidates, the fold of each, whether the network itself is right, and all rows."""

    rows: Rows
    fold: Array
    right: Array
    all_rows: Rows


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


def drop_small(weights: Array) -> Array:
    """Weights that sum to one, without those below `MIN_WEIGHT`."""
    kept = np.where(weights < MIN_WEIGHT, 0.0, weights)
    return kept / kept.sum()


def _parameters(calibrator: Any) -> str:
    count = int(calibrator.n_parameters_)
    return f"{count} parameter{'' if count == 1 else 's'}"
