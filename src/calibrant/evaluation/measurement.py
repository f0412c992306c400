"""Measure predictions: every metric with its interval, the consistency test, the worst classes, a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from calibrant.core import progress
from calibrant.core.arrays import check_counts
from calibrant.core.bins import check_n_bins
from calibrant.data import Predictions
from calibrant.engines.engine import Engine
from calibrant.evaluation.bootstrap import Resamples, draw
from calibrant.evaluation.classwise_intervals import classwise_estimates
from calibrant.evaluation.consistency import consistency_test
from calibrant.evaluation.intervals import (
    TopLabelCells,
    bin_error_intervals,
    debiased_interval,
    mean_intervals,
    ranking_intervals,
    smooth_error_intervals,
    spread_interval,
)
from calibrant.evaluation.reliability import reliability_bins
from calibrant.evaluation.results import ClassProfile, Estimate, Figures, NoiseFloor
from calibrant.evaluation.scan import scan_predictions
from calibrant.evaluation.scoring import class_profile
from calibrant.kernels.rows import RowColumns
from calibrant.metrics.binning import bin_sums
from calibrant.metrics.class_losses import class_loss_sums, losses_of_sums
from calibrant.metrics.debiased import debiased_ece_of
from calibrant.metrics.inputs import Checked
from calibrant.metrics.ks import ks_error_of
from calibrant.metrics.mmce import mmce_of
from calibrant.metrics.reliability import Reliability
from calibrant.metrics.selective import aurc_of, confidence_auroc_of
from calibrant.metrics.smooth import smooth_ece_of
from calibrant.metrics.soft import soft_ece_of
from calibrant.metrics.sweep import sweep_ece_of
from calibrant.metrics.top_label import adaptive_ece_of, ece_of, over_under_confidence_of

SIGNIFICANCE = 0.05

ORDER = (
    "ece", "over_confidence", "under_confidence", "mce", "adaptive_ece", "debiased_ece", "sweep_ece", "smooth_ece",
    "soft_ece", "ks_error", "mmce", "sce", "ace", "marginal_ece", "nll", "brier", "accuracy",
    "confidence", "entropy", "confidence_auroc", "aurc", "classwise_loss_std",
)  # fmt: skip
"""The order in which figures are shown."""


@dataclass(frozen=True)
class Measurement:
    """What `measure` found; figures are fractions, not percent.

    left_out : metrics that were not computed, with the reason.
    """

    n: int
    n_classes: int
    n_bins: int
    resamples: int
    seed: int
    verdict: str
    metrics: Figures
    noise_floor: NoiseFloor
    bins: Reliability
    classes: ClassProfile
    class_names: tuple[str, ...] | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)

    def worst_classes(self, count: int = 5) -> list[int]:
        """The classes of largest classwise ECE, worst first."""
        return np.argsort(-self.classes.ece, kind="stable")[:count].tolist()

    def class_name(self, index: int) -> str:
        """Its name, or its number."""
        return str(index) if self.class_names is None else self.class_names[index]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data, as the published schema `measure.json` describes it."""
        floor = self.noise_floor
        worst = [
            {
                "class": index,
                "name": self.class_name(index),
                "ece": float(self.classes.ece[index]),
                "over": float(self.classes.over[index]),
                "under": float(self.classes.under[index]),
                "accuracy": None if self.classes.count[index] == 0 else float(self.classes.accuracy[index]),
                "count": float(self.classes.count[index]),
            }
            for index in self.worst_classes()
        ]
        return {
            "n": self.n,
            "n_classes": self.n_classes,
            "verdict": self.verdict,
            "metrics": self.metrics.to_dict(),
            "noise_floor": floor.mean,
            "p_value": floor.p_value,
            "noise": floor.to_dict(),
            "worst_classes": worst,
            "n_bins": self.n_bins,
            "resamples": self.resamples,
            "seed": self.seed,
            "left_out": dict(self.left_out),
        }


def measure(
    predictions: Predictions,
    *,
    n_bins: int = 15,
    resamples: int = 1000,
    seed: int = 0,
    engine: str | Engine = "local",
) -> Measurement:
    """Every metric of the library with 95% intervals, and whether the error is more than chance.

    Examples
    --------
    >>> generator = np.random.default_rng(0)
    >>> labels = generator.integers(0, 3, 1000)
    >>> logits = 4 * np.eye(3)[labels] + 4 * generator.normal(size=(1000, 3))
    >>> measure(Predictions.from_arrays(logits=logits, labels=labels)).verdict
    'overconfident by 24.8 points'
    """
    check_n_bins(n_bins)
    labels, weights = predictions.labels, predictions.weights
    check_counts(weights, "weights")
    drawn = draw(predictions.n, resamples, seed)
    scanned = scan_predictions(predictions, drawn, n_bins=n_bins, engine=engine)
    columns = scanned.columns
    progress.step("intervals", 0, 3)
    values, intervals = _top_label(columns, weights, drawn, n_bins)
    progress.step("intervals", 1, 3)
    estimates = {name: Estimate(values[name], *intervals[name]) for name in values}
    spread = _class_spread(columns.nll, labels, weights, predictions.n_classes, scanned.draws)
    estimates["classwise_loss_std"] = spread
    class_estimates, left_out = classwise_estimates(
        scanned.sums,
        scanned.kept,
        labels,
        weights,
        draws=scanned.draws,
        n_bins=n_bins,
        whole=lambda: Checked(predictions.values, labels, weights, predictions.kind == "logits"),
    )
    estimates |= class_estimates
    progress.step("intervals", 2, 3)
    confidence, correct = columns.confidence, columns.correct
    floor = consistency_test(confidence, correct, n_bins=n_bins, weights=weights, seed=seed)
    bins = reliability_bins(confidence, correct, n_bins=n_bins, weights=weights, seed=seed)
    progress.step("intervals", 3, 3)
    return Measurement(
        n=predictions.n,
        n_classes=predictions.n_classes,
        n_bins=n_bins,
        resamples=resamples,
        seed=seed,
        verdict=verdict(estimates, floor),
        metrics=Figures({name: estimates[name] for name in ORDER if name in estimates}),
        noise_floor=floor,
        bins=bins,
        classes=class_profile(columns, scanned.sums, labels, weights, n_bins),
        class_names=predictions.class_names,
        left_out=left_out,
    )


def verdict(metrics: Mapping[str, Estimate], floor: NoiseFloor) -> str:
    """One line: which way and by how much confidence departs from accuracy, if by more than chance.

    Points are percentage points of mean confidence minus accuracy. Where bins err in both directions, so that the
    mean hides more than half of the error, both directions are named.
    """
    if floor.p_value >= SIGNIFICANCE:
        return "indistinguishable from calibrated"
    ece, over, under = (metrics[name].value for name in ("ece", "over_confidence", "under_confidence"))
    gap = over - under
    if abs(gap) < ece / 2:
        return (
            f"miscalibrated by {100 * ece:.1f} points: overconfident by {100 * over:.1f} in some ranges of "
            f"confidence, underconfident by {100 * under:.1f} in others"
        )
    return f"{'overconfident' if gap > 0 else 'underconfident'} by {100 * abs(gap):.1f} points"


def _top_label(
    columns: RowColumns, weights: np.ndarray | None, drawn: Resamples, n_bins: int
) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    confidence, correct = columns.confidence, columns.correct
    given = (confidence, correct, weights)
    split = over_under_confidence_of(*given, n_bins=n_bins)
    values = {
        "ece": ece_of(*given, n_bins=n_bins),
        "over_confidence": split.over,
        "under_confidence": split.under,
        "mce": ece_of(*given, n_bins=n_bins, norm=float("inf")),
        "adaptive_ece": adaptive_ece_of(*given, n_bins=n_bins),
        "debiased_ece": debiased_ece_of(*given, n_bins=n_bins),
        "sweep_ece": sweep_ece_of(*given),
        "smooth_ece": smooth_ece_of(*given),
        "soft_ece": soft_ece_of(*given),
        "ks_error": ks_error_of(*given),
        "mmce": mmce_of(*given),
        "confidence_auroc": confidence_auroc_of(*given),
        "aurc": aurc_of(*given),
    }
    cells = TopLabelCells.build(*given, drawn, n_bins=n_bins)
    intervals = bin_error_intervals(cells, values)
    correction = float(bin_sums(*given, n_bins, "width").noise_squared)
    intervals["debiased_ece"] = debiased_interval(cells, values["debiased_ece"], correction, cells.width)
    intervals |= smooth_error_intervals(cells, values)
    intervals |= ranking_intervals(cells, drawn.take(correct), values)
    means = {
        "nll": columns.nll,
        "brier": columns.brier,
        "accuracy": correct,
        "confidence": confidence,
        "entropy": columns.entropy,
    }
    values |= {name: float(np.average(column.astype(np.float64), weights=weights)) for name, column in means.items()}
    return values, intervals | mean_intervals(means, weights, drawn)[0]


def _class_spread(
    nll: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, n_classes: int, draws: Resamples
) -> Estimate:
    """Standard deviation of the classes' mean losses."""
    weight, loss = class_loss_sums(nll, labels, weights, n_classes)
    value = losses_of_sums(weight, loss).std
    means = np.divide(loss, weight, out=np.full(n_classes, np.nan), where=weight > 0)
    mine = draws.take(labels)
    mass = np.ones(len(mine)) if weights is None else draws.take(weights)
    interval = spread_interval(means, mine, draws.take(nll), mass, resamples=draws, value=value)
    return Estimate(value, *interval)
