"""Measure one method on the test rows: columns, figures, intervals, classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.core.bin_sums import BinSums, over, total_gap, under
from calibrant.core.bins import width_index
from calibrant.core.blas import one_blas_thread
from calibrant.data import Predictions
from calibrant.engines.engine import Engine
from calibrant.evaluation.bootstrap import Resamples, inverted_interval
from calibrant.evaluation.classwise_intervals import CLASS_RESAMPLES, mean_error, width_noise
from calibrant.evaluation.flat import flattened, hits
from calibrant.evaluation.intervals import TopLabelCells, bin_error_intervals, mean_intervals
from calibrant.evaluation.results import ClassProfile, TestColumns
from calibrant.evaluation.scan import scan_predictions
from calibrant.evaluation.table import Estimate, Figures
from calibrant.kernels.rows import RowColumns
from calibrant.metrics.top_label import adaptive_ece_of, ece_of, over_under_confidence_of

METRICS = (
    "ece", "adaptive_ece", "sce", "nll", "brier", "accuracy", "over_confidence", "under_confidence",
)  # fmt: skip
"""What a comparison reports, in the order of its table."""


@dataclass(frozen=True)
class Scored:
    """One method's test figures, and the draws (R,) of each metric for paired comparisons."""

    columns: TestColumns
    classes: ClassProfile
    metrics: Figures
    draws: dict[str, np.ndarray]


@one_blas_thread()  # hundreds of thin products: the waits of a second thread cost ten times the work
def score(
    calibrator: Any, test: Predictions, *, resamples: Resamples, n_bins: int, engine: str | Engine = "local"
) -> Scored:
    """Figures of a fitted calibrator on test predictions, from one pass over them."""
    scanned = scan_predictions(test, resamples, n_bins=n_bins, calibrator=calibrator, engine=engine, columns="scores")
    seen = flattened(test) if test.task == "multilabel" else test
    columns, sums, labels, weights = scanned.columns, scanned.sums, seen.labels, seen.weights
    confidence, correct = columns.confidence, columns.correct
    means = {"nll": columns.nll, "brier": columns.brier, "accuracy": hits(columns, seen.task)}
    intervals, draws = mean_intervals(means, weights, resamples)
    values = {name: float(np.average(column, weights=weights)) for name, column in means.items()}
    split = over_under_confidence_of(confidence, correct, weights, n_bins=n_bins)
    values |= {
        "ece": ece_of(confidence, correct, weights, n_bins=n_bins),
        "adaptive_ece": adaptive_ece_of(confidence, correct, weights, n_bins=n_bins),
        "sce": float(sums.norm(1).mean()),
        "over_confidence": split.over,
        "under_confidence": split.under,
    }
    cells = TopLabelCells.build(confidence, correct, weights, resamples, n_bins=n_bins, fine=1)
    intervals |= bin_error_intervals(cells, values)
    draws |= _error_draws(cells)
    mine, mass = scanned.draws.take(labels), None if weights is None else scanned.draws.take(weights)
    noise = width_noise(scanned.kept, mine, mass, draws=scanned.draws, n_bins=n_bins)
    norm, residual = mean_error(seen.n_classes), sums.excess.ravel()
    intervals["sce"] = inverted_interval(norm, residual, noise[:CLASS_RESAMPLES], value=values["sce"])
    draws["sce"] = norm(residual + noise)
    metrics = Figures({name: Estimate(values[name], *intervals[name]) for name in METRICS})
    # thirty methods of a million rows are kept side by side: no wider than what diagrams can show
    narrow = columns.prediction.astype(np.int32), columns.nll.astype(np.float32), columns.brier.astype(np.float32)
    shown = TestColumns(confidence, correct, *narrow)
    return Scored(shown, class_profile(columns, sums, labels, weights, n_bins), metrics, draws)


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
        over=over(sums.excess),
        under=under(sums.excess),
        accuracy=accuracy,
        nll=nll,
        count=count,
        predicted=predicted,
        top_over=over(top),
        top_under=under(top),
    )


def _error_draws(cells: TopLabelCells) -> dict[str, np.ndarray]:
    residual, noise, _ = cells.binned(cells.width)
    drawn = residual + noise
    equal_mass, mass_noise, _ = cells.binned(cells.mass)
    return {
        "ece": total_gap(drawn),
        "over_confidence": over(drawn),
        "under_confidence": under(drawn),
        "adaptive_ece": total_gap(equal_mass + mass_noise),
    }
