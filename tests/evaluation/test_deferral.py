"""Deferral: the curve, the decision, and thresholds whose promise holds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from calibrant.core.errors import InputError
from calibrant.evaluation.bootstrap import clopper_pearson
from calibrant.evaluation.compare import compare
from calibrant.evaluation.deferral import (
    defer,
    defer_by_method,
    risk_coverage_curve,
    threshold_for_error,
    thresholds_by_method,
)


def honest(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    confidence = generator.uniform(0.5, 1, n)
    return confidence, generator.random(n) < confidence


@given(st.integers(0, 500), st.integers(1, 40))
def test_curve_is_what_a_loop_finds(seed, n):
    generator = np.random.default_rng(seed)
    confidence, correct = np.round(generator.random(n), 1), generator.random(n) < 0.6
    curve = risk_coverage_curve(confidence, correct)
    assert (np.diff(curve.threshold) < 0).all()
    for coverage, risk, threshold in zip(curve.coverage, curve.risk, curve.threshold, strict=True):
        kept = confidence >= threshold
        assert coverage == pytest.approx(kept.mean())
        assert risk == pytest.approx((~correct[kept]).mean())


@given(st.integers(0, 500), st.floats(0, 0.99))
def test_at_most_the_share_is_deferred(seed, share):
    confidence, correct = honest(37, seed)
    decision = defer(np.round(confidence, 1), correct, share)
    assert decision.deferred <= share * 37 + 1e-9
    assert decision.kept + decision.deferred == 37
    assert decision.error_low <= decision.error <= decision.error_high


def test_deferring_lowers_the_error():
    confidence, correct = honest(4000, 0)
    assert defer(confidence, correct, 0.3).error < defer(confidence, correct, 0.1).error < 1 - correct.mean()


@pytest.mark.parametrize(("errors", "count"), [(0, 10), (3, 10), (10, 10), (17, 4000)])
def test_clopper_pearson_is_scipys(errors, count):
    expected = binomtest(errors, count).proportion_ci(0.95, method="exact")
    assert clopper_pearson(errors, count) == pytest.approx((expected.low, expected.high))


def test_threshold_keeps_its_promise():
    """Honest confidences on [½, 1] err (1−t)/2 above a threshold t; that may exceed the target in 5% of runs."""
    broken, found = 0, 0
    for seed in range(300):
        result = threshold_for_error(*honest(1500, seed), target=0.1)
        if np.isfinite(result.threshold):
            found += 1
            broken += (1 - result.threshold) / 2 > 0.1
            assert result.error_bound <= 0.1
    assert found > 250  # it is no use if it never answers
    assert broken <= 300 * 0.05 + 3 * np.sqrt(300 * 0.05 * 0.95)


def test_threshold_that_cannot_be_met():
    confidence, correct = honest(500, 0)
    result = threshold_for_error(confidence, np.zeros_like(correct), target=0.05)
    assert np.isinf(result.threshold)
    assert result.coverage == 0


def test_everything_is_kept_when_all_are_right():
    confidence, correct = honest(500, 0)
    result = threshold_for_error(confidence, np.ones_like(correct), target=0.05)
    assert result.coverage == 1
    assert result.threshold == confidence.min()


@pytest.mark.parametrize("target", [0.0, 1.0, -0.1])
def test_bad_targets_are_refused(target):
    with pytest.raises(InputError, match="target"):
        threshold_for_error([0.9], [1], target=target)


@pytest.mark.parametrize("level", [0.0, 1.0, float("nan")])
def test_a_confidence_level_outside_0_and_1_is_rejected(level):
    with pytest.raises(InputError, match="level"):
        threshold_for_error([0.9], [1], target=0.1, level=level)


def test_columns_must_match():
    with pytest.raises(InputError, match=r"1 rows.*2"):
        risk_coverage_curve([0.9, 0.8], [1])


@pytest.mark.parametrize(("confidence", "correct"), [([0.5, float("nan")], [1, 0]), ([0.5, 0.6], [1, 2])])
def test_rows_must_be_answers(confidence, correct):
    with pytest.raises(InputError, match=r"NaN in row 1|0 or 1"):
        risk_coverage_curve(confidence, correct)


def test_before_and_after_calibration():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 1200)
    logits = 4 * (np.eye(3)[labels] + 0.8 * generator.normal(size=(1200, 3)))
    table = compare((logits[:400], labels[:400]), (logits[400:], labels[400:]), ["none", "ts"], resamples=20)
    deferred = defer_by_method(table, 0.2)
    assert deferred["ts"].threshold < deferred["none"].threshold
    assert deferred["ts"].error < 1 - table.row("ts").metrics["accuracy"].value
    found = thresholds_by_method(table, 0.1)
    assert found["ts"].error_bound <= 0.1
    # an honest score needs no more confidence than the error it must stay below
    assert found["ts"].threshold < found["none"].threshold
