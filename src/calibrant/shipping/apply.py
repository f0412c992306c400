"""A calibrator over predictions of any size: chunks in, calibrated chunks out, nothing held."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from calibrant.calibrators.prepare import check_over_logits
from calibrant.core.errors import InputError
from calibrant.data.predictions import Predictions
from calibrant.data.source import Source


class CalibratedSource(Source):
    """The calibrated logits (or probabilities) of predictions, computed block by block when read."""

    def __init__(self, calibrator: Any, predictions: Predictions, kind: str) -> None:
        self.name = predictions.name
        self.shape = predictions.source.shape
        self.dtype = predictions.dtype
        self._calibrator, self._predictions, self._kind = calibrator, predictions, kind

    def blocks(self, start: int, stop: int, rows: int) -> Iterator[np.ndarray]:
        """Calibrated blocks of the predictions behind."""
        work = self._calibrator.transform if self._kind == "logits" else self._calibrator.predict_proba
        for part in self._predictions[start:stop].chunks(rows):
            grouped = getattr(self._calibrator, "takes_groups", False)
            found = work(part.logits, groups=self._calibrator.groups_in(part)) if grouped else work(part.logits)
            if part.flat:
                found = found.reshape(part.n, -1)[:, -1:]  # the positive class
            yield found.astype(self.dtype, copy=False)

    def locate(self, row: int) -> tuple[str, int]:
        """The place in the predictions behind."""
        return self._predictions.source.locate(row)

    def pieces(self) -> list[Source]:
        """One for each piece of the predictions behind, without their labels: all that another process needs."""
        behind = self._predictions
        pieces, first = [], 0
        for piece in behind.source.pieces():
            own = slice(first, first + piece.shape[0])
            groups = {name: column[own] for name, column in behind.groups.items()}
            described = {"task": behind.task, "groups": groups, "field": behind.field}
            pieces.append(Predictions.from_source(piece, behind.kind, None, **described))
            first = own.stop
        return [CalibratedSource(self._calibrator, piece, self._kind) for piece in pieces]

    def cuts(self, rows: int) -> list[int]:
        """Those of the predictions behind."""
        return self._predictions.source.cuts(rows)


def calibrate_predictions(calibrator: Any, predictions: Predictions, kind: str = "logits") -> Predictions:
    """Predictions whose values are calibrated when they are read; labels, weights and names stay.

    Examples
    --------
    >>> import calibrant, numpy as np
    >>> raw = Predictions.from_arrays(logits=np.array([[2.0, 0.0], [0.0, 2.0]]), labels=np.array([0, 1]))
    >>> calibrate_predictions(calibrant.Identity().fit(raw.logits, raw.labels), raw).logits[0].tolist()
    [2.0, 0.0]
    """
    check_over_logits(calibrator)
    known, name = int(calibrator.n_features_in_), predictions.name or "these predictions"
    fitted = getattr(calibrator, "task_", "multiclass")
    if fitted != ("binary" if predictions.flat else predictions.task):
        raise InputError(f"{name} holds a {predictions.task} task, but the calibrator was fitted on a {fitted} one")
    if predictions.source.shape[1] != known:
        raise InputError(f"{name} has {predictions.n_classes} classes, but the calibrator was fitted on {known}")
    source = CalibratedSource(calibrator, predictions, kind)
    return predictions.with_source(source, kind, field=f"calibrated {kind}")
