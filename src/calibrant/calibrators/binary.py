"""The base of methods for one score per row."""

from __future__ import annotations

from typing import Any

from calibrant.calibrators.base import Calibrator
from calibrant.core.errors import InputError
from calibrant.core.rows import Rows


class BinaryCalibrator(Calibrator):
    """Base of calibrators that know only one logit per row, the positive class's.

    A method writes `_fit_binary(rows)` and `_map_binary(xp, scores, learned)`. On a matrix of two columns it works on
    z₁ − z₀ and returns [0, u]; more columns are an InputError.
    """

    tasks = ("binary",)

    def _begin(self, rows: Rows) -> None:
        n_classes = 2 if rows.one_score else rows.n_classes
        if n_classes != 2:
            raise InputError(
                f"{type(self).__name__} calibrates one score per row or two columns, but the logits have "
                f"{n_classes} columns: take ts, vs or another method for many classes"
            )
        super()._begin(rows)

    def _fit(self, rows: Rows) -> None:
        self._fit_binary(Rows(rows.logits[:, 1] - rows.logits[:, 0], rows.labels, rows.weights))

    def _fit_binary(self, rows: Rows) -> None:
        raise NotImplementedError

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        calibrated = self._map_binary(xp, logits[:, 1] - logits[:, 0], learned)
        return xp.stack([xp.zeros_like(calibrated), calibrated], axis=1)

    def _map_binary(self, xp: Any, scores: Any, learned: Any) -> Any:
        raise NotImplementedError
