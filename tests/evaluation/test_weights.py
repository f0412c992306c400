"""What a weight counts in results: rows are the sampling units, or every copy where that is asked for."""

from __future__ import annotations

import json

import numpy as np
import pytest

from calibrant.core.errors import InputError
from calibrant.data import Predictions
from calibrant.evaluation.compare import compare
from calibrant.evaluation.deferral import defer, threshold_for_error, thresholds_by_method
from calibrant.evaluation.measure import measure


def rows(n: int = 150, seed: int = 0):
    generator = np.random.default_rng(seed)
    p = generator.beta(2, 3, n)
    return p, (generator.random(n) < p**1.3).astype(int), generator.choice(["a", "b"], n)


def figures(result):
    return {k: v for k, v in result.to_dict().items() if k not in ("weighed", "n")}


def test_rows_of_equal_weight_are_the_rows():
    p, y, ward = rows()
    plain, heavy = (
        measure(Predictions(probabilities=p, labels=y, task="binary", weights=w), by=ward, resamples=100)
        for w in (None, np.full(150, 10.0))
    )
    assert heavy.noise_floor.p_value == pytest.approx(plain.noise_floor.p_value, abs=0.05)
    assert heavy.metrics["debiased_ece"].value == pytest.approx(plain.metrics["debiased_ece"].value)
    for name in ("ece", "nll", "brier"):
        one, other = plain.metrics[name], heavy.metrics[name]
        assert (one.value, one.low, one.high) == pytest.approx((other.value, other.low, other.high), rel=1e-4, abs=1e-6)
    assert "150 rows, weights sum to 1,500" in repr(heavy)
    assert "weights" not in repr(plain)


def test_counts_are_the_rows_copied():
    p, y, ward = rows()
    count = np.random.default_rng(1).integers(0, 12, 150)
    table = {"probabilities": p, "labels": y, "task": "binary"}
    counted = measure(Predictions(**table, weights=count), by=ward, weights_are="counts", resamples=100)
    copied = {name: np.repeat(column, count) for name, column in table.items() if name != "task"}
    copies = measure(Predictions(**copied, task="binary"), by=np.repeat(ward, count), resamples=100)
    assert figures(counted) == figures(copies)
    assert counted.n == count.sum()
    assert f"{count.sum():,} rows that are copies of 150" in repr(counted)


def test_comparisons_state_and_count_the_same():
    p, y, _ = rows(400)
    parts = [Predictions(probabilities=p[i], labels=y[i], task="binary", weights=np.full(200, 3.0))
             for i in (slice(200), slice(200, 400))]  # fmt: skip
    by_rows, by_counts = (
        compare(*parts, ["none", "platt"], weights_are=one, resamples=50) for one in ("rows", "counts")
    )
    assert "measured on 200, weights sum to 600" in repr(by_rows)
    assert (by_counts.n_test, by_counts.weights) == (600, None)
    for name in ("nll", "brier"):
        few, many = (one.row("none").metrics[name] for one in (by_rows, by_counts))
        assert few.value == pytest.approx(many.value)
        assert few.high - few.low > 1.4 * (many.high - many.low)


def test_counts_must_be_whole_and_the_rule_known():
    p, y, _ = rows()
    given = Predictions(probabilities=p, labels=y, task="binary", weights=np.full(150, 1.5))
    with pytest.raises(InputError, match="whole numbers"):
        measure(given, weights_are="counts")
    with pytest.raises(InputError, match="'rows', 'counts'"):
        measure(given, weights_are="copies")


def test_thresholds_honour_weights():
    generator = np.random.default_rng(0)
    confidence = generator.uniform(0.5, 1, 3000)
    correct = generator.random(3000) < confidence
    weights = np.exp(generator.normal(size=3000))
    plain, scaled, uneven = (
        threshold_for_error(confidence, correct, 0.1, weights=w) for w in (None, 7.0 * np.ones(3000), weights)
    )
    assert (scaled.threshold, scaled.error_bound) == pytest.approx((plain.threshold, plain.error_bound))
    kept = confidence >= uneven.threshold
    assert uneven.error == pytest.approx(np.average(~correct[kept], weights=weights[kept]))
    assert uneven.coverage == pytest.approx(weights[kept].sum() / weights.sum())
    assert uneven.error_bound - uneven.error > plain.error_bound - plain.error
    decision = defer(confidence, correct, 0.3, weights=weights)
    assert 1 - decision.coverage <= 0.3


def test_thresholds_keep_their_promise_in_clusters():
    """Rows of a cluster are right or wrong together: 600 clusters of 10 equal rows tell as much as 600 rows."""
    broken = ignored = found = 0
    for seed in range(200):
        generator = np.random.default_rng(seed)
        confidence, luck = (
            np.repeat(generator.uniform(0.5, 1, 600), 10),
            np.repeat(generator.random(600), 10),
        )
        correct, clusters = luck < confidence, np.repeat(np.arange(600), 10)
        for given in (None, clusters):
            result = threshold_for_error(confidence, correct, 0.15, clusters=given)
            wrong = np.isfinite(result.threshold) and (1 - result.threshold) / 2 > 0.15
            ignored, broken = ignored + (wrong and given is None), broken + (wrong and given is not None)
            found += given is not None and np.isfinite(result.threshold)
    assert broken <= 200 * 0.05 + 3 * np.sqrt(200 * 0.05 * 0.95)
    assert ignored > 40
    assert found > 100


def test_deferral_of_a_comparison_knows_its_weights_and_clusters():
    p, y, _ = rows(600)
    parts = [Predictions(probabilities=p[i], labels=y[i], task="binary", weights=np.arange(300) % 5 + 1.0)
             for i in (slice(300), slice(300, 600))]  # fmt: skip
    table = compare(*parts, ["none"], cluster=np.arange(300) // 5, resamples=20)
    columns, found = table.row("none").columns, thresholds_by_method(table, 0.4)["none"]
    expected = threshold_for_error(
        columns.confidence, columns.correct, 0.4, weights=parts[1].weights, clusters=np.arange(300) // 5
    )
    assert found.error_bound == pytest.approx(expected.error_bound, nan_ok=True)


def test_a_group_of_weight_zero_has_no_figures_in_json():
    p, y, _ = rows(300)
    group = np.arange(300) % 3
    found = measure(Predictions(probabilities=p, labels=y, task="binary", weights=1.0 * (group < 2)), by=group)
    assert json.loads(found.to_json())["groups"][2]["noise_floor"] is None


@pytest.mark.parametrize("weights_are", ["rows", "counts"])
def test_a_column_of_groups_of_another_length_is_refused(weights_are):
    generator = np.random.default_rng(0)
    scores, labels = generator.normal(size=(40, 3)), generator.integers(0, 2, (40, 3))
    rows = Predictions(scores, labels, task="multilabel", weights=np.full(40, 2.0))
    with pytest.raises(InputError, match=r"'group' has shape \(45,\), but there are 40 rows"):
        measure(rows, by=np.arange(45) % 2, resamples=20, weights_are=weights_are)
