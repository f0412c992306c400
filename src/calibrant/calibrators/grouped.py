"""What calibrators share that treat groups of rows differently: names of groups, and rows whose group is unknown."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from calibrant.calibrators.base import Calibrator, fact, of_inner
from calibrant.core.errors import FitWarning, InputError
from calibrant.core.rows import Rows, two_columns
from calibrant.core.schema import identifiers
from calibrant.core.softmax import log_softmax, softmax

if TYPE_CHECKING:
    from typing import Self

UNKNOWN = -1
"""The number of a row whose group the fit has not seen."""


class GroupedCalibrator(Calibrator):
    """Base of calibrators whose `fit`, `transform`, `predict_proba` and `predict` take `groups`, one per row.

    `groups` is an array (n,) of names or numbers, or a mapping of two columns, whose intersections are the groups. A
    method writes `_fit` (of rows that carry group numbers), `_answers` and `_map_groups`.
    """

    takes_groups = True
    requires_logits = of_inner("requires_logits")

    def __init__(self, calibrator):
        self.calibrator = calibrator

    @fact
    def keeps_prediction(self) -> bool:
        """As the inner calibrator, in the task it was fitted to."""
        return getattr(self, "calibrator_", self.calibrator).keeps_prediction

    @property
    def tasks(self) -> tuple[str, ...]:  # type: ignore[override]
        """Those of the inner calibrator."""
        return self.calibrator.tasks

    def _group_numbers(self, groups: Any, n_rows: int) -> np.ndarray:
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

    def fit_rows(self, rows: Rows) -> Self:
        """Learn from rows that have passed the gate; rows without group numbers are one group."""
        if rows.groups is None:
            self.groups_, self.columns_ = np.array([""], dtype=object), []
            rows = replace(rows, groups=np.zeros(rows.n, dtype=np.intp))
        elif not hasattr(self, "groups_"):
            names = [str(code) for code in range(int(rows.groups.max()) + 1)]
            self.groups_, self.columns_ = np.array(names, dtype=object), []
        return super().fit_rows(rows)

    def transform(self, logits: Any, groups: Any = None) -> np.ndarray:
        """Calibrated logits of the input's shape and dtype; a row of an unseen group gets the pooled fit."""
        check_is_fitted(self)
        answers = self.transform_codes(logits, self.group_codes(groups, len(logits)))
        return answers[:, None] if self.task_ == "binary" and np.ndim(logits) == 2 else answers

    def predict_proba(self, logits: Any, groups: Any = None) -> np.ndarray:
        """Calibrated probabilities (n×K), or (n×2) of one score per row; rows sum to one."""
        calibrated = self.transform(logits, groups)
        if self.task_ == "binary":
            calibrated = two_columns(calibrated.reshape(-1))
        return softmax(calibrated)

    def predict(self, logits: Any, groups: Any = None) -> np.ndarray:
        """The class of highest calibrated probability of each row; the first of equals."""
        return self._predicted(self.transform(logits, groups))

    def transform_codes(self, logits: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """`transform` of rows whose group numbers are known already."""
        return self._answers(self._admitted(logits), codes)

    def group_codes(self, groups: Any, n_rows: int, *, quiet: bool = False) -> np.ndarray:
        """The number of each row's group (n,), −1 where the fit has not seen it, with a warning unless `quiet`."""
        if len(self.groups_) == 1 and (groups is None or self.groups_[0] == ""):
            return np.zeros(n_rows, dtype=np.intp)
        if groups is None and quiet:
            return np.full(n_rows, UNKNOWN)
        if groups is None:
            warnings.warn("no groups were given: all rows get the pooled fit", FitWarning, stacklevel=3)
            return np.full(n_rows, UNKNOWN)
        names = group_names(groups, n_rows)
        known = self.groups_.astype(str)
        place = np.minimum(np.searchsorted(known, names), len(known) - 1)
        codes = np.where(known[place] == names, place, UNKNOWN)
        unseen = np.unique(names[codes == UNKNOWN])
        if len(unseen) and not quiet:
            listed = ", ".join(unseen[:5]) + (", …" if len(unseen) > 5 else "")
            warnings.warn(
                f"{int((codes == UNKNOWN).sum())} rows are of groups that the fit has not seen ({listed}): "
                "they get the pooled fit",
                FitWarning,
                stacklevel=3,
            )
        return codes

    def _fit_binary(self, rows: Rows) -> None:
        self._fit(rows)

    def _transform(self, logits: np.ndarray) -> np.ndarray:
        return self._answers(logits, np.full(len(logits), UNKNOWN if len(self.groups_) > 1 else 0))

    def _transform_binary(self, scores: np.ndarray) -> np.ndarray:
        return self._transform(scores)

    def _held_out(self, rows: Rows, fold: np.ndarray) -> np.ndarray:
        self.fit_rows(rows)
        return self._left_out(rows, fold)

    def _held_out_binary(self, rows: Rows, fold: np.ndarray) -> np.ndarray:
        return self._held_out(rows, fold)

    def _answers_on(self, rows: Any) -> np.ndarray:
        codes = np.zeros(rows.n, dtype=np.intp) if rows.groups is None else rows.groups
        return self._answers(rows.logits, codes)

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        """The pooled fit, which rows without a group get."""
        return self.calibrator_._map(xp, logits, learned.calibrator_)

    def _map_binary(self, xp: Any, scores: Any, learned: Any) -> Any:
        return self.calibrator_._map_binary(xp, scores, learned.calibrator_)

    def _answers(self, given: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Calibrated logits of a matrix (n×K), or of scores (n,), whose rows belong to these groups."""
        raise NotImplementedError

    def _map_groups(self, xp: Any, logits: Any, group: Any, learned: Any) -> Any:
        """`_answers` over the array API; `group` holds whole numbers (n,)."""
        raise NotImplementedError


def row_losses(answers: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Log loss of each row (n,) of calibrated logits (n×K) or scores (n,)."""
    matrix = (two_columns(answers) if answers.ndim == 1 else answers).astype(np.float64)
    return -np.maximum(log_softmax(matrix)[np.arange(len(labels)), labels], -745.0)


def surely_gains(gain: np.ndarray, weights: np.ndarray, n_errors: float) -> bool:
    """Whether the mean gain of the rows exceeds so many of its standard errors."""
    mean = np.average(gain, weights=weights)
    variance = np.average((gain - mean) ** 2, weights=weights)
    return bool(mean > n_errors * np.sqrt(variance / weights.sum()))


def group_names(groups: Any, n_rows: int) -> np.ndarray:
    """The name of each row's group (n,), as text; one nameless group where there are none."""
    if groups is None:
        return np.full(n_rows, "", dtype=str)
    code, names = identifiers(groups, n_rows, "groups")
    return np.array(names, dtype=str)[code]
