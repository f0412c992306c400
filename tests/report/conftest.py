"""A comparison made by hand, for tests of what is drawn rather than of what is measured."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from calibrant.calibrators.base import Identity
from calibrant.calibrators.temperature import TemperatureScaling
from calibrant.core.softmax import softmax
from calibrant.evaluation.results import ClassProfile, Comparison, MethodRow, NoiseFloor
from calibrant.evaluation.tables import Estimate, Figures
from calibrant.kernels.rows import RowColumns
from calibrant.report.plots import reliability


class ClassTemperatures(TemperatureScaling):
    """A stand-in that has learned one temperature a class."""


def _row(name: str, logits: np.ndarray, labels: np.ndarray, calibrator: object) -> MethodRow:
    probabilities = softmax(logits)
    prediction = probabilities.argmax(axis=1)
    correct = prediction == labels
    bins = reliability(probabilities, labels)
    values = {
        "ece": bins.ece,
        "nll": float(-np.log(probabilities[np.arange(len(labels)), labels]).mean()),
        "brier": float(((probabilities - np.eye(logits.shape[1])[labels]) ** 2).sum(axis=1).mean()),
        "accuracy": float(correct.mean()),
        "over_confidence": bins.over,
        "under_confidence": bins.under,
    }
    n_classes = logits.shape[1]
    count, predicted = (np.bincount(column, minlength=n_classes) for column in (labels, prediction))
    hits = np.bincount(labels, weights=correct, minlength=n_classes)
    gap = np.bincount(prediction, weights=probabilities.max(axis=1) - correct, minlength=n_classes) / np.maximum(
        predicted, 1
    )
    over, under = np.maximum(0, gap) + 0.01, np.maximum(0, -gap) + 0.005
    return MethodRow(
        method=name,
        calibrator=calibrator,
        metrics=Figures({key: Estimate(value, 0.9 * value, 1.1 * value) for key, value in values.items()}),
        fit_seconds=0.01,
        n_parameters=1,
        changed_predictions=0.0,
        changed_rankings=0.01,
        p_beats_best=0.2,
        noise_floor=NoiseFloor(0.008, 0.005, 0.012, 0.011, 0.3 if bins.ece < 0.03 else 0.001, 200),
        columns=RowColumns(probabilities.max(axis=1), prediction, correct, *np.zeros((3, len(labels)))),
        classes=ClassProfile(
            ece=(over + under) / n_classes,
            over=over / n_classes,
            under=under / n_classes,
            accuracy=np.divide(hits, count, out=np.full(n_classes, np.nan), where=count > 0),
            nll=np.ones(n_classes),
            count=count,
            predicted=predicted,
            top_over=over,
            top_under=under,
        ),
    )


def make_comparison(
    n: int = 3000, n_classes: int = 10, class_names: tuple[str, ...] | None = None, methods: int = 4, error: str = ""
) -> Comparison:
    """An overconfident model and some temperatures, the best of them about right."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, n_classes, n)
    logits = generator.normal(size=(n, n_classes)) + 3.0 * np.eye(n_classes)[labels]
    # the scores are calibrated at 3·z; stretching them makes the model too sure
    shown = 5.0 * logits
    rows = [_row("none", shown, labels, Identity())]
    for place in range(1, methods):
        temperature = 5.0 / 3.0 + 0.25 * (place - 1)
        calibrator = ClassTemperatures() if place == methods - 1 else TemperatureScaling()
        if place == methods - 1:
            calibrator.temperatures_ = temperature + 0.2 * generator.normal(size=n_classes)
        else:
            calibrator.temperature_ = temperature
        rows.append(_row(f"ts-{place}" if place > 1 else "ts", shown / temperature, labels, calibrator))
    if error:
        rows.append(MethodRow("broken", error=error))
    return Comparison(
        rows=tuple(rows),
        criterion="nll",
        best="ts",
        second="ts-2" if methods > 2 else None,
        n_val=n,
        n_test=n,
        n_classes=n_classes,
        class_names=class_names,
        labels=labels,
        weights=None,
        noise_floor=rows[0].noise_floor,
        n_bins=15,
        resamples=100,
        seed=0,
        verdict="ts is best by nll",
    )


@pytest.fixture(scope="session")
def build_comparison() -> Callable[..., Comparison]:
    return make_comparison


@pytest.fixture(scope="session")
def comparison() -> Comparison:
    return make_comparison()
