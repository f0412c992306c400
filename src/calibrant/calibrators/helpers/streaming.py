"""Fits from predictions that are never in memory as a whole."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from calibrant.calibrators.task_methods import check_task_method
from calibrant.core.arrays import check_counts
from calibrant.core.errors import InputError
from calibrant.data import Predictions, open_predictions
from calibrant.data.chunked import ChunkedRows
from calibrant.data.chunked_scores import ScoreChunks
from calibrant.data.guards import refuse_probabilities
from calibrant.data.source import ArraySource
from calibrant.engines.engine import Engine, opened

if TYPE_CHECKING:
    from calibrant.calibrators.base import Calibrator


STREAM_BYTES = 64 * 2**20
"""Single scores of more bytes than this are read pass by pass."""


def fit_predictions(
    calibrator: Calibrator,
    predictions: Predictions | str | os.PathLike[str],
    engine: str | Engine = "local",
) -> Calibrator:
    """See `Calibrator.fit_predictions`."""
    if isinstance(predictions, (str, os.PathLike)):
        predictions = open_predictions(predictions)
    if not isinstance(predictions, Predictions):
        raise InputError(f"predictions must be a Predictions or a path, got {type(predictions).__name__}")
    check_task_method(calibrator, predictions.task, n_classes=predictions.n_classes)
    refuse_probabilities(predictions)
    if not predictions.spread:
        check_counts(predictions.weights, f"{predictions.name}: weights" if predictions.name else "weights")
    if predictions.task != "multiclass" and not _streamed(calibrator, predictions):
        # one number per row and label: they fit in memory, and the gate of `fit` knows the task
        return calibrator.fit(predictions.logits, predictions.labels, sample_weight=predictions.weights)
    predictions = predictions.expanded()
    with opened(engine) as running:
        rows = (ScoreChunks if predictions.flat else ChunkedRows)(predictions, running)
        usable = calibrator._without_zeros(rows)
        # a fit that ranks or splits rows sees arrays: maps of files, not memory
        chunked = predictions.flat or calibrator.additive
        calibrator.fit_rows(usable if chunked else calibrator._divided(rows.whole()))
        calibrator._keep_floor()
        calibrator.n_rows_, calibrator.fingerprint_ = rows.n, rows.fingerprint()
    for piece in predictions.source.pieces():
        piece.check_unchanged()
    return calibrator


def _streamed(calibrator: Calibrator, predictions: Predictions) -> bool:
    """Are these single scores so many that they are read pass by pass, and can the method do that?"""
    large = predictions.n * predictions.dtype.itemsize > STREAM_BYTES
    in_files = not isinstance(predictions.source, ArraySource)
    return calibrator.additive_scores and predictions.flat and large and in_files
