"""Maps that `measure` fits for its estimate: the solvers of the calibrators alone, which load quickly.

The calibrators themselves are scikit-learn estimators, and importing that library takes longer than a measurement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from calibrant.calibrators.solvers.bent_slopes import bent_map, fit_bent
from calibrant.calibrators.solvers.inverse_temperature import fit_inverse_temperature
from calibrant.calibrators.solvers.scales import fit_vector
from calibrant.calibrators.solvers.shrunken import Labelled, fit_labels
from calibrant.core.rows import Rows

if TYPE_CHECKING:
    from typing import Self

KNOTS = 6
"""As many as `SplineCalibration` has."""

LABEL_STRENGTH = 10.0
"""Pull of each label's map to that of all labels; fixed, because choosing it by cross-validation takes seconds."""


class Temperature:
    """`ts`."""

    def fit_rows(self, rows: Rows) -> Self:
        """Learn 1/T."""
        self.inverse = fit_inverse_temperature(rows).value
        return self

    def transform(self, logits: np.ndarray) -> np.ndarray:
        """z/T."""
        return self.inverse * logits


class Vector:
    """`vs`."""

    def fit_rows(self, rows: Rows) -> Self:
        """Learn a scale and a bias per class."""
        self.scale, self.bias, _ = fit_vector(rows)
        return self

    def transform(self, logits: np.ndarray) -> np.ndarray:
        """w∘z + b."""
        return self.scale * logits + self.bias


class Spline:
    """`spline` on one score."""

    def fit_rows(self, rows: Rows) -> Self:
        """Learn slopes at knots."""
        self.map = fit_bent(rows, KNOTS)
        return self

    def transform(self, scores: np.ndarray) -> np.ndarray:
        """An increasing map of the score."""
        return bent_map(np, scores, self.map.knots, self.map.slopes, self.map.start)


class Labels:
    """`MultilabelCalibrator("platt", strength=LABEL_STRENGTH)`."""

    def fit_rows(self, rows: Rows) -> Self:
        """Learn a slope and an intercept per label."""
        columns, labels = (np.ascontiguousarray(one.T, dtype=np.float64) for one in (rows.logits, rows.labels))
        data = Labelled(columns[None], labels, rows.weights, non_negative=False)
        self.coef = fit_labels(data, data.pooled(), LABEL_STRENGTH)
        return self

    def transform(self, scores: np.ndarray) -> np.ndarray:
        """a_l·s + b_l."""
        return scores * self.coef[:, 0] + self.coef[:, 1]
