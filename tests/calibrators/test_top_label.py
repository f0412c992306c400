"""The methods that give the predicted class a new confidence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

from calibrant import (
    HistogramBinning,
    Identity,
    IsotonicCalibration,
    SplineCalibration,
    TemperatureScaling,
    TopLabelMap,
    VectorScaling,
    WeightScaling,
)
from calibrant.calibrators import maps
from calibrant.calibrators.second_stage import TOP_PRIOR_ROWS, fit_map, top_label
from calibrant.calibrators.solvers.folds import content_folds
from calibrant.core.bins import place
from calibrant.core.errors import InputError
from calibrant.core.rows import Rows
from calibrant.core.softmax import probability_log_odds, softmax


def features(log_odds):
    """log c, −log(1 − c) and 1 of each row (n×3), from the log-odds of c."""
    return np.stack([-np.logaddexp(0.0, -log_odds), np.logaddexp(0.0, log_odds), np.ones_like(log_odds)], axis=1)


def random_data(seed, n_rows=500, n_classes=5, sharpness=2.0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n_rows)
    return sharpness * (rng.normal(0, 1, (n_rows, n_classes)) + np.eye(n_classes)[labels]), labels


def with_confidence(logits, confidence):
    return maps.with_confidence(maps.numpy_space, logits, probability_log_odds(confidence)[:, None])


@given(
    seed=st.integers(0, 1000),
    n_classes=st.sampled_from([2, 3, 10]),
    scale=st.sampled_from([0.01, 1.0, 30.0, 1e4]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_with_confidence_gives_that_confidence_and_keeps_the_prediction(seed, n_classes, scale, dtype):
    rng = np.random.default_rng(seed)
    logits = (scale * rng.normal(0, 1, (60, n_classes))).astype(dtype)
    wanted = rng.uniform(0.001, 0.999, 60)
    result = softmax(with_confidence(logits, wanted).astype(np.float64))
    np.testing.assert_array_equal(result.argmax(axis=1), logits.argmax(axis=1))
    np.testing.assert_allclose(result.max(axis=1), np.maximum(wanted, 1 / n_classes), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(result.sum(axis=1), 1, atol=1e-6)


def test_others_keep_their_proportions_where_there_is_room():
    logits = np.log([[0.6, 0.3, 0.1]])
    np.testing.assert_allclose(softmax(with_confidence(logits, np.array([0.5]))), [[0.5, 0.375, 0.125]])


def test_water_filling_caps_the_runner_up():
    logits = np.log([[0.5, 0.45, 0.04, 0.01]])
    # 0.4 is left for three: the runner-up is capped at 0.4, 0.2 remains for the ratio 4 : 1
    expected = [[0.4, 0.4, 0.16, 0.04]]
    np.testing.assert_allclose(softmax(with_confidence(logits, np.array([0.4]))), expected, atol=1e-9)


@given(seed=st.integers(0, 1000), n_classes=st.sampled_from([3, 8]))
def test_water_filling_against_bisection(seed, n_classes):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 1.5, (1, n_classes))
    confidence = rng.uniform(1 / n_classes + 1e-3, 0.9)
    result = softmax(with_confidence(logits, np.array([confidence])))[0]
    shares = np.delete(softmax(logits)[0], logits.argmax())
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(middle * shares, confidence).sum() < 1 - confidence else (low, middle)
    np.testing.assert_allclose(np.delete(result, logits.argmax()), np.minimum(low * shares, confidence), atol=1e-8)


def test_log_odds_are_exact_where_the_confidence_rounds_to_one():
    np.testing.assert_allclose(top_label(np.array([[100.0, 0.0, 0.0]])).log_odds, [100 - np.log(2)])


@given(seed=st.integers(0, 500), n_bins=st.integers(1, 25))
def test_histogram_values_are_bin_accuracies(seed, n_bins):
    logits, labels = random_data(seed)
    fitted = HistogramBinning(n_bins).fit(logits, labels)
    confidence, correct = softmax(logits).max(axis=1), logits.argmax(axis=1) == labels
    index = place(confidence, fitted.edges_[0])
    after = fitted.predict_proba(logits).max(axis=1)
    for i in np.unique(index):
        margin = 0.5 / (index == i).sum()
        value = max(np.clip(correct[index == i].mean(), margin, 1 - margin), 0.2)
        np.testing.assert_allclose(after[index == i], value, atol=1e-9)


def test_isotonic_equals_scikit_learn(rng):
    logits, labels = random_data(1)
    confidence, correct = softmax(logits).max(axis=1), logits.argmax(axis=1) == labels
    weights = rng.integers(1, 4, len(labels)).astype(float)
    reference = IsotonicRegression(out_of_bounds="clip").fit(confidence, correct, sample_weight=weights)
    new, _ = random_data(2)
    after = IsotonicCalibration().fit(logits, labels, weights).predict_proba(new).max(axis=1)
    margin = 0.5 / weights.sum()
    expected = np.clip(reference.predict(softmax(new).max(axis=1)), margin, 1 - margin)
    np.testing.assert_allclose(after, np.maximum(expected, 0.2), atol=1e-9)
    order = softmax(new).max(axis=1).argsort()
    assert (np.diff(after[order]) >= -1e-12).all()


@pytest.mark.parametrize("calibrator", [IsotonicCalibration("one_vs_rest"), HistogramBinning(mode="one_vs_rest")])
def test_one_vs_rest_matches_class_frequencies(calibrator):
    logits, labels = random_data(4, n_rows=3000, n_classes=3)
    probabilities = calibrator.fit(logits, labels).predict_proba(logits)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    np.testing.assert_allclose(probabilities.mean(axis=0), np.bincount(labels) / 3000, atol=0.02)
    assert not calibrator.keeps_prediction
    assert not type(calibrator).keeps_prediction


def test_one_vs_rest_isotonic_before_normalising_is_scikit_learns(rng):
    logits, labels = random_data(7, n_rows=200, n_classes=3)
    before = softmax(logits)
    columns = [
        np.clip(IsotonicRegression().fit(before[:, j], labels == j).predict(before[:, j]), 0.0025, 0.9975)
        for j in range(3)
    ]
    expected = np.stack(columns, axis=1)
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(IsotonicCalibration("one_vs_rest").fit(logits, labels).predict_proba(logits), expected)


def test_spline_learns_a_known_map(rng):
    # the truth: a row of confidence c is right with probability c²
    confidence = rng.uniform(0.55, 0.99, 40_000)
    logits = np.stack([probability_log_odds(confidence), np.zeros(len(confidence))], axis=1)
    labels = (rng.random(len(confidence)) > confidence**2).astype(int)
    fitted = SplineCalibration().fit(logits, labels)
    inside = (confidence > 0.75) & (confidence < 0.98)
    after = fitted.predict_proba(logits)[inside, 0]
    assert np.abs(after - np.maximum(confidence[inside] ** 2, 0.5)).max() < 0.03


def test_top_label_map_is_at_the_optimum_of_its_objective(rng):
    log_odds = rng.normal(1, 2, 800)
    correct = rng.random(800) < 1 / (1 + np.exp(-0.4 * log_odds))
    weights = rng.uniform(0, 2, 800)
    found, trace = fit_map(log_odds, correct, weights)
    inputs = features(log_odds)

    def objective(point):
        score, pull = inputs @ point, point - [1, 1, 0]
        return weights @ (np.logaddexp(0, score) - correct * score) + 0.5 * TOP_PRIOR_ROWS * pull @ pull

    assert (found[:2] >= 0).all()
    assert (np.diff(trace) <= 0).all()
    for _ in range(200):
        other = found + rng.normal(0, 0.01, 3)
        other[:2] = np.maximum(other[:2], 0)
        assert objective(found) <= objective(other)


def test_top_label_map_holds_the_identity_on_calibrated_data(rng):
    logits = rng.normal(0, 2, (20_000, 4))
    labels = (softmax(logits).cumsum(axis=1) < rng.random((20_000, 1))).sum(axis=1)
    fitted = TopLabelMap(Identity()).fit(logits, labels)
    np.testing.assert_allclose(fitted.map_, [1, 1, 0], atol=0.2)
    np.testing.assert_allclose(fitted.predict_proba(logits), softmax(logits), atol=0.02)


@pytest.mark.parametrize("inner", [TemperatureScaling(), WeightScaling(), VectorScaling()])
def test_top_label_map_facts_are_those_of_the_inner_calibrator(inner):
    calibrator = TopLabelMap(inner)
    assert calibrator.keeps_prediction == inner.keeps_prediction
    assert calibrator.keeps_ranking == inner.keeps_ranking
    logits, labels = random_data(0, n_rows=900)
    fitted = calibrator.fit(logits, labels)
    assert fitted.n_parameters_ == fitted.calibrator_.n_parameters_ + 3
    np.testing.assert_array_equal(fitted.predict(logits), fitted.calibrator_.predict(logits))


def test_top_label_map_sharpens_and_softens(rng):
    labels = rng.integers(0, 5, 6000)
    logits = rng.normal(0, 1, (6000, 5)) + 2 * np.eye(5)[labels]
    for factor in (0.2, 5.0):
        fitted = TopLabelMap(Identity()).fit(factor * logits, labels)
        correct = logits.argmax(axis=1) == labels
        before = softmax(factor * logits).max(axis=1).mean()
        after = fitted.predict_proba(factor * logits).max(axis=1).mean()
        assert abs(after - correct.mean()) < 0.1 * abs(before - correct.mean())


def test_folds_follow_the_content(rng):
    values, labels = rng.normal(size=(3000, 6)), rng.integers(0, 6, 3000)
    fold = content_folds(Rows(values, labels), 5, seed=0)
    order, columns = rng.permutation(3000), rng.permutation(6)
    np.testing.assert_array_equal(content_folds(Rows(values[order], labels[order]), 5, seed=0), fold[order])
    relabelled = Rows(values[:, columns], np.argsort(columns)[labels])
    np.testing.assert_array_equal(content_folds(relabelled, 5, seed=0), fold)
    assert np.ptp(np.bincount(fold, minlength=5)) <= 1
    prediction = values.argmax(axis=1)
    for j in range(6):
        assert np.ptp(np.bincount(fold[prediction == j], minlength=5)) <= 1
    assert (content_folds(Rows(values, labels), 5, seed=1) != fold).mean() > 0.5


@pytest.mark.parametrize("n_classes", [2, 5])
@pytest.mark.parametrize("distinct", [1, 2, 7, 300])
def test_folds_share_out_tied_rows(rng, n_classes, distinct):
    table = rng.normal(size=(distinct, n_classes))
    values = table[np.minimum(rng.geometric(0.4, 2000) - 1, distinct - 1)]
    labels = rng.integers(0, n_classes, 2000)
    fold = content_folds(Rows(values, labels), 5, seed=0)
    counts = np.bincount(fold, minlength=5)
    assert counts.max() <= 0.22 * 2000
    if n_classes == 2:
        assert np.ptp(np.bincount(fold[labels == 1], minlength=5)) <= 0.05 * 2000
    order = rng.permutation(2000)
    again = content_folds(Rows(values[order], labels[order]), 5, seed=0)
    # copies of a row are interchangeable: every fold holds the same rows as often
    for part in range(5):
        one, other = (
            np.column_stack([v, y])[f == part]
            for v, y, f in ((values, labels, fold), (values[order], labels[order], again))
        )
        np.testing.assert_array_equal(one[np.lexsort(one.T)], other[np.lexsort(other.T)])


def test_folds_of_rare_positives_each_hold_some(rng):
    labels = np.zeros(2000, dtype=np.int64)
    labels[rng.choice(2000, 10, replace=False)] = 1
    scores = rng.normal(size=2000) - 4
    fold = content_folds(Rows(np.column_stack([np.zeros(2000), scores]), labels), 5, seed=0)
    assert np.bincount(fold[labels == 1], minlength=5).tolist() == [2] * 5


def test_folds_count_weights_as_copies(rng):
    values, labels = rng.normal(size=(160, 4)), rng.integers(0, 4, 160)
    weights = rng.integers(0, 3, 160)
    copies = np.repeat(np.arange(160), weights)
    weighted = content_folds(Rows(values, labels, weights.astype(float)), 5, seed=0)
    np.testing.assert_array_equal(content_folds(Rows(values[copies], labels[copies]), 5, seed=0), weighted[copies])


@pytest.mark.parametrize(
    "calibrator",
    [
        HistogramBinning(0),
        HistogramBinning(mode="top"),
        IsotonicCalibration("classwise"),
        *map(SplineCalibration, (2, "six")),
    ],
)
def test_bad_parameters_are_named(calibrator, rng):
    with pytest.raises(InputError, match=r"n_bins|mode|n_knots"):
        calibrator.fit(rng.normal(size=(10, 3)), rng.integers(0, 3, 10))


def test_held_out_answers_are_the_inner_ones_through_one_map():
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 4, 600)
    rows = Rows(3 * rng.normal(size=(600, 4)) + 4 * np.eye(4)[labels], labels)
    fold = np.arange(600) % 3
    inner = TemperatureScaling().fit_held_out(rows, fold)
    mapped = TopLabelMap(TemperatureScaling())
    answers = mapped.fit_held_out(rows, fold)
    top = top_label(inner)
    expected, _ = fit_map(top.log_odds, top.prediction == labels, np.ones(600))
    np.testing.assert_allclose(mapped.map_, expected, rtol=1e-9)
    np.testing.assert_allclose(top_label(answers).log_odds, features(top.log_odds) @ expected, atol=1e-9)
    assert np.abs(mapped.map_ - [1, 1, 0]).max() > 0.01
