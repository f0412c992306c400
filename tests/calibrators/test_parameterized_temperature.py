"""Parameterized temperature scaling: better than one temperature where temperatures differ, equal where they do not."""

from __future__ import annotations

import numpy as np
import pytest

import calibrant as cal
from calibrant.calibrators import parameterized_temperature as network


def two_temperatures(n: int = 3000, seed: int = 0):
    """Rows whose right temperature is told by the size of their logits."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(n, 5)) * 1.5
    labels = (true + rng.gumbel(size=true.shape)).argmax(1)
    loud = rng.random(n) < 0.5
    return np.where(loud[:, None], 6 * true + 20, true), labels


def test_beats_one_temperature_where_rows_differ() -> None:
    logits, labels = two_temperatures()
    new, truth = two_temperatures(seed=1)
    one = cal.TemperatureScaling().fit(logits, labels).transform(new)
    many = cal.ParameterizedTemperatureScaling().fit(logits, labels)
    nll = cal.metrics.nll
    assert nll(many.transform(new), truth, from_logits=True) < nll(one, truth, from_logits=True) - 0.05
    assert (many.temperatures(new) > 0).all()
    np.testing.assert_array_equal(many.predict(new), new.argmax(1))


def test_a_constant_network_is_temperature_scaling() -> None:
    logits, labels = two_temperatures(500)
    fitted = cal.ParameterizedTemperatureScaling(hidden_layers=0, max_iterations=1).fit(logits, labels)
    fitted.weights_ = [np.zeros_like(weight) for weight in fitted.weights_]
    fitted.biases_ = [np.array([2.5])]
    np.testing.assert_allclose(fitted.transform(logits), logits / 2.5)


@pytest.mark.parametrize("loss", ["nll", "mse"])
def test_gradient_is_that_of_the_loss(loss: str) -> None:
    rng = np.random.default_rng(0)
    logits, labels, weights = 3 * rng.normal(size=(40, 6)), rng.integers(0, 6, 40), rng.random(40)
    sizes = (4, 5, 5, 1)
    flat = network.start(sizes, 1.3, rng)
    flat = flat + 0.3 * rng.normal(size=flat.size)
    problem = network.Problem(sizes, np.zeros(4), np.ones(4), loss, rng.normal(size=4), 0.2)
    gradient = network.evaluate(logits, labels, weights, flat, problem)[1]
    for place, direction in enumerate(np.eye(len(flat))):
        ahead, behind = (
            network.evaluate(logits, labels, weights, flat + sign * 1e-6 * direction, problem)[0] for sign in (1, -1)
        )
        assert gradient[place] == pytest.approx((ahead - behind) / 2e-6, rel=1e-3, abs=1e-4)


def test_held_out_rows_stay_held_out_when_doubled() -> None:
    logits, labels = two_temperatures(400)
    weights = np.where(np.arange(400) < 150, 2.0, 1.0)
    by_weight = cal.ParameterizedTemperatureScaling().fit(logits, labels, weights)
    twice = cal.ParameterizedTemperatureScaling().fit(np.r_[logits, logits[:150]], np.r_[labels, labels[:150]])
    np.testing.assert_allclose(by_weight.transform(logits), twice.transform(logits), rtol=1e-3, atol=1e-6)


def test_seed_decides_everything() -> None:
    logits, labels = two_temperatures(400)
    first, second = (cal.ParameterizedTemperatureScaling(seed=3).fit(logits, labels) for _ in range(2))
    np.testing.assert_array_equal(first.transform(logits), second.transform(logits))
    other = cal.ParameterizedTemperatureScaling(seed=4).fit(logits, labels)
    assert not np.array_equal(first.transform(logits), other.transform(logits))


def test_stops_early_and_keeps_the_best() -> None:
    logits, labels = two_temperatures(100)
    fitted = cal.ParameterizedTemperatureScaling(patience=2, max_iterations=500).fit(logits, labels)
    assert fitted.n_iter_ < 500
    assert np.isfinite(fitted.transform(1e3 * logits)).all()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"top_k": 0}, "top_k must be a whole number of at least 1, got 0"),
        ({"patience": 0}, "patience must be a whole number of at least 1, got 0"),
        ({"loss": "ece"}, "loss must be one of nll, mse, got 'ece'"),
        ({"held_out_share": 1.0}, "held_out_share must lie in"),
    ],
)
def test_bad_parameters_are_refused(parameters, message: str) -> None:
    with pytest.raises(cal.InputError, match=message):
        cal.ParameterizedTemperatureScaling(**parameters).fit(2 * np.eye(3), [0, 1, 2])


def test_on_real_predictions(shared_data) -> None:
    with np.load(shared_data / "zoo" / "c100_resnet18_ce.npz") as file:
        val, test = file["val_logits"].astype(np.float32), file["test_logits"].astype(np.float32)
        val_labels, test_labels = file["val_labels"].astype(int), file["test_labels"].astype(int)
    fitted = cal.ParameterizedTemperatureScaling().fit(val, val_labels)
    plain = cal.TemperatureScaling().fit(val, val_labels)
    for metric in (cal.metrics.nll, cal.metrics.ece):
        ours, theirs = (metric(one.transform(test), test_labels, from_logits=True) for one in (fitted, plain))
        assert ours < theirs
    assert fitted.transform(test).dtype == np.float32


def test_the_loss_of_a_fit_uses_the_size_of_negative_outputs() -> None:
    logits, labels = two_temperatures(50)
    problem = network.Problem((3, 1), np.zeros(3), np.ones(3), "nll", np.ones(3), 0.0)
    flat = np.array([0.1, 0.2, 0.3, 4.0])  # weights and the bias of the only layer
    negative, positive = (network.evaluate(logits, labels, None, one, problem) for one in (-flat, flat))
    assert negative[0] == pytest.approx(positive[0])
    np.testing.assert_allclose(negative[1], -positive[1])
