"""Isotonic calibration."""

from __future__ import annotations

import numpy as np
from sklearn.isotonic import IsotonicRegression

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.helpers.confidence_bins import row_weights, top_columns
from calibrant.calibrators.helpers.one_vs_rest import check_mode, class_columns, class_probabilities, normalised
from calibrant.calibrators.helpers.top_label import InstanceFact, log_odds_of, with_confidence
from calibrant.core.progress import step
from calibrant.core.rows import Rows
from calibrant.kernels.rows import scan


class IsotonicCalibration(Calibrator):
    """Map probabilities by the non-decreasing step function of least squares (Zadrozny & Elkan 2002).

    The fit is scikit-learn's `IsotonicRegression`; between its knots the map is linear.

    Parameters
    ----------
    mode : {"top_label", "one_vs_rest"}
        "top_label": the confidence of the predicted class is mapped against correct or not; the other probabilities
        are rescaled to the rest and the prediction stays (see `calibrators/helpers/top_label.py`).
        "one_vs_rest": one map for each class's probability against the class or not, then rows are normalised;
        predictions may change.

    Attributes
    ----------
    knots_, values_ : array
        Knots and values of all maps, one after the other; values stay half a row away from 0 and 1, so that no
        outcome gets probability 0.
    offsets_ : array (1 + 1 or K + 1,)
        Map j owns the entries offsets_[j] to offsets_[j + 1].

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant import IsotonicCalibration
    >>> logits = np.array([[2.0, 0.0]] * 4)
    >>> IsotonicCalibration().fit(logits, [0, 0, 0, 1]).predict_proba(logits[:1]).round(4)
    array([[0.75, 0.25]])
    """

    keeps_prediction = InstanceFact(lambda self: self.mode == "top_label")
    additive = InstanceFact(lambda self: self.mode == "top_label")

    def __init__(self, mode="top_label", *, seed=0):
        self.mode = mode
        self.seed = seed

    @property
    def n_parameters_(self) -> int:
        """One value per knot."""
        return len(self.values_)

    def _fit(self, rows: Rows) -> None:
        if check_mode(self.mode) == "top_label":
            columns, n_columns = iter([top_columns(rows)]), 1
        else:
            columns, n_columns = class_columns(rows), rows.n_classes
        margin = min(0.5, 0.5 / rows.total_weight)
        knots, values, weights = [], [], row_weights(rows)
        for j, column in enumerate(columns):
            solver = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
            solver.fit(column.confidence, column.correct.astype(np.float64), sample_weight=weights)
            knots.append(solver.X_thresholds_)
            values.append(np.clip(solver.y_thresholds_, margin, 1.0 - margin))
            step("isotonic", j + 1, n_columns)
        self.offsets_ = np.cumsum([0, *map(len, knots)])
        self.knots_, self.values_ = np.concatenate(knots), np.concatenate(values)

    def _map(self, j: int, probabilities: np.ndarray) -> np.ndarray:
        own = slice(self.offsets_[j], self.offsets_[j + 1])
        return np.interp(probabilities, self.knots_[own], self.values_[own])

    def _transform(self, logits: np.ndarray) -> np.ndarray:
        if len(self.offsets_) == 2:
            top = scan(logits, None, from_logits=True, columns="top")
            return with_confidence(logits, log_odds_of(self._map(0, top.confidence)))
        columns = enumerate(class_probabilities(logits))
        return normalised((self._map(j, column) for j, column in columns), logits.dtype)
