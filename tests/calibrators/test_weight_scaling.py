"""Weight scaling, one weight or one per confidence bin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant import ConfidenceWeightScaling, WeightScaling, metrics
from calibrant.core.bins import mass_index, place
from calibrant.core.errors import InputError
from calibrant.core.softmax import softmax
from calibrant.metrics import rank_changes


def random_data(seed, n_rows=400, n_classes=5, sharpness=3.0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n_rows)
    return sharpness * (rng.normal(0, 1, (n_rows, n_classes)) + np.eye(n_classes)[labels]), labels


def adaptive_ece(confidence, correct, n_bins):
    index = mass_index(confidence, n_bins)
    return np.abs(np.bincount(index, correct - confidence, n_bins)).sum() / len(confidence)


def test_the_papers_example():
    logits = np.log([[0.6, 0.3, 0.1]] * 4)
    probabilities = ConfidenceWeightScaling(n_bins=1).fit(logits, [0, 0, 1, 2]).predict_proba(logits[:1])
    np.testing.assert_allclose(probabilities, [[0.5, 0.3125, 0.1875]], atol=1e-12)
    entropy = -(probabilities * np.log(probabilities)).sum()
    assert entropy == pytest.approx(1.0239, abs=1e-4)


@given(seed=st.integers(0, 1000), n_bins=st.integers(1, 30), sharpness=st.floats(0.2, 8))
def test_l1_weight_is_the_minimiser(seed, n_bins, sharpness):
    logits, labels = random_data(seed, n_rows=211, sharpness=sharpness)
    confidence = softmax(logits).max(axis=1)
    correct = logits.argmax(axis=1) == labels
    fitted = WeightScaling("adaptive_ece_l1", n_bins=n_bins).fit(logits, labels)
    losses = [adaptive_ece(a * confidence + (1 - a) / 5, correct, n_bins) for a in np.linspace(1e-6, 1, 301)]
    own = adaptive_ece(fitted.weight_ * confidence + (1 - fitted.weight_) / 5, correct, n_bins)
    assert fitted.weight_ == 0 or own <= min(losses) + 1e-12


@given(seed=st.integers(0, 1000), n_bins=st.integers(1, 20))
def test_least_squares_weight_is_the_projection(seed, n_bins):
    logits, labels = random_data(seed, n_rows=300)
    confidence, correct = softmax(logits).max(axis=1), logits.argmax(axis=1) == labels
    index = mass_index(confidence, n_bins)
    mass = np.bincount(index, minlength=n_bins)
    c, a = np.bincount(index, confidence) / mass - 0.2, np.bincount(index, correct) / mass - 0.2
    expected = np.linalg.lstsq(c[:, None], a, rcond=None)[0][0]
    assert WeightScaling(n_bins=n_bins).fit(logits, labels).weight_ == pytest.approx(np.clip(expected, 0, 1), abs=1e-9)


@given(seed=st.integers(0, 1000), dtype=st.sampled_from([np.float32, np.float64]))
def test_weight_scaling_keeps_every_order(seed, dtype):
    logits, labels = random_data(seed)
    logits = logits.astype(dtype)
    before, after = softmax(logits.astype(np.float64)), WeightScaling().fit(logits, labels).predict_proba(logits)
    tolerance = 1e-6 if dtype is np.float32 else 1e-13
    np.testing.assert_allclose(after.sum(axis=1), 1, atol=1e-5 if dtype is np.float32 else 1e-12)
    order = before.argsort(axis=1)
    assert (np.diff(np.take_along_axis(after, order, axis=1), axis=1) >= -tolerance).all()
    rows = before.max(axis=1).argsort()
    assert (np.diff(after.max(axis=1)[rows]) >= -tolerance).all()


@given(seed=st.integers(0, 1000), n_bins=st.integers(1, 20), sharpness=st.floats(0.3, 6))
def test_residual_of_every_bin(seed, n_bins, sharpness):
    logits, labels = random_data(seed, sharpness=sharpness)
    fitted = ConfidenceWeightScaling(n_bins=n_bins).fit(logits, labels)
    confidence, correct = softmax(logits).max(axis=1), logits.argmax(axis=1) == labels
    index = place(confidence, fitted.edges_)
    after = fitted.predict_proba(logits).max(axis=1)
    for i in np.unique(index):
        accuracy, old, new = correct[index == i].mean(), confidence[index == i].mean(), after[index == i].mean()
        expected = max(accuracy - old, 0) + max(0.2 - accuracy, 0)
        assert abs(accuracy - new) == pytest.approx(expected, abs=1e-9)


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
@pytest.mark.parametrize("calibrator", [WeightScaling(), ConfidenceWeightScaling(n_bins=3)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_classes", [2, 3, 100])
def test_prediction_survives_a_weight_of_zero(calibrator, dtype, n_classes, rng):
    logits = rng.normal(0, 3, (300, n_classes)).astype(dtype)
    prediction = logits.argmax(axis=1)
    fitted = calibrator.fit(logits, (prediction + 1) % n_classes)
    assert np.max(getattr(fitted, "weights_", fitted.__dict__.get("weight_"))) == 0
    np.testing.assert_array_equal(fitted.transform(logits).argmax(axis=1), prediction)
    probabilities = fitted.predict_proba(logits)
    np.testing.assert_array_equal(probabilities.argmax(axis=1), prediction)
    np.testing.assert_allclose(probabilities, 1 / n_classes, rtol=1e-5)
    assert (np.sort(probabilities, axis=1)[:, -1] > np.sort(probabilities, axis=1)[:, -2]).all()


def test_auto_number_of_bins_beats_the_extremes_on_new_data(rng):
    def draw(n):
        labels = rng.integers(0, 10, n)
        return 4 * (rng.normal(0, 1, (n, 10)) + 1.5 * np.eye(10)[labels]), labels

    (logits, labels), (new, truth) = draw(2000), draw(20000)

    def score(n_bins):
        probabilities = ConfidenceWeightScaling(n_bins).fit(logits, labels).predict_proba(new)
        return adaptive_ece(probabilities.max(axis=1), probabilities.argmax(axis=1) == truth, 15)

    assert score("auto") < score(1)
    assert score("auto") < score(400)
    fitted = ConfidenceWeightScaling("auto").fit(logits, labels)
    shuffled = rng.permutation(len(logits))
    again = ConfidenceWeightScaling("auto").fit(logits[shuffled], labels[shuffled])
    np.testing.assert_allclose(fitted.weights_, again.weights_, atol=1e-12)


@pytest.mark.parametrize(
    "calibrator",
    [WeightScaling("median"), WeightScaling(n_bins=0), ConfidenceWeightScaling("many"), ConfidenceWeightScaling(0)],
)
def test_bad_parameters_are_named(calibrator, rng):
    with pytest.raises(InputError, match=r"objective|n_bins"):
        calibrator.fit(rng.normal(size=(10, 3)), rng.integers(0, 3, 10))


def test_monotone_weights_keep_every_order_and_plain_ones_do_not():
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 5, 3000)
    logits = rng.normal(0, 2, (3000, 5)) + 1.5 * np.eye(5)[labels]
    # the surest rows are wrong more often: plain weights fall there
    sure = np.argsort(-logits.max(axis=1))[:400]
    labels[sure] = rng.integers(0, 5, 400)
    before = softmax(logits).max(axis=1)
    plain, rising = (ConfidenceWeightScaling(12, monotone=one).fit(logits, labels) for one in (False, True))
    assert (np.diff(plain.weights_) < 0).any()
    assert (np.diff(rising.weights_) >= 0).all()
    shares = [rank_changes(before, one.predict_proba(logits).max(axis=1)) for one in (plain, rising)]
    assert shares[0] > 0
    assert shares[1] == 0
    assert rising.keeps_ranking
    assert not plain.keeps_ranking


def test_monotone_weights_change_nothing_where_they_rise_already():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 20_000)
    logits = rng.normal(0, 1, (20_000, 4)) + 2 * np.eye(4)[labels]
    plain, rising = (ConfidenceWeightScaling(2, monotone=one).fit(3 * logits, labels) for one in (False, True))
    assert (np.diff(plain.weights_) > 0).all()
    np.testing.assert_allclose(rising.weights_, plain.weights_)


def test_the_papers_number_of_bins_has_the_lowest_adaptive_ece_on_the_fit_data():
    logits, labels = random_data(2)
    fitted = ConfidenceWeightScaling("fit").fit(logits, labels)
    scores = {}
    for n_bins in (1, 2, 3, 5, 8, 12, 20, 30, 40):
        one = ConfidenceWeightScaling(n_bins).fit(logits, labels)
        scores[n_bins] = metrics.adaptive_ece(one.predict_proba(logits), labels, n_bins=15)
    # predictions put uniform rows ahead by a few units in the last place
    assert metrics.adaptive_ece(fitted.predict_proba(logits), labels, n_bins=15) <= min(scores.values()) + 1e-6


def test_bins_are_the_papers_sets_of_equal_size():
    logits, labels = random_data(3, n_rows=401)
    fitted = ConfidenceWeightScaling(7).fit(logits, labels)
    found = place(softmax(logits).max(axis=1), fitted.edges_)
    assert np.ptp(np.bincount(found)) <= 1
