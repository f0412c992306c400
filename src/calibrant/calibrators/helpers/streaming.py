"""Fits from predictions that are never in memory as a whole."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.calibrators.task_methods import check_task_method
from calibrant.core.arrays import check_counts
from calibrant.core.checkpoint import Checkpoint
from calibrant.core.errors import InputError
from calibrant.data import Predictions, open_predictions
from calibrant.data.chunked import ChunkedRows
from calibrant.data.chunked_scores import ScoreChunks
from calibrant.data.guards import refuse_probabilities
from calibrant.data.source import ArraySource, Source
from calibrant.data.top_k import TopKPredictions
from calibrant.engines.engine import Engine, opened

if TYPE_CHECKING:
    from calibrant.calibrators.base import Calibrator


STREAM_BYTES = 64 * 2**20
"""Single scores of more bytes than this are read pass by pass."""

SAMPLED_PARTS, SAMPLED_BLOCKS, SAMPLED_ROWS = 64, 8, 32
"""How much of the values a checkpoint looks at: blocks of rows, spread over the parts and over each part."""


def fit_predictions(
    calibrator: Calibrator,
    predictions: Predictions | str | os.PathLike[str],
    engine: str | Engine = "local",
    checkpoint: str | os.PathLike[str] | None = None,
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
        passes = None if checkpoint is None else Checkpoint(checkpoint, identity(calibrator, predictions))
        rows = (ScoreChunks if predictions.flat else ChunkedRows)(predictions, running, passes)
        if isinstance(predictions, TopKPredictions):
            from calibrant.calibrators.helpers.top_k import TopKRows, fit_top_k

            rows = TopKRows(predictions, running, passes)
            fit_top_k(calibrator, rows)
        else:
            usable = calibrator._without_zeros(rows)
            # a fit that ranks or splits rows sees arrays: maps of files, not memory
            chunked = predictions.flat or calibrator.additive
            calibrator.fit_rows(usable if chunked else calibrator._divided(rows.whole()))
            calibrator._keep_floor()
        calibrator.n_rows_, calibrator.fingerprint_ = rows.n, rows.fingerprint()
    for piece in predictions.source.pieces():
        piece.check_unchanged()
    if passes is not None:
        passes.remove()
    return calibrator


def _streamed(calibrator: Calibrator, predictions: Predictions) -> bool:
    """Are these single scores so many that they are read pass by pass, and can the method do that?"""
    large = predictions.n * predictions.dtype.itemsize > STREAM_BYTES
    in_files = not isinstance(predictions.source, ArraySource)
    return calibrator.additive_scores and predictions.flat and large and in_files


def identity(calibrator: Calibrator, predictions: Predictions) -> dict[str, Any]:
    """What is fitted on what, for a checkpoint to recognise."""
    digest = hashlib.sha256(predictions.labels.tobytes())
    if predictions.weights is not None:
        digest.update(predictions.weights.tobytes())
    parts = predictions.source.pieces()
    digest.update(repr([(piece.name, piece.shape) for piece in parts]).encode())
    return {
        "method": type(calibrator).__name__,
        "parameters": " ".join(repr(calibrator.get_params()).split()),
        "rows": predictions.n,
        "classes": predictions.n_classes,
        "kind": predictions.kind,
        "dtype": np.dtype(predictions.dtype).str,
        "data": digest.hexdigest()[:32],
        "values": _values_digest(parts),
    }


def _values_digest(parts: list[Source]) -> str:
    """What identifies the values themselves: size and time of change of each file, and a hash of sampled rows.

    Without it a fit that was killed would go on with the sums of other logits after its files were written anew.
    """
    digest = hashlib.sha256()
    for piece in parts:
        file = Path(piece.name)
        if piece.name and file.is_file():
            found = file.stat()
            digest.update(repr((found.st_size, found.st_mtime_ns)).encode())
    chosen = parts[:: max(1, len(parts) // SAMPLED_PARTS)]
    for piece in chosen:
        if isinstance(piece, ArraySource):
            digest.update(np.ascontiguousarray(piece.array).data)
            continue
        cuts = piece.cuts(max(1, piece.shape[0] // SAMPLED_BLOCKS))
        for start in cuts[:: max(1, len(cuts) // SAMPLED_BLOCKS)]:
            for block in piece.blocks(start, min(start + SAMPLED_ROWS, piece.shape[0]), SAMPLED_ROWS):
                digest.update(np.ascontiguousarray(block).data)
    return digest.hexdigest()[:32]
