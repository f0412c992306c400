"""Keep the network's own prediction under a calibrator that would change it."""

from __future__ import annotations

from typing import Any

from sklearn.base import clone

from calibrant.calibrators import maps
from calibrant.calibrators.base import Calibrator, of_inner
from calibrant.calibrators.confidence_bins import map_rows
from calibrant.calibrators.learned import INNER
from calibrant.core.arrays import Array
from calibrant.core.rows import Rows


class KeptPrediction(
    Calibrator, keeps_prediction=True, requires_logits=of_inner("requires_logits"), cross_fits=of_inner("cross_fits")
):
    """Any calibrator, with the class of the largest raw logit kept first.

    Methods with class parameters gain likelihood, but change predictions as well, and what that gains in accuracy on
    the fit data it may lose where class frequencies differ. Where the inner calibrator would put another class first,
    the two share the mean of their probabilities, the network's class ahead by a rounding step: of all ways to let two
    classes change places, the smallest in squared distance. In the rare row where a third class is still ahead, the
    network's class is put ahead of it by a rounding step too.

    Parameters
    ----------
    calibrator : Calibrator
        What is calibrated with.

    Attributes
    ----------
    calibrator_ : the fitted inner calibrator.

    Examples
    --------
    >>> import calibrant as cal
    >>> val = cal.open_predictions("cifar10-resnet18#val")
    >>> fitted = cal.KeptPrediction(cal.VectorScaling()).fit(val.logits, val.labels)
    >>> bool((fitted.predict(val.logits) == val.logits.argmax(axis=1)).all())
    True
    """

    learns = {"calibrator_": INNER}

    def __init__(self, calibrator: Calibrator) -> None:
        self.calibrator = calibrator

    def _fit(self, rows: Rows) -> None:
        self.calibrator_ = clone(self.calibrator).fit_rows(rows)

    def _held_out(self, rows: Rows, fold: Array) -> Array:
        self.calibrator_ = clone(self.calibrator)
        answers = self.calibrator_.fit_held_out(rows, fold)
        return map_rows(lambda block: put_first(maps.numpy_space, answers[block], rows.logits[block]), answers)

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        return put_first(xp, self.calibrator_._map(xp, logits, learned.calibrator_), logits)


def put_first(xp: Any, calibrated: Any, logits: Any) -> Any:
    """Log-probabilities (n×K) of calibrated logits that put the prediction of the raw logits first."""
    scores, kept = xp.log_softmax_of_rows(calibrated), maps.prediction(xp, logits)
    return maps.keep_prediction(xp, maps.share_place(xp, scores, maps.prediction(xp, scores), kept), kept)
