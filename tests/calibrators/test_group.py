"""Calibrators of groups: one group is the inner method, shrinkage goes from separate fits to the pooled one."""

from __future__ import annotations

import numpy as np
import pytest

import calibrant as cal
from calibrant import metrics
from calibrant.core.errors import FitWarning, InputError
from calibrant.core.softmax import softmax
from calibrant.evaluation.compare import compare
from calibrant.shipping.artifact import load, save

INNER = ["ts", "vs", "shape", "hb", "ts+top"]


def rows(n: int = 900, seed: int = 0, n_classes: int = 3):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, n_classes, n)
    ward = generator.choice(["a", "b", "c"], n, p=[0.5, 0.3, 0.2])
    logits = 2 * generator.normal(size=(n, n_classes)) + 4 * np.eye(n_classes)[labels]
    logits *= np.select([ward == "a", ward == "b"], [1.0, 3.0], 0.5)[:, None]
    return logits, labels, ward


def binary(n: int = 900, seed: int = 0):
    logits, labels, ward = rows(n, seed, 2)
    return logits[:, 1] - logits[:, 0], labels, ward


@pytest.mark.parametrize("method", INNER)
@pytest.mark.parametrize("make", [rows, binary])
def test_56_one_group_is_the_inner_method(method, make):
    logits, labels, _ = make()
    inner = cal.get(method).fit(logits, labels).predict_proba(logits)
    for groups in (None, np.full(len(labels), "all")):
        fitted = cal.get(f"{method}+group").fit(logits, labels, groups=groups)
        np.testing.assert_allclose(fitted.predict_proba(logits, groups=groups), inner, atol=1e-12)


@pytest.mark.parametrize("method", INNER)
@pytest.mark.parametrize("make", [rows, binary])
def test_56_shrinkage_goes_from_separate_fits_to_the_pooled_one(method, make):
    logits, labels, ward = make()
    pooled = cal.get(method).fit(logits, labels).predict_proba(logits)
    separate = np.empty_like(pooled)
    for name in "abc":
        mine = ward == name
        separate[mine] = cal.get(method).fit(logits[mine], labels[mine]).predict_proba(logits[mine])
    for shrink, expected in ((np.inf, pooled), (0, separate), (1e12, pooled)):
        fitted = cal.GroupCalibrator(cal.get(method), shrink=shrink).fit(logits, labels, groups=ward)
        np.testing.assert_allclose(fitted.predict_proba(logits, groups=ward), expected, atol=1e-6)


def test_57_renaming_the_groups_changes_nothing():
    logits, labels, ward = rows()
    renamed = np.select([ward == "a", ward == "b"], ["z", "y"], "x")
    left = cal.get("ts+group").fit(logits, labels, groups=ward)
    right = cal.get("ts+group").fit(logits, labels, groups=renamed)
    assert left.strength_ == right.strength_
    np.testing.assert_allclose(
        left.predict_proba(logits, groups=ward), right.predict_proba(logits, groups=renamed), atol=1e-12
    )


def test_groups_that_differ_are_told_apart_and_chance_is_not():
    logits, labels, ward = rows(2000)
    assert cal.get("ts+group").fit(logits, labels, groups=ward).strength_ <= 100
    arbitrary = np.random.default_rng(1).choice(["x", "y", "z"], 2000)
    told = [
        cal.GroupCalibrator(cal.TemperatureScaling(), seed=seed)
        .fit(*rows(600, seed)[:2], groups=np.random.default_rng(seed).choice(["x", "y"], 600))
        .strength_
        for seed in range(10)
    ]
    assert np.isinf(told).sum() >= 8
    assert np.isinf(cal.get("ts+group").fit(logits, labels, groups=arbitrary).strength_)


def test_new_rows_gain_from_their_groups_fit():
    fit, new = rows(2000, 0), rows(2000, 1)
    inner = metrics.nll(cal.get("ts").fit(*fit[:2]).predict_proba(new[0]), new[1])
    grouped = cal.get("ts+group").fit(*fit[:2], groups=fit[2])
    assert metrics.nll(grouped.predict_proba(new[0], groups=new[2]), new[1]) < inner - 0.02


def test_a_group_without_an_error_stays_finite():
    logits, labels, ward = rows(600)
    ward = np.where(np.arange(600) < 20, "perfect", ward)
    labels = np.where(ward == "perfect", logits.argmax(axis=1), labels)
    fitted = cal.GroupCalibrator(cal.TemperatureScaling(), shrink=10).fit(logits, labels, groups=ward)
    assert np.isfinite(fitted.predict_proba(logits, groups=ward)).all()
    assert min(one.temperature_ for one in fitted.calibrators_) > 0.1
    alone = cal.GroupCalibrator(cal.TemperatureScaling(), shrink=0).fit(logits, labels, groups=ward)
    assert min(one.temperature_ for one in alone.calibrators_) > 0.1


def test_an_unseen_group_gets_the_pooled_fit_with_a_warning():
    logits, labels, ward = rows()
    fitted = cal.get("ts+group").fit(logits, labels, groups=ward)
    pooled = cal.get("ts").fit(logits, labels).predict_proba(logits[:3])
    with pytest.warns(FitWarning, match="2 rows are of groups.*elsewhere"):
        found = fitted.predict_proba(logits[:3], groups=["elsewhere", ward[1], "elsewhere"])
    np.testing.assert_allclose(found[[0, 2]], pooled[[0, 2]])
    with pytest.warns(FitWarning, match="no groups were given"):
        np.testing.assert_allclose(fitted.predict_proba(logits[:3]), pooled)
    with pytest.raises(InputError, match=r"groups has shape \(2,\), but there are 3 rows"):
        fitted.predict_proba(logits[:3], groups=["a", "b"])


def test_weight_two_is_the_row_twice():
    logits, labels, ward = rows(500)
    weights = np.random.default_rng(0).integers(1, 3, 500)
    given = {"shrink": 30.0}
    left = cal.GroupCalibrator(cal.VectorScaling(), **given).fit(logits, labels, sample_weight=weights, groups=ward)
    repeated = (np.repeat(one, weights, axis=0) for one in (logits, labels))
    right = cal.GroupCalibrator(cal.VectorScaling(), **given).fit(*repeated, groups=np.repeat(ward, weights))
    np.testing.assert_allclose(
        left.predict_proba(logits, groups=ward), right.predict_proba(logits, groups=ward), atol=2e-2
    )
    np.testing.assert_allclose(left.shares_, right.shares_)


@pytest.mark.parametrize("make", [rows, binary])
def test_an_artifact_holds_the_groups(make, tmp_path):
    logits, labels, ward = make()
    fitted = cal.GroupCalibrator(cal.TemperatureScaling(), shrink=20.0).fit(logits, labels, groups=ward)
    save(fitted, tmp_path / "cal.safetensors")
    loaded = load(tmp_path / "cal.safetensors")
    np.testing.assert_array_equal(loaded.predict_proba(logits, groups=ward), fitted.predict_proba(logits, groups=ward))


def test_compare_gives_groups_to_methods_that_take_them():
    from calibrant.data import Predictions

    (z, y, g), (u, v, h) = rows(1500, 0), rows(1500, 1)
    val, test = Predictions(logits=z, labels=y, groups={"ward": g}), Predictions(logits=u, labels=v, groups={"ward": h})
    table = compare(val, test, ["ts", "ts+group"], by="ward", resamples=100)
    expected = metrics.nll(cal.get("ts+group").fit(z, y, groups=g).predict_proba(u, groups=h), v)
    assert table.row("ts+group").metrics["nll"].value == pytest.approx(expected, rel=1e-6)
    assert table.best == "ts+group"
    assert table.row("ts+group").warnings == ()


@pytest.mark.parametrize("shrink", ["some", -1, True])
def test_bad_strengths_are_refused(shrink):
    logits, labels, ward = rows(60)
    with pytest.raises(InputError, match="shrink must be a number of at least 0"):
        cal.GroupCalibrator(cal.TemperatureScaling(), shrink=shrink).fit(logits, labels, groups=ward)


def test_groups_of_many_labels_are_refused():
    labels = np.eye(3, dtype=int)[np.arange(30) % 3]
    predictions = cal.Predictions(probabilities=np.full((30, 3), 0.4), labels=labels, groups={"ward": ["a", "b"] * 15})
    with pytest.raises(InputError, match="groups of many labels are not calibrated"):
        cal.GroupCalibrator(cal.MultilabelCalibrator("platt")).fit(predictions)


def test_predictions_are_kept_where_the_inner_method_keeps_them():
    logits, labels, ward = rows()
    fitted = cal.GroupCalibrator(cal.TemperatureScaling(), shrink=20.0).fit(logits, labels, groups=ward)
    assert fitted.keeps_prediction
    assert np.array_equal(fitted.predict(logits, groups=ward), softmax(logits).argmax(axis=1))


@pytest.mark.parametrize("suffix", ["+group", "+multi"])
@pytest.mark.parametrize("method", ["ts", "vs", "shape", "ts+top"])
@pytest.mark.parametrize("make", [rows, binary])
def test_torch_and_onnx_give_the_same_answers(make, method, suffix):
    """The number of the group is a second input; −1 stands for an unknown group."""
    import onnxruntime
    import torch

    from calibrant.neural.calibrated_module import CalibratedModule
    from calibrant.shipping.onnx import to_onnx

    logits, labels, ward = make()
    logits = logits.astype(np.float32).astype(np.float64)
    calibrator = cal.get(method + suffix)
    if suffix == "+group":
        calibrator.set_params(shrink=20.0)
    fitted = calibrator.fit(logits, labels, groups=ward)
    codes = fitted.group_codes(ward, len(ward))
    codes[:50] = -1
    with np.errstate(all="ignore"):
        expected = fitted.transform_codes(logits, codes)
    given = logits.astype(np.float32)
    expected = softmax(np.stack([np.zeros_like(expected), expected], axis=1) if expected.ndim == 1 else expected)
    module = CalibratedModule(torch.nn.Identity(), fitted)
    found = module(torch.tensor(logits), groups=torch.tensor(codes)).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    session = onnxruntime.InferenceSession(to_onnx(fitted).SerializeToString())
    answers = session.run(["probabilities", "prediction"], {"logits": given, "group": codes.astype(np.int64)})
    np.testing.assert_allclose(answers[0], expected, atol=1e-5)
