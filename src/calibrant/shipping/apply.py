"""A calibrator over predictions of any size: chunks in, calibrated chunks out, nothing held."""

from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from calibrant.calibrators.prepare import check_over_logits
from calibrant.core.arrays import Array
from calibrant.core.schema import Schema
from calibrant.core.softmax import log_softmax
from calibrant.data.predictions import Predictions
from calibrant.data.source import Source, ViewSource


class CalibratedSource(ViewSource):
    """The calibrated logits (or probabilities) of predictions, computed block by block when read."""

    def __init__(self, calibrator: Any, predictions: Predictions, kind: str, digits: int = 0) -> None:
        super().__init__(predictions.source)
        self._calibrator, self._predictions, self._kind, self._digits = calibrator, predictions, kind, digits

    def blocks(self, start: int, stop: int, rows: int) -> Iterator[Array]:
        """Calibrated blocks of the predictions behind."""
        work = self._calibrator.transform if self._kind == "logits" else self._calibrator.predict_proba
        for part in self._predictions[start:stop].chunks(rows):
            logits = part.logits
            if part.kind == "logits" and self._calibrator.kind_ == "probabilities" and part.task == "multiclass":
                logits = log_softmax(logits)  # as the logarithms it was fitted on
            grouped = self._calibrator.takes_groups
            found = work(logits, groups=self._calibrator.groups_in(part)) if grouped else work(logits)
            if part.flat:
                found = found.reshape(part.n, -1)[:, -1:]  # the positive class
            if self._digits:
                found = rounded(found, self._digits, self._kind)
            yield found.astype(self.dtype, copy=False)

    def pieces(self) -> list[Source]:
        """One for each piece of the predictions behind, without their labels: all that another process needs."""
        bare = self._predictions.like(_labels=None, weights=None, label_shares=None, clusters=None)
        ends = accumulate((piece.shape[0] for piece in bare.source.pieces()), initial=0)
        parts = [bare[first:last] for first, last in pairwise(ends)]
        return [CalibratedSource(self._calibrator, part, self._kind, self._digits) for part in parts]


def rounded(values: Array, digits: int, kind: str) -> Array:
    """Values with so many digits; of a probability close to 1, with so many digits of its distance to 1.

    >>> rounded(np.array([0.123456789, 0.99999987654321]), 3, "probabilities").tolist()
    [0.123, 0.999999877]
    """
    beyond = np.zeros(values.shape)
    if kind == "probabilities":
        beyond = -np.log10(np.clip(1 - values, 1e-16, 1.0))
    found = [float(f"{value:.{digits + int(more)}g}") for value, more in zip(values.flat, beyond.flat, strict=True)]
    return np.array(found).reshape(values.shape)


def calibrate_predictions(
    calibrator: Any, predictions: Predictions, kind: str = "logits", digits: int = 0
) -> Predictions:
    """Predictions whose values are calibrated when they are read, to so many digits; labels, weights and names stay.

    Examples
    --------
    >>> import calibrant, numpy as np
    >>> raw = Predictions.from_arrays(logits=np.array([[2.0, 0.0], [0.0, 2.0]]), labels=np.array([0, 1]))
    >>> calibrate_predictions(calibrant.Identity().fit(raw.logits, raw.labels), raw).logits[0].tolist()
    [2.0, 0.0]
    """
    check_over_logits(calibrator)
    fitted = Schema(calibrator.task_, calibrator.kind_, len(calibrator.classes_))
    fitted.align(predictions.schema, "the calibrator", predictions.name or "these predictions")
    source = CalibratedSource(calibrator, predictions, kind, digits)
    return predictions.like(source=source, kind=kind, field=f"calibrated {kind}", _checked=False)
