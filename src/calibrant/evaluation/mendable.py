"""How much of the log loss a map can mend, as `measure` says it: a quick map that is chosen by the size."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import clone

from calibrant.calibrators.multilabel import MultilabelCalibrator
from calibrant.calibrators.registry import get
from calibrant.data import Predictions
from calibrant.data.predictions import CHUNK_BYTES
from calibrant.data.source import ArraySource
from calibrant.evaluation.calibration_loss import CalibrationLoss, cross_validated

FEWEST_ROWS, FEWEST_CLUSTERS = 50, 10
"""With fewer rows or clusters the folds' maps are too poor to say anything."""

ENTRIES = {"binary": 100_000, "pairs": 100_000, "multilabel": 200_000, "multiclass": 1_000_000}
"""Scores from which the estimate is made; of more rows a random part is taken."""

VECTOR_ENTRIES = 300_000
VECTOR_ROWS = 25
"""Up to so many scores, where every class that occurs does so in so many rows, each gets its own scale and bias."""


def mendable(
    predictions: Predictions, clusters: np.ndarray | None, seed: int, decompose: bool | None
) -> CalibrationLoss | None:
    """The cross-validated calibration loss by a map that takes less than about half a second.

    None where it is not wanted (`decompose=False`), where there are too few rows, and for large files, of which a part
    is only read where `decompose=True` asks for it.
    """
    if decompose is False or predictions.n < FEWEST_ROWS or len(np.unique(predictions.labels)) < 2:
        return None
    most = max(FEWEST_ROWS, ENTRIES[predictions.task] // predictions.source.shape[1])
    if predictions.n > most:
        if decompose is None and not _at_hand(predictions):
            return None
        chosen = np.sort(np.random.default_rng([seed, 23]).choice(predictions.n, most, replace=False, shuffle=False))
        part, clusters = predictions[chosen], None if clusters is None else clusters[chosen]
    else:
        part = predictions.with_source(predictions.source, checked=True)
    if clusters is not None and len(np.unique(clusters)) < FEWEST_CLUSTERS:
        return None
    part.clusters, part.spread = clusters, predictions.spread
    name, quick_map = _quick_map(part)
    return cross_validated(part, lambda: clone(quick_map), name, seed=seed)


def _at_hand(predictions: Predictions) -> bool:
    """Are the values in memory, or quickly read?"""
    rows, width = predictions.source.shape
    small = rows * width * predictions.dtype.itemsize <= CHUNK_BYTES
    return small or isinstance(predictions.source, ArraySource)


def sentence(found: CalibrationLoss, n: int, log_loss: float) -> str:
    """What was found, and how, for a reader of the other figures: n rows with this log loss."""
    digits = int(np.clip(np.ceil(-np.log10(found.standard_error)), 3, 8)) if found.standard_error > 0 else 3
    how = f"{found.calibrator}, {found.folds} folds"
    if found.n < n:
        how += f", {found.n:,} of the rows"
    elif abs(found.score - log_loss) > 0.01 * log_loss:
        how += ", zeros counted as half the smallest positive value"
    error, whole = f"± {found.standard_error:.{digits}f}", f"{found.score:.{digits}f} nats"
    if not found.beyond_noise:
        return f"no miscalibration beyond noise ({error}) in the {whole} ({how})"
    return (
        f"{found.value:.{digits}f} {error} of the {whole} are miscalibration, which a map can mend; the rest is the "
        f"model's ({how})"
    )


def _quick_map(predictions: Predictions) -> tuple[str, Any]:
    """What the map is called among the methods, and the unfitted calibrator."""
    if predictions.task == "multilabel":
        # a fixed pull to the map of all labels, because choosing it by cross-validation takes seconds
        return "platt by label", MultilabelCalibrator("platt", strength=10.0)
    if predictions.flat:
        return "spline", get("spline")
    counts = np.bincount(predictions.labels)
    if predictions.n * predictions.n_classes <= VECTOR_ENTRIES and counts[counts > 0].min() >= VECTOR_ROWS:
        return "vs", get("vs")
    return "ts", get("ts")
