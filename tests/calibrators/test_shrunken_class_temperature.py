"""Class temperatures shrunk towards one: both ends, the choice of the share, and the real networks."""

from __future__ import annotations

import numpy as np
import pytest

from calibrant import ClassTemperatureScaling, InputError, ShrunkenClassTemperature, TemperatureScaling
from calibrant.calibrators.class_temperature import SHARES
from calibrant.core.rows import Rows, Smoothing
from calibrant.metrics import ece


def problem(n, seed=0, spread=0.0):
    """Four classes; with a spread, each class has a true temperature of its own."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, n)
    logits = rng.normal(size=(n, 4)) + 2 * np.eye(4)[labels]
    return logits * np.exp(spread * np.array([-1.0, 0.0, 0.5, 1.0])), labels


def test_both_ends():
    logits, labels = problem(500)
    one = ShrunkenClassTemperature(share=0.0).fit(logits, labels)
    by_error = TemperatureScaling("ece", refine=True).fit(logits, labels)
    np.testing.assert_allclose(one.temperatures_, by_error.temperature_)
    by_class = ClassTemperatureScaling(objective="nll").fit(logits, labels).temperatures_
    for share in (0.5, 1.0):
        fitted = ShrunkenClassTemperature(share=share).fit(logits, labels)
        ratio = fitted.temperatures_ / fitted.temperatures_[0]
        np.testing.assert_allclose(ratio, (by_class / by_class[0]) ** share)
        again = TemperatureScaling("ece", refine=True).fit(logits / ratio, labels).temperature_
        errors = [
            ece(logits / (factor * ratio), labels, from_logits=True) for factor in (again, fitted.temperatures_[0])
        ]
        assert errors[1] == pytest.approx(errors[0], abs=0.01)
        np.testing.assert_allclose(fitted.transform(logits), logits / fitted.temperatures_)


def test_the_share_follows_the_data():
    equal = ShrunkenClassTemperature().fit(*problem(200))
    different = ShrunkenClassTemperature().fit(*problem(20_000, spread=0.7))
    assert equal.share_ <= 0.3
    assert different.share_ >= 0.8
    for one in (equal, different):
        assert one.share_ == SHARES[int(np.argmin(one.share_losses_))]


@pytest.mark.parametrize(
    ("parameters", "word"),
    [
        ({"share": 1.5}, "share"),
        ({"share": "auto"}, "share"),
        ({"share": True}, "share"),
        ({"folds": 1}, "folds"),
        ({"folds": "x"}, "folds"),
    ],
)
def test_bad_parameters_are_named(parameters, word):
    with pytest.raises(InputError, match=word):
        ShrunkenClassTemperature(**parameters).fit(*problem(60))


def test_smoothed_labels_are_rejected():
    logits, labels = problem(60)
    with pytest.raises(InputError, match="cannot be fitted chunk by chunk"):
        ShrunkenClassTemperature().fit_rows(Rows(logits, labels, each=Smoothing(0.1)))
