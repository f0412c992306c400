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
from calibrant.core.softmax import softmax

LOW, HIGH = 0.4, 0.5
"""Where the best absent class has this share of itself and the best other one, a row passes to the temperature."""

OFTEN = 0.35
"""Classes that are predicted on more of the fit rows and never right were not left out by chance."""

MUCH, FIRST, THIN = 0.03, 1 / 3, 0.7
"""Nor were classes with more than 3% of the probability, if most of it is a little of many rows.

Less than a third of it lies in rows that predict them, and its parts p, each counted p times, are less than 0.7 of
those of other wrong answers: so it is of options of questions that are never right. Classes that are taken out of real
data leave errors like those of others. Of 966 trials with the calibration parts of 42 models 33 looked like such
options, 30 of them diseases that the models hardly ever predict.
"""


class KeptClasses(
    Calibrator,
    keeps_prediction=of_inner("keeps_prediction"),
    requires_logits=of_inner("requires_logits"),
    cross_fits=of_inner("cross_fits"),
):
    """Any calibrator, and a temperature where a row looks like a class that no fit row has.

    A class without fit rows may be an option that is never right, such as "none of these", or one that these rows
    happen to lack; how its probability is spread over the rows mostly tells which. The inner calibrator learns that it
    is never true, which pays where it has a few percent of a row's probability. A class that the rows lack is left to
    temperature scaling on the rows where that predicts it, so that it is still found when it comes later.

    Parameters
    ----------
    calibrator : Calibrator
        What is calibrated with.

    Attributes
    ----------
    calibrator_ : the fitted inner calibrator.
    temperature_ : T of the rows that look like an absent class.
    absent_ : (K,) 1 for a class without fit rows; 0 for all where they are predicted on more than 35% of the
        rows, or where they have a little of the probability of every row.
    """

    learns = {"calibrator_": INNER, "temperature_": TEMPERATURE, "absent_": Learned(("K",), 0.0, 1.0, free=False)}

    def __init__(self, calibrator: Calibrator) -> None:
        self.calibrator = calibrator

    def _fit(self, rows: Rows) -> None:
        self._learn(rows, clone(self.calibrator).fit_rows(replace(rows, every_class=True)))

    def _learn(self, rows: Rows, fitted: Calibrator) -> None:
        self.calibrator_ = fitted
        self.temperature_ = TemperatureScaling().fit_rows(rows).temperature_
        absent, weight = rows.class_weight() == 0, rows.mass()
        best = rows.logits.argmax(axis=1)
        wrong = softmax(rows.logits.astype(np.float64) / self.temperature_)
        wrong[np.arange(rows.n), rows.labels] = 0.0
        parts, lost = weight @ wrong**2, weight @ wrong
        mass, others = lost[absent].sum(), lost[~absent].sum()
        first = weight[absent[best]] @ wrong[absent[best]][:, absent].sum(axis=1)
        thin = first < FIRST * mass and parts[absent].sum() * others < THIN * mass * parts[~absent].sum()
        often = weight[absent[best]].sum() > OFTEN * weight.sum()
        self.absent_ = np.where(often or (thin and mass > MUCH * weight.sum()), 0.0, absent)

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
        best = xp.max(plain * learned.absent_, axis=1, keepdims=True)
        doubt = (best / (best + xp.max(plain * (1.0 - learned.absent_), axis=1, keepdims=True)) - LOW) / (HIGH - LOW)
        mixed = inner + xp.clip(doubt, 0.0, 1.0) * (plain - inner)
        answer = maps.like(xp, maps.log_probabilities(xp, mixed), logits)
        if not self.keeps_prediction:
            return answer
        # both parts put the same class first, but rounding to the dtype of the logits may make it a tie
        return xp.keep_prediction(answer, maps.prediction(xp, logits))
