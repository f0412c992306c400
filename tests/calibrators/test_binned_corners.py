"""Awkward inputs and promises, for every calibrator that works on confidences, bins or grids."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import calibrant as cal

METHODS = ["cts", "u-cts", "ws", "cws", "bts", "ccts", "hb", "iso", "spline", "ts+top", "cts+top"]
CALIBRATORS = {name: cal.get(name) for name in METHODS} | {
    "ws-l1": cal.WeightScaling("adaptive_ece_l1"),
    "cws-auto": cal.ConfidenceWeightScaling("auto"),
    "hb-ovr": cal.HistogramBinning(mode="one_vs_rest"),
    "iso-ovr": cal.IsotonicCalibration("one_vs_rest"),
}


def corner(name, rng):
    labels = rng.integers(0, 4, 120)
    logits = rng.normal(0, 2, (120, 4)) + 2 * np.eye(4)[labels]
    binary = rng.integers(0, 2, 90)
    return {
        "plain": (logits, labels),
        "two classes": (rng.normal(0, 2, (90, 2)) + np.eye(2)[binary], binary),
        "absent class": (logits, labels % 2),
        "three rows": (logits[:3], np.array([0, 1, 1])),
        "one row": (logits[:1], labels[:1]),
        "huge": (1e4 * np.sign(logits) * rng.random(logits.shape).round(1), labels),
        "constant": (np.zeros((50, 4)), rng.integers(0, 4, 50)),
        "all wrong": (logits, (logits.argmax(axis=1) + 1) % 4),
        "mostly right": (logits, np.where(rng.random(120) < 0.98, logits.argmax(axis=1), labels)),
        "ties": (np.round(logits), labels),
    }[name]


CORNERS = [
    "plain",
    "two classes",
    "absent class",
    "three rows",
    "one row",
    "huge",
    "constant",
    "all wrong",
    "mostly right",
    "ties",
]


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("where", CORNERS)
@pytest.mark.parametrize("name", CALIBRATORS)
def test_finite_and_true_to_its_promises(name, where, dtype, rng):
    logits, labels = corner(where, rng)
    logits = logits.astype(dtype)
    fitted = CALIBRATORS[name].fit(logits, labels)
    result = fitted.transform(logits)
    assert result.dtype == dtype
    assert result.shape == logits.shape
    assert np.isfinite(result).all()
    probabilities = fitted.predict_proba(logits)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    if fitted.keeps_prediction:
        np.testing.assert_array_equal(probabilities.argmax(axis=1), logits.argmax(axis=1))
    assert fitted.n_parameters_ >= 1
    assert fitted.n_iter_ >= 0
    assert fitted.fit_seconds_ >= 0
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.transform(logits), result)


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
@pytest.mark.parametrize("name", CALIBRATORS)
@given(seed=st.integers(0, 200))
def test_weight_two_is_the_row_twice_and_zero_is_no_row(name, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, 60)
    logits = rng.normal(0, 2, (60, 3)) + np.eye(3)[labels]
    weights = rng.integers(0, 3, 60)
    weighted = CALIBRATORS[name].fit(logits, labels, weights).predict_proba(logits)
    repeated = CALIBRATORS[name].fit(np.repeat(logits, weights, axis=0), np.repeat(labels, weights))
    np.testing.assert_allclose(weighted, repeated.predict_proba(logits), atol=1e-7)


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
@pytest.mark.parametrize("name", [name for name in CALIBRATORS if not CALIBRATORS[name].searches_in_order])
def test_relabelling_the_classes_permutes_the_answer(name, rng):
    labels = rng.integers(0, 5, 300)
    logits = rng.normal(0, 2, (300, 5)) + 2 * np.eye(5)[labels]
    order = rng.permutation(5)
    plain = CALIBRATORS[name].fit(logits, labels).predict_proba(logits)
    relabelled = CALIBRATORS[name].fit(logits[:, order], np.argsort(order)[labels]).predict_proba(logits[:, order])
    np.testing.assert_allclose(relabelled, plain[:, order], atol=1e-9)


@pytest.mark.parametrize("name", CALIBRATORS)
def test_row_order_does_not_matter(name, rng):
    labels = rng.integers(0, 4, 400)
    logits = np.round(4 * (rng.normal(0, 2, (400, 4)) + 2 * np.eye(4)[labels])) / 4
    order = rng.permutation(400)
    plain = CALIBRATORS[name].fit(logits, labels).predict_proba(logits)
    shuffled = CALIBRATORS[name].fit(logits[order], labels[order]).predict_proba(logits)
    np.testing.assert_allclose(shuffled, plain, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in CALIBRATORS if CALIBRATORS[name].keeps_ranking])
@given(seed=st.integers(0, 500))
def test_ranking_is_kept_where_promised(name, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, 200)
    logits = 3 * rng.normal(0, 1, (200, 4)) + np.eye(4)[labels]
    calibrator = CALIBRATORS[name].fit(logits, labels)
    new = 3 * rng.normal(0, 1, (300, 4))
    before = np.exp(new - new.max(axis=1, keepdims=True)).sum(axis=1)
    after = calibrator.predict_proba(new).max(axis=1)
    assert (np.diff(after[np.argsort(-before)]) >= -1e-12).all()


@pytest.mark.parametrize("name", ["ws", "ws-l1", "cws", "bts", "ccts", "hb", "iso", "spline", "ts+top"])
def test_float32_agrees_with_float64(name, rng):
    labels = rng.integers(0, 6, 3000)
    logits = (2 * rng.normal(0, 1, (3000, 6)) + 2 * np.eye(6)[labels]).astype(np.float32)
    narrow = CALIBRATORS[name].fit(logits, labels).predict_proba(logits)
    wide = CALIBRATORS[name].fit(logits.astype(np.float64), labels).predict_proba(logits.astype(np.float64))
    np.testing.assert_allclose(narrow, wide, atol=2e-6)


def test_small_inputs_do_not_load_the_compiler():
    import subprocess
    import sys

    program = (
        "import sys, numpy as np, calibrant as cal\n"
        "rng = np.random.default_rng(0); y = rng.integers(0, 5, 400); z = rng.normal(0, 2, (400, 5)) + np.eye(5)[y]\n"
        f"for name in {METHODS!r}: cal.get(name).fit(z, y).predict_proba(z)\n"
        "assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
