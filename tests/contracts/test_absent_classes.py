"""Classes without fit rows: methods keep their accuracy, and `auto` limits them by the number of expected labels."""

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
    fitted = cal.AutoCalibrator(absent="keep") if method == "auto" else cal.get(method)
    if weights:
        fitted.fit(logits, labels, sample_weight=here.astype(float))
    else:
        fitted.fit(logits[here], labels[here])
    return float((fitted.predict(fresh[absent]) == truth[absent]).mean())


@pytest.mark.filterwarnings("ignore:the class weights still move")
@pytest.mark.parametrize("gone", [(7,), (0, 2, 4, 5, 6, 8, 9)], ids=["one", "seven"])
@pytest.mark.parametrize("method", [*names("multiclass"), "auto"])
def test_absent_classes_keep_their_accuracy(method, gone):
    # class temperatures keep the accuracy of the fit rows over all columns, with one temperature for absent classes
    margin = 0.02 if method in {"cts", "u-cts"} else 0.01
    assert accuracy_of(method, gone) >= accuracy_of("ts", gone) - margin


def chance_rows(n, seed):
    """Random fit rows of twenty classes, some of which are absent by chance, and other rows."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(20, n + 4000, p=rng.dirichlet(np.ones(20)))
    logits = 2.0 * (rng.normal(size=(n + 4000, 20)) + 3.0 * np.eye(20)[labels])
    return (logits[:n], labels[:n]), (logits[n:], labels[n:])


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
@pytest.mark.parametrize("n", [20, 60, 200])
def test_classes_absent_by_chance_cost_at_most_one_percent(n):
    losses = np.zeros(2)
    for seed in range(4):
        (logits, labels), (fresh, truth) = chance_rows(n, seed)
        for place, absent in enumerate((None, "keep")):
            fitted = cal.AutoCalibrator(absent=absent).fit(logits, labels)
            losses[place] += cal.metrics.nll(fitted.predict_proba(fresh), truth)
    assert losses[0] <= 1.01 * losses[1]


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
def test_options_that_are_never_right_lose_their_probability_as_rows_increase():
    logits, labels = network(4000, 0)
    logits[:, 8:] = np.log(0.2) + np.log(np.exp(logits[:, :8]).sum(axis=1, keepdims=True))
    here = labels < 8
    logits, labels, means = logits[here], labels[here], []
    for n in (30, 300, 3000):
        fitted = cal.AutoCalibrator(candidates=["ts"]).fit(logits[:n], labels[:n])
        means.append(fitted.predict_proba(logits)[:, 8:].mean())
        expected = cal.TemperatureScaling().fit(logits[:n], labels[:n]).predict_proba(logits[:n]).sum(axis=0)
        np.testing.assert_allclose(fitted.factors_[8:], 1 / np.maximum(1, 3 * (expected[8:] - 2)), rtol=1e-6)
    assert means[0] > 3 * means[1] > 9 * means[2]


def symmetric_average(fitted):
    """The members of a fitted average that have no parameters per class, with their weights in it."""
    weights = fitted.calibrator_.weights_.copy()
    for place, member in enumerate(fitted.calibrator_.calibrators_):
        if not isinstance(
            member, (cal.Identity, cal.TemperatureScaling, cal.PosteriorTemperatureScaling, cal.ShapeScaling)
        ):
            weights[place] = 0
    assert 0 < np.count_nonzero(weights) < len(weights)
    return cal.LinearPool.of(fitted.calibrator_.calibrators_, weights / weights.sum())


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
def test_absent_classes_get_the_posterior_temperature_if_all_members_have_class_parameters():
    logits, labels = network(1500, 0)
    logits, labels = logits[labels != 3], labels[labels != 3]
    fitted = cal.AutoCalibrator(candidates=["vs"], absent="keep").fit(logits, labels)
    expected = cal.PosteriorTemperatureScaling().fit(logits, labels).predict_proba(logits)[:, 3]
    np.testing.assert_allclose(fitted.predict_proba(logits)[:, 3], expected, rtol=1e-6)


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
def test_more_rows_do_not_hurt_if_most_of_many_classes_are_absent():
    """300 classes; of four rows in five the network knows the class."""
    rng, losses = np.random.default_rng(0), []
    labels, knows = rng.integers(0, 300, 2300), rng.random(2300) < 0.8
    logits = rng.normal(0, 1.5, (2300, 300))
    logits[knows, labels[knows]] += 6
    for n in (20, 60, 300):
        fitted = cal.AutoCalibrator().fit(logits[:n], labels[:n])
        assert not np.isin(np.arange(300), labels[:n]).all()
        losses.append(cal.metrics.nll(fitted.predict_proba(logits[300:]), labels[300:]))
    assert np.diff(losses).max() <= 0.003


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
def test_the_caller_decides_about_absent_classes():
    logits, labels = network(1500, 0)
    here = ~np.isin(labels, (3, 7))
    logits, labels = logits[here], labels[here]
    never = cal.AutoCalibrator(absent="never").fit(logits, labels)
    ruled_out = never.predict_proba(logits)[:, [3, 7]]
    np.testing.assert_allclose(ruled_out, np.exp(never.log_floor_), rtol=1e-6)
    keep = cal.AutoCalibrator(absent="keep").fit(logits[:150], labels[:150])
    expected = symmetric_average(keep).predict_proba(logits)[:, [3, 7]]
    np.testing.assert_allclose(keep.predict_proba(logits)[:, [3, 7]], expected, rtol=1e-6)
    known = cal.Predictions(logits=logits, labels=labels).like(absent="never")
    np.testing.assert_array_equal(cal.AutoCalibrator().fit(known).predict_proba(logits), never.predict_proba(logits))
    with pytest.raises(cal.InputError, match="absent must be"):
        cal.AutoCalibrator(absent="drop").fit(logits, labels)


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
@pytest.mark.parametrize("n_classes", [2, 4])
def test_rows_of_one_class_give_finite_probabilities_and_a_warning(n_classes):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(40, n_classes))
    with pytest.warns(FitWarning, match="all labels are equal") as caught:
        fitted = cal.AutoCalibrator().fit(logits, np.zeros(40, dtype=int))
    assert not any("no optimum" in str(one.message) for one in caught)
    named = [f"{n_classes - 1} of {n_classes} classes have no fit rows" in str(one.message) for one in caught]
    assert any(named) == (n_classes > 2)
    probabilities = fitted.predict_proba(rng.normal(size=(100, n_classes)))
    assert (probabilities > 1e-6).all()
    with pytest.warns(FitWarning, match="no row is predicted correctly"):
        cal.AutoCalibrator().fit(logits, logits.argmin(axis=1))


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
@pytest.mark.parametrize("columns", [1, 2])
def test_an_absent_class_of_two_is_left_to_the_average(columns):
    rng = np.random.default_rng(0)
    scores = rng.normal(-1.0, 2.0, 60)
    given = scores if columns == 1 else np.stack([-scores / 2, scores / 2], axis=1)
    labels = np.zeros(60, dtype=int)
    fitted = cal.AutoCalibrator().fit(given, labels)
    average = fitted.calibrator_.predict_proba(np.stack([0 * scores, scores], axis=1))
    np.testing.assert_allclose(fitted.predict_proba(given), average, rtol=1e-6)
    keep = cal.AutoCalibrator(absent="keep").fit(given, labels)
    np.testing.assert_array_equal(keep.predict_proba(given), fitted.predict_proba(given))
    never = cal.AutoCalibrator(absent="never").fit(given, labels)
    np.testing.assert_allclose(never.predict_proba(given)[:, 1], np.exp(never.log_floor_), rtol=1e-6)


@pytest.mark.parametrize("method", ["vs", "cts", "auto"])
def test_classes_of_weight_zero_are_absent(method):
    assert accuracy_of(method, (7,), weights=True) >= accuracy_of("ts", (7,)) - 0.01


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
def test_a_separable_class_does_not_hand_all_rows_to_an_absent_class():
    """One fit row of a class, separable by its logit: without a prior, its scale and bias would grow without limit."""
    rng = np.random.default_rng(0)
    labels = rng.integers(1, 5, 200)
    logits = 1.5 * (rng.normal(size=(200, 6)) + 2.0 * np.eye(6)[labels])
    logits[:, 0] = rng.normal(-3.0, 0.1, 200)
    logits[0, 0], labels[0] = -2.0, 0
    fitted = cal.VectorScaling().fit(logits, labels)
    assert np.ptp(fitted.bias_) < 5
    assert (fitted.predict(logits) == 5).mean() <= (logits.argmax(axis=1) == 5).mean() + 0.05


@pytest.mark.parametrize("method", ["vs", "dir", "cts", "conf", "auto"])
def test_absent_classes_are_named(method):
    logits, labels = network(600, 0)
    here = labels != 3
    with pytest.warns(FitWarning, match=r"1 of 10 classes have no fit rows \(3\)"):
        cal.get(method).fit(logits[here], labels[here])


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
@pytest.mark.parametrize("absent", [None, "keep", "never"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_prediction_changes_if_predictions_are_kept(dtype, absent):
    logits, labels = network(1500, 0)
    here = ~np.isin(labels, (3, 7))
    fitted = cal.AutoCalibrator(keep_predictions=True, absent=absent).fit(logits[here], labels[here])
    assert fitted.keeps_prediction
    fresh = network(20000, 1)[0].astype(dtype)
    fresh[::2] = np.round(fresh[::2])  # ties and near ties
    np.testing.assert_array_equal(fitted.predict(fresh), fresh.argmax(axis=1))


def test_an_average_that_limits_absent_classes_is_saved_and_exported(tmp_path):
    ort = pytest.importorskip("onnxruntime")
    logits, labels = network(1500, 0)
    here = ~np.isin(labels, (3, 7))
    fitted = cal.AutoCalibrator().fit(logits[here], labels[here])
    assert (fitted.factors_[[3, 7]] < 1).all()
    expected = fitted.predict_proba(logits)
    cal.save(fitted, tmp_path / "cal.safetensors")
    np.testing.assert_array_equal(cal.load(tmp_path / "cal.safetensors").predict_proba(logits), expected)
    cal.export_onnx(fitted, tmp_path / "cal.onnx")
    session = ort.InferenceSession(tmp_path / "cal.onnx")
    (probabilities,) = session.run(["probabilities"], {session.get_inputs()[0].name: logits.astype(np.float32)})
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)
