"""Every calibrator that serves one score per row keeps the binary side of the contract."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone

from calibrant.calibrators.base import BinaryCalibrator
from calibrant.calibrators.registry import get, names
from calibrant.core.errors import InputError
from calibrant.core.softmax import sigmoid
from calibrant.shipping.artifact import load, save

pytestmark = pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")

NAMES = [name for name in names("binary") if not get(name).trains_network]

OWN_FORM = [name for name in NAMES if get(name).maps_one_score()]
"""Methods with a form of their own for one score per row."""

ONE_SCORE = [name for name in OWN_FORM if "multiclass" not in get(name).tasks]
"""Methods that know nothing else."""


def problem(n, seed=0):
    rng = np.random.default_rng(seed)
    scores = 2.5 * rng.normal(size=n) - 0.5
    return scores, (rng.random(n) < sigmoid(0.5 * scores - 0.4)).astype(int)


@pytest.mark.parametrize("name", NAMES)
def test_methods_of_one_score_alone_share_a_base(name):
    assert isinstance(get(name), BinaryCalibrator) == (name in ONE_SCORE)


@pytest.mark.parametrize("name", NAMES)
def test_shapes_dtypes_pickles_and_artifacts(name, tmp_path):
    scores, labels = problem(300)
    fresh, _ = problem(80, seed=1)
    fitted = get(name).fit(scores, labels)
    assert fitted.task_ == "binary"
    assert fitted.classes_.tolist() == [0, 1]
    assert fitted.n_features_in_ == 1
    calibrated = fitted.transform(fresh)
    assert calibrated.shape == (80,)
    assert fitted.transform(fresh[:, None]).shape == (80, 1)
    probabilities = fitted.predict_proba(fresh)
    assert probabilities.shape == (80, 2)
    np.testing.assert_allclose(probabilities[:, 1], sigmoid(calibrated), atol=1e-9)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-12)
    assert set(fitted.predict(fresh)) <= {0, 1}
    assert (fitted.predict(fresh) == (calibrated > 0)).all()
    narrow = fitted.transform(fresh.astype(np.float32))
    assert narrow.dtype == np.float32
    assert np.isfinite(calibrated).all()
    assert (pickle.loads(pickle.dumps(fitted)).transform(fresh) == calibrated).all()
    path = tmp_path / "cal.safetensors"
    save(fitted, path)
    again = load(path)
    assert again.task_ == "binary"
    assert (again.transform(fresh) == calibrated).all()


@pytest.mark.parametrize("name", OWN_FORM)
def test_weight_two_is_the_row_twice_and_order_does_not_matter(name):
    scores, labels = problem(240)
    rng = np.random.default_rng(2)
    weights = rng.integers(0, 3, 240)
    copies = rng.permutation(np.repeat(np.arange(240), weights))
    weighted = get(name).fit(scores, labels, sample_weight=weights).predict_proba(scores)
    repeated = get(name).fit(scores[copies], labels[copies]).predict_proba(scores)
    np.testing.assert_allclose(weighted, repeated, atol=1e-8)


@pytest.mark.parametrize("name", OWN_FORM)
def test_float32_gives_the_answer_of_the_same_numbers_in_float64(name):
    scores, labels = problem(300)
    narrow = scores.astype(np.float32)
    fitted = get(name).fit(narrow, labels)
    wide = get(name).fit(narrow.astype(np.float64), labels)
    np.testing.assert_allclose(fitted.predict_proba(narrow), wide.predict_proba(narrow.astype(float)), atol=2e-6)


@pytest.mark.parametrize("name", [name for name in NAMES if get(name).fit(*problem(60)).keeps_ranking])
def test_kept_rankings_are_kept(name):
    for seed in range(5):
        scores, labels = problem(200, seed)
        fitted = get(name).fit(scores, labels)
        grid = np.sort(np.concatenate([scores, np.linspace(-40, 40, 500)]))
        assert (np.diff(fitted.transform(grid)) >= -1e-9).all()


@pytest.mark.parametrize("name", ONE_SCORE)
def test_two_columns_are_their_difference(name):
    scores, labels = problem(300)
    logits = np.stack([1.5 - scores / 3, 1.5 + 2 * scores / 3], axis=1)
    of_matrix = get(name).fit(logits, labels)
    assert of_matrix.task_ == "multiclass"
    np.testing.assert_allclose(
        of_matrix.predict_proba(logits), get(name).fit(scores, labels).predict_proba(scores), atol=1e-7
    )
    assert of_matrix.transform(logits).shape == (300, 2)
    with pytest.raises(InputError, match="3 columns"):
        get(name).fit(np.zeros((4, 3)), [0, 1, 2, 0])


@pytest.mark.parametrize("name", OWN_FORM)
def test_bad_input_is_one_line(name):
    scores, labels = problem(50)
    for bad in (
        (scores[:-1], labels),
        (scores, labels + 1),
        (np.where(np.arange(50) == 3, np.nan, scores), labels),
        (scores, labels + 0.5),
    ):
        with pytest.raises(InputError) as caught:
            get(name).fit(*bad)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="features"):
        get(name).fit(scores, labels).transform(np.zeros((3, 2)))


@pytest.mark.parametrize("name", OWN_FORM)
def test_clones_and_refits(name):
    scores, labels = problem(120)
    first = get(name).fit(scores, labels)
    second = clone(first).fit(scores, labels)
    assert (first.transform(scores) == second.transform(scores)).all()
    # a fit to a matrix leaves nothing of the binary one behind
    if name not in ONE_SCORE:
        matrix = np.random.default_rng(0).normal(size=(120, 3))
        again = clone(first).fit(matrix, labels).transform(matrix)
        assert (first.fit(matrix, labels).transform(matrix) == again).all()


def test_51_temperature_of_one_score_is_that_of_two_columns():
    scores, labels = problem(400)
    logits = np.stack([np.zeros(400), scores], axis=1)
    one, two = get("ts").fit(scores, labels), get("ts").fit(logits, labels)
    assert one.temperature_ == pytest.approx(two.temperature_, rel=1e-12)
    np.testing.assert_allclose(one.predict_proba(scores), two.predict_proba(logits), atol=1e-12)
    # vector scaling with a free bias on [0, z] is Platt scaling
    platt, vector = get("platt").fit(scores, labels), get("vs").fit(logits, labels)
    np.testing.assert_allclose(platt.predict_proba(scores), vector.predict_proba(logits), atol=1e-6)


def test_labels_may_be_whole_floats_or_booleans():
    scores, labels = problem(100)
    expected = get("platt").fit(scores, labels).slope_
    assert get("platt").fit(scores, labels.astype(float)).slope_ == expected
    assert get("platt").fit(scores, labels.astype(bool)).slope_ == expected
    from calibrant import metrics

    assert metrics.ece(sigmoid(scores), labels.astype(float)) == metrics.ece(sigmoid(scores), labels)
    both = np.stack([sigmoid(-scores), sigmoid(scores)], axis=1)
    assert metrics.ece(both, labels.astype(bool)) == metrics.ece(both, labels)
