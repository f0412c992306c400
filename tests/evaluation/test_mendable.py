"""What `measure` says about the part of the log loss that a map can fix."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest

import calibrant as cal
from calibrant.core.softmax import sigmoid
from calibrant.evaluation import calibration_loss as mendable
from calibrant.evaluation.calibration_loss import cross_validated
from calibrant.metrics.top_label import laplacian_root


def problem(task, factor, n=1500, seed=0):
    """Predictions that are calibrated with a factor of 1 and too sure with a larger one."""
    rng = np.random.default_rng(seed)
    if task == "multiclass":
        labels = rng.integers(0, 4, n)
        return cal.Predictions(
            logits=factor * (1.5 * np.eye(4)[labels] + rng.normal(size=(n, 4)) * 1.5**0.5), labels=labels
        )
    shape = (n // 5, 5) if task == "multilabel" else n
    scores = 1.5 * rng.normal(size=shape) - 0.5
    labels = (rng.random(shape) < sigmoid(scores)).astype(int)
    if task == "pairs":
        return cal.Predictions(confidence=sigmoid(factor * scores), correct=labels)
    return cal.Predictions(logits=factor * scores, labels=labels, task=task)


TASKS = ("multiclass", "binary", "multilabel", "pairs")


@pytest.mark.parametrize("task", TASKS)
def test_too_sure_predictions_can_be_mended(task):
    found = cal.measure(problem(task, 2.5), resamples=20)
    loss, nll = found.calibration_loss, found.metrics["nll"].value
    assert loss.beyond_noise
    assert loss.score == pytest.approx(nll, rel=1e-6)
    assert loss.value == pytest.approx(loss.score - loss.refinement)
    pattern = r"0\.\d+ ± 0\.\d+ of the \d\.\d+ nats are miscalibration, which a map can fix; the rest is the model's"
    assert re.match(pattern, found.mendable)
    assert loss.calibrator in found.mendable
    assert found.mendable in repr(found)
    assert "are miscalibration, which a map can fix" in found._repr_html_()
    assert found.to_dict()["calibration_loss"] == {**loss.to_dict(), "text": found.mendable}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("seed", range(3))
def test_calibrated_predictions_show_no_figure(task, seed):
    found = cal.measure(problem(task, 1.0, seed=seed), resamples=20)
    assert not found.calibration_loss.beyond_noise
    assert found.mendable.startswith("no miscalibration beyond noise (± 0.0")


@pytest.mark.parametrize(
    ("task", "calibrator"),
    [
        ("binary", "spline"),
        ("pairs", "spline"),
        ("multiclass", "vs"),
        ("multilabel", cal.MultilabelCalibrator("platt", strength=10.0)),
    ],
)
def test_the_estimate_is_that_of_the_calibrator(task, calibrator):
    given = problem(task, 2.0)
    found, expected = cal.measure(given, resamples=20).calibration_loss, cal.calibration_loss(given, calibrator)
    assert found.value == pytest.approx(expected.value, abs=1e-9)
    assert found.standard_error == pytest.approx(expected.standard_error, abs=1e-9)


def test_many_classes_get_one_temperature():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 40, 600)
    logits = 6 * np.eye(40)[labels] + 3 * rng.normal(size=(600, 40))
    found = cal.measure((logits, labels), resamples=20).calibration_loss
    assert found == cal.calibration_loss((logits, labels), "ts")


def test_classes_that_never_occur_are_part_of_what_can_be_mended():
    given = problem("multiclass", 1.0)
    logits = np.column_stack([given.logits, given.logits[:, :2] + 1])
    found = cal.measure((logits, given.labels), resamples=20).calibration_loss
    assert found.calibrator == "vs"
    assert found.value > 0.3


def test_of_many_rows_a_part_is_used(monkeypatch):
    given = problem("binary", 2.5, n=4000)
    whole = cal.measure(given, resamples=20).calibration_loss
    monkeypatch.setitem(mendable.ENTRIES, "binary", 1000)
    found = cal.measure(given, resamples=20)
    assert found.calibration_loss.n == 1000
    assert "1,000 of the rows" in found.mendable
    assert abs(found.calibration_loss.value - whole.value) < 4 * found.calibration_loss.standard_error


def test_a_large_file_is_only_read_when_asked(monkeypatch, tmp_path):
    given = problem("multiclass", 2.0)
    np.savez(tmp_path / "rows.npz", logits=given.logits, labels=given.labels)
    monkeypatch.setattr(mendable, "CHUNK_BYTES", 100)
    monkeypatch.setitem(mendable.ENTRIES, "multiclass", 2000)
    path = str(tmp_path / "rows.npz")
    assert cal.measure(path, resamples=20).calibration_loss is None
    assert cal.measure(path, resamples=20, decompose=True).calibration_loss.n == 500


def test_nothing_is_said_where_nothing_is_known():
    given = problem("multiclass", 2.0)
    assert cal.measure(given, resamples=20, decompose=False).mendable == ""
    assert "calibration_loss" not in cal.measure(given, resamples=20, decompose=False).to_dict()
    assert cal.measure(given[:40], resamples=20).calibration_loss is None
    assert cal.measure((given.logits, np.zeros(given.n, int)), resamples=20).calibration_loss is None


@pytest.mark.parametrize("task", ["binary", "multilabel"])
def test_clusters_widen_the_error(task):
    small = problem(task, 2.5, n=500)
    repeated = cal.Predictions(
        logits=np.repeat(small.logits, 4, axis=0), labels=np.repeat(small.labels, 4, axis=0), task=task
    )
    rows = np.repeat(np.arange(small.n), 4)
    plain = cal.measure(repeated, resamples=20).calibration_loss
    clustered = cal.measure(repeated, cluster=rows, resamples=20).calibration_loss
    # rows of a cluster share a fold, so the folds are others than those of the rows
    alone = cal.measure(small, resamples=20).calibration_loss
    assert abs(clustered.value - alone.value) < 0.2 * alone.standard_error
    assert clustered.standard_error == pytest.approx(alone.standard_error, rel=0.01)
    assert clustered.standard_error == pytest.approx(2 * plain.standard_error, rel=0.01)


def test_weights_make_no_more_rows():
    """The error is that of as many rows, whatever they weigh: copies would have half of it."""
    given = problem("binary", 2.0)
    weighed = cal.Predictions(logits=given.logits, labels=given.labels, weights=np.full(given.n, 4.0), task="binary")
    alone, found = (cal.calibration_loss(one, "spline").standard_error for one in (given, weighed))
    assert found == pytest.approx(alone, rel=0.05)
    counted = cal.measure(weighed, resamples=20, weights_are="counts").calibration_loss.standard_error
    assert counted == pytest.approx(alone / 2, rel=0.05)


def test_one_hot_shares_are_labels():
    given = problem("multiclass", 2.0, n=400)
    shares = cal.Predictions(logits=given.logits, label_shares=np.eye(4)[given.labels])
    expected, found = (cal.measure(one, resamples=20).calibration_loss for one in (given, shares))
    assert found.value == pytest.approx(expected.value, abs=1e-9)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_zeros_have_the_floor_of_fits(task):
    given = problem(task, 2.5)
    rounded = given.probabilities.round(1)
    if task == "multiclass":
        rounded /= rounded.sum(axis=1, keepdims=True)
    name, outcomes = ("confidence", "correct") if task == "pairs" else ("probabilities", "labels")
    found = cal.measure(cal.Predictions(**{name: rounded, outcomes: given.labels}), resamples=20)
    assert found.metrics["nll"].value > 1.2 * found.calibration_loss.score
    assert 0.3 < found.calibration_loss.score < 2
    assert "zeros counted as half the smallest positive value" in found.mendable


def test_zeros_of_a_label_cost_what_they_cost_a_binary_task():
    given = problem("multilabel", 2.5)
    probabilities = given.probabilities.round(1)
    found = cal.measure(cal.Predictions(probabilities=probabilities, labels=given.labels), resamples=20)
    alone = cal.measure(cal.Predictions(probabilities=probabilities[:, 2], labels=given.labels[:, 2]), resamples=20)
    assert found.labels[2].metrics["nll"].value == pytest.approx(alone.metrics["nll"].value, rel=1e-6)
    assert found.labels[2].metrics["ece"].value == pytest.approx(alone.metrics["ece"].value, abs=1e-12)


def test_the_root_of_the_kernel_takes_confidences_that_swap_by_rounding():
    confidence = np.array([0.3, 0.5, np.nextafter(0.5, 0), 0.9])
    root = laplacian_root(SimpleNamespace(confidence=confidence), 0.0)
    expected = np.exp(-np.abs(confidence[:, None] - confidence) / 0.4)
    np.testing.assert_allclose(root @ root.T, expected, atol=1e-12)


@pytest.mark.parametrize("task", ["multiclass", "binary", "multilabel", "pairs"])
def test_rows_of_one_cluster_are_never_mapped_by_a_fit_to_others_of_it(task):
    given = problem(task, 2.0, n=600)
    given.clusters = np.random.default_rng(1).integers(0, 40, given.n) ** 2 % 31
    cluster_of = {
        row.tobytes(): cluster for row, cluster in zip(given.logits.astype(float), given.clusters, strict=True)
    }

    class Recorded:
        """The identity, which checks what it is fitted and applied to."""

        def fit_rows(self, rows):
            values = rows.logits if hasattr(rows, "logits") else rows.scores
            self.seen = {cluster_of[row.tobytes()] for row in np.asarray(values, float)}
            return self

        def transform(self, scores):
            assert not self.seen & {cluster_of[row.tobytes()] for row in np.asarray(scores, float)}
            return scores

    found = cross_validated(given, Recorded(), "recorded")
    assert found.value == 0
    given.clusters = np.arange(given.n) % 2
    with pytest.raises(cal.InputError, match=r"2 clusters are too few for 5 folds"):
        cross_validated(given, Recorded(), "recorded")


def test_few_clusters_say_nothing_about_miscalibration():
    given = problem("binary", 3.0, n=600)
    for n_clusters, says in ((9, False), (60, True)):
        found = cal.measure((given.logits, given.labels), cluster=np.arange(600) % n_clusters, resamples=50)
        assert bool(found.mendable) == says
