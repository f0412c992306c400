"""The likelihood fits end at the optimum, whatever the dtype, the temperature or the size of the logits."""

from __future__ import annotations

import warnings
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize

import calibrant
from calibrant import (
    ClassTemperatureScaling,
    DirichletCalibration,
    EnsembleTemperatureScaling,
    FitWarning,
    Identity,
    MatrixScaling,
    StructuredMatrixScaling,
    TemperatureScaling,
    VectorScaling,
)
from calibrant.calibrators.solvers import likelihood
from calibrant.calibrators.solvers.temperature import search_grid
from calibrant.core import progress
from calibrant.core.rows import Rows
from calibrant.core.softmax import log_softmax, softmax


def problem(n=400, n_classes=5, scale=2.5, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n)
    return scale * (rng.normal(size=(n, n_classes)) + 1.8 * np.eye(n_classes)[labels]), labels


def mean_nll(scores, labels):
    return float(-log_softmax(scores.astype(np.float64))[np.arange(len(labels)), labels].mean())


def slope_by_log_temperature(logits, labels, temperature):
    values = logits.astype(np.float64)
    q = softmax(values / temperature)
    return float((values[np.arange(len(labels)), labels] - (q * values).sum(axis=1)).mean() / temperature)


def reference_temperature(logits, labels):
    lowest, highest = np.log(1e-4), np.log(1e5)
    return float(
        np.exp(brentq(lambda s: slope_by_log_temperature(logits, labels, np.exp(s)), lowest, highest, xtol=1e-14))
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("factor", [0.02, 0.1, 1.0, 7.0, 20.0, 2000.0])
def test_temperature_is_the_optimum_for_any_true_temperature(dtype, factor):
    logits, labels = problem(700, 8)
    given_logits = (factor * logits).astype(dtype)
    fitted = TemperatureScaling().fit(given_logits, labels)
    exact = reference_temperature(given_logits, labels)
    assert abs(fitted.temperature_ - exact) < 1e-6 * exact
    assert abs(slope_by_log_temperature(given_logits, labels, fitted.temperature_)) < 1e-8


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
def test_both_twins_find_the_same_temperature_in_float32(kernels, monkeypatch):
    monkeypatch.setenv("CALIBRANT_KERNELS", kernels)
    logits, labels = problem(20_000, 30, scale=6.0)
    narrow = logits.astype(np.float32)
    fitted = TemperatureScaling().fit(narrow, labels)
    assert abs(fitted.temperature_ - reference_temperature(narrow, labels)) < 1e-6 * fitted.temperature_
    assert abs(slope_by_log_temperature(narrow, labels, fitted.temperature_)) < 1e-7


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
@pytest.mark.parametrize("scale", [1e-4, 1e-2, 1.0, 1e3, 1e6])
def test_a_start_from_samples_ends_at_the_optimum(kernels, scale, monkeypatch):
    monkeypatch.setenv("CALIBRANT_KERNELS", kernels)
    logits, labels = problem(5000, 20, seed=3)
    given_logits = (scale * logits).astype(np.float32)
    fitted = TemperatureScaling().fit(given_logits, labels)
    exact = scale * reference_temperature((given_logits / scale).astype(np.float64), labels)
    assert abs(fitted.temperature_ - exact) < 1e-7 * exact
    assert fitted.n_iter_ <= 2


@given(st.integers(0, 50), st.floats(0.01, 100.0))
def test_temperature_scales_with_the_logits(seed, factor):
    logits, labels = problem(80, 4, seed=seed)
    one = TemperatureScaling().fit(logits, labels).temperature_
    other = TemperatureScaling().fit(factor * logits, labels).temperature_
    assert other == pytest.approx(factor * one, rel=1e-7)


def test_moments_match_at_the_optimum():
    logits, labels = problem()
    fitted = TemperatureScaling().fit(logits, labels)
    q = fitted.predict_proba(logits)
    assert logits[np.arange(400), labels].sum() == pytest.approx((q * logits).sum(), abs=1e-6)


def test_confidence_falls_and_entropy_rises_with_the_temperature():
    logits, _ = problem()
    confidences = [softmax(logits / t).max(axis=1) for t in (0.2, 1.0, 3.0, 20.0)]
    assert all((a > b).all() for a, b in pairwise(confidences))


def test_a_constant_a_row_leaves_temperature_scaling_unchanged():
    logits, labels = problem()
    shifted = logits + np.random.default_rng(1).normal(size=(400, 1))
    assert TemperatureScaling().fit(shifted, labels).temperature_ == pytest.approx(
        TemperatureScaling().fit(logits, labels).temperature_, rel=1e-9
    )


@pytest.mark.filterwarnings("ignore:no row is predicted correctly:calibrant.FitWarning")
@pytest.mark.parametrize("kernels", ["numpy", "numba"])
@pytest.mark.parametrize(("shift", "words"), [(0, "temperature 0"), (1, "temperature infinity")])
@pytest.mark.parametrize("scale", [0.05, 1.0, 5.0, 500.0])
def test_a_temperature_without_optimum_is_the_mode_under_a_weak_prior(kernels, shift, words, scale, monkeypatch):
    monkeypatch.setenv("CALIBRANT_KERNELS", kernels)
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(30) % 3)
    noise = rng.uniform(0, 0.9, (30, 3)) * (np.arange(3) == ((labels + 2) % 3)[:, None])
    logits = scale * (np.eye(3)[(labels + shift) % 3] + noise)
    weights = rng.integers(1, 4, 30)
    with pytest.warns(FitWarning, match=words) as caught:
        fitted = TemperatureScaling().fit(logits, labels, weights)
    assert any("`auto`" in str(one.message) for one in caught)
    copies = np.repeat(np.arange(30), weights)

    def loss(log_temperature):
        scaled = logits[copies] / np.exp(log_temperature)
        return len(copies) * mean_nll(scaled, labels[copies]) + 2 * log_temperature**2

    found = minimize(lambda place: loss(place[0]), [0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12})
    assert loss(np.log(fitted.temperature_)) <= found.fun + 1e-9
    assert np.log(fitted.temperature_) == pytest.approx(found.x[0], abs=1e-5)


@pytest.mark.parametrize("gap", [1e-2, 1e-4, 1e-6])
def test_one_barely_wrong_row_is_an_optimum_far_away(gap):
    """A maximum of the likelihood stays the result however far away it is."""
    labels = np.arange(30) % 3
    logits = 5.0 * np.eye(3)[labels]
    logits[0] = [0.0, gap, -1.0]
    fitted = TemperatureScaling().fit(logits, labels)
    assert abs(slope_by_log_temperature(logits, labels, fitted.temperature_)) < 1e-8
    assert fitted.temperature_ < 1.0


@pytest.mark.parametrize("name", ["vs", "ms", "dir", "svs", "sms", "cts-nll", "ets", "conf", "joint", "shape", "pts"])
def test_rows_without_an_error_keep_probabilities_moderate_and_warn_once(name):
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 4, 400)
    logits = 1.5 * rng.normal(size=(400, 4)) + 6 * np.eye(4)[labels]
    right = np.flatnonzero(logits.argmax(axis=1) == labels)[:40]
    with pytest.warns(FitWarning) as caught:
        fitted = calibrant.get(name).fit(logits[right], labels[right])
    assert len({str(one.message) for one in caught if "no optimum exists" in str(one.message)}) == 1
    after = mean_nll(fitted.transform(logits), labels)
    assert after <= 1.5 * mean_nll(logits, labels) + 0.01


@pytest.mark.parametrize(("name", "options"), [("cts-nll", {}), ("svs", {"strength": 1.0}), ("vs", {})])
def test_the_mode_under_the_prior_does_not_depend_on_the_order_of_rows(name, options):
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(30) % 3)
    # the size of a row matters to a scale per class
    logits = rng.normal(size=(30, 3)) + 6 * np.eye(3)[labels] + rng.normal(size=(30, 1)) * 30
    order, new = rng.permutation(30), logits / 50
    outputs = []
    for rows in (np.arange(30), order):
        with pytest.warns(FitWarning, match="separates the classes"):
            outputs.append(calibrant.get(name, **options).fit(logits[rows], labels[rows]).predict_proba(new))
    np.testing.assert_allclose(outputs[0], outputs[1], atol=1e-9)


def test_class_scales_and_biases_are_the_mode_about_their_centre():
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, 40)
    logits = rng.normal(size=(40, 3)) + 5 * np.eye(3)[labels]
    with pytest.warns(FitWarning, match="no optimum exists"):
        fitted = VectorScaling().fit(logits, labels)
    rows = Rows(logits, labels)
    scale, bias = likelihood.prior_centre(rows)

    def objective(point):
        scales, biases = point.reshape(2, 3)
        away = np.concatenate([scales - scale, biases - bias])
        return 40 * mean_nll(logits * scales + biases, labels) + 0.5 * away @ away

    start = np.concatenate([np.full(3, scale), bias])
    found = minimize(objective, start, method="BFGS", options={"gtol": 1e-7})
    assert objective(np.concatenate([fitted.scale_, fitted.bias_ + found.x[3:].mean()])) <= found.fun + 1e-6
    # the biases of the centre match the class frequencies as far as the prior N(0, 1) allows
    excess = softmax(logits * scale + bias).sum(axis=0) - np.bincount(labels)
    np.testing.assert_allclose(excess, -bias, atol=0.01)


@pytest.mark.parametrize("name", ["conf", "joint", "vs", "ms", "svs"])
@pytest.mark.parametrize("separation", [1.0, 3.0, 12.0])
def test_a_bias_of_one_class_is_learned_however_large_it_is(name, separation):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, 600)
    logits = rng.normal(size=(600, 5)) + 2 * separation * np.eye(5)[labels]
    logits[:, 2] += 500
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        fitted = calibrant.get(name).fit(logits[:300], labels[:300])
    logits[:, 2] -= 500
    plain = mean_nll(logits[300:], labels[300:])
    logits[:, 2] += 500
    assert mean_nll(fitted.transform(logits[300:]), labels[300:]) <= plain + 0.25


def test_a_calibration_error_that_is_lowest_at_the_edge_of_the_grid_warns():
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 4, 60)
    logits = rng.normal(size=(60, 4)) + 8 * np.eye(4)[labels]
    for fitted in (TemperatureScaling("ece"), ClassTemperatureScaling()):
        with pytest.warns(FitWarning, match="the edge of the grid.*`auto`"):
            fitted.fit(logits, labels)


@pytest.mark.filterwarnings("ignore:.*no optimum exists:calibrant.FitWarning")
def test_rows_that_were_selected_are_named():
    logits, labels = problem(300)
    wrong, single = logits.argmax(axis=1) != labels, labels == 2
    for some, words in ((wrong, "no row is predicted correctly"), (single, "all labels are equal")):
        for name in ("ts", "vs", "cts"):
            with pytest.warns(FitWarning, match=f"{words}.*selected"):
                fitted = calibrant.get(name).fit(logits[some], labels[some])
            assert np.isfinite(fitted.transform(logits)).all()


def test_constant_logits_leave_the_temperature_at_one():
    assert TemperatureScaling().fit(np.ones((20, 3)), np.arange(20) % 3).temperature_ == 1.0


@pytest.mark.parametrize(("objective", "binning"), [("ece", "width"), ("adaptive_ece", "mass")])
def test_the_order_of_a_hard_error_is_a_choice(objective, binning):
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 4, 700)
    logits = 3 * (rng.normal(size=(700, 4)) + 1.2 * np.eye(4)[labels])
    grid = np.arange(5, 40) / 10
    weights = rng.integers(1, 4, 700).astype(float)
    best = {}
    for norm in (None, 1, 2):
        fitted = TemperatureScaling(objective, grid=grid, norm=norm).fit(logits, labels, weights)
        options = {"norm": norm or 1, "binning": binning, "sample_weight": weights, "from_logits": True}
        errors = [calibrant.metrics.ece(logits / one, labels, **options) for one in grid]
        assert fitted.temperature_ == grid[int(np.argmin(errors))]
        assert fitted.objective_trace_[-1] == pytest.approx(min(errors))
        best[norm] = fitted.temperature_
    assert best[None] == best[1]
    with pytest.raises(calibrant.InputError, match=r"norm must be at least 1 and finite, got 0\.5"):
        TemperatureScaling(objective, norm=0.5).fit(logits, labels)


@pytest.mark.parametrize("objective", ["ece", "adaptive_ece", "soft_ece"])
def test_error_objectives_are_no_worse_than_any_grid_value(objective):
    logits, labels = problem(300, 4)
    metric = {"ece": "ece", "adaptive_ece": "adaptive_ece", "soft_ece": "soft_ece"}[objective]
    measure = getattr(calibrant.metrics, metric)
    grid = np.arange(1, 101) / 10
    values = np.array([measure(logits / t, labels, from_logits=True) for t in grid])
    fitted = TemperatureScaling(objective, grid=grid).fit(logits, labels)
    assert fitted.temperature_ == grid[np.flatnonzero(values <= values.min() + 1e-12)[0]]
    finer = TemperatureScaling(objective, refine=True).fit(logits, labels)
    assert measure(logits / finer.temperature_, labels, from_logits=True) <= values.min() + 1e-9


def test_a_refined_grid_search_is_a_thousand_times_finer():
    temperature, trace = search_grid(lambda grid: (grid - 1.23456) ** 2, np.arange(1, 51) / 10, refine=True)
    assert temperature == pytest.approx(1.2346, abs=1e-9)
    assert (np.diff(trace) < 0).all()


def test_progress_of_a_grid_search_counts_the_temperatures():
    seen = []
    with progress.listen(lambda stage, done, total, note: seen.append((done, total))):
        search_grid(lambda grid: (grid - 1.0) ** 2, np.arange(1, 101) / 50, refine=False)
    assert [total for _, total in seen] == [100] * len(seen)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1][0] == 100


def test_grid_values_must_be_temperatures():
    logits, labels = problem(50, 3)
    assert TemperatureScaling("ece", grid=[0.0, 2.0]).fit(logits, labels).temperature_ == 2.0
    for grid in ([-1.0, 1.0], [0.0], [np.nan]):
        with pytest.raises(calibrant.InputError):
            TemperatureScaling("ece", grid=grid).fit(logits, labels)
    with pytest.raises(calibrant.InputError, match="objective"):
        TemperatureScaling("brier").fit(logits, labels)


def vector_gradient(logits, labels, scale, bias):
    values = logits.astype(np.float64)
    error = softmax(values * scale + bias) - np.eye(values.shape[1])[labels]
    return np.concatenate([(error * values).mean(axis=0), error.mean(axis=0)])


@pytest.mark.parametrize(("dtype", "kernels"), [(np.float32, "numpy"), (np.float64, "numpy"), (np.float32, "numba")])
def test_vector_scaling_has_no_gradient_left(dtype, kernels, monkeypatch):
    monkeypatch.setenv("CALIBRANT_KERNELS", kernels)
    logits, labels = problem(3000, 12)
    fitted = VectorScaling().fit(logits.astype(dtype), labels)
    gradient = vector_gradient(logits.astype(dtype), labels, fitted.scale_, fitted.bias_)
    assert np.linalg.norm(gradient) < 1e-6
    assert fitted.bias_.sum() == pytest.approx(0, abs=1e-9)


def test_the_preconditioner_of_many_classes_inverts_the_block_of_each_class():
    n_classes = likelihood.DENSE_CLASSES + 1
    rows = Rows(*problem(3 * n_classes, n_classes, scale=1.0))
    objective = likelihood.vector_objective(
        rows, np.array([[0.7], [1.0]]) * np.ones((2, n_classes)), np.array([0.1, 0.2])
    )
    point = np.array([[1.0], [0.0]]) * np.ones((2, n_classes))
    product, solve = objective.curvature(point, objective.evaluate(point, False)[2])
    vector = np.random.default_rng(0).normal(size=(2, n_classes))
    for place in (0, 100):
        entries = np.zeros((2, 2, n_classes))
        entries[[0, 1], [0, 1], place] = 1.0
        block = np.stack([product(one)[:, place] for one in entries])
        block[0, 0] += 0.1 / n_classes  # the penalty of the mean scale couples classes
        np.testing.assert_allclose(solve(vector)[:, place], np.linalg.solve(block, vector[:, place]), rtol=1e-4)


def test_vector_scaling_agrees_with_a_general_optimiser():
    logits, labels = problem(500, 4)

    def loss(x):
        value = mean_nll(logits * x[:4] + x[4:], labels) + 0.3 * np.mean(x[4:] ** 2)
        gradient = vector_gradient(logits, labels, x[:4], x[4:])
        gradient[4:] += 0.6 * x[4:] / 4
        return value, gradient

    found = minimize(loss, np.r_[np.ones(4), np.zeros(4)], jac=True, method="BFGS", options={"gtol": 1e-10})
    fitted = VectorScaling(penalty_bias=0.3).fit(logits, labels)
    np.testing.assert_allclose(np.r_[fitted.scale_, fitted.bias_], found.x, atol=1e-6)
    assert fitted.objective_trace_[-1] == pytest.approx(found.fun, abs=1e-12)


def test_absent_classes_of_vector_scaling_share_the_scale_and_have_no_bias():
    logits, labels = problem(300, 5)
    labels = labels % 4
    with pytest.warns(FitWarning, match=r"1 of 5 classes have no fit rows \(4\)"):
        fitted = VectorScaling().fit(logits, labels)
    among = VectorScaling().fit(logits[:, :4], labels)
    np.testing.assert_allclose(fitted.scale_, [*among.scale_, np.median(among.scale_)], rtol=1e-9)
    np.testing.assert_allclose(fitted.bias_, [*(among.bias_ - np.median(among.bias_)), 0.0], atol=1e-9)


def test_class_scales_are_positive_and_optimal():
    logits, labels = problem(2000, 6)
    scale = 1 / ClassTemperatureScaling("nll").fit(logits, labels).temperatures_
    assert np.abs(vector_gradient(logits, labels, scale, 0.0)[:6]).max() < 1e-8
    noise = logits.copy()
    noise[:, 0] = -noise[:, 0]
    scale = 1 / ClassTemperatureScaling("nll").fit(noise, labels).temperatures_
    assert (scale > 0).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("method", [MatrixScaling, DirichletCalibration])
def test_matrices_have_no_gradient_left(method, dtype):
    logits, labels = problem(1500, 8)
    logits = logits.astype(dtype)
    penalty_off, penalty_bias = 3.0, 0.2
    fitted = method(penalty_off, penalty_bias).fit(logits, labels)
    features = logits.astype(np.float64) if method is MatrixScaling else log_softmax(logits.astype(np.float64))
    error = softmax(features @ fitted.matrix_.T + fitted.bias_) - np.eye(8)[labels]
    by_matrix = error.T @ features / 1500 + 2 * penalty_off / 56 * fitted.matrix_ * (1 - np.eye(8))
    by_bias = error.mean(axis=0) + 2 * penalty_bias / 8 * fitted.bias_
    assert np.sqrt((by_matrix**2).sum() + (by_bias**2).sum()) < 1e-6


def test_a_strong_penalty_leaves_the_diagonal():
    logits, labels = problem(600, 4)
    off_diagonal = MatrixScaling(1e8, 1e8).fit(logits, labels)
    assert np.abs(off_diagonal.matrix_ - np.diag(np.diag(off_diagonal.matrix_))).max() < 1e-6
    structured = StructuredMatrixScaling(strength=1e9).fit(logits, labels)
    temperature = TemperatureScaling().fit(logits, labels)
    np.testing.assert_allclose(structured.predict_proba(logits), temperature.predict_proba(logits), atol=1e-4)
    vector = StructuredMatrixScaling(strength=1.0, off_diagonal=False).fit(logits, labels)
    assert (vector.matrix_ == np.diag(np.diag(vector.matrix_))).all()
    assert vector.n_parameters_ == 8


def test_penalties_by_cross_validation_beat_none_on_new_data():
    logits, labels = problem(240, 8)
    fresh, truth = problem(2000, 8, seed=9)
    chosen = MatrixScaling("cv", "cv").fit(logits, labels)
    free = MatrixScaling(1e-4, 1e-4).fit(logits, labels)
    assert mean_nll(chosen.transform(fresh), truth) < mean_nll(free.transform(fresh), truth) - 0.01
    assert chosen.penalties_ == MatrixScaling("cv", "cv").fit(logits, labels).penalties_
    with pytest.raises(calibrant.InputError, match="penalty_bias"):
        MatrixScaling(penalty_bias=-1.0).fit(logits, labels)
    with pytest.raises(calibrant.InputError, match="penalty_off_diagonal"):
        MatrixScaling(penalty_off_diagonal="auto").fit(logits, labels)


@pytest.mark.parametrize("seed", range(4))
def test_ensemble_weights_are_the_best_on_the_simplex(seed):
    rng = np.random.default_rng(seed)
    logits, labels = problem(300, 4, scale=[1.0, 2.5, 5.0, 9.0][seed], seed=seed)
    labels = np.where(rng.random(300) < 0.1, rng.integers(0, 4, 300), labels)
    fitted = EnsembleTemperatureScaling().fit(logits, labels)
    temperature = TemperatureScaling().fit(logits, labels)
    assert fitted.temperature_ == temperature.temperature_
    assert fitted.weights_.min() >= 0
    assert fitted.weights_.sum() == pytest.approx(1, abs=1e-12)
    best = mean_nll(fitted.transform(logits), labels)
    assert best <= mean_nll(temperature.transform(logits), labels) + 1e-12
    each = np.arange(300)
    parts = np.stack(
        [softmax(logits / fitted.temperature_)[each, labels], softmax(logits)[each, labels], np.full(300, 0.25)]
    )
    for shares in rng.dirichlet(np.ones(3), 200):
        assert best <= -np.log(shares @ parts).mean() + 1e-9
    squared = EnsembleTemperatureScaling("mse").fit(logits, labels)
    brier = calibrant.metrics.brier(squared.predict_proba(logits), labels)
    assert brier <= calibrant.metrics.brier(Identity().fit(logits, labels).predict_proba(logits), labels) + 1e-12


def test_real_predictions_are_better_than_the_often_copied_recipe(shared_data):
    with np.load(shared_data / "zoo" / "c100_resnet18_ce.npz") as file:
        logits, labels = file["val_logits"].astype(np.float32), file["val_labels"].astype(np.int64)
    fitted = TemperatureScaling().fit(logits, labels)
    assert fitted.temperature_ == pytest.approx(reference_temperature(logits, labels), abs=1e-5)
    assert fitted.temperature_ != 1.0


@given(st.integers(0, 10_000), st.integers(2, 12), st.floats(-4, 6))
def test_the_temperature_is_found_at_any_scale_of_few_rows(seed, n_classes, exponent):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, 60)
    logits = rng.normal(size=(60, n_classes)) + np.eye(n_classes)[labels]
    one = TemperatureScaling().fit(logits, labels).temperature_
    scaled = TemperatureScaling().fit(logits * 10**exponent, labels).temperature_
    assert scaled == pytest.approx(one * 10**exponent, rel=1e-6)


def test_many_classes_end_at_the_same_optimum_in_fewer_products(monkeypatch):
    """For many classes another preconditioner takes over, which has to know that the diagonal has no ridge."""
    logits, labels = problem(120, 40, scale=3.0)
    few = MatrixScaling().fit(logits, labels)
    products = []

    def counted(*arguments):
        products.append(1)
        return product(*arguments)

    product = likelihood.product_at
    monkeypatch.setattr(likelihood, "product_at", counted)
    monkeypatch.setattr(likelihood, "BLOCK_WORK", 0)
    many = MatrixScaling().fit(logits, labels)
    np.testing.assert_allclose(many.predict_proba(logits), few.predict_proba(logits), atol=1e-6)
    assert len(products) < 150


@pytest.mark.filterwarnings("ignore:.*edge of the grid:calibrant.FitWarning")
@pytest.mark.parametrize("objective", ["ece", "adaptive_ece", "soft_ece"])
def test_equal_errors_go_to_the_smallest_temperature(objective):
    logits, labels = np.zeros((6, 3)), np.array([0, 1, 2, 0, 0, 0])  # no temperature changes anything
    for grid in (np.arange(1, 101) / 10, [3.0, 0.0, 0.7, 2.0]):
        fitted = TemperatureScaling(objective, grid=grid).fit(logits, labels)
        assert fitted.temperature_ == min(t for t in grid if t > 0)


def test_a_fit_whose_optimum_lies_at_infinity_gives_up_soon():
    """Two rows a class and two parameters for each: nearly separable, so scales and biases grow without end."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 120, 240)
    logits = (2 * (rng.normal(size=(240, 120)) + 3 * np.eye(120)[labels])).astype(np.float32)
    with pytest.warns(FitWarning):
        fitted = VectorScaling().fit(logits, labels)
    assert fitted.n_iter_ < 25
    assert np.isfinite(fitted.transform(logits)).all()


@pytest.mark.parametrize("weighting", ["bin", "label"])
@pytest.mark.parametrize(("bandwidth", "norm"), [(0.01, 2.0), (0.05, 1.0)])
def test_the_soft_temperature_minimises_the_metric_of_its_form(weighting, bandwidth, norm):
    from calibrant.metrics import soft_ece

    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, 600)
    logits = 3 * (rng.normal(size=(600, 5)) + 1.5 * np.eye(5)[labels])
    options = {"norm": norm, "weighting": weighting}
    fitted = calibrant.TemperatureScaling("soft_ece", bandwidth=bandwidth, **options).fit(logits, labels)

    def error(temperature):
        return soft_ece(logits / temperature, labels, temperature=bandwidth, from_logits=True, **options)

    best = error(fitted.temperature_)
    assert fitted.objective_trace_[-1] == pytest.approx(best, abs=1e-7)
    assert best <= min(error(fitted.temperature_ * factor) for factor in np.geomspace(0.3, 3, 61)) + 1e-9


@pytest.mark.parametrize(
    ("parameters", "word"),
    [({"bandwidth": 0}, "bandwidth"), ({"norm": 0.5}, "norm"), ({"weighting": "row"}, "weighting")],
)
def test_bad_options_of_the_soft_temperature_are_named(parameters, word):
    logits = np.random.default_rng(0).normal(size=(40, 3))
    with pytest.raises(calibrant.InputError, match=word):
        calibrant.TemperatureScaling("soft_ece", **parameters).fit(logits, logits.argmax(axis=1))
