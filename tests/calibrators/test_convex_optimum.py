"""A convex fit reaches its optimum, or says that it did not, also where no single temperature is a useful unit."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar
from scipy.special import logsumexp

import calibrant as cal


def opposed_signal(seed, n=400, n_classes=4):
    """Classes whose logits speak for them and classes whose logits speak against them: the best T is infinite."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n)
    sign = np.where(np.arange(n_classes) % 2, 1.0, -1.0)
    return rng.normal(size=(n, n_classes)) + 2 * sign * np.eye(n_classes)[labels], labels


def problem(seed):
    rng = np.random.default_rng(seed)
    n_classes = int(rng.integers(2, 6))
    labels = rng.integers(0, n_classes, int(rng.choice([60, 300])))
    logits = rng.normal(size=(len(labels), n_classes))
    if seed % 3 == 0:
        logits += 2 * np.eye(n_classes)[labels] * rng.choice([-1, 1], n_classes)
    elif seed % 3 == 1:
        logits *= 10 ** rng.uniform(-6, 6)
    else:
        logits += 5 * rng.normal(size=n_classes) - 1.5 * np.eye(n_classes)[labels]
    return logits.astype(rng.choice(["f4", "f8"])), labels


def mean_nll(scores, labels):
    return float((logsumexp(scores, axis=1) - scores[np.arange(len(labels)), labels]).mean())


def lowest_nll(logits, labels, with_bias):
    """The optimum over scales (≥ 0 without bias) and biases by scipy, each column in units of its own spread."""
    n_classes, one_hot = logits.shape[1], np.eye(logits.shape[1])[labels]
    values = logits.astype(np.float64)
    values = values / values.std(axis=0)

    def objective(point):
        scores = values * point[:n_classes] + (point[n_classes:] if with_bias else 0.0)
        mass = logsumexp(scores, axis=1)
        residual = np.exp(scores - mass[:, None]) - one_hot
        by_scale = (residual * values).mean(axis=0)
        gradient = np.concatenate([by_scale, residual.mean(axis=0)]) if with_bias else by_scale
        return float((mass - scores[np.arange(len(labels)), labels]).mean()), gradient

    start = np.zeros(2 * n_classes if with_bias else n_classes)
    bounds = None if with_bias else [(0, None)] * n_classes
    options = {"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-10}
    return minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).fun


@pytest.mark.parametrize("method", ["vs", "cts-nll"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_signal_of_opposed_classes_is_found(method, dtype):
    logits, labels = opposed_signal(0)
    fitted = cal.get(method).fit(logits.astype(dtype), labels)
    reached = mean_nll(fitted.transform(logits), labels)
    assert reached < lowest_nll(logits, labels, with_bias=method == "vs") + 1e-6


@pytest.mark.parametrize("seed", range(30))
def test_random_fits_reach_the_optimum_or_warn(seed):
    logits, labels = problem(seed)
    for method in ("vs", "cts-nll"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fitted = cal.get(method).fit(logits, labels)
        scale, bias = (fitted.scale_, fitted.bias_) if method == "vs" else (1 / fitted.temperatures_, 0.0)
        excess = mean_nll(logits.astype(np.float64) * scale + bias, labels) - lowest_nll(
            logits, labels, with_bias=method == "vs"
        )
        assert excess < 1e-5 or caught, f"{method}: {excess} nats above the optimum without a warning"


def test_matrix_fits_reach_the_optimum_at_any_size_of_the_logits():
    logits, labels = opposed_signal(1, n_classes=3)
    reached = [
        mean_nll(cal.get("ms", penalty_off_diagonal=0.0).fit(size * logits, labels).transform(size * logits), labels)
        for size in (1e-6, 1.0, 1e6)
    ]
    assert np.ptp(reached) < 1e-6


def test_a_converged_fit_does_not_warn():
    rng = np.random.default_rng(3)
    labels = (rng.random(3000) < 0.2).astype(int)
    score = rng.normal(size=3000) + 2 * labels + 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = cal.VectorScaling().fit(np.stack([np.zeros(3000), score], axis=1).astype(np.float32), labels)
    assert (fitted.predict(np.stack([np.zeros(3000), score], axis=1)) == labels).mean() > 0.85


def test_structured_matrix_scaling_uses_opposed_signal():
    logits, labels = opposed_signal(2, n=2000)
    reached = mean_nll(cal.StructuredMatrixScaling().fit(logits, labels).transform(logits), labels)
    assert reached < lowest_nll(logits, labels, with_bias=True) + 0.01


@pytest.mark.parametrize("n_classes", [10, 70])
@pytest.mark.parametrize("order", ["C", "F"])
def test_temperature_of_any_layout_is_that_of_a_bounded_search(n_classes, order):
    rng = np.random.default_rng(n_classes)
    labels = rng.integers(0, n_classes, 5000)
    given = (2 * rng.normal(size=(5000, n_classes)) + 2 * np.eye(n_classes)[labels]).astype(np.float32, order=order)
    before = given.copy()
    fitted = cal.TemperatureScaling().fit(given, labels)
    found = minimize_scalar(
        lambda beta: mean_nll(beta * given.astype(np.float64), labels),
        bounds=(0.2, 2),
        method="bounded",
        options={"xatol": 1e-10},
    )
    assert fitted.temperature_ == pytest.approx(1 / found.x, rel=1e-6)
    np.testing.assert_array_equal(given, before)


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
def test_a_fit_that_starts_where_float32_shows_no_slope_ends():
    logits = [[0, 0, 0, 0], [0, 0, 0, -1], [1, 0, -1, 0], [-1, -1, 0, 0], [-1, 0, 0, 1], [0, 1, 0, 0]]
    fitted = cal.get("cts-shrunk").fit(np.array(logits, np.float32), [3, 1, 2, 1, 2, 1])
    assert (fitted.temperatures_ > 0).all()
