"""Measure one method on the test rows: columns, figures, intervals, classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.core.bins import width_index
from calibrant.core.blas import one_blas_thread
from calibrant.core.softmax import softmax
from calibrant.evaluation.bootstrap import Resamples, inverted_interval
from calibrant.evaluation.classwise_intervals import CLASS_RESAMPLES, mean_error, width_noise
from calibrant.evaluation.intervals import (
    TopLabelCells,
    absolute,
    bin_error_intervals,
    class_rows,
    mean_intervals,
    negative,
    positive,
)
from calibrant.evaluation.results import ClassProfile, Estimate, TestColumns
from calibrant.kernels.rows import RowColumns, scan
from calibrant.metrics.binning import BinSums
from calibrant.metrics.classwise import class_sums
from calibrant.metrics.inputs import Checked
from calibrant.metrics.top_label import adaptive_ece_of, ece_of, over_under_confidence_of

BLOCK_ELEMENTS = 8_000_000
"""Logits that are transformed at a time: the calibrated matrix is never whole in memory."""

METRICS = (
    "ece", "adaptive_ece", "classwise_ece", "nll", "brier", "accuracy", "over_confidence", "under_confidence",
)  # fmt: skip
"""What a comparison reports, in the order of its table."""


@dataclass(frozen=True)
class Scored:
    """One method's test figures, and the draws (R,) of each metric for paired comparisons."""

    columns: TestColumns
    classes: ClassProfile
    metrics: dict[str, Estimate]
    draws: dict[str, np.ndarray]


@one_blas_thread()  # hundreds of thin products: the waits of a second thread cost ten times the work
def score(
    calibrator: Any,
    logits: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None,
    *,
    resamples: Resamples,
    n_bins: int,
) -> Scored:
    """Figures of a fitted calibrator on test logits (n, K)."""
    columns, sums, kept = _pass(calibrator, logits, labels, weights, resamples=resamples, n_bins=n_bins)
    confidence, correct = columns.confidence, columns.correct
    means = {"nll": columns.nll, "brier": columns.brier, "accuracy": correct}
    intervals, draws = mean_intervals(means, weights, resamples)
    values = {name: float(np.average(column, weights=weights)) for name, column in means.items()}
    split = over_under_confidence_of(confidence, correct, weights, n_bins=n_bins)
    values |= {
        "ece": ece_of(confidence, correct, weights, n_bins=n_bins),
        "adaptive_ece": adaptive_ece_of(confidence, correct, weights, n_bins=n_bins),
        "classwise_ece": float(sums.norm(1).mean()),
        "over_confidence": split.over,
        "under_confidence": split.under,
    }
    cells = TopLabelCells.build(confidence, correct, weights, resamples, n_bins=n_bins, fine=1)
    intervals |= bin_error_intervals(cells, values)
    draws |= _error_draws(cells)
    class_draws = _class_draws(resamples, logits.shape[1], n_bins)
    mine, mass = class_draws.take(labels), None if weights is None else class_draws.take(weights)
    noise = width_noise(kept, mine, mass, draws=class_draws, n_bins=n_bins)
    norm, residual = mean_error(logits.shape[1]), sums.excess.ravel()
    intervals["classwise_ece"] = inverted_interval(
        norm, residual, noise[:CLASS_RESAMPLES], value=values["classwise_ece"]
    )
    draws["classwise_ece"] = norm(residual + noise)
    metrics = {name: Estimate(values[name], *intervals[name]) for name in METRICS}
    # thirty methods of a million rows are kept side by side: no wider than what diagrams can show
    narrow = columns.prediction.astype(np.int32), columns.nll.astype(np.float32), columns.brier.astype(np.float32)
    test = TestColumns(confidence, correct, *narrow)
    return Scored(test, class_profile(columns, sums, labels, weights, n_bins), metrics, draws)


def class_profile(
    columns: RowColumns, sums: BinSums, labels: np.ndarray, weights: np.ndarray | None, n_bins: int
) -> ClassProfile:
    """Calibration, accuracy and loss of each class."""
    n_classes = sums.weight.shape[0]
    mass = np.ones(len(labels)) if weights is None else weights
    count = np.bincount(labels, mass, minlength=n_classes)
    predicted = np.bincount(columns.prediction, mass, minlength=n_classes)
    cell = columns.prediction * n_bins + width_index(columns.confidence, n_bins)
    gaps = np.bincount(cell, mass * (columns.confidence - columns.correct), minlength=n_classes * n_bins)
    with np.errstate(invalid="ignore", divide="ignore"):
        accuracy = np.bincount(labels, mass * columns.correct, minlength=n_classes) / count
        nll = np.bincount(labels, mass * columns.nll, minlength=n_classes) / count
        top = gaps.reshape(n_classes, n_bins) / predicted[:, None]
    return ClassProfile(
        ece=sums.norm(1),
        over=positive(sums.excess),
        under=negative(sums.excess),
        accuracy=accuracy,
        nll=nll,
        count=count,
        predicted=predicted,
        top_over=positive(top),
        top_under=negative(top),
    )


def _pass(
    calibrator: Any,
    logits: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None,
    *,
    resamples: Resamples,
    n_bins: int,
) -> tuple[RowColumns, BinSums, np.ndarray]:
    """Transform the test rows block by block: per-row columns, class sums, probabilities of the resampled rows."""
    n, n_classes = logits.shape
    chosen = _class_draws(resamples, n_classes, n_bins).rows
    wanted = np.arange(n) if chosen is None else chosen
    kept = np.empty((len(wanted), n_classes), dtype=np.float32)
    parts, sums = [], None
    step = max(1, BLOCK_ELEMENTS // n_classes)
    for start in range(0, n, step):
        block = slice(start, min(start + step, n))
        calibrated = calibrator.transform(logits[block])
        parts.append(scan(calibrated, labels[block], from_logits=True, columns="scores", first_row=start))
        probabilities = softmax(calibrated)
        part_weights = None if weights is None else weights[block]
        part = class_sums(Checked(probabilities, labels[block], part_weights, False), n_bins, "width")
        sums = part if sums is None else sums + part
        inside = (wanted >= start) & (wanted < block.stop)
        kept[inside] = probabilities[wanted[inside] - start]
    assert sums is not None  # noqa: S101 (n ≥ 1 has passed the gate)
    return RowColumns(*map(np.concatenate, zip(*parts, strict=True))), sums, kept


def _class_draws(resamples: Resamples, n_classes: int, n_bins: int) -> Resamples:
    return resamples.fewer(class_rows(n_classes, n_bins))


def _error_draws(cells: TopLabelCells) -> dict[str, np.ndarray]:
    residual, noise, _ = cells.binned(cells.width)
    drawn = residual + noise
    equal_mass, mass_noise, _ = cells.binned(cells.mass)
    return {
        "ece": absolute(drawn),
        "over_confidence": positive(drawn),
        "under_confidence": negative(drawn),
        "adaptive_ece": absolute(equal_mass + mass_noise),
    }
