"""The default on few rows: finite, and hardly ever worse than no calibration."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp

import calibrant
from calibrant.metrics import nll

N_DRAWS = 20


def draw_task(task: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Fit rows and other rows: classes of CIFAR-10, or whether the picture shows an animal (classes 2 to 7)."""
    val, test = (calibrant.open_predictions(f"cifar10-resnet18#{part}") for part in ("val", "test"))
    arrays = []
    for one in (val, test):
        rows = np.random.default_rng(0).permutation(one.n)[:3000]
        scores, labels = one.logits[rows].astype(np.float64), np.asarray(one.labels)[rows]
        if task == "binary":
            animal = np.isin(np.arange(10), range(2, 8))
            scores = logsumexp(scores[:, animal], axis=1) - logsumexp(scores[:, ~animal], axis=1)
            labels = animal[labels].astype(int)
        arrays += [scores, labels]
    return tuple(arrays)


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
@pytest.mark.parametrize("selection", ["random", "all right"])
@pytest.mark.parametrize("n", [1, 9, 12, 30, 100])
@pytest.mark.parametrize("task", ["multiclass", "binary"])
def test_the_default_is_hardly_ever_worse_than_no_calibration(task, n, selection):
    """In 95% of draws its log loss on other rows is at most 1.2 times the uncalibrated one, or .01 above it."""
    scores, labels, others, truth = draw_task(task)
    right = (scores.argmax(axis=1) if task == "multiclass" else scores > 0) == labels
    pool = np.flatnonzero(right) if selection == "all right" else np.arange(len(labels))
    before = nll(others, truth, from_logits=True)
    losses = []
    for seed in range(N_DRAWS):
        rows = np.random.default_rng(seed).choice(pool, n, replace=False)
        fitted = calibrant.AutoCalibrator().fit(scores[rows], labels[rows])
        losses.append(nll(fitted.transform(others), truth, from_logits=True))
    assert np.isfinite(losses).all()
    if n < 10:
        assert losses == pytest.approx([before] * N_DRAWS)
    assert np.mean(np.array(losses) <= max(1.2 * before, before + 0.01)) >= 0.95


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
@pytest.mark.parametrize("task", ["multiclass", "binary"])
def test_one_temperature_of_rows_without_an_error_stays_moderate(task):
    """In 95% of draws the log loss of `ts` is at most 1.5 times the uncalibrated one, or .01 above it."""
    scores, labels, others, truth = draw_task(task)
    right = np.flatnonzero((scores.argmax(axis=1) if task == "multiclass" else scores > 0) == labels)
    before, losses = nll(others, truth, from_logits=True), []
    for seed in range(N_DRAWS):
        rows = np.random.default_rng(seed).choice(right, 10 + 5 * seed, replace=False)
        losses.append(
            nll(
                calibrant.TemperatureScaling().fit(scores[rows], labels[rows]).transform(others),
                truth,
                from_logits=True,
            )
        )
    assert np.mean(np.array(losses) <= max(1.5 * before, before + 0.01)) >= 0.95
