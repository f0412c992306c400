"""measure: figures are the metrics', chunks do not matter, the verdict says what the data say."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files

import jsonschema
import numpy as np
import pytest

from calibrant import metrics
from calibrant.data import Predictions
from calibrant.evaluation.bootstrap import draw
from calibrant.evaluation.compare import compare
from calibrant.evaluation.consistency import consistency_test
from calibrant.evaluation.measure import measure
from calibrant.evaluation.scoring import classwise_test, scan_predictions
from calibrant.evaluation.verdict import describe_gap
from calibrant.metrics import METRICS

SCHEMA = json.loads((files("calibrant") / "schemas" / "measure.json").read_text())


def blobs(n: int, seed: int, scale: float, weights: bool = False) -> Predictions:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 4, n)
    logits = scale * (np.eye(4)[labels] + generator.normal(size=(n, 4)))
    mass = generator.integers(1, 4, n).astype(float) if weights else None
    return Predictions.from_arrays(logits=logits, labels=labels, weights=mass, class_names=["ant", "bee", "cat", "dog"])


@pytest.mark.parametrize("weighted", [False, True])
def test_values_are_those_of_the_metrics(weighted):
    data = blobs(500, 0, 3.0, weighted)
    result = measure(data, resamples=50)
    assert list(result.metrics) == [
        figure.name for one in METRICS.values() if one.about != "score" for figure in one.figures
    ]
    # rows are the sampling units of a measurement: weights sum to their number
    given = {"sample_weight": data.weights / data.weights.mean() if weighted else None}
    p, y = data.probabilities, data.labels
    split = metrics.over_under_confidence(p, y, **given)
    special = {
        "over_confidence": split.over,
        "under_confidence": split.under,
        "mce": metrics.ece(p, y, norm=float("inf"), **given),
        "classwise_ece": metrics.sce(p, y, **given),
        "classwise_loss_std": metrics.classwise_losses(p, y, **given).std,
    }
    for name, estimate in result.metrics.items():
        expected = special[name] if name in special else getattr(metrics, name)(p, y, **given)
        assert estimate.value == pytest.approx(expected, rel=1e-6, abs=1e-9), name
        assert estimate.low <= estimate.value <= estimate.high, name


def test_chunks_do_not_matter(monkeypatch):
    data = blobs(400, 1, 2.0)
    whole = measure(data, resamples=100).to_dict()
    monkeypatch.setattr("calibrant.data.predictions.CHUNK_BYTES", 4 * 8 * 37)
    parts = measure(blobs(400, 1, 2.0), resamples=100).to_dict()
    for name, figure in whole["metrics"].items():
        assert parts["metrics"][name] == pytest.approx(figure, rel=1e-6, abs=1e-9)


def test_probabilities_and_logits_agree():
    data = blobs(300, 2, 2.0)
    stated = Predictions.from_arrays(probabilities=data.probabilities, labels=data.labels)
    one, two = measure(data, resamples=50), measure(stated, resamples=50)
    assert {k: e.value for k, e in one.metrics.items()} == pytest.approx({k: e.value for k, e in two.metrics.items()})


@pytest.mark.parametrize(
    ("scale", "words"),
    [(3.0, "overconfident by"), (0.3, "underconfident by"), (1.0, "indistinguishable from calibrated")],
)
def test_verdict(scale, words):
    result = measure(blobs(2000, 3, scale), resamples=50)
    assert result.verdict.startswith(words)
    if scale != 1.0:
        gap = abs(result.metrics["confidence"].value - result.metrics["accuracy"].value)
        assert result.verdict == f"{words} {100 * gap:.1f} points"


def test_verdict_names_both_directions_when_they_cancel():
    text = describe_gap(0.06, 0.04)
    assert "overconfident by 6.0" in text
    assert "underconfident by 4.0" in text


def test_json_validates_and_names_classes():
    result = measure(blobs(300, 4, 3.0), resamples=50)
    document = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    jsonschema.validate(document, SCHEMA)
    worst = document["worst_classes"]
    assert [entry["ece"] for entry in worst] == sorted((entry["ece"] for entry in worst), reverse=True)
    assert worst[0]["name"] in {"ant", "bee", "cat", "dog"}
    assert worst[0]["over"] + worst[0]["under"] == pytest.approx(worst[0]["ece"])


def test_many_rows_leave_out_what_needs_sorted_columns(monkeypatch):
    monkeypatch.setattr("calibrant.evaluation.bootstrap.ROW_LIMIT", 500)
    data = blobs(3000, 5, 3.0)
    thinned = measure(data, resamples=100).metrics
    assert thinned["ace"].value == pytest.approx(metrics.ace(data.probabilities, data.labels), rel=1e-5)
    assert thinned["ace"].low <= thinned["ace"].value <= thinned["ace"].high < 2 * thinned["ace"].value
    monkeypatch.setattr("calibrant.evaluation.scoring.CLASS_ELEMENTS", 1000)
    result = measure(blobs(3000, 5, 3.0), resamples=100)
    assert set(result.left_out) == {"ace", "marginal_ece"}
    jsonschema.validate(json.loads(json.dumps(result.to_dict())), SCHEMA)
    full = measure(blobs(400, 5, 3.0), resamples=100)
    width = {name: result.metrics[name].high - result.metrics[name].low for name in ("nll", "ece", "confidence_auroc")}
    assert result.metrics["classwise_loss_std"].high < 0.5
    for name, thin in width.items():
        wide = full.metrics[name].high - full.metrics[name].low
        assert thin / wide == pytest.approx(np.sqrt(400 / 3000), rel=0.4), name


def test_tiny_and_degenerate_inputs():
    for labels in ([0], [0, 0], [0, 1, 1]):
        logits = np.array([[3.0, 1.0], [2.0, -1.0], [0.0, 0.5]])[: len(labels)]
        result = measure(Predictions.from_arrays(logits=logits, labels=labels), resamples=20)
        jsonschema.validate(json.loads(json.dumps(result.to_dict(), allow_nan=False)), SCHEMA)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_zeros_for_what_happened_are_said(dtype: type) -> None:
    """A file with few decimals holds zeros at true labels, which then make up nearly all of its log loss."""
    probabilities = np.tile([0.9, 0.1, 0.0], (40, 1)).astype(dtype)
    labels = np.array([0] * 36 + [1] * 2 + [2] * 2)
    found = measure(Predictions.from_arrays(probabilities=probabilities, labels=labels), resamples=50)
    assert any(note.startswith("2 rows give what happened a probability of 0") for note in found.warnings)
    fine = measure(Predictions.from_arrays(probabilities=probabilities[:38], labels=labels[:38]), resamples=50)
    assert not any("probability of 0" in note for note in fine.warnings)


def opposed(n: int, shift: float) -> tuple[np.ndarray, np.ndarray]:
    """Two classes whose probabilities are off in opposite directions, so that confidence fits on average."""
    rng = np.random.default_rng(3)
    p = rng.uniform(0.15, 0.85, n)
    labels = (rng.random(n) < p - shift).astype(np.int64)
    return np.stack([1 - p, p], axis=1), labels


def test_a_good_verdict_needs_classes_and_loss_to_agree(monkeypatch):
    """Two columns about the predicted class: errors of the two classes cancel in bins of confidence."""
    probabilities, labels = opposed(3000, 0.12)
    predictions = Predictions(probabilities=probabilities, labels=labels)
    found = measure(predictions, resamples=100)
    assert found.noise_floor.p_value >= 0.05
    assert found.metrics["sce"].low > 0.05
    assert found.calibration_loss.beyond_noise
    assert found.verdict.startswith("miscalibrated by class: a classwise ECE of 1")
    # without the test of the classes the log loss still disagrees
    blind = replace(found.noise_floor, p_value=1.0)
    monkeypatch.setattr("calibrant.evaluation.verdict.classwise_test", lambda *_, **__: blind)
    found = measure(predictions, resamples=100)
    assert found.verdict.startswith("miscalibrated: a map can fix 0.0")
    probabilities, labels = opposed(3000, 0.0)
    honest = measure(Predictions(probabilities=probabilities, labels=labels), resamples=100)
    assert honest.verdict == "indistinguishable from calibrated"


def test_classes_are_asked_with_clusters_too():
    """Labels of a cluster cannot be drawn one by one; the residuals of whole clusters can be multiplied."""
    probabilities, labels = opposed(3000, 0.12)
    clusters = np.arange(3000) // 5
    found = measure(Predictions(probabilities=probabilities, labels=labels), cluster=clusters, decompose=False)
    assert found.noise_floor.p_value >= 0.05
    assert found.verdict.startswith("miscalibrated by class: a classwise ECE of 1")
    probabilities, labels = opposed(3000, 0.0)
    honest = measure(Predictions(probabilities=probabilities, labels=labels), cluster=clusters, decompose=False)
    assert honest.verdict == "indistinguishable from calibrated"


def dirichlet(seed: int) -> Predictions:
    """Calibrated probabilities of four classes."""
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet([0.3, 0.5, 0.2, 0.2], 400)
    labels = (rng.random((400, 1)) > probabilities.cumsum(axis=1)).sum(axis=1).clip(max=3)
    return Predictions(probabilities=probabilities, labels=labels)


@pytest.mark.parametrize("seed", [359, 432])
def test_the_two_questions_of_several_classes_share_the_level(seed):
    """The ECE alone would deny these calibrated models a good verdict; the p-value that is shown agrees with it."""
    predictions = dirichlet(seed)
    correct = predictions.probabilities.argmax(axis=1) == predictions.labels
    alone = consistency_test(predictions.probabilities.max(axis=1), correct).p_value
    found = measure(predictions, metrics=["ece", "nll"], resamples=20)
    assert alone < 0.05
    assert found.noise_floor.p_value == pytest.approx(alone / 0.8)
    assert found.verdict == "indistinguishable from calibrated"


@pytest.mark.parametrize("weighted", [False, True])
def test_the_test_of_all_classes_holds_its_level(weighted):
    """Of 200 calibrated models about a twentieth is rejected at 5%, and one class pulled up by a tenth is seen."""
    found, seen = [], []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        probabilities = rng.dirichlet([0.3, 0.5, 0.2, 0.2], 400)
        labels = (rng.random((400, 1)) > probabilities.cumsum(axis=1)).sum(axis=1).clip(max=3)
        weights = rng.uniform(0.5, 2, 400) if weighted else None
        drawn = draw(400, 1, 0)
        given = Predictions(probabilities=probabilities, labels=labels, weights=weights)
        rows = scan_predictions(given, drawn, n_bins=15)
        found.append(classwise_test(rows, 15, seed).p_value)
        if seed < 20:
            tilted = probabilities + np.array([0.2, 0, 0, 0])
            rows = scan_predictions(
                Predictions(probabilities=tilted / 1.2, labels=labels, weights=weights), drawn, n_bins=15
            )
            seen.append(classwise_test(rows, 15, seed).p_value)
    assert np.mean(np.array(found) < 0.05) <= 0.1
    assert 0.4 < np.mean(found) < 0.6
    assert max(seen) < 0.01


def test_one_bin_beyond_chance_keeps_the_interval_of_the_worst_bin_above_zero():
    """A bin of three rows is the worst one and may be so by chance; the others are off by ten points for sure."""
    rng = np.random.default_rng(1)
    p = np.append(rng.uniform(0.1, 0.8, 5000), [0.97, 0.98, 0.96])
    labels = np.append(rng.random(5000) < p[:5000] - 0.1, [0, 1, 0]).astype(np.int64)
    found = measure(Predictions(probabilities=p, labels=labels), resamples=300)
    worst = found.metrics["mce"]
    assert 0.04 < worst.low < 0.15
    assert worst.low < worst.value < worst.high
    calibrated = (rng.random(5003) < p).astype(np.int64)
    assert measure(Predictions(probabilities=p, labels=calibrated), resamples=300).metrics["mce"].low == 0


def test_a_slope_without_an_estimate_is_said():
    """Classes that a threshold separates have no slope: the figure is that of a weak pull, and the reader is told."""
    rng = np.random.default_rng(0)
    p = rng.uniform(0.05, 0.95, 400)
    labels = (p > 0.5).astype(np.int64)
    words = "calibration_slope: a threshold separates the classes, so the slope has no finite estimate"
    given = Predictions(probabilities=p, labels=labels)
    found = measure(given, resamples=20)
    assert any(text.startswith(words) for text in found.warnings)
    table = compare(given, given, ["none"], metrics=["calibration_slope"], resamples=20)
    assert any(text.startswith(words) for text in table.row("none").warnings)
