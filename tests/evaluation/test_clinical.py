"""Intervals of the clinical figures, and the cross-validated calibration loss."""

from __future__ import annotations

import numpy as np
import pytest

import calibrant as cal
from calibrant import metrics
from calibrant.core.errors import InputError
from calibrant.core.softmax import sigmoid
from calibrant.evaluation.bootstrap import draw
from calibrant.evaluation.scoring import chosen_metrics, column_rows, estimated
from calibrant.metrics.inputs import check_binary
from calibrant.metrics.record import METRICS

NAMES = [figure.name for one in METRICS.values() if one.about == "score" for figure in one.figures]


def clinical_estimates(score, label, weights, drawn):
    """Every figure about one score per row, with its interval."""
    columns = check_binary(score, label, weights, True).columns("all")
    rows = column_rows(columns, drawn, weights, task="binary", of_logits=True)
    return estimated(chosen_metrics(NAMES, "binary"), rows, drawn, 15)[0]


def clinical_values(score, label, weights):
    return {name: one.value for name, one in clinical_estimates(score, label, weights, draw(len(score), 2, 0)).items()}


pytestmark = pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")


def problem(seed, n=1000, slope=0.8, shift=0.2):
    rng = np.random.default_rng(seed)
    score = 1.5 * rng.normal(size=n) - 1
    return score, rng.random(n) < sigmoid(slope * score + shift)


def test_values_are_those_of_the_metrics():
    score, label = problem(0)
    weights = np.random.default_rng(1).integers(1, 4, len(score)).astype(float)
    values = clinical_values(score, label, weights)
    assert set(values) == set(NAMES)
    parts = metrics.score_decomposition(score, label, sample_weight=weights, from_logits=True)
    for name, value in values.items():
        if hasattr(parts, name):
            assert value == pytest.approx(getattr(parts, name), abs=1e-12)
        else:
            metric = getattr(metrics, name)
            assert value == pytest.approx(metric(score, label, sample_weight=weights, from_logits=True), abs=1e-9)


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    truth = clinical_values(*problem(10_000, n=200_000), None)
    covered = {name: 0 for name in NAMES if name not in {"miscalibration", "discrimination", "uncertainty"}}
    for seed in range(40):
        score, label = problem(seed)
        found = clinical_estimates(score, label, None, draw(len(score), 200, 0))
        for name in covered:
            assert found[name].low <= found[name].value <= found[name].high
            covered[name] += found[name].low <= truth[name] <= found[name].high
    for name, count in covered.items():
        assert count >= (30 if name in {"e50", "e90"} else 34), (name, count)


def test_the_slope_of_probabilities_in_a_narrow_range_has_a_wide_interval():
    rng = np.random.default_rng(0)
    label = rng.random(1000) < 0.5
    score = 0.02 * (2 * rng.normal(size=1000) + label) - 8
    found = clinical_estimates(score, label, None, draw(1000, 400, 0))["calibration_slope"]
    # Wald: the inverse of the curvature of the log likelihood at its optimum, where the mean is nearly 1/2
    wald = 1.96 / np.sqrt(0.25 * ((score - score.mean()) ** 2).sum())
    assert found.value - found.low == pytest.approx(wald, rel=0.3)
    assert found.high - found.value == pytest.approx(wald, rel=0.3)


def test_parts_of_the_score_have_no_interval():
    score, label = problem(1)
    found = clinical_estimates(score, label, None, draw(len(score), 50, 0))
    assert np.isnan(found["miscalibration"].low)
    assert found["miscalibration"].value > 0


@pytest.mark.parametrize("kind", ["rare", "one class", "constant", "two rows"])
def test_degenerate_data_give_numbers(kind):
    score, label = problem(2, n=400)
    if kind == "rare":
        label = np.arange(400) < 3
    if kind == "one class":
        label = np.zeros(400, bool)
    if kind == "constant":
        score = np.full(400, -1.0)
    if kind == "two rows":
        score, label = score[:2], np.array([True, False])
    for name, estimate in clinical_estimates(score, label, None, draw(len(score), 50, 0)).items():
        assert np.isfinite(estimate.value), name


def test_64_calibration_loss():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 6000)
    logits = 1.2 * np.eye(4)[labels] + rng.normal(size=(6000, 4)) * 0.9
    fitted = cal.get("sms").fit(logits[:3000], labels[:3000])
    repaired = cal.calibration_loss((fitted.transform(logits[3000:]), labels[3000:]))
    assert abs(repaired.value) < 2 * repaired.standard_error + 1e-9
    sharpened = cal.calibration_loss((4 * logits[3000:], labels[3000:]))
    assert sharpened.value > 2 * sharpened.standard_error
    assert sharpened.value + sharpened.refinement == pytest.approx(sharpened.score)
    assert float(sharpened) == sharpened.value
    assert "nats are miscalibration" in str(sharpened)


@pytest.mark.parametrize("score", ["nll", "brier"])
def test_calibration_loss_of_every_task(score):
    z, y = problem(3, n=1500)
    binary = cal.calibration_loss((3 * z, y), "platt", score=score)
    assert binary.score == pytest.approx(getattr(metrics, score)(3 * z, y, from_logits=True), abs=1e-12)
    assert binary.value > 2 * binary.standard_error
    pairs = cal.calibration_loss({"confidence": sigmoid(3 * z), "correct": y}, "platt", score=score)
    # rounding of the logits gives other folds
    assert pairs.value == pytest.approx(binary.value, abs=2e-3)
    labels = np.stack([y, y], axis=1)
    many = cal.calibration_loss((np.stack([3 * z, 3 * z], axis=1), labels.astype(int)), score=score, task="multilabel")
    assert many.score == pytest.approx(binary.score, abs=1e-12)
    assert many.value > 2 * many.standard_error


def test_calibration_loss_by_hand():
    z, y = problem(4, n=300)
    found = cal.calibration_loss((z, y), "platt", folds=3, seed=1)
    from calibrant.calibrators.solvers.folds import content_folds
    from calibrant.core.rows import Rows

    fold = content_folds(Rows(z, y.astype(int)).matrix(), 3, 1)
    calibrated = np.empty(300)
    for part in range(3):
        fitted = cal.PlattScaling().fit(z[fold != part], y[fold != part].astype(int))
        calibrated[fold == part] = fitted.transform(z[fold == part])
    expected = metrics.nll(z, y, from_logits=True) - metrics.nll(calibrated, y, from_logits=True)
    assert found.value == pytest.approx(expected, abs=1e-12)


def test_calibration_loss_names_bad_options():
    z, y = problem(5, n=50)
    with pytest.raises(InputError, match="score must be one of"):
        cal.calibration_loss((z, y), score="ece")
    with pytest.raises(InputError, match="folds must be"):
        cal.calibration_loss((z, y), folds=1)


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
@pytest.mark.parametrize("task", ["binary", "pairs"])
def test_measure_holds_the_clinical_figures(kind, task):
    score, label = problem(6, n=600)
    values = score if kind == "logits" else sigmoid(score)
    found = cal.measure((values, label.astype(int)), kind=kind, task=task, resamples=50)
    expected = clinical_values(score, label, None)
    for name in NAMES:
        assert found.metrics[name].value == pytest.approx(expected[name], abs=1e-9), name


def test_clusters_widen_the_clinical_intervals():
    score, label = problem(7, n=300)
    five = np.repeat(np.arange(300), 5)
    given = {"logits": score[five], "labels": label[five].astype(int)}
    alone = cal.measure(given, resamples=200).metrics["calibration_slope"]
    whole = cal.measure(cal.Predictions(**given, clusters=five), resamples=200).metrics["calibration_slope"]
    once = cal.measure((score, label.astype(int)), resamples=200).metrics["calibration_slope"]
    assert whole.value == pytest.approx(once.value, abs=1e-9)
    assert (whole.high - whole.low) > 1.7 * (alone.high - alone.low)
    assert (whole.high - whole.low) == pytest.approx(once.high - once.low, rel=0.35)


def test_saturated_logits_keep_their_log_odds():
    score = np.array([-700.0, -50.0, -1.0, 0.0, 2.0, 45.0, 300.0])
    labels = np.array([0, 0, 1, 0, 1, 0, 1])
    found = cal.measure({"logits": score, "labels": labels}, resamples=5).metrics["calibration_intercept"].value
    assert found == pytest.approx(metrics.calibration_intercept(score, labels, from_logits=True), rel=1e-9)
