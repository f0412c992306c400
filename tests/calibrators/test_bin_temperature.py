"""A temperature per confidence bin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from calibrant import BinTemperatureScaling
from calibrant.calibrators.binning import MAX_STEPS, row_terms
from calibrant.core.bins import place
from calibrant.core.errors import FitWarning, InputError
from calibrant.core.softmax import log_softmax, softmax
from calibrant.kernels.scaling import row_moments


def random_data(seed, n_rows=600, n_classes=4, sharpness=2.0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n_rows)
    return sharpness * (rng.normal(0, 1, (n_rows, n_classes)) + np.eye(n_classes)[labels]), labels


@given(seed=st.integers(0, 1000), n_bins=st.integers(1, 12), sharpness=st.floats(0.5, 4))
def test_gap_bins_have_confidence_equal_accuracy(seed, n_bins, sharpness):
    logits, labels = random_data(seed, sharpness=sharpness)
    fitted = BinTemperatureScaling(n_bins=n_bins).fit(logits, labels)
    index = place(softmax(logits).max(axis=1), fitted.edges_)
    correct, after = logits.argmax(axis=1) == labels, fitted.predict_proba(logits).max(axis=1)
    for i in np.unique(index):
        accuracy = correct[index == i].mean()
        target = 1 - 0.5 / (index == i).sum() if accuracy == 1 else max(accuracy, 0.25)
        assert after[index == i].mean() == pytest.approx(target, abs=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nll_bins_are_at_their_optimum(dtype):
    logits, labels = random_data(3, n_rows=3000)
    narrow = logits.astype(dtype)
    fitted = BinTemperatureScaling("nll", n_bins=6).fit(narrow, labels)
    logits = narrow.astype(np.float64)
    index = place(softmax(logits).max(axis=1), fitted.edges_)
    for i in range(6):
        own, truth = logits[index == i], labels[index == i]

        def slope(log_beta, own=own, truth=truth):
            probabilities = softmax(np.exp(log_beta) * own)
            return ((probabilities * own).sum(axis=1) - own[np.arange(len(own)), truth]).mean()

        assert fitted.temperatures_[i] == pytest.approx(np.exp(-brentq(slope, -8, 5, xtol=1e-13)), rel=1e-5)
    assert (np.diff(fitted.objective_trace_) <= 1e-12).all()


def test_large_data_need_two_passes_after_the_scan():
    logits, labels = random_data(0, n_rows=20_000, n_classes=10)
    assert BinTemperatureScaling().fit(logits, labels).n_iter_ <= 2
    assert BinTemperatureScaling("nll").fit(logits, labels).n_iter_ <= 2


def test_terms_of_a_row_are_the_derivatives_by_the_inverse_temperature(rng):
    logits, beta, reach = 3 * rng.normal(size=(9, 6)), 0.8, 1e-3
    steps = np.array([-2, -1, 0, 1, 2])
    at = np.array([row_terms(row_moments(logits, np.full(9, beta + k * reach))) for k in steps])
    # the five-point rule: its error is of the order of reach⁴
    slopes = (at[0] - 8 * at[1] + 8 * at[3] - at[4]) / (12 * reach)
    np.testing.assert_allclose(slopes[:, :3], at[2][:, 1:], rtol=1e-6, atol=1e-8)


def test_compiled_and_numpy_fits_agree(monkeypatch):
    logits, labels = random_data(5, n_rows=4000, n_classes=7)
    for dtype, tolerance in ((np.float64, 1e-10), (np.float32, 1e-5)):
        answers = []
        for kernels in ("numpy", "numba"):
            monkeypatch.setenv("CALIBRANT_KERNELS", kernels)
            answers.append(BinTemperatureScaling("nll").fit(logits.astype(dtype), labels).temperatures_)
        np.testing.assert_allclose(*answers, rtol=tolerance)


@pytest.mark.parametrize("objective", ["gap", "nll"])
def test_grid_search_is_the_plain_one(objective):
    logits, labels = random_data(1, n_rows=300)
    grid = np.arange(1, 31) / 10
    fitted = BinTemperatureScaling(objective, n_bins=5, grid=grid).fit(logits, labels)
    index = place(softmax(logits).max(axis=1), fitted.edges_)
    for i in range(5):
        own, truth = logits[index == i], labels[index == i]
        accuracy = np.clip((own.argmax(axis=1) == truth).mean(), 0.01, 0.99)

        def badness(t, own=own, truth=truth, accuracy=accuracy):
            if objective == "gap":
                return abs(accuracy - softmax(own / t).max(axis=1).mean())
            return -log_softmax(own / t)[np.arange(len(own)), truth].mean()

        best, lowest = 1.0, badness(1.0)
        for t in grid:
            if badness(t) < lowest - (1e-5 if objective == "gap" else 0):
                best, lowest = t, badness(t)
        assert fitted.temperatures_[i] == best


def test_all_right_is_finite_and_said():
    logits = 3 * np.eye(4)[np.arange(40) % 4] + np.linspace(0, 1, 40)[:, None] * np.eye(4)[np.arange(40) % 4]
    with pytest.warns(FitWarning, match="no optimum exists"):
        fitted = BinTemperatureScaling("nll", n_bins=3).fit(logits, np.arange(40) % 4)
    assert np.isfinite(fitted.temperatures_).all()
    assert (fitted.temperatures_ > 0).all()


@pytest.mark.parametrize("calibrator", [BinTemperatureScaling("ece"), BinTemperatureScaling(n_bins=0)])
def test_bad_parameters_are_named(calibrator, rng):
    with pytest.raises(InputError, match=r"objective|n_bins"):
        calibrator.fit(rng.normal(size=(10, 3)), rng.integers(0, 3, 10))


@pytest.mark.filterwarnings("ignore:all labels are equal:calibrant.FitWarning")
def test_a_grid_aims_no_higher_than_99_percent():
    logits, grid = np.array([[3.0, 0.0]] * 8), np.arange(1, 11) / 10
    fitted = BinTemperatureScaling(n_bins=1, grid=grid).fit(logits, np.zeros(8, int))
    nearest = np.abs(1 / (1 + np.exp(-3 / grid)) - 0.99).argmin()
    assert fitted.temperatures_[0] == grid[nearest] == 0.6


@pytest.mark.parametrize("objective", ["nll", "gap"])
def test_bins_without_an_optimum_end_before_the_last_step(objective):
    """Labels that contradict the confidence have the best temperature at infinity."""
    rng = np.random.default_rng(0)
    logits, labels = 30 * rng.normal(size=(400, 3)), rng.integers(0, 3, 400)
    fitted = BinTemperatureScaling(objective=objective).fit(logits, labels)
    assert fitted.temperatures_.max() > 1e5
    assert fitted.n_iter_ < MAX_STEPS // 2
