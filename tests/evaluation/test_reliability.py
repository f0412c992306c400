from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from calibrant.evaluation.consistency import reliability_bins, wilson_interval
from calibrant.metrics import ece, reliability


def honest(n, seed):
    generator = np.random.default_rng(seed)
    confidence = generator.uniform(0.3, 1, n)
    return confidence, generator.random(n) < confidence


def test_bins_are_those_of_the_metric():
    confidence, correct = honest(500, 0)
    bins, plain = reliability_bins(confidence, correct, n_bins=10), reliability(confidence, correct, n_bins=10)
    assert np.array_equal(bins.count, plain.counts)
    assert bins.accuracy == pytest.approx(plain.accuracy, nan_ok=True)
    gap = np.nan_to_num(np.abs(bins.confidence - bins.accuracy))
    assert (bins.counts * gap).sum() / 500 == pytest.approx(ece(confidence, correct, n_bins=10))


def test_wilson_is_scipys():
    expected = binomtest(7, 30).proportion_ci(0.95, method="wilson")
    low, high = wilson_interval(np.array([7 / 30]), np.array([30.0]))
    assert (low[0], high[0]) == pytest.approx((expected.low, expected.high))


def test_noise_band_holds_the_accuracy_of_honest_bins():
    inside = total = 0
    for seed in range(40):
        bins = reliability_bins(*honest(1000, seed), seed=seed)
        filled = bins.count > 0
        inside += ((bins.noise_low <= bins.accuracy) & (bins.accuracy <= bins.noise_high))[filled].sum()
        total += filled.sum()
    assert inside / total == pytest.approx(0.95, abs=0.03)


def test_empty_bins_are_marked():
    bins = reliability_bins(np.array([0.95, 0.99]), np.array([True, False]))
    assert bins.count.tolist() == [0] * 14 + [2]
    assert np.isnan(bins.accuracy[:14]).all()
