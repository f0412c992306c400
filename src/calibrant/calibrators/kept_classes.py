"""Leave room for classes without fit rows under a calibrator that learned that they are never true."""

from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import clone

from calibrant.calibrators import maps
from calibrant.calibrators.base import Calibrator, of_inner
from calibrant.calibrators.learned import INNER, TEMPERATURE, Learned
from calibrant.calibrators.temperature import TemperatureScaling
from calibrant.core.rows import Rows

LOW, HIGH = 0.3, 0.5
"""Between these shares of the probability for absent classes a row passes from one map to the other."""

OFTEN = 0.03
"""A class that is predicted on more of the fit rows and never right was not left out by chance."""


class KeptClasses(
    Calibrator,
    keeps_prediction=of_inner("keeps_prediction"),
    requires_logits=of_inner("requires_logits"),
    cross_fits=of_inner("cross_fits"),
):
    """Any calibrator, and a temperature where a row looks like a class that no fit row has.

    A class without fit rows may be an option that is never right, such as "none of these", or one that these rows
    happen to lack. Rows cannot tell the two apart. The inner calibrator learns that it is never true, which pays where
    it has a few percent of a row's probability. A row that gives such classes most of its probability is answered by
    temperature scaling, so that a class that comes later is still found.

    Parameters
    ----------
    calibrator : Calibrator
        What is calibrated with.

    Attributes
    ----------
    calibrator_ : the fitted inner calibrator.
    temperature_ : T of the rows that look like an absent class.
    absent_ : (K,) 1 for a class without fit rows, unless it is predicted on more than 3% of them.
    """

    learns = {"calibrator_": INNER, "temperature_": TEMPERATURE, "absent_": Learned(("K",), 0.0, 1.0, free=False)}

    def __init__(self, calibrator: Calibrator) -> None:
        self.calibrator = calibrator

    def _fit(self, rows: Rows) -> None:
        self._learn(rows, clone(self.calibrator).fit_rows(replace(rows, every_class=True)))

    def _learn(self, rows: Rows, fitted: Calibrator) -> None:
        self.calibrator_ = fitted
        self.temperature_ = TemperatureScaling().fit_rows(rows).temperature_
        predicted = np.bincount(rows.logits.argmax(axis=1), weights=rows.weights, minlength=rows.n_classes)
        self.absent_ = ((rows.class_weight() == 0) & (predicted <= OFTEN * rows.total_weight)).astype(np.float64)

    @classmethod
    def around(cls, fitted: Calibrator, rows: Rows) -> Calibrator:
        """A calibrator that was fitted to all columns of the rows; itself where no class is to be kept."""
        made = cls(clone(fitted))
        with made._fitting(rows):
            made._learn(rows, fitted)
        return made if made.absent_.any() else fitted

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        plain = xp.softmax_of_rows(maps.wide(xp, logits) / learned.temperature_)
        inner = xp.softmax_of_rows(maps.wide(xp, self.calibrator_._map(xp, logits, learned.calibrator_)))
        doubt = (xp.sum(plain * learned.absent_, axis=1, keepdims=True) - LOW) / (HIGH - LOW)
        mixed = inner + xp.clip(doubt, 0.0, 1.0) * (plain - inner)
        answer = maps.like(xp, maps.log_probabilities(xp, mixed), logits)
        if not self.keeps_prediction:
            return answer
        # both parts put the same class first, but rounding to the dtype of the logits may make it a tie
        return maps.keep_prediction(xp, answer, maps.prediction(xp, logits))
