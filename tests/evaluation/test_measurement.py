"""measure: figures are the metrics', chunks do not matter, the verdict says what the data say."""

from __future__ import annotations

import json
from importlib.resources import files

import jsonschema
import numpy as np
import pytest

from calibrant import metrics
from calibrant.data import Predictions
from calibrant.evaluation.measure import measure, verdict
from calibrant.evaluation.results import NoiseFloor
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
        figure.name for one in METRICS.values() if one.serves("multiclass") for figure in one.figures
    ]
    given = {"sample_weight": data.weights}
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
    text = verdict(0.06, 0.04, NoiseFloor(0.01, 0.005, 0.02, 0.018, 0.001, 999))
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
