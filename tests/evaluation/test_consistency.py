"""The consistency test: exact where it is claimed, uniform under calibration, and sharp otherwise."""

from __future__ import annotations

import numpy as np
import pytest

from calibrant.core.bins import width_index
from calibrant.evaluation import consistency
from calibrant.evaluation.consistency import consistency_test, drawn_right
from calibrant.metrics import ece


def honest(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    confidence = 1 - 0.8 * generator.beta(1, 4, n)
    return confidence, generator.random(n) < confidence


def test_p_value_is_uniform_under_calibration():
    values = np.sort([consistency_test(*honest(300, seed), draws=199, seed=seed).p_value for seed in range(250)])
    distance = np.abs(values - (np.arange(250) + 0.5) / 250).max()
    assert distance < 1.63 / np.sqrt(250)  # the 1% point of Kolmogorov's distribution


def test_p_value_is_the_rank_of_the_observed_error():
    confidence, correct = honest(200, 0)
    floor = consistency_test(confidence, correct, draws=500, seed=3)
    index = width_index(confidence, 15)
    right = drawn_right(confidence, index, 15, None, draws=500, seed=3)
    stated = np.bincount(index, confidence, minlength=15)
    errors = np.abs(stated - right).sum(axis=1) / 200
    observed = ece(confidence, correct)
    assert floor.p_value == pytest.approx((1 + (errors >= observed - 1e-12).sum()) / 501)
    assert floor.mean == pytest.approx(errors.mean())


def test_miscalibration_is_found():
    confidence, correct = honest(2000, 1)
    assert consistency_test(np.minimum(confidence + 0.08, 1), correct).p_value < 0.005


def test_certain_rows_are_always_right():
    confidence = np.ones(50)
    floor = consistency_test(confidence, np.ones(50, dtype=bool))
    assert floor.mean == 0
    assert floor.p_value == 1.0
    assert consistency_test(confidence, np.arange(50) > 0).p_value < 0.01


@pytest.mark.parametrize("weighted", [False, True])
def test_draws_have_the_moments_of_a_poisson_binomial(weighted):
    confidence, _ = honest(400, 2)
    weights = np.random.default_rng(0).uniform(0.2, 3, 400) if weighted else None
    mass = np.ones(400) if weights is None else weights
    index = width_index(confidence, 5)
    right = drawn_right(confidence, index, 5, weights, draws=4000, seed=0)
    mean = np.bincount(index, mass * confidence, minlength=5)
    deviation = np.sqrt(np.bincount(index, mass**2 * confidence * (1 - confidence), minlength=5))
    assert np.abs(right.mean(axis=0) - mean).max() < 5 * (deviation / np.sqrt(4000)).max()
    filled = deviation > 0
    assert right.std(axis=0)[filled] == pytest.approx(deviation[filled], rel=0.06)


def test_cells_agree_with_rows(monkeypatch):
    """Many rows are drawn by cells of equal confidence: the same distribution."""
    confidence, correct = honest(20_000, 3)
    by_row = consistency_test(confidence, correct, draws=600)
    monkeypatch.setattr(consistency, "ROW_DRAWS_LIMIT", 0)
    by_cell = consistency_test(confidence, correct, draws=600)
    assert by_cell.mean == pytest.approx(by_row.mean, rel=0.04)
    assert by_cell.high == pytest.approx(by_row.high, rel=0.06)
    ones = np.ones(len(confidence))
    normal = consistency_test(confidence, correct, draws=600, weights=ones)
    assert normal.mean == pytest.approx(by_row.mean, rel=0.04)


def test_same_seed_same_answer():
    confidence, correct = honest(500, 4)
    assert consistency_test(confidence, correct, seed=5) == consistency_test(confidence, correct, seed=5)
    assert consistency_test(confidence, correct, seed=5) != consistency_test(confidence, correct, seed=6)
