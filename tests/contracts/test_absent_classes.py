"""A class without fit rows keeps its accuracy to a point of what a temperature leaves it, whatever the method."""

import numpy as np
import pytest

import calibrant as cal
from calibrant.calibrators.registry import names
from calibrant.core.errors import FitWarning

TEN = 10


def network(n, seed):
    """An overconfident network of ten classes."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, TEN, n)
    return 2.0 * (rng.normal(size=(n, TEN)) + 3.2 * np.eye(TEN)[labels]), labels


def accuracy_of(method, gone, weights=False):
    """Accuracy on rows of the classes that are gone from the fit rows, or weigh nothing there."""
    logits, labels = network(5000, 0)
    fresh, truth = network(40000, 1)
    absent, here = np.isin(truth, gone), ~np.isin(labels, gone)
    fitted = cal.get(method)
    if weights:
        fitted.fit(logits, labels, sample_weight=here.astype(float))
    else:
        fitted.fit(logits[here], labels[here])
    return float((fitted.predict(fresh[absent]) == truth[absent]).mean())


@pytest.mark.filterwarnings("ignore:the class weights still move")
@pytest.mark.parametrize("gone", [(7,), (0, 2, 4, 5, 6, 8, 9)], ids=["one", "seven"])
@pytest.mark.parametrize("method", [*names("multiclass"), "auto"])
def test_absent_classes_keep_their_accuracy(method, gone):
    assert accuracy_of(method, gone) >= accuracy_of("ts", gone) - 0.01


def test_options_that_are_never_right_are_told_from_classes_that_were_left_out():
    """A little of every row is an option; errors like those of other classes are a class."""
    logits, labels = network(4000, 0)
    here = labels < 8
    left_out = cal.get("svs+classes").fit(logits[here], labels[here])
    np.testing.assert_array_equal(left_out.absent_, np.arange(TEN) >= 8)
    fresh, truth = network(4000, 1)
    late = truth >= 8
    predicted = left_out.predict(fresh)
    np.testing.assert_array_equal(predicted[late] == truth[late], fresh[late].argmax(axis=1) == truth[late])
    logits[:, 8:] = np.log(0.2) + np.log(np.exp(logits[:, :8]).sum(axis=1, keepdims=True))
    options = cal.get("svs+classes").fit(logits[here], labels[here])
    assert not options.absent_.any()
    assert options.predict_proba(logits[here])[:, 8:].mean() < 0.01


@pytest.mark.parametrize("method", ["vs", "cts", "auto"])
def test_classes_of_weight_zero_are_absent(method):
    assert accuracy_of(method, (7,), weights=True) >= accuracy_of("ts", (7,)) - 0.01


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
def test_a_bias_that_runs_away_does_not_hand_all_rows_to_an_absent_class():
    """One fit row of a class, separable by its own logit: its scale and bias grow without end, and others' fall."""
    rng = np.random.default_rng(0)
    labels = rng.integers(1, 5, 200)
    logits = 1.5 * (rng.normal(size=(200, 6)) + 2.0 * np.eye(6)[labels])
    logits[:, 0] = rng.normal(-3.0, 0.1, 200)
    logits[0, 0], labels[0] = -2.0, 0
    fitted = cal.VectorScaling().fit(logits, labels)
    assert np.ptp(fitted.bias_) > 20
    assert (fitted.predict(logits) == 5).mean() <= (logits.argmax(axis=1) == 5).mean() + 0.05


@pytest.mark.parametrize("method", ["vs", "dir", "cts", "conf", "auto"])
def test_absent_classes_are_named(method):
    logits, labels = network(600, 0)
    here = labels != 3
    with pytest.warns(FitWarning, match=r"1 of 10 classes have no fit rows \(3\)"):
        cal.get(method).fit(logits[here], labels[here])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_kept_classes_keep_the_predictions_that_the_method_keeps(dtype):
    logits, labels = network(1500, 0)
    here = ~np.isin(labels, (3, 7))
    fitted = cal.get("vs+keep+classes").fit(logits[here], labels[here])
    assert fitted.keeps_prediction
    fresh = network(20000, 1)[0].astype(dtype)
    fresh[::2] = np.round(fresh[::2])  # ties and near ties
    np.testing.assert_array_equal(fitted.predict(fresh), fresh.argmax(axis=1))


def test_an_average_that_keeps_absent_classes_is_saved_and_exported(tmp_path):
    ort = pytest.importorskip("onnxruntime")
    logits, labels = network(1500, 0)
    here = ~np.isin(labels, (3, 7))
    fitted = cal.AutoCalibrator().fit(logits[here], labels[here])
    assert isinstance(fitted.calibrator_, cal.KeptClasses)
    expected = fitted.predict_proba(logits)
    cal.save(fitted, tmp_path / "cal.safetensors")
    np.testing.assert_array_equal(cal.load(tmp_path / "cal.safetensors").predict_proba(logits), expected)
    cal.export_onnx(fitted, tmp_path / "cal.onnx")
    session = ort.InferenceSession(tmp_path / "cal.onnx")
    (probabilities,) = session.run(["probabilities"], {session.get_inputs()[0].name: logits.astype(np.float32)})
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)
