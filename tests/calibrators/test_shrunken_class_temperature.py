"""Class temperatures shrunk towards one: both ends, the choice of the share, and the real networks."""

from __future__ import annotations

import numpy as np
import pytest

from calibrant import ClassTemperatureScaling, InputError, ShrunkenClassTemperature, TemperatureScaling
from calibrant.calibrators.shrunken_class_temperature import SHARES


def problem(n, seed=0, spread=0.0):
    """Four classes; with a spread, each class has a true temperature of its own."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, n)
    logits = rng.normal(size=(n, 4)) + 2 * np.eye(4)[labels]
    return logits * np.exp(spread * np.array([-1.0, 0.0, 0.5, 1.0])), labels


def test_both_ends():
    logits, labels = problem(500)
    one = ShrunkenClassTemperature(share=0.0).fit(logits, labels)
    by_loss, by_error = (TemperatureScaling(objective).fit(logits, labels) for objective in ("nll", "ece"))
    expected = np.sqrt(by_loss.temperature_ * by_error.temperature_)
    np.testing.assert_allclose(one.temperatures_, expected)
    other = ShrunkenClassTemperature(share=1.0).fit(logits, labels)
    by_class = ClassTemperatureScaling(objective="nll").fit(logits, labels)
    np.testing.assert_allclose(other.temperatures_, by_class.temperatures_)
    half = ShrunkenClassTemperature(share=0.5).fit(logits, labels)
    np.testing.assert_allclose(half.temperatures_, np.sqrt(one.temperatures_ * other.temperatures_))
    np.testing.assert_allclose(half.transform(logits), logits / half.temperatures_)


def test_the_share_follows_the_data():
    equal = ShrunkenClassTemperature().fit(*problem(200))
    different = ShrunkenClassTemperature().fit(*problem(20_000, spread=0.7))
    assert equal.share_ <= 0.3
    assert different.share_ >= 0.8
    for one in (equal, different):
        assert one.share_ == SHARES[int(np.argmin(one.share_losses_))]


@pytest.mark.parametrize(
    ("parameters", "word"),
    [({"share": 1.5}, "share"), ({"share": "auto"}, "share"), ({"share": True}, "share"), ({"folds": 1}, "folds")],
)
def test_bad_parameters_are_named(parameters, word):
    with pytest.raises(InputError, match=word):
        ShrunkenClassTemperature(**parameters).fit(*problem(60))
