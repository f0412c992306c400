"""Groups and clusters: figures are those of the subset, names do not matter, clusters are drawn whole."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from calibrant import metrics
from calibrant.core.errors import InputError
from calibrant.core.schema import identifiers
from calibrant.core.softmax import softmax
from calibrant.data import Predictions
from calibrant.evaluation.bootstrap import draw
from calibrant.evaluation.compare import compare
from calibrant.evaluation.consistency import consistency_test
from calibrant.evaluation.groups import encode, group_analysis, groups_differ, make_grouping
from calibrant.evaluation.measure import measure


def scores(n: int = 1500, seed: int = 0):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 4, n)
    logits = 3 * (np.eye(4)[labels] + generator.normal(size=(n, 4)))
    ward = generator.choice(["a", "b", "c"], n, p=[0.5, 0.3, 0.2])
    return logits, labels, ward, generator.choice(["f", "m"], n)


def honest(n: int, seed: int):
    generator = np.random.default_rng(seed)
    confidence = generator.beta(4, 1.2, n)
    return confidence, generator.random(n) < confidence, generator


def test_58_figures_of_a_group_are_the_metrics_of_the_subset():
    logits, labels, ward, sex = scores()
    weights = np.random.default_rng(1).integers(1, 4, len(labels)).astype(float)
    given = Predictions(logits=logits, labels=labels, weights=weights, groups={"ward": ward, "sex": sex})
    found = measure(given, by=["ward", "sex"], resamples=50).groups
    assert len(found.groups) == 3 + 2 + 6
    for one in found.groups:
        rows = np.ones(len(labels), dtype=bool)
        for column, value in one.by.items():
            rows &= given.groups[column] == value
        subset = {"sample_weight": weights[rows]}
        p = softmax(logits[rows])
        for name in ("ece", "accuracy", "nll", "brier", "confidence"):
            expected = getattr(metrics, name)(p, labels[rows], **subset)
            assert one.metrics[name].value == pytest.approx(expected, abs=1e-9), (one.name, name)
        gap = metrics.confidence(p, labels[rows], **subset) - metrics.accuracy(p, labels[rows], **subset)
        assert one.metrics["gap"].value == pytest.approx(gap)
        assert one.n == rows.sum()


def test_57_renaming_the_groups_changes_nothing():
    confidence, correct, generator = honest(900, 0)
    ward = generator.choice(["x", "y", "z"], 900)
    renamed = np.select([ward == "x", ward == "y"], ["omega", "alpha"], "middle")
    left = group_analysis(confidence, correct, make_grouping({"ward": ward}, 900), resamples=200)
    right = group_analysis(confidence, correct, make_grouping({"ward": renamed}, 900), resamples=200)
    assert left.critical == right.critical
    assert left.differ == right.differ
    for old, new in (("x", "omega"), ("y", "alpha"), ("z", "middle")):
        mine, theirs = left.group(ward=old), right.group(ward=new)
        assert mine.metrics == theirs.metrics
        assert mine.noise_floor == theirs.noise_floor


def test_59_clusters_of_one_row_are_no_clusters():
    logits, labels, ward, _ = scores(600)
    given = Predictions(logits=logits, labels=labels, groups={"ward": ward})
    plain, single = (
        measure(given, by="ward", resamples=100),
        measure(given, by="ward", resamples=100, cluster=np.arange(600)),
    )
    assert plain.to_dict() == single.to_dict()


def test_59_doubled_rows_leave_cluster_intervals_alone_and_shrink_plain_ones():
    logits, labels, _, _ = scores(800)
    once = measure(Predictions(logits=logits, labels=labels), resamples=1000)
    twice = Predictions(logits=np.repeat(logits, 2, axis=0), labels=np.repeat(labels, 2))
    clustered = measure(twice, resamples=1000, cluster=np.repeat(np.arange(800), 2))
    plain = measure(twice, resamples=1000)
    for name in ("nll", "brier", "accuracy", "ece", "confidence", "ks_error", "aurc"):
        expected, found = once.metrics[name], clustered.metrics[name]
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=2e-3, abs=1e-5), name
    for name in ("nll", "brier", "accuracy"):
        expected, found = once.metrics[name], plain.metrics[name]
        assert (expected.high - expected.low) / (found.high - found.low) == pytest.approx(np.sqrt(2), rel=0.1), name


def test_cluster_draws_are_sums_over_whole_clusters():
    clusters, _ = identifiers(np.random.default_rng(0).integers(0, 40, 300))
    drawn = draw(300, 20, 0, clusters)
    column = np.random.default_rng(1).normal(size=300)
    expected = drawn.counts[:, clusters] @ column
    np.testing.assert_allclose(drawn.sums(column[:, None])[:, 0], expected, rtol=1e-12, atol=1e-12)
    cell = np.random.default_rng(2).integers(0, 7, 300)
    table = np.stack([drawn.counts[:, clusters][:, cell == k] @ column[cell == k] for k in range(7)], axis=1)
    columns = np.stack([column, column**2])
    np.testing.assert_allclose(drawn.cell_sums(cell, columns, 7)[:, 0], table, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(drawn.cell_sums(cell, columns, 7)[:, 1].sum(axis=1), drawn.sums(columns.T)[:, 1])


def test_many_clusters_are_thinned_to_whole_clusters():
    clusters = np.arange(60_000) // 3
    drawn = draw(60_000, 5, 0, clusters)
    assert drawn.counts.shape[1] == 16_384
    assert np.array_equal(np.bincount(drawn.unit), np.full(16_384, 3))
    fewer = drawn.fewer(900)
    assert len(fewer.unit) == 900
    assert fewer.shrink == pytest.approx(np.sqrt(300 / 20_000))


def within_clusters(seed: int, n_clusters: int = 150, size: int = 10):
    """Calibrated rows, ten to a cluster, whose outcomes share a latent normal with correlation 0.5."""
    generator = np.random.default_rng(seed)
    confidence = np.repeat(generator.beta(4, 2, n_clusters), size)
    shared = np.repeat(generator.normal(size=n_clusters), size)
    latent = np.sqrt(0.5) * shared + np.sqrt(0.5) * generator.normal(size=n_clusters * size)
    return confidence, norm.cdf(latent) < confidence, np.repeat(np.arange(n_clusters), size)


def test_p_values_hold_under_dependence_within_clusters():
    plain = clustered = 0
    for seed in range(120):
        confidence, correct, clusters = within_clusters(seed)
        plain += consistency_test(confidence, correct, draws=200).p_value < 0.05
        clustered += consistency_test(confidence, correct, draws=200, clusters=clusters).p_value < 0.05
    assert plain > 60
    assert clustered <= 14  # 6 expected of 120; 14 is the 99.9% point


def test_a_group_that_differs_is_found_and_named():
    confidence, _, generator = honest(4000, 3)
    hospital = generator.choice(["A", "B", "C"], 4000)
    correct = generator.random(4000) < confidence - 0.12 * (hospital == "C")
    found = group_analysis(confidence, correct, make_grouping({"hospital": hospital}, 4000), resamples=300)
    assert found.differ.p_value < 0.001
    assert found.groups[found.worst].by == {"hospital": "C"}
    assert found.verdict.startswith("worst served: hospital C")
    assert found.group(hospital="C").p_gap < 0.01
    assert found.group(hospital="A").metrics["gap"].low < 0 < found.group(hospital="A").metrics["gap"].high


def test_one_map_over_easy_and_hard_groups_is_no_difference():
    """Groups of different confidence under the same miscalibration: their gaps differ, their calibration does not."""
    rejected = 0
    for seed in range(100):
        generator = np.random.default_rng(seed)
        easy = generator.random(1500) < 0.5
        confidence = np.where(easy, generator.beta(9, 1, 1500), generator.beta(4, 3, 1500))
        correct = generator.random(1500) < confidence**1.5
        rejected += groups_differ(confidence, correct, np.ones(1500), make_grouping({"e": easy}, 1500)).p_value < 0.05
    assert rejected <= 13


def test_slope_and_ratio_of_a_binary_group():
    generator = np.random.default_rng(0)
    p, ward = generator.beta(2, 5, 6000), generator.choice(["a", "b"], 6000)
    logit = np.log(p / (1 - p))
    y = generator.random(6000) < 1 / (1 + np.exp(-np.where(ward == "a", logit, 0.5 * logit)))
    found = group_analysis(p, y, make_grouping({"ward": ward}, 6000), about="positive class", resamples=200)
    one = found.group(ward="b").metrics
    rows = ward == "b"
    assert one["observed_expected"].value == pytest.approx(y[rows].sum() / p[rows].sum())
    from sklearn.linear_model import LogisticRegression

    fitted = LogisticRegression(C=1e8, tol=1e-10).fit(logit[rows, None], y[rows])
    assert one["calibration_slope"].value == pytest.approx(fitted.coef_[0, 0], rel=1e-3)
    assert one["calibration_slope"].low < 0.5 < one["calibration_slope"].high < 0.8
    assert (
        found.group(ward="a").metrics["calibration_slope"].low
        < 1
        < found.group(ward="a").metrics["calibration_slope"].high
    )


@pytest.mark.parametrize("scale", [0.5, 2.0, 6.0, 20.0])
def test_slopes_of_groups_are_those_of_the_metric_for_extreme_probabilities(scale):
    # full Newton steps from slope 1 jump back and forth over the optimum here
    generator = np.random.default_rng(1)
    y, ward = generator.integers(0, 2, 800), generator.choice(["a", "b", "c"], 800)
    p = 1 / (1 + np.exp(-scale * (2 * generator.normal(size=800) + y)))
    p = np.clip(p, 1e-9, 1 - 1e-9)
    found = group_analysis(p, y, make_grouping({"ward": ward}, 800), about="positive class", resamples=50)
    for name in "abc":
        slope = found.group(ward=name).metrics["calibration_slope"]
        expected = metrics.calibration_slope(p[ward == name], y[ward == name])
        assert slope.value == pytest.approx(expected, rel=1e-3)
        assert slope.low < expected < slope.high


def test_a_group_without_an_error_still_has_noise():
    confidence = np.full(200, 0.99)
    found = group_analysis(confidence, np.ones(200, dtype=bool), make_grouping({"g": np.repeat([0, 1], 100)}, 200))
    gap = found.groups[0].metrics["gap"]
    assert gap.low < 0 < gap.high
    assert found.worst is None
    assert found.groups[0].too_few


def test_numbers_are_cut_into_quantiles_and_codes_are_not():
    generator = np.random.default_rng(0)
    age, season = generator.uniform(20, 80, 400), generator.integers(2015, 2020, 400)
    assert len(encode(age, "age", 400)[1]) == 4
    assert len(encode(age, "age:7", 400)[1]) == 7
    assert sorted(encode(season, "season", 400)[1]) == ["2015", "2016", "2017", "2018", "2019"]
    code, labels = encode(np.array([1.5, np.nan, 1.5]), "x", 3)
    assert labels == ["1.5", "missing"]
    assert code.tolist() == [0, 1, 0]
    sizes = np.bincount(encode(age, "age", 400)[0])
    assert sizes.min() >= 99


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"g": np.arange(3)}, "3,.*5 rows"),
        ({"a": np.zeros(5), "b": np.zeros(5), "c": np.zeros(5)}, "one or two columns"),
        ({"name:4": np.array(list("abcde"))}, "cannot be cut into 4 quantiles"),
    ],
)
def test_bad_columns_say_both_sides(columns, words):
    with pytest.raises(InputError, match=words):
        make_grouping(columns, 5)


def test_compare_gives_the_groups_of_every_method():
    logits, labels, ward, _ = scores(1000)
    both = Predictions(logits=logits, labels=labels, groups={"ward": ward})
    table = compare(both[:500], both[500:], ["none", "ts"], by="ward", cluster=np.arange(500) // 2, resamples=100)
    row = table.row("ts")
    assert [one.by for one in row.groups.groups] == [{"ward": "a"}, {"ward": "b"}, {"ward": "c"}]
    assert row.to_dict()["groups"][0]["n"] == (ward[500:] == "a").sum()
    with pytest.raises(InputError, match="no column 'sex'"):
        compare(both[:500], both[500:], ["none"], by="sex", resamples=50)
