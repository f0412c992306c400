"""Scores of any size: a method that learns the scale gives the same probabilities for all units of the scores."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import calibrant as cal
from calibrant.calibrators.registry import get, names
from calibrant.core.errors import FitWarning

SCALES = (-12, -9, -6, -3, 3, 6, 9, 12, 15)
TOLERANCE = 1e-6

BINS = "bins, steps or features of the probabilities, which change with the scale"
GRID = "searches a fixed grid of temperatures"
IDENTITY = "shrinks to the identity, or averages with the uncalibrated probabilities"
LOSSES = "compares with the losses of the uncalibrated probabilities"
NOT_SCALE_FREE = {
    "none": "learns no scale",
    "ts-bayes": IDENTITY,
    **dict.fromkeys(("ts-ece", "ts-adaece", "cts", "u-cts", "cts-shrunk"), GRID),
    **dict.fromkeys(("ms", "sms", "dir", "svs", "conf", "joint", "ets", "bend", "conf+shape+keep"), IDENTITY),
    **dict.fromkeys(("pts", "ws", "cws", "bts", "ccts", "hb", "iso", "beta"), BINS),
    **dict.fromkeys(("vs+top", "sms+top"), "the folds of its second stage depend on the scores"),
    **dict.fromkeys(("sctl+ts", "sctl+ets", "sctl+pts", "sctl+cts-nll", "sctl+vs"), LOSSES),
}
"""Methods with another definition, and the reason; `spline` maps probabilities unless there is one score per row."""


def problem(n_columns, seed=0, n=300):
    """Scores with their labels, and other scores between them: those beyond the floor count as the floor."""
    rng = np.random.default_rng(seed)
    if n_columns == 1:
        scores = 2 * rng.normal(size=n + 100)
        labels = (rng.random(n) < 1 / (1 + np.exp(0.3 - 0.7 * scores[:n]))).astype(int)
        return scores[:n], labels, np.clip(scores[n:], scores[:n].min(), scores[:n].max())
    labels = rng.integers(0, n_columns, n + 100)
    logits = 1.5 * (rng.normal(size=(n + 100, n_columns)) + 1.5 * np.eye(n_columns)[labels])
    return logits[:n], labels[:n], logits[n:]


def scale_free(n_columns):
    extra = ["ts+shape", "ts+shift"] if n_columns > 1 else []
    tasks = ("binary",) if n_columns == 1 else ("binary", "multiclass") if n_columns == 2 else ("multiclass",)
    listed = dict.fromkeys(name for task in tasks for name in names(task) if name not in NOT_SCALE_FREE)
    return [name for name in listed if n_columns == 1 or name != "spline"] + extra


@pytest.mark.parametrize(("n_columns", "name"), [(count, name) for count in (1, 2, 4) for name in scale_free(count)])
def test_the_unit_of_the_scores_changes_no_probability(n_columns, name):
    scores, labels, others = problem(n_columns)
    expected = get(name).fit(scores, labels).predict_proba(others)
    for exponent in SCALES:
        unit = 10.0**exponent
        found = get(name).fit(unit * scores, labels).predict_proba(unit * others)
        np.testing.assert_allclose(found, expected, atol=TOLERANCE, rtol=0, err_msg=f"unit 1e{exponent}")


@pytest.mark.parametrize(("n_columns", "name"), [(1, "bend"), (1, "auto"), (2, "bend"), (2, "auto"), (4, "auto")])
@pytest.mark.parametrize("exponent", [3, 6, 10, 15])
def test_very_large_scores_are_calibrated_as_well_as_small_ones(n_columns, name, exponent):
    scores, labels, _ = problem(n_columns, seed=2)
    losses = []
    for unit in (1.0, 10.0**exponent):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            fitted = get(name).fit(unit * scores, labels)
        losses.append(cal.metrics.nll(fitted.predict_proba(unit * scores), labels))
    assert losses[1] < losses[0] + 0.01
