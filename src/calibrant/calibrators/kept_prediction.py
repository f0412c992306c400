"""Keep the network's own prediction, unless held-out data show that changing it pays."""

from __future__ import annotations

import numpy as np
from sklearn.base import clone

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.confidence_bins import keep_prediction, map_rows
from calibrant.calibrators.folds import content_folds
from calibrant.calibrators.top_label import InstanceFact
from calibrant.core.rows import Rows
from calibrant.core.softmax import log_softmax

FOLDS = 5

SIGNIFICANT = 2.0
"""Standard errors by which held-out accuracy must rise before predictions may change."""


class KeptPrediction(Calibrator):
    """Any calibrator, with the class of the largest raw logit kept first.

    Methods with class parameters gain likelihood, but now and then move the prediction for no gain in accuracy. Where
    the inner calibrator would put another class first, the two share the mean of their probabilities, the network's
    class a hair ahead: of all ways to let two classes change places, the smallest in squared distance. In the rare row
    where a third class is still ahead, the network's class passes it by that hair too.

    Parameters
    ----------
    calibrator : Calibrator
        What is calibrated with.
    strict : bool
        True keeps every prediction. False lets the inner calibrator change them if its held-out accuracy is higher
        than the network's by more than two standard errors.
    seed : int
        Of the folds.

    Attributes
    ----------
    calibrator_ : the fitted inner calibrator.
    keep_ : bool, whether predictions are kept.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant import KeptPrediction, VectorScaling
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 3, 300)
    >>> logits = rng.normal(size=(300, 3)) + np.eye(3)[labels]
    >>> fitted = KeptPrediction(VectorScaling(), strict=True).fit(logits, labels)
    >>> bool((fitted.predict(logits) == logits.argmax(axis=1)).all())
    True
    """

    keeps_prediction = InstanceFact(lambda self: self.strict or self.calibrator.keeps_prediction)
    requires_logits = InstanceFact(lambda self: self.calibrator.requires_logits)

    def __init__(self, calibrator, *, strict=False, seed=0):
        self.calibrator = calibrator
        self.strict = strict
        self.seed = seed

    @property
    def n_parameters_(self) -> int:
        """Those of the inner calibrator."""
        return self.calibrator_.n_parameters_

    def _fit(self, rows: Rows) -> None:
        if self.keeps_prediction:
            self.calibrator_, self.keep_ = clone(self.calibrator).fit_rows(rows), True
        else:
            self._held_out(rows, content_folds(rows.logits, FOLDS, self.seed))

    def _held_out(self, rows: Rows, fold: np.ndarray) -> np.ndarray:
        self.calibrator_ = clone(self.calibrator)
        answers = self.calibrator_.fit_held_out(rows, fold)
        self.keep_ = bool(self.keeps_prediction or not _pays(answers, rows))
        return carry(answers, rows.logits.argmax(axis=1)) if self.keep_ else answers

    def _transform(self, logits: np.ndarray) -> np.ndarray:
        calibrated = self.calibrator_._transform(logits)
        return carry(calibrated, logits.argmax(axis=1)) if self.keep_ else calibrated


def carry(logits: np.ndarray, prediction: np.ndarray) -> np.ndarray:
    """Log-probabilities (n×K) that put these classes first."""

    def part(block: slice) -> np.ndarray:
        scores, kept = log_softmax(logits[block]), prediction[block]
        winner = scores.argmax(axis=1)
        moved = np.flatnonzero(winner != kept)
        both = np.logaddexp(scores[moved, winner[moved]], scores[moved, kept[moved]]) - np.log(2.0)
        scores[moved, winner[moved]] = scores[moved, kept[moved]] = both
        return keep_prediction(scores, kept)

    return map_rows(part, logits)


def _pays(answers: np.ndarray, rows: Rows) -> bool:
    """Is the held-out accuracy higher than the network's by more than chance explains?"""
    before, after = (matrix.argmax(axis=1) == rows.labels for matrix in (rows.logits, answers))
    gain = after.astype(np.float64) - before
    weights = np.ones(rows.n) if rows.weights is None else rows.weights
    spread = weights * (gain - np.average(gain, weights=weights))
    return bool(weights @ gain > SIGNIFICANT * np.sqrt(spread @ spread))
