"""A probability of 0 counts as half the smallest positive one: in every method, reader and artifact."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import log_loss

import calibrant as cal
from calibrant import metrics
from calibrant.calibrators import registry
from calibrant.core.errors import FitWarning, InputError

METHODS = (
    "none",
    "ts",
    "cts-nll",
    "vs",
    "dir",
    "ets",
    "ws",
    "cws",
    "bts",
    "ccts",
    "hb",
    "iso",
    "spline",
    "shape",
    "conf",
    "ts+top",
    "sctl+ts",
)


def log(probabilities):
    with np.errstate(divide="ignore"):
        return np.log(probabilities)


def rounded(probabilities, decimals=4):
    short = np.round(probabilities.astype(np.float64), decimals)
    return short / short.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def network():
    data = cal.datasets.load("cifar10-resnet18")
    return data.val.probabilities, data.val.labels, data.test.probabilities, data.test.labels


@pytest.mark.parametrize("method", METHODS)
def test_rounding_to_four_decimals_changes_little(method, network):
    val, val_labels, test, test_labels = network
    exact = cal.get(method).fit(log(val), val_labels)
    with pytest.warns(FitWarning, match=r"rows hold a probability of 0: it counts as half") as caught:
        short = cal.get(method).fit(log(rounded(val)), val_labels)
    assert sum("probability of 0" in str(one.message) for one in caught) == 1
    before, after = exact.predict_proba(log(test)), short.predict_proba(log(rounded(test)))
    assert metrics.nll(after, test_labels) < 1.03 * metrics.nll(before, test_labels)
    assert abs(metrics.ece(after, test_labels) - metrics.ece(before, test_labels)) < 0.015


def test_the_floor_is_half_the_smallest_positive_probability(network):
    val, labels, _, _ = network
    short = rounded(val)
    with pytest.warns(FitWarning):
        fitted = cal.TemperatureScaling().fit(log(short), labels)
    sample = short[:: -(-len(short) // 2000)]
    assert np.exp(fitted.log_floor_) == pytest.approx(sample[sample > 0].min() / 2)
    row = np.array([[0.7, 0.3, *[0.0] * 8]])
    raised = np.where(row > 0, row, np.exp(fitted.log_floor_))
    expected = log(raised) / fitted.temperature_
    assert np.allclose(fitted.transform(log(row)), expected)


def test_a_zero_in_a_row_of_weight_zero_changes_nothing():
    """It is not counted among the zeros, but is raised like them: −inf times a weight of 0 would be NaN."""
    logits = np.array([[1.0, -1.0, 0.0], [0.5, 1.0, -0.5], [-np.inf, 1.5, 0.8], [0.0, 0.3, 0.9], [0.2, 1.0, 0.1]])
    labels, weights = np.array([0, 2, 0, 2, 1]), np.array([1.0, 2.0, 0.0, 1.0, 1.0])
    counted = weights > 0
    for method in ("ts", "vs", "cts-nll"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            with_row = cal.get(method).fit(logits, labels, sample_weight=weights)
            without = cal.get(method).fit(logits[counted], labels[counted], sample_weight=weights[counted])
        assert np.isfinite(with_row.predict_proba(logits)).all()
        assert np.allclose(with_row.predict_proba(logits), without.predict_proba(logits), atol=1e-6)


def test_scores_of_both_infinities():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 400)
    scores = 2 * rng.normal(size=400) + 3 * labels - 1
    p = np.round(1 / (1 + np.exp(-scores)), 2)
    odds = log(p) - log(1 - p)
    for method in ("ts", "platt", "iso", "hb", "shape"):
        with pytest.warns(FitWarning, match="rows hold a probability of 0"):
            fitted = cal.get(method).fit(odds, labels)
        assert np.exp(fitted.log_floor_) == pytest.approx(0.5 * min((1 - p)[p < 1].min(), p[p > 0].min()))
        low, high = fitted.predict_proba(np.array([-np.inf, np.inf]))[:, 1]
        assert 0 < low < 0.2 < 0.8 < high < 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kernels", ["numpy", "numba"])
def test_kernels_learn_the_same_floor(dtype, kernels, monkeypatch):
    monkeypatch.setenv("CALIBRANT_KERNELS", kernels)
    rng = np.random.default_rng(1)
    logits = (4 * rng.normal(size=(300, 6))).astype(dtype)
    logits[rng.random(logits.shape) < 0.2] = -np.inf
    logits[:, 0] = 0.0
    p = np.exp(logits.astype(np.float64))
    p /= p.sum(axis=1, keepdims=True)
    with pytest.warns(FitWarning):
        fitted = cal.Identity().fit(logits, np.zeros(300, dtype=int))
    assert np.exp(fitted.log_floor_) == pytest.approx(p[p > 0].min() / 2, rel=1e-4)


def test_files_and_artifacts_follow_the_rule(tmp_path, network):
    val, labels, test, _ = network
    header = "label," + ",".join(f"probability_{j}" for j in range(10))
    table = np.column_stack([labels[:800], val[:800]])
    np.savetxt(tmp_path / "val.csv", table, ["%d"] + ["%.4f"] * 10, ",", header=header, comments="")
    predictions = cal.open_predictions(tmp_path / "val.csv")
    assert np.isneginf(predictions.logits).any()
    for method in ("ts", "vs", "hb", "ts+top"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            by_chunks = cal.get(method).fit(predictions)
            at_once = cal.get(method).fit(predictions.logits, predictions.labels)
        assert by_chunks.log_floor_ == pytest.approx(at_once.log_floor_)
        cal.save(by_chunks, tmp_path / "cal.safetensors")
        loaded = cal.load(tmp_path / "cal.safetensors")
        new = log(rounded(test[:50]))
        assert loaded.log_floor_ == by_chunks.log_floor_
        assert (loaded.predict_proba(new) == by_chunks.predict_proba(new)).all()
        assert np.allclose(by_chunks.predict_proba(new), at_once.predict_proba(new), atol=1e-6)


def test_a_forest_that_says_zero():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(600, 4))
    labels = (features[:, 0] + rng.normal(size=600) > 0).astype(int)
    forest = RandomForestClassifier(10, random_state=0).fit(features[:300], labels[:300])
    p = forest.predict_proba(features[300:])
    assert (p == 0).any()
    with pytest.warns(FitWarning, match="probability of 0"):
        fitted = cal.get("ts").fit(log(p), labels[300:])
    assert np.exp(fitted.log_floor_) == pytest.approx(0.05)


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
def test_metrics_of_logits_take_minus_infinity(kernels, monkeypatch):
    monkeypatch.setenv("CALIBRANT_KERNELS", kernels)
    p = np.array([[0.75, 0.25, 0.0], [0.0, 1.0, 0.0], [0.25, 0.25, 0.5]])
    for name in ("accuracy", "ece", "brier", "entropy", "nll", "ace", "sce"):
        metric = getattr(metrics, name)
        assert np.isclose(metric(log(p), [0, 1, 2], from_logits=True), metric(p, [0, 1, 2])), name
    for bad in ([[np.inf, 0.0, 0.0]], [[np.nan, -np.inf, 0.0]], [[-np.inf] * 3]):
        with pytest.raises(InputError):
            metrics.nll(np.array(bad), [0], from_logits=True)
        with pytest.raises(InputError):
            cal.Identity().fit(np.array(bad * 2), [0, 1])


def test_an_artifact_without_a_floor_says_what_to_do():
    fitted = cal.Identity().fit(2 * np.eye(3), np.arange(3))
    fitted.log_floor_ = None
    with pytest.raises(InputError, match="fit it again"):
        fitted.transform(np.array([[0.0, -np.inf, 1.0]]))


@pytest.mark.parametrize("method", ["none", "ts", "vs", "ets", "ts+top"])
def test_torch_and_onnx_follow_the_rule(method, network):
    torch = pytest.importorskip("torch")
    onnxruntime = pytest.importorskip("onnxruntime")
    from calibrant.neural import CalibratedModule
    from calibrant.shipping.onnx import to_onnx

    val, labels, test, _ = network
    with pytest.warns(FitWarning):
        fitted = cal.get(method).fit(log(rounded(val[:1000])), labels[:1000])
    session = onnxruntime.InferenceSession(to_onnx(fitted).SerializeToString())
    module = CalibratedModule(torch.nn.Identity(), fitted)
    given = (log(rounded(test[:40])), 7 + log(rounded(test[:40])), log(test[:40]))
    for new in (one.astype(np.float32) for one in given):
        expected = fitted.predict_proba(new)
        assert np.abs(session.run(["probabilities"], {"logits": new})[0] - expected).max() < 1e-5
        assert np.abs(module(torch.tensor(new)).numpy() - expected).max() < 1e-5


def test_torch_and_onnx_take_infinite_scores():
    torch = pytest.importorskip("torch")
    onnxruntime = pytest.importorskip("onnxruntime")
    from calibrant.neural import CalibratedModule
    from calibrant.shipping.onnx import to_onnx

    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 200)
    scores = np.where(np.arange(200) % 9 == 0, np.inf * (2 * labels - 1), rng.normal(size=200) + labels)
    scores = scores.astype(np.float32)
    with pytest.warns(FitWarning):
        fitted = cal.get("platt").fit(scores, labels)
    expected = fitted.predict_proba(scores)
    session = onnxruntime.InferenceSession(to_onnx(fitted).SerializeToString())
    assert np.abs(session.run(["probabilities"], {"logits": scores})[0] - expected).max() < 1e-5
    module = CalibratedModule(torch.nn.Identity(), fitted)
    assert np.abs(module(torch.tensor(scores)).numpy() - expected).max() < 1e-5
    assert np.abs(fitted.predict_proba(torch.tensor(scores)).numpy() - expected).max() < 1e-5


def test_tensors_with_zeros_are_answered_as_arrays():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 300)
    logits = (rng.normal(size=(300, 4)) + 2 * np.eye(4)[labels]).astype(np.float32)
    logits[::7, 0] = -np.inf
    with pytest.warns(FitWarning):
        fitted = cal.get("vs").fit(logits, labels)
    expected = fitted.predict_proba(logits)
    assert np.abs(fitted.predict_proba(torch.tensor(logits)).numpy() - expected).max() < 1e-6
    dense = torch.tensor(logits).reshape(3, 10, 10, 4).permute(0, 3, 1, 2)
    answer = fitted.predict_proba(dense).permute(0, 2, 3, 1).reshape(300, 4)
    assert np.abs(answer.numpy() - expected).max() < 1e-6
    for bad in (np.nan, np.inf):
        with pytest.raises(cal.InputError, match="NaN or infinite"):
            fitted.predict_proba(torch.tensor([[0.0, bad, 1.0, 2.0]]))
    with pytest.raises(cal.InputError, match="NaN or infinite"):
        fitted.predict_proba(torch.full((1, 4), -np.inf))


def said_with_zeros(task, dtype, n, seed):
    """Probabilities of two decimals, many of them exactly 0 or 1, and outcomes that they sometimes exclude."""
    rng = np.random.default_rng(seed)
    if task == "multiclass":
        labels = rng.integers(0, 4, n)
        logits = 3 * (rng.normal(size=(n, 4)) + 1.2 * np.eye(4)[labels])
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        p[:30] = np.eye(4)[rng.integers(0, 4, 30)]
        return rounded(p, 2).astype(dtype), labels
    labels = rng.integers(0, 2, (n, 3) if task == "multilabel" else n)
    scores = 4 * rng.normal(size=labels.shape) + 4 * labels - 2
    return np.round(1 / (1 + np.exp(-scores)), 2).astype(dtype), labels


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["probabilities", "logits"])
@pytest.mark.parametrize("task", ["multiclass", "binary", "pairs", "multilabel"])
def test_none_of_a_comparison_is_the_measured_model(task, kind, dtype, tmp_path):
    """Every figure and the note about zeros, of arrays and of files; the log loss is scikit-learn's."""
    parts = []
    for seed, n in ((0, 400), (1, 500)):
        p, labels = said_with_zeros(task, dtype, n, seed)
        values = p if kind == "probabilities" else log(p) - (0 if task == "multiclass" else log(1 - p))
        np.savez(tmp_path / f"{seed}.npz", **{kind: values}, labels=labels)
        parts.append(cal.Predictions(values, labels, kind=kind, task=task))
    files = [cal.open_predictions(tmp_path / f"{seed}.npz", task=task) for seed in (0, 1)]
    measured = cal.measure(parts[1], resamples=50)
    expected = log_loss(labels.reshape(-1), p.reshape(-1) if p.ndim == 1 or task == "multilabel" else p)
    assert measured.metrics["nll"].value == pytest.approx(expected, rel=1e-4)
    cost = 36 if dtype == np.float64 else 16
    assert f"and each adds {cost} nats to the NLL" in measured.warnings[-1]
    for val, test in (parts, files):
        table = cal.compare(val, test, ["none"], resamples=50)
        row = table.row("none")
        assert row.warnings == ()  # what a fit makes of zeros is not what was measured
        assert table.warnings == measured.warnings
        assert measured.warnings[-1] in repr(table)
        assert measured.warnings[-1] in repr(measured)
        for name, figure in row.metrics.items():
            of_measure = measured.metrics[name]
            assert figure.value == of_measure.value, name
            assert [figure.low, figure.high] == pytest.approx([of_measure.low, of_measure.high], abs=1e-5), name


RANKED = [
    name for name in [*registry.names("binary"), "auto", "bend+group"] if "keeps_ranking" in registry.get(name).facts
]


def certain_and_saturated(n=300):
    """Scores with their labels: finite ones with infinite ones among them, and finite ones beyond the floor."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 2, n)
    scores = np.round(2 * rng.normal(size=n) + 3 * labels - 1.5, 1)
    scores[:6], labels[:6] = (-np.inf, -np.inf, np.inf, np.inf, np.inf, np.inf), (0, 1, 1, 1, 0, 1)
    floor = 2 * np.abs(scores[np.isfinite(scores)]).max()
    beyond = np.array([-np.inf, -1e6, -50, -floor, -8, -3, 0, 3, 8, floor, 50, 1e6, np.inf])
    return scores, labels, beyond


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("method", RANKED)
def test_certain_scores_rank_first_in_each_runtime(method, seen):
    torch = pytest.importorskip("torch")
    onnx = pytest.importorskip("onnxruntime")
    from calibrant.shipping.onnx import to_onnx

    scores, labels, given = certain_and_saturated()
    if not seen:  # zeros appear in predictions only
        scores, labels = scores[6:], labels[6:]
    fitted = cal.get(method)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        fitted.fit(scores, labels)
    if not fitted.keeps_ranking:
        return
    answers = {"numpy": fitted.predict_proba(given), "float32": fitted.predict_proba(given.astype(np.float32))}
    answers["torch"] = fitted.predict_proba(torch.tensor(given)).numpy()
    answers["module"] = (
        cal.CalibratedModule(torch.nn.Identity(), fitted, output="logits")(torch.tensor(given)).detach().numpy()
    )
    session = onnx.InferenceSession(to_onnx(fitted).SerializeToString())
    answers["onnx"] = session.run(["probabilities"], {"logits": given.astype(np.float32)})[0]
    for runtime, found in answers.items():
        p = found if runtime == "module" else found[:, 1]
        assert (np.diff(p) >= 0).all(), runtime
        if runtime != "module":
            np.testing.assert_allclose(found, answers["numpy"], atol=1e-6, err_msg=runtime)


@pytest.mark.parametrize("method", ["beta", "quad", "bend", "va"])
def test_certain_rows_of_two_columns_rank_first(method):
    scores, labels, given = certain_and_saturated()
    with np.errstate(over="ignore"):
        rows = [np.stack([np.minimum(-one, 0), np.minimum(one, 0)], axis=1) for one in (scores, given)]
    with pytest.warns(FitWarning):
        fitted = cal.get(method).fit(rows[0], labels)
    assert (np.diff(fitted.predict_proba(rows[1])[:, 1]) >= 0).all()


def test_scores_within_the_floor_are_unchanged():
    fitted = cal.get("none").fit(np.array([-2.0, 3.0, 1.0]), [0, 1, 1])
    given = np.array([-3.0, 0.5, 3.5])
    np.testing.assert_array_equal(fitted.transform(given), given)


@pytest.mark.parametrize("n", [1, 5, 9])
@pytest.mark.parametrize("name", ["none", "auto"])
def test_unchanged_predictions_keep_scores_beyond_the_fit_rows(name, n):
    scores, labels = np.linspace(-1, 1, n), (np.arange(n) % 2).astype(int)
    fitted = cal.get(name).fit(scores, labels)
    new = np.array([-30.0, -5.0, 2.0, 20.0])
    np.testing.assert_array_equal(fitted.transform(new), new)
    low, high = fitted.predict_proba(np.array([-np.inf, np.inf]))[:, 1]
    assert 0 < low < 1e-13 < 1 - 1e-13 < high <= 1
