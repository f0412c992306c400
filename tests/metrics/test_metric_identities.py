"""Identities that no wrong implementation passes, over random predictions with ties, edges and weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant import metrics
from calibrant.core.bins import BinSums
from calibrant.metrics.inputs import check
from calibrant.metrics.top_label import bin_index, bin_sums, memberships, soft_sums

FUNCTIONS = {name: one.function for name, one in metrics.METRICS.items() if one.about != "score"}


def of_columns(metric):
    """A metric as a function of confidences, correctness and weights."""
    return lambda confidence, correct, weights=None, **options: metric(
        confidence, correct, sample_weight=weights, **options
    )


ece_of, adaptive_ece_of, debiased_ece_of, over_under_confidence_of, ks_error_of, mmce_of, soft_ece_of = map(
    of_columns,
    (
        metrics.ece,
        metrics.adaptive_ece,
        metrics.debiased_ece,
        metrics.over_under_confidence,
        metrics.ks_error,
        metrics.mmce,
        metrics.soft_ece,
    ),
)

TINY = 1e-12


@st.composite
def problems(draw, min_classes=2):
    """Probabilities on a coarse grid (so that ties and bin edges occur) or a fine one, labels, weights or None."""
    n = draw(st.integers(1, 40))
    n_classes = draw(st.integers(min_classes, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if draw(st.booleans()):
        counts = rng.multinomial(20, np.full(n_classes, 1 / n_classes), size=n)
        probabilities = counts / 20
    else:
        probabilities = rng.dirichlet(np.full(n_classes, 0.4), size=n)
    weights = rng.integers(1, 4, n).astype(float) if draw(st.booleans()) else None
    return probabilities, rng.integers(0, n_classes, n), weights


@st.composite
def columns(draw):
    probabilities, labels, weights = draw(problems())
    return probabilities.max(axis=1), probabilities.argmax(axis=1) == labels, weights


def average(values, weights):
    return np.average(values, weights=weights)


def mean_gap_of(confidence, correct, weights):
    return average(confidence - correct, weights)


bins = st.integers(1, 20)


@given(columns(), bins)
def test_1_over_and_under_add_up_to_ece(data, n_bins):
    split = over_under_confidence_of(*data, n_bins=n_bins)
    assert split.over + split.under == pytest.approx(ece_of(*data, n_bins=n_bins), abs=TINY)


@given(problems(), bins)
def test_1_over_and_under_add_up_in_each_class(problem, n_bins):
    p, y, w = problem
    split = metrics.classwise_over_under(p, y, n_bins=n_bins, sample_weight=w)
    vector = metrics.classwise_ece(p, y, n_bins=n_bins, sample_weight=w)
    np.testing.assert_allclose(split.over + split.under, vector, atol=TINY)


@given(columns(), bins, st.sampled_from(["width", "mass"]))
def test_2_over_less_under_is_the_mean_gap(data, n_bins, binning):
    confidence, correct, weights = data
    split = over_under_confidence_of(*data, n_bins=n_bins, binning=binning)
    gap = average(confidence, weights) - average(correct, weights)
    assert split.over - split.under == pytest.approx(gap, abs=TINY)
    assert mean_gap_of(*data) == pytest.approx(gap, abs=TINY)


@given(columns(), bins, st.sampled_from(["width", "mass"]), st.sampled_from([1, 2, math.inf]))
def test_3_one_bin_is_the_gap_and_more_are_never_less(data, n_bins, binning, norm):
    gap = abs(mean_gap_of(*data))
    assert ece_of(*data, n_bins=1, binning=binning, norm=norm) == pytest.approx(gap, abs=TINY)
    assert ece_of(*data, n_bins=n_bins, binning=binning, norm=norm) >= gap - TINY


@given(columns(), st.integers(1, 8), st.integers(2, 4), st.sampled_from(["width", "mass"]), st.sampled_from([1, 2, 3]))
def test_4_splitting_every_bin_never_lowers_ece(data, n_bins, k, binning, norm):
    coarse = ece_of(*data, n_bins=n_bins, norm=norm, binning=binning)
    assert ece_of(*data, n_bins=k * n_bins, norm=norm, binning=binning) >= coarse - 1e-9


@given(columns(), bins, st.sampled_from(["width", "mass"]), st.sampled_from(["bin", "label"]))
def test_5_ece_rises_with_its_norm(data, n_bins, binning, weighting):
    one, two, most = (
        ece_of(*data, n_bins=n_bins, norm=p, binning=binning, weighting=weighting) for p in (1, 2, math.inf)
    )
    assert one <= two + TINY
    assert two <= most + TINY


@given(columns(), bins)
def test_6_over_is_at_most_the_error_rate_and_under_at_most_the_accuracy(data, n_bins):
    split = over_under_confidence_of(*data, n_bins=n_bins)
    accuracy = average(data[1], data[2])
    assert split.over <= 1 - accuracy + TINY
    assert split.under <= accuracy + TINY


@given(columns(), bins, st.sampled_from(["width", "mass"]), st.sampled_from([1, 2, math.inf]))
def test_7_label_weighting_is_never_less_than_bin_weighting(data, n_bins, binning, norm):
    by_bin, by_label = (
        ece_of(*data, n_bins=n_bins, norm=norm, binning=binning, weighting=weighting) for weighting in ("bin", "label")
    )
    assert by_label >= by_bin - TINY


@given(columns(), bins, st.sampled_from(["width", "mass"]))
def test_8_label_ece_is_bin_ece_plus_the_variance_within_hard_bins(data, n_bins, binning):
    confidence, correct, weights = data
    w = np.ones(len(confidence)) if weights is None else weights
    index = bin_index(confidence, weights, n_bins, binning)
    sums = bin_sums(check(confidence, correct, weights, False), n_bins, binning)
    centre = (sums.confidence / np.where(sums.weight > 0, sums.weight, 1))[index]
    within = np.dot(w, (confidence - centre) ** 2) / w.sum()
    by_bin, by_label = (ece_of(*data, n_bins=n_bins, norm=2, binning=binning, weighting=x) for x in ("bin", "label"))
    assert by_label**2 == pytest.approx(by_bin**2 + within, abs=TINY)


@given(columns(), bins, st.sampled_from([0.001, 0.01, 0.1, 10.0]))
def test_8_label_ece_is_bin_ece_plus_the_variance_within_soft_bins(data, n_bins, temperature):
    confidence, _, weights = data
    w = np.ones(len(confidence)) if weights is None else weights
    u = memberships(confidence, n_bins, temperature) * w[:, None]
    centre = (u * confidence[:, None]).sum(axis=0) / np.where(u.sum(axis=0) > 0, u.sum(axis=0), 1)
    within = (u * (confidence[:, None] - centre) ** 2).sum() / w.sum()
    options = {"n_bins": n_bins, "temperature": temperature}
    by_bin, by_label = (soft_ece_of(*data, weighting=x, **options) for x in ("bin", "label"))
    assert by_label**2 == pytest.approx(by_bin**2 + within, abs=TINY)


@given(columns(), bins, st.sampled_from(["bin", "label"]), st.sampled_from([1, 2]))
def test_9_soft_bins_harden_as_the_temperature_falls(data, n_bins, weighting, norm):
    confidence, correct, weights = data
    off_edge = np.abs(confidence * n_bins - np.round(confidence * n_bins)) > 1e-3
    data = confidence[off_edge], correct[off_edge], None if weights is None else weights[off_edge]
    if off_edge.any():
        hard = ece_of(*data, n_bins=n_bins, norm=norm, weighting=weighting)
        soft = soft_ece_of(*data, n_bins=n_bins, norm=norm, weighting=weighting, temperature=1e-9)
        assert soft == pytest.approx(hard, abs=1e-9)


@given(columns(), bins)
def test_10_one_bin_remains_as_the_temperature_rises(data, n_bins):
    confidence, correct, weights = data
    accuracy = average(correct, weights)
    by_bin, by_label = (soft_ece_of(*data, n_bins=n_bins, temperature=1e9, weighting=x) for x in ("bin", "label"))
    assert by_bin == pytest.approx(abs(mean_gap_of(*data)), abs=1e-7)
    assert by_label == pytest.approx(math.sqrt(average((confidence - accuracy) ** 2, weights)), abs=1e-7)


@given(columns(), bins, st.sampled_from([1e-6, 0.01, 1.0]))
def test_11_soft_bins_keep_every_sum(data, n_bins, temperature):
    confidence, correct, weights = data
    w = np.ones(len(confidence)) if weights is None else weights
    sums = BinSums(*soft_sums(check(confidence, correct, weights, False), n_bins, temperature)[:3])
    assert sums.weight.sum() == pytest.approx(w.sum(), rel=TINY)
    assert sums.confidence.sum() == pytest.approx(np.dot(w, confidence), rel=TINY)
    assert sums.correct.sum() == pytest.approx(np.dot(w, correct), rel=TINY, abs=TINY)


@given(st.integers(5, 20), st.floats(1.5, 100))
def test_12_decay_is_the_ratio_between_neighbours_at_a_centre(n_bins, decay):
    centre = (n_bins // 2 + 0.5) / n_bins
    u = memberships(np.array([centre]), n_bins, 1 / (n_bins**2 * math.log(decay)))[0]
    own, neighbour, next_one = u[n_bins // 2], u[n_bins // 2 + 1], u[n_bins // 2 + 2]
    assert neighbour / own == pytest.approx(1 / decay, rel=1e-9)
    assert next_one / own == pytest.approx(decay**-4, rel=1e-9)


def test_12_decay_sets_the_temperature(rng):
    confidence = rng.random(50)
    data = confidence, rng.random(50) < confidence
    assert soft_ece_of(*data, decay=20.0) == soft_ece_of(*data, temperature=1 / (15**2 * math.log(20)))


@given(st.integers(2, 20), st.data(), st.sampled_from([0.001, 0.01, 1.0]))
def test_13_on_an_edge_the_two_neighbours_tie(n_bins, data, temperature):
    edge = data.draw(st.integers(1, n_bins - 1))
    u = memberships(np.array([edge / n_bins]), n_bins, temperature)[0]
    assert u[edge - 1] == pytest.approx(u[edge], rel=1e-9)


@given(problems(), st.sampled_from(sorted(set(FUNCTIONS) - {"aurc", "debiased_ece", "sweep_ece"})))
def test_16_duplicating_the_data_changes_no_mean(problem, name):
    p, y, w = problem
    once = FUNCTIONS[name](p, y, sample_weight=w)
    twice = FUNCTIONS[name](np.tile(p, (2, 1)), np.tile(y, 2), sample_weight=None if w is None else np.tile(w, 2))
    for left, right, scale in zip(_numbers(once), _numbers(twice), _scales(once), strict=True):
        np.testing.assert_allclose(right, left * scale, atol=1e-9)


def _numbers(value):
    return [value] if np.isscalar(value) or isinstance(value, np.ndarray) else list(vars(value).values())


def _scales(value):
    # the counts of a reliability diagram are sums: they double
    return [2 if name == "counts" else 1 for name in vars(value)] if hasattr(value, "__dataclass_fields__") else [1]


@given(columns())
def test_17_mmce_is_a_norm_and_known_in_its_limits(data):
    confidence, correct, weights = data
    assert mmce_of(*data) >= 0
    assert mmce_of(*data, width=1e12) == pytest.approx(abs(mean_gap_of(*data)), abs=1e-6)
    constant = np.full(len(confidence), 0.7)
    accuracy = average(correct, weights)
    assert mmce_of(constant, correct, weights) == pytest.approx(abs(accuracy - 0.7), abs=1e-9)


@given(columns(), bins)
def test_18_19_ks_lies_between_the_gap_and_the_mean_error_and_bounds_equal_mass_ece(data, n_bins):
    confidence, correct, weights = data
    ks = ks_error_of(*data)
    assert abs(mean_gap_of(*data)) <= ks + TINY
    assert ks <= average(np.abs(confidence - correct), weights) + TINY
    assert adaptive_ece_of(*data, n_bins=n_bins) <= 2 * n_bins * ks + TINY


@given(columns(), bins, st.sampled_from(["width", "mass"]))
def test_20_debiased_is_at_most_the_plug_in(data, n_bins, binning):
    debiased = debiased_ece_of(*data, n_bins=n_bins, binning=binning)
    assert debiased**2 <= ece_of(*data, n_bins=n_bins, norm=2, binning=binning) ** 2 + TINY


def test_20_debiased_square_averages_to_zero_on_calibrated_data(rng):
    from calibrant.core.bins import BinSums

    squares, plug_in = [], []
    for _ in range(400):
        confidence = rng.uniform(0.5, 1, 500)
        correct = rng.random(500) < confidence
        sums = bin_sums(check(confidence, correct, None, False), 10, "width")
        n, a = sums.weight, sums.correct / np.maximum(sums.weight, 1)
        plug = BinSums(n, sums.confidence, sums.correct).norm(2) ** 2
        squares.append(plug - (n / n.sum() * a * (1 - a) / np.maximum(n - 1, 1))[n >= 2].sum())
        plug_in.append(plug)
        expected = math.sqrt(max(squares[-1], 0))
        assert debiased_ece_of(confidence, correct, n_bins=10) == pytest.approx(expected, abs=1e-9)
    assert abs(np.mean(squares)) < 3 * np.std(squares) / 20
    assert np.mean(plug_in) > 10 * np.std(plug_in) / 20


@given(st.integers(1, 40), st.integers(0, 10_000), bins)
def test_21_both_classes_of_two_have_the_same_ece(n, seed, n_bins):
    rng = np.random.default_rng(seed)
    first = rng.random(n)
    p, y = np.stack([first, 1 - first], axis=1), rng.integers(0, 2, n)
    both = metrics.classwise_ece(p, y, n_bins=n_bins)
    assert both[0] == pytest.approx(both[1], abs=TINY)


@given(problems(min_classes=3), st.sampled_from(["ece", "nll", "brier", "sce", "ace", "marginal_ece", "smooth_ece"]))
def test_43_relabelling_the_classes_changes_no_metric(problem, name):
    p, y, w = problem
    rng = np.random.default_rng(len(p))
    # without ties in a row, so that the predicted class is the same class
    p = p + rng.random(p.shape) * 1e-9
    p /= p.sum(axis=1, keepdims=True)
    permutation = rng.permutation(p.shape[1])
    renamed = np.empty_like(p)
    renamed[:, permutation] = p
    metric = FUNCTIONS[name]
    assert metric(renamed, permutation[y], sample_weight=w) == pytest.approx(metric(p, y, sample_weight=w), abs=1e-9)


@given(problems())
def test_37_class_losses_average_to_the_nll(problem):
    p, y, w = problem
    result = metrics.classwise_losses(p, y, sample_weight=w)
    mass = np.bincount(y, w, minlength=p.shape[1])[result.classes]
    total = np.dot(mass, result.losses) / mass.sum()
    assert total == pytest.approx(metrics.nll(p, y, sample_weight=w), rel=1e-9)
    assert result.std == pytest.approx(math.sqrt(result.variance))
