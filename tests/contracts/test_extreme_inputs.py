"""Weights, ties, masks and sizes at the edge of what floats hold: the scaled answer, or an error that says why not."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import calibrant as cal
from calibrant import metrics
from calibrant.core.errors import FitWarning, InputError

RATIOS = [
    "accuracy",
    "ace",
    "adaptive_ece",
    "brier",
    "classwise_ece",
    "confidence",
    "confidence_auroc",
    "ece",
    "entropy",
    "ks_error",
    "marginal_ece",
    "mmce",
    "nll",
    "sce",
    "smooth_ece",
    "soft_ece",
    "sweep_ece",
]
COUNTS = ("aurc", "debiased_ece")
METHODS = ("ts", "cts-nll", "vs", "ets", "ws", "cws", "bts", "ccts", "hb", "iso", "spline", "shape", "conf", "ts+top")


def problem(n=400, n_classes=4, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n)
    logits = 2.0 * (rng.normal(size=(n, n_classes)) + 1.5 * np.eye(n_classes)[labels])
    return logits.astype(dtype), labels, rng.integers(1, 4, n).astype(np.float64)


@pytest.mark.parametrize("name", RATIOS)
@pytest.mark.parametrize("scale", [1e-100, 1e-320, 1e300, 1 / 400])
def test_ratio_metrics_take_weights_of_any_scale(name, scale):
    logits, labels, weights = problem()
    weights[:50] = 0.0
    # denormal numbers hold few digits: the weights that are left are the ones to compare with
    given = weights * scale
    metric = getattr(metrics, name)
    expected = metric(logits, labels, sample_weight=given / given.max(), from_logits=True)
    assert np.allclose(metric(logits, labels, sample_weight=given, from_logits=True), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", COUNTS)
def test_counting_metrics_refuse_weights_that_are_no_counts(name):
    logits, labels, weights = problem()
    with pytest.raises(InputError, match=r"sum to 1 over 400 rows .* multiply by n / sum"):
        getattr(metrics, name)(logits, labels, sample_weight=weights / weights.sum(), from_logits=True)
    with pytest.warns(FitWarning, match="mean of 200"):
        getattr(metrics, name)(logits, labels, sample_weight=np.full(400, 200.0), from_logits=True)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("scale", [1e-100, 5e-324, 1e-3, 1e300])
def test_fits_refuse_weights_that_are_no_counts(name, scale):
    logits, labels, _ = problem(60)
    with pytest.raises(InputError, match="multiply by n / sum"):
        cal.get(name).fit(logits, labels, sample_weight=np.full(60, scale))


def test_fits_warn_of_large_counts_and_ignore_zeros():
    logits, labels, _ = problem(200)
    with pytest.warns(FitWarning, match="mean of 1000"):
        cal.TemperatureScaling().fit(logits, labels, sample_weight=np.full(200, 1000.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mostly_zero = np.where(np.arange(200) % 20, 0.0, 1.0)  # their mean is 0.05, but the rows that count have 1
        fitted = cal.TemperatureScaling().fit(logits, labels, sample_weight=mostly_zero)
        kept = cal.TemperatureScaling().fit(logits[::20], labels[::20])
    assert np.isclose(fitted.temperature_, kept.temperature_)


def test_measure_and_compare_refuse_weights_that_sum_to_one():
    logits, labels, weights = problem()
    predictions = cal.Predictions.from_arrays(logits=logits, labels=labels, weights=weights / weights.sum())
    with pytest.raises(InputError, match="multiply by n / sum"):
        cal.measure(predictions)
    with pytest.raises(InputError, match="multiply by n / sum"):
        cal.compare(predictions, predictions, methods=["ts"])


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_zeros_of_both_signs_tie(kernels, dtype, monkeypatch):
    monkeypatch.setenv("CALIBRANT_KERNELS", kernels)
    logits = np.array([[-0.0, 0.0, -1.0], [0.0, -0.0, -0.0], [-2.0, -0.0, 0.0], [-1.0, -1.0, -1.0]], dtype=dtype)
    labels = np.array([0, 0, 1, 0])
    assert metrics.accuracy(logits, labels, from_logits=True) == 1.0
    assert metrics.ece(logits, labels, from_logits=True) == metrics.ece(logits + 0.0, labels, from_logits=True)
    with pytest.warns(FitWarning, match="all rows are predicted correctly"):
        fitted = cal.TemperatureScaling().fit(logits, labels)
    assert (fitted.predict(logits) == labels).all()


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
def test_sums_of_finite_logits_may_overflow(kernels, monkeypatch):
    monkeypatch.setenv("CALIBRANT_KERNELS", kernels)
    logits = np.array([[1.7e308, 1.7e308, 0.0], [1.0, 0.0, 1.7e308]])
    assert np.isclose(metrics.nll(logits[:1], [1], from_logits=True), np.log(2))
    assert metrics.accuracy(logits, [0, 2], from_logits=True) == 1.0


@pytest.mark.parametrize("name", ["ace", "marginal_ece"])
def test_equal_mass_ranges_of_large_float32_logits(name):
    rng = np.random.default_rng(0)
    logits = (1000 * rng.normal(size=(300, 5))).astype(np.float32)
    labels = rng.integers(0, 5, 300)
    metric = getattr(metrics, name)
    wide = metric(logits.astype(np.float64), labels, from_logits=True)
    assert np.isclose(metric(logits, labels, from_logits=True), wide, atol=1e-9)


@pytest.mark.parametrize("name", ["ts", "ets", "ts+top", "ws", "cws", "bts"])
def test_kept_predictions_survive_a_huge_temperature_in_float32(name):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, 400)
    logits = rng.normal(size=(400, 5)).astype(np.float32)  # says nothing, so that the temperature goes to infinity
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = cal.get(name).fit(logits, labels)
    assert (fitted.predict(logits) == logits.argmax(axis=1)).all()
    assert (fitted.predict_proba(logits).argmax(axis=1) == logits.argmax(axis=1)).all()


@pytest.mark.parametrize("which", ["logits", "labels", "weights"])
def test_masked_arrays_are_refused(which):
    logits, labels, weights = problem(50)
    given = {"logits": logits, "labels": labels, "weights": weights}
    given[which] = np.ma.masked_array(given[which], mask=np.zeros(given[which].shape, bool))
    cal.TemperatureScaling().fit(given["logits"], given["labels"], sample_weight=given["weights"])
    given[which].mask.flat[3] = True
    with pytest.raises(InputError, match="1 masked values"):
        cal.TemperatureScaling().fit(given["logits"], given["labels"], sample_weight=given["weights"])
    with pytest.raises(InputError, match="1 masked values"):
        metrics.nll(given["logits"], given["labels"], sample_weight=given["weights"], from_logits=True)


@pytest.mark.parametrize("seed", range(6))
def test_confusion_scaling_counts_a_weight_of_two_as_the_row_twice(seed):
    logits, labels, weights = problem(12 if seed % 2 else 150, seed=seed)
    twice = np.repeat(np.arange(len(labels)), weights.astype(int))
    weighted = cal.ConfusionScaling().fit(logits, labels, sample_weight=weights)
    repeated = cal.ConfusionScaling().fit(logits[twice], labels[twice])
    assert np.allclose(weighted.predict_proba(logits), repeated.predict_proba(logits), atol=1e-6)


def test_folds_do_not_depend_on_the_row_order_of_permuted_rows():
    from calibrant.calibrators.solvers.folds import content_folds
    from calibrant.core.rows import Rows

    rng = np.random.default_rng(0)
    logits = np.round(rng.normal(size=(300, 4)), 1)
    logits[:150] = logits[150:][:, [1, 0, 2, 3]]  # the same values in another order
    labels = rng.integers(0, 4, 300)
    order = rng.permutation(300)
    folds = content_folds(Rows(logits, labels), 5, 0)
    assert (content_folds(Rows(logits[order], labels[order]), 5, 0) == folds[order]).all()


@pytest.mark.parametrize("name", ["sctl+vs", "sctl+cts-nll"])
@pytest.mark.parametrize("seed", range(4))
def test_class_loss_scaling_does_not_depend_on_the_row_order(name, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, 200)
    logits = 3 * rng.normal(size=(200, 4)) + 2 * np.eye(4)[labels]
    order = rng.permutation(200)
    first = cal.get(name).fit(logits, labels)
    second = cal.get(name).fit(logits[order], labels[order])
    assert np.abs(first.predict_proba(logits) - second.predict_proba(logits)).max() < 1e-4


def test_temperatures_of_huge_logits_can_be_saved(tmp_path):
    logits, labels, _ = problem(200)
    for name in ("ts", "cts-nll", "sctl+cts-nll"):
        fitted = cal.get(name).fit(1e14 * logits, labels)
        cal.save(fitted, tmp_path / "fit.safetensors")
        loaded = cal.load(tmp_path / "fit.safetensors")
        assert np.allclose(loaded.predict_proba(1e14 * logits), fitted.predict_proba(1e14 * logits))
