"""Custom metrics in `measure` and `compare`: functions of (probabilities, labels), with or without weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import calibrant as cal
from calibrant.core.errors import InputError
from calibrant.evaluation.shift import shift
from calibrant.metrics.record import FIGURES, METRICS


def predictions(seed: int, n: int, task: str = "multiclass", **more: object) -> cal.Predictions:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, n)
    logits = 2 * np.eye(3)[labels] + 2 * generator.normal(size=(n, 3))
    if task == "binary":
        return cal.Predictions(logits=logits[:, 0] - logits[:, 1], labels=labels == 0, **more)
    return cal.Predictions(logits=logits, labels=labels, **more)


def losses(probabilities, labels):
    """Squared error of the label's probability."""
    stated = probabilities if probabilities.ndim == 1 else probabilities[np.arange(len(labels)), labels]
    return (stated - (labels if probabilities.ndim == 1 else 1)) ** 2


def weighted(probabilities, labels, sample_weight=None):
    return float(np.average(losses(probabilities, labels), weights=sample_weight))


def ignoring(probabilities, labels, sample_weight=None):
    return float(losses(probabilities, labels).mean())


def unweighted(probabilities, labels):
    return losses(probabilities, labels).mean()


def forwarding(probabilities, labels, **options):
    return weighted(probabilities, labels, **options)


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 1000),
    n=st.integers(30, 300),
    task=st.sampled_from(["multiclass", "binary"]),
    clustered=st.booleans(),
)
def test_77_metrics_that_ignore_weights_have_the_interval_of_metrics_that_use_them(seed, n, task, clustered):
    more = {"clusters": np.arange(n) // 2} if clustered else {}
    functions = {"used": weighted, "ignored": ignoring, "absent": unweighted, "forwarded": forwarding}
    found = cal.measure(
        predictions(seed, n, task, **more), metrics=functions, resamples=100, seed=seed, decompose=False
    ).metrics
    used = found["used"]
    assert used.low < used.value < used.high
    for name in ("ignored", "absent", "forwarded"):
        assert found[name].value == pytest.approx(used.value, rel=1e-9)
        assert (found[name].low, found[name].high) == pytest.approx((used.low, used.high), rel=1e-9)


def test_a_maximum_over_rows_has_an_interval_of_positive_width():
    """Doubling rows does not change it, so that only weights of 0 show that it ignores weights."""
    found = cal.measure(
        predictions(0, 200), metrics={"doubt": lambda p, y, sample_weight=None: 1 - p.max()}, resamples=100
    ).metrics["doubt"]
    assert found.low < found.high


def test_differences_of_a_metric_without_weights_are_not_significant_by_construction():
    table = cal.compare(
        predictions(0, 300), predictions(1, 300), ["none", "ts", "vs"], metrics={"mine": unweighted, "same": weighted},
        criterion="mine", resamples=100,
    )  # fmt: skip
    for row in table.rows:
        assert row.metrics["mine"].low < row.metrics["mine"].high
        assert (row.metrics["mine"].low, row.metrics["mine"].high) == pytest.approx(
            (row.metrics["same"].low, row.metrics["same"].high)
        )


def test_weighted_rows_warn_if_a_metric_ignores_weights():
    rows = predictions(0, 200, weights=np.arange(200) % 3 + 1.0)
    found = cal.measure(rows, metrics={"ignored": ignoring, "used": weighted}, resamples=50)
    assert [one for one in found.warnings if "ignored does not count a weight of 2 as the row twice" in one]
    assert not [one for one in found.warnings if "used" in one]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda p, y: float(p[: len(p) // 2].mean(axis=0)[0]), "the metric odd depends on the order of the rows"),
        (lambda p, y: 1 / 0, r"the metric odd fails on 120 random rows of 3 classes \(ZeroDivisionError"),
        (lambda p, y: p.max(axis=1), "the metric odd returned an array of shape"),
        (lambda p, y: p[np.arange(7)].mean() if len(p) == 7 else np.nan, "the metric odd is NaN on these 200 rows"),
    ],
)
def test_broken_contracts_of_a_metric_are_named(function, words):
    with pytest.raises(InputError, match=words):
        cal.measure(predictions(0, 200), metrics={"odd": function}, resamples=20)


def test_nan_in_a_comparison_names_the_metric():
    both = predictions(0, 200), predictions(1, 200)
    rows = cal.compare(*both, ["none", "ts"], metrics={"odd": lambda p, y: np.nan}, resamples=20).rows
    assert [row.error for row in rows] == ["the metric odd is NaN on these 200 rows"] * 2


def test_a_registered_metric_needs_no_weights():
    cal.register_metric(unweighted, "squared")
    try:
        found = cal.measure(predictions(0, 200, "binary"), metrics=["squared"], resamples=50).metrics["squared"]
    finally:
        del METRICS["squared"], FIGURES["squared"]
    assert found.low < found.value < found.high


def test_a_shift_curve_takes_a_metric_without_weights_and_names_nan():
    shifted = {("blur", severity): predictions(severity, 100) for severity in (0, 1)}
    curves = shift({"none": None}, shifted, metric=unweighted)
    assert np.isfinite(curves.values).all()
    with pytest.raises(InputError, match="the metric broken is NaN"):
        shift({"none": None}, shifted, metric=broken)


def broken(probabilities, labels):
    return np.nan
