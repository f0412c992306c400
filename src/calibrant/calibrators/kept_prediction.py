"""Keep the network's own prediction under a calibrator that would change it."""

from __future__ import annotations

import numpy as np
from sklearn.base import clone

from calibrant.calibrators.base import Calibrator, fact
from calibrant.calibrators.helpers.confidence_bins import keep_prediction, map_rows
from calibrant.calibrators.learned import INNER
from calibrant.core.rows import Rows
from calibrant.core.softmax import log_softmax


class KeptPrediction(Calibrator):
    """Any calibrator, with the class of the largest raw logit kept first.

    Methods with class parameters gain likelihood, but move predictions as well, and what that gains in accuracy on
    the fit data it may lose where class frequencies differ. Where
    the inner calibrator would put another class first, the two share the mean of their probabilities, the network's
    class a hair ahead: of all ways to let two classes change places, the smallest in squared distance. In the rare row
    where a third class is still ahead, the network's class passes it by that hair too.

    Parameters
    ----------
    calibrator : Calibrator
        What is calibrated with.

    Attributes
    ----------
    calibrator_ : the fitted inner calibrator.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant import KeptPrediction, VectorScaling
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 3, 300)
    >>> logits = rng.normal(size=(300, 3)) + np.eye(3)[labels]
    >>> fitted = KeptPrediction(VectorScaling()).fit(logits, labels)
    >>> bool((fitted.predict(logits) == logits.argmax(axis=1)).all())
    True
    """

    keeps_prediction = True
    learns = {"calibrator_": INNER}

    def __init__(self, calibrator):
        self.calibrator = calibrator

    @fact
    def requires_logits(self) -> bool:
        """As the inner calibrator."""
        return self.calibrator.requires_logits

    @property
    def n_parameters_(self) -> int:
        """Those of the inner calibrator."""
        return self.calibrator_.n_parameters_

    def _fit(self, rows: Rows) -> None:
        self.calibrator_ = clone(self.calibrator).fit_rows(rows)

    def _held_out(self, rows: Rows, fold: np.ndarray) -> np.ndarray:
        self.calibrator_ = clone(self.calibrator)
        return carry(self.calibrator_.fit_held_out(rows, fold), rows.logits.argmax(axis=1))

    def _transform(self, logits: np.ndarray) -> np.ndarray:
        return carry(self.calibrator_._transform(logits), logits.argmax(axis=1))


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
