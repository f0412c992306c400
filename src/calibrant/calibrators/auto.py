"""Choose a calibrator by cross-validation, and say why."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sklearn.base import clone

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.identity import Identity
from calibrant.calibrators.label_shift import LabelShift
from calibrant.calibrators.learned import INNER, RECORD
from calibrant.calibrators.registry import get
from calibrant.core import progress
from calibrant.core.errors import FitWarning, InputError
from calibrant.core.metric_facts import known_name, sign
from calibrant.core.rows import Rows
from calibrant.kernels.rows import scan

CANDIDATES = ("ts", "shape", "conf+shape+keep+top")
"""Tried by default: from one parameter to a penalised confusion matrix.

Not among them: `none`, which no temperature does worse than, but which 200 rows may fail to tell from one."""

SHIFTED_CANDIDATES = ("ts", "shape")
"""Tried under label shift: rare classes weigh much there, and are too few to learn parameters of their own from."""

BY_ROW = {"nll": "nll", "brier": "brier", "accuracy": "correct"}
"""Criteria that are means over rows, and the column they are the mean of."""


class AutoCalibrator(Calibrator):
    """Picks, by stratified cross-validation inside the fit data, the simplest method that is as good as the best.

    Every candidate predicts each row from a fit that has not seen it (`fit_held_out`). The one-standard-error rule
    (Breiman et al. 1984, §3.4.3) then takes, of all candidates whose criterion is within one standard error of the
    lowest, the one with the fewest parameters. The error is that of the paired difference over the rows, which is far
    smaller than that of either figure, so that a real improvement is not given away. The choice is fitted to all rows.

    Parameters
    ----------
    candidates : sequence of short names or calibrators, or None
        None tries `ts shape conf+shape+keep+top`, and `ts shape` under label shift.
    criterion : str or function
        "nll" (a proper score), or any other metric of `calibrant.metrics`, or a function of that signature; lower is
        better, except for accuracy and confidence_auroc.
    cv : int, or array (n,)
        Number of folds, stratified by the network's prediction, or the fold of each row. Stratified by the label they
        would confirm its chance counts: class parameters learned from them would look better than they are.
    keep_predictions : bool
        Only methods that never change the predicted class.
    target_prior : None, "uniform", array (K,), or unlabelled logits (m, K)
        Class frequencies of the data to come, where they differ from the fit data's; see `LabelShift`.
    seed : int
        Seed of the folds.

    Attributes
    ----------
    calibrator_ : the chosen calibrator, fitted on all rows.
    chosen_ : its name.
    scores_ : cross-validated criterion of each candidate that worked.
    standard_errors_ : standard error of each one's difference to the lowest.
    failures_ : why the others did not work.
    reason_ : one sentence.

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
        seed: int = 0,
    ) -> None:
        self.candidates = candidates
        self.criterion = criterion
        self.cv = cv
        self.keep_predictions = keep_predictions
        self.target_prior = target_prior
        self.seed = seed

    @property
    def n_parameters_(self) -> int:
        """Parameters of the chosen calibrator."""
        return int(self.calibrator_.n_parameters_)

    def _fit(self, rows: Rows) -> None:
        self.calibrator_: Any
        shift = None
        if self.target_prior is not None:
            shift = LabelShift(Identity(), self.target_prior).fit_rows(rows)
            rows = shift.corrected(rows)
        candidates = self._candidates()
        self._metric()
        fold = self._folds(rows)
        fitted: dict[str, Any] = {}
        losses: dict[str, np.ndarray] = {}
        said: dict[str, list[Any]] = {}
        self.failures_: dict[str, str] = {}
        for place, (name, candidate) in enumerate(candidates.items()):
            progress.step("cross-validating", place, len(candidates), name)
            one = clone(candidate)
            try:
                with warnings.catch_warnings(record=True) as said[name]:
                    warnings.simplefilter("always", FitWarning)
                    losses[name] = self._losses(one.fit_held_out(rows, fold), rows, fold)
                fitted[name] = one
            except Exception as error:
                self.failures_[name] = " ".join(str(error).split()) or type(error).__name__
        progress.step("cross-validating", len(candidates), len(candidates))
        if not losses:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.failures_.items())
            raise InputError(f"none of the {len(candidates)} candidates could be fitted: {reasons}")
        self._choose(fitted, losses, rows.weights, len(np.unique(fold)))
        for one in said[self.chosen_]:
            warnings.warn(one.message, stacklevel=4)
        if shift is not None:
            shift.calibrator, shift.calibrator_ = clone(self.calibrator_), self.calibrator_
            self.calibrator_ = shift

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        return self.calibrator_._map(xp, logits, learned.calibrator_)

    def _transform(self, logits: np.ndarray) -> np.ndarray:
        return self.calibrator_._transform(logits)

    def _candidates(self) -> dict[str, Any]:
        given = self.candidates
        if given is None:
            given = CANDIDATES if self.target_prior is None else SHIFTED_CANDIDATES
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

    def _folds(self, rows: Rows) -> np.ndarray:
        """The fold of each row (n,)."""
        if isinstance(self.cv, (int, np.integer)) and not isinstance(self.cv, bool) and self.cv >= 2:
            return stratified_folds(rows.logits.argmax(axis=1), min(int(self.cv), rows.n), self.seed)
        given = np.asarray(self.cv)
        if given.dtype.kind not in "iu" or given.shape != (rows.n,):
            raise InputError(f"cv must be a whole number of at least 2, or the fold of each row, got {self.cv!r}")
        return given

    def _losses(self, held_out: np.ndarray, rows: Rows, fold: np.ndarray) -> np.ndarray:
        """Loss of every held-out row, or of every fold where the criterion is no mean over rows."""
        by_row = BY_ROW.get(self.criterion) if isinstance(self.criterion, str) else None
        if by_row:
            columns = scan(held_out, rows.labels, from_logits=True, columns="scores")
            losses = getattr(columns, by_row).astype(np.float64)
        else:
            figures = []
            for part in np.unique(fold):
                held = rows.take(np.flatnonzero(fold == part))
                answers = held_out[fold == part]
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

        name = known_name(self.criterion)
        function = getattr(metrics, name, None)
        if not callable(function) or isinstance(function, type):
            raise InputError(f"criterion {self.criterion!r} is no metric: use nll, brier, ece or another metric's name")
        return function

    def _choose(
        self, fitted: dict[str, Any], losses: dict[str, np.ndarray], weights: np.ndarray | None, n_folds: int
    ) -> None:
        by_row = isinstance(self.criterion, str) and self.criterion in BY_ROW
        weights = weights if by_row else None
        means = {name: float(np.average(loss, weights=weights)) for name, loss in losses.items()}
        lowest = min(means, key=lambda name: means[name])
        self.standard_errors_ = {name: _standard_error(loss - losses[lowest], weights) for name, loss in losses.items()}
        near = [name for name in means if means[name] <= means[lowest] + self.standard_errors_[name]]
        self.chosen_ = min(near, key=lambda name: (fitted[name].n_parameters_, means[name]))
        self.calibrator_ = fitted[self.chosen_]
        self.scores_ = {name: self._sign * mean for name, mean in means.items()}
        self.reason_ = self._reason(lowest, fitted, n_folds)

    def _reason(self, lowest: str, fitted: dict[str, Any], n_folds: int) -> str:
        criterion = self.criterion if isinstance(self.criterion, str) else self.criterion.__name__
        chosen, scores = self.chosen_, self.scores_
        among = f"of {len(scores)} methods over {n_folds} folds"
        if chosen == lowest:
            return f"{chosen} has the best cross-validated {criterion}, {scores[chosen]:.4f}, {among}."
        return (
            f"{chosen} ({criterion} {scores[chosen]:.4f}, {_parameters(fitted[chosen])}) is within one standard error "
            f"({self.standard_errors_[chosen]:.4f}) of the best {among}, {lowest} ({scores[lowest]:.4f}, "
            f"{_parameters(fitted[lowest])}), and simpler."
        )


def stratified_folds(labels: np.ndarray, n_folds: int, seed: int) -> np.ndarray:
    """The fold of each row (n,): every class is dealt out evenly, and so are the rows.

    >>> folds = stratified_folds(np.array([0, 0, 1, 1]), 2, seed=0)
    >>> sorted(folds[:2].tolist()), sorted(folds[2:].tolist())
    ([0, 1], [0, 1])
    """
    shuffled = np.random.default_rng([seed, 5]).permutation(len(labels))
    order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    folds = np.empty(len(labels), dtype=np.intp)
    # dealt on from class to class without starting over: classes of one row do not all land in the first fold
    folds[order] = np.arange(len(labels)) % n_folds
    return folds


def _standard_error(difference: np.ndarray, weights: np.ndarray | None) -> float:
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
