"""Many labels: shrinkage between one map for all and one map each."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone

from calibrant import AutoCalibrator, MultilabelCalibrator, Predictions, compare, get, load, save
from calibrant.calibrators.maps import numpy_space
from calibrant.calibrators.multilabel import IDENTITY, label_features
from calibrant.core.errors import FitWarning, InputError
from calibrant.core.softmax import sigmoid, softplus

pytestmark = pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")


def problem(n, n_labels, seed=0, spread=0.4, rare=-3.0):
    rng = np.random.default_rng(seed)
    slopes, shifts = 0.7 + 0.3 * spread * rng.normal(size=n_labels), spread * rng.normal(size=n_labels) - 0.3
    base = rng.normal(size=n_labels) + rare
    scores = 2 * rng.normal(size=(2 * n, n_labels)) + base
    labels = (rng.random((2 * n, n_labels)) < sigmoid(slopes * scores + shifts)).astype(int)
    return (scores[:n], labels[:n]), (scores[n:], labels[n:])


def loss(scores, labels):
    return float((softplus(scores) - labels * scores).mean())


@pytest.mark.parametrize("family", ["platt", "beta", "quad"])
def test_53_one_label_is_the_binary_method(family):
    (scores, labels), _ = problem(400, 1, rare=0.0)
    many = MultilabelCalibrator(family).fit(scores, labels)
    one = get(family).fit(scores[:, 0], labels[:, 0])
    np.testing.assert_allclose(many.predict_proba(scores)[:, 0], one.predict_proba(scores[:, 0])[:, 1], atol=1e-6)


@pytest.mark.parametrize("family", ["auto", "platt"])
def test_53_copies_of_a_label_share_one_map(family):
    (scores, labels), _ = problem(300, 1, rare=0.0)
    fitted = MultilabelCalibrator(family).fit(np.tile(scores, 4), np.tile(labels, 4))
    np.testing.assert_allclose(fitted.coef_, np.tile(fitted.coef_[0], (4, 1)), atol=1e-5)
    unchanged = 0.0 if family == "platt" else fitted.weights_[0, 0]
    identity = [*IDENTITY[fitted.family_], 0.0 if fitted.family_ != "quad" else fitted.range_[0]]
    expected = (1 - unchanged) * fitted.pooled_ + unchanged * np.array(identity)
    np.testing.assert_allclose(fitted.coef_[0], expected, atol=1e-5)


@pytest.mark.parametrize("family", sorted(IDENTITY))
def test_the_identity_of_each_family_leaves_scores_unchanged(family):
    scores, ends = np.linspace(-9, 9, 50)[:, None], np.array([-4.0, 3.0])
    columns = label_features(numpy_space, scores, family, ends)
    value = ends[0] if family == "quad" else 0.0
    mapped = sum(slope * column for slope, column in zip(IDENTITY[family], columns, strict=True)) + value
    np.testing.assert_allclose(mapped, scores, atol=1e-12)


def test_labels_that_need_no_map_are_hardly_changed():
    """Rare labels of calibrated scores: most fits of few rows stay within 1% of the uncalibrated loss."""
    harmed = []
    for seed in range(6):
        (scores, _), (fresh, _) = problem(60, 40, seed, 0.0, -2.0)
        rng = np.random.default_rng(seed)
        labels, truth = (rng.random(one.shape) < 1 / (1 + np.exp(-one)) for one in (scores, fresh))
        mapped = MultilabelCalibrator().fit(scores, labels.astype(int)).transform(fresh)
        before, after = ((np.logaddexp(0, one) - truth * one).mean(axis=0) for one in (fresh, mapped))
        harmed.append((after > 1.01 * before).mean())
    assert np.mean(harmed) < 0.2


def test_fewer_than_ten_rows_change_nothing():
    (scores, labels), (fresh, _) = problem(8, 3)
    with pytest.warns(FitWarning, match="predictions unchanged; calibration needs 10"):
        fitted = MultilabelCalibrator().fit(scores, labels)
    np.testing.assert_allclose(fitted.transform(fresh), fresh, atol=1e-12)


@pytest.mark.parametrize("family", ["platt", "beta", "quad"])
def test_ends_of_the_shrinkage(family):
    (scores, labels), _ = problem(500, 5, rare=-1.0)
    # quadratic maps of all labels increase on one range: here it is that of each label alone
    scores[0], scores[1] = scores.min(), scores.max()
    pooled = MultilabelCalibrator(family, strength=np.inf).fit(scores, labels)
    assert (pooled.coef_ == pooled.pooled_).all()
    flat = get(family).fit(scores.ravel(), labels.ravel())
    expected = flat.predict_proba(scores.ravel())[:, 1].reshape(scores.shape)
    np.testing.assert_allclose(pooled.predict_proba(scores), expected, atol=1e-6)
    separate = MultilabelCalibrator(family, strength=1e-7).fit(scores, labels)
    for j in range(5):
        own = loss(separate.transform(scores)[:, j], labels[:, j])
        alone = loss(get(family).fit(scores[:, j], labels[:, j]).transform(scores[:, j]), labels[:, j])
        assert own == pytest.approx(alone, abs=1e-6)


@pytest.mark.parametrize(("rare", "spread", "n"), [(-5.0, 0.2, 1000), (-2.0, 1.0, 1000), (-4.0, 0.6, 1000)])
def test_shrunken_fit_is_as_good_as_the_better_of_pooled_and_separate(rare, spread, n):
    losses = np.zeros(3)
    for seed in range(3):
        (scores, labels), (fresh, truth) = problem(n, 30, seed, spread, rare)
        for place, strength in enumerate((np.inf, 1e-3, "cv")):
            fitted = MultilabelCalibrator("platt", strength=strength).fit(scores, labels)
            losses[place] += loss(fitted.transform(fresh), truth)
    assert losses[2] <= losses[:2].min() * 1.002


def test_weights_order_dtype_pickles_and_artifacts(tmp_path):
    (scores, labels), (fresh, _) = problem(250, 6, rare=-1.5)
    rng = np.random.default_rng(0)
    weights = rng.integers(0, 3, 250)
    copies = rng.permutation(np.repeat(np.arange(250), weights))
    weighted = MultilabelCalibrator(weights_are="counts").fit(scores, labels, sample_weight=weights)
    repeated = MultilabelCalibrator().fit(scores[copies], labels[copies])
    np.testing.assert_allclose(weighted.predict_proba(fresh), repeated.predict_proba(fresh), atol=1e-6)
    order = np.array([3, 1, 5, 0, 2, 4])
    permuted = MultilabelCalibrator().fit(scores[:, order], labels[:, order])
    plain = MultilabelCalibrator().fit(scores, labels)
    np.testing.assert_allclose(permuted.predict_proba(fresh[:, order]), plain.predict_proba(fresh)[:, order], atol=1e-6)
    assert plain.transform(fresh.astype(np.float32)).dtype == np.float32
    assert plain.task_ == "multilabel"
    assert set(np.unique(plain.predict(fresh))) <= {0, 1}
    again = pickle.loads(pickle.dumps(plain))
    assert (again.transform(fresh) == plain.transform(fresh)).all()
    save(plain, tmp_path / "many.safetensors")
    loaded = load(tmp_path / "many.safetensors")
    assert (loaded.transform(fresh) == plain.transform(fresh)).all()
    assert loaded.family_ == plain.family_


def test_infinite_scores_take_the_floor():
    (scores, labels), (fresh, _) = problem(300, 3, rare=-1.0)
    scores[:5, 0], scores[5:8, 1] = -np.inf, np.inf
    fitted = MultilabelCalibrator("platt").fit(scores, labels)
    assert np.isfinite(fitted.coef_).all()
    finite = np.abs(scores[np.isfinite(scores)])
    assert np.exp(fitted.log_floor_) == pytest.approx(sigmoid(-finite).min() / 2)
    fresh[0] = -np.inf, np.inf, -np.inf
    assert np.isfinite(fitted.transform(fresh)).all()


def test_labels_without_positives_lean_on_the_pooled_map():
    (scores, labels), (fresh, _) = problem(400, 5, rare=-2.0)
    labels[:, 2] = 0
    with pytest.warns(FitWarning, match="1 of 5 labels have one value in all rows"):
        fitted = MultilabelCalibrator("platt").fit(scores, labels)
    assert np.isfinite(fitted.coef_).all()
    for same in (np.zeros_like(labels), np.ones_like(labels)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            assert np.isfinite(MultilabelCalibrator().fit(scores, same).transform(fresh)).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((np.zeros((4, 2)), np.zeros((4, 3), int)), r"labels has shape \(4, 3\), but logits has \(4, 2\)"),
        ((np.zeros((4, 2)), np.full((4, 2), 2)), "outcomes are 0 or 1"),
        ((np.full((4, 2), np.nan), np.zeros((4, 2), int)), "contains NaN in row 0, column 0"),
        ((np.zeros(4), np.zeros(4, int)), r"shape \(n, L\)"),
    ],
)
def test_bad_input_is_one_line(arguments, words):
    with pytest.raises(InputError, match=words) as caught:
        MultilabelCalibrator().fit(*arguments)
    assert "\n" not in str(caught.value)


def test_bad_parameters_are_named():
    (scores, labels), _ = problem(50, 2, rare=0.0)
    with pytest.raises(InputError, match="'auto' or a method for one score, got 3"):
        MultilabelCalibrator(3).fit(scores, labels)
    with pytest.raises(InputError, match=r"strength is 1\.0, but 'iso' has no parameters to shrink"):
        MultilabelCalibrator("iso", strength=1).fit(scores, labels)
    with pytest.raises(InputError, match="strength must be"):
        MultilabelCalibrator(strength=-1).fit(scores, labels)
    with pytest.raises(InputError, match="X has 3 features, but MultilabelCalibrator is expecting 2"):
        MultilabelCalibrator().fit(scores, labels).transform(np.zeros((4, 3)))


METHODS = ("iso", "spline", "hb", "va", "shape", "bend", "ts")


@pytest.mark.parametrize("method", [*METHODS, AutoCalibrator()])
def test_a_frequent_label_has_the_map_of_the_method_alone(method):
    (scores, labels), (fresh, _) = problem(150, 2, rare=-0.5)
    many = MultilabelCalibrator(method).fit(scores, labels)
    # the floor of one label is not that of both
    limit = np.abs(scores).max(axis=0).min()
    fresh = np.clip(fresh, -limit, limit)
    for label in range(2):
        one = (get(method) if isinstance(method, str) else clone(method)).fit(scores[:, label], labels[:, label])
        expected = one.predict_proba(fresh[:, label])[:, 1]
        np.testing.assert_allclose(many.predict_proba(fresh)[:, label], expected, atol=1e-9)
    assert many.n_parameters_ == sum(one.n_parameters_ for one in many.calibrators_)


@pytest.mark.filterwarnings("default::calibrant.core.errors.FitWarning")
@pytest.mark.parametrize("method", ["iso", "spline"])
def test_a_rare_label_has_the_map_of_all_labels(method):
    (scores, labels), (fresh, _) = problem(300, 5, rare=-0.5)
    labels[:, 2] = np.arange(300) < 19
    labels[:, 4] = 0
    with pytest.warns(FitWarning, match="2 of 5 labels have fewer than 20 rows of either value"):
        many = MultilabelCalibrator(method).fit(scores, labels)
    pooled = get(method).fit(scores.ravel(), labels.ravel())
    for label in (2, 4):
        expected = pooled.predict_proba(fresh[:, label])[:, 1]
        np.testing.assert_allclose(many.predict_proba(fresh)[:, label], expected, atol=1e-9)
    everywhere = MultilabelCalibrator(method, strength=np.inf).fit(scores, labels)
    expected = pooled.predict_proba(fresh.ravel())[:, 1].reshape(fresh.shape)
    np.testing.assert_allclose(everywhere.predict_proba(fresh), expected, atol=1e-9)
    assert len(everywhere.calibrators_) == 1


@pytest.mark.parametrize("method", METHODS)
def test_methods_through_weights_pickles_and_artifacts(method, tmp_path):
    (scores, labels), (fresh, _) = problem(250, 4, rare=-1.5)
    weights = np.random.default_rng(0).integers(0, 3, 250)
    copies = np.repeat(np.arange(250), weights)
    weighted = MultilabelCalibrator(method).fit(scores, labels, sample_weight=weights)
    repeated = MultilabelCalibrator(method).fit(scores[copies], labels[copies])
    np.testing.assert_allclose(weighted.predict_proba(fresh), repeated.predict_proba(fresh), atol=1e-6)
    assert weighted.predict_proba(fresh.astype(np.float32)).dtype == np.float32
    save(weighted, tmp_path / "labels.safetensors")
    for again in (load(tmp_path / "labels.safetensors"), pickle.loads(pickle.dumps(weighted))):
        np.testing.assert_array_equal(again.predict_proba(fresh), weighted.predict_proba(fresh))


def test_a_second_fit_leaves_nothing_of_the_first(tmp_path):
    (scores, labels), _ = problem(250, 2, rare=0.0)
    calibrator = MultilabelCalibrator("iso").fit(scores, labels)
    calibrator.set_params(calibrator="platt").fit(scores, labels)
    save(calibrator, tmp_path / "labels.safetensors")
    assert not hasattr(load(tmp_path / "labels.safetensors"), "calibrators_")


def test_an_artifact_whose_maps_do_not_fit_is_refused(tmp_path):
    (scores, labels), _ = problem(250, 3, rare=0.0)
    fitted = MultilabelCalibrator("iso").fit(scores, labels)
    fitted.places_ = np.array([0.0, 1.0, 3.0])
    with pytest.raises(InputError, match="must name one of 3 calibrators"):
        save(fitted, tmp_path / "labels.safetensors")


def test_compare_takes_the_methods_by_name():
    fit, test = problem(300, 3, rare=-0.5)
    found = compare(*(Predictions(logits=z, labels=y) for z, y in (fit, test)), ["none", "iso", "platt"], resamples=20)
    assert [row.error for row in found.rows] == [None] * 3


@pytest.mark.parametrize("family", ["platt", "beta", "quad", *METHODS])
def test_torch_and_onnx_run_the_same_map(family):
    torch = pytest.importorskip("torch")
    onnxruntime = pytest.importorskip("onnxruntime")
    from calibrant import CalibratedModule
    from calibrant.shipping.onnx import to_onnx

    (scores, labels), (fresh, _) = problem(300, 4, rare=-1.0)
    fitted = MultilabelCalibrator(family).fit(scores, labels)
    fresh = np.concatenate([fresh, [[-40.0, 40.0, 0.0, 7.0], [-np.inf, np.inf, 0.0, 1.0]]]).astype(np.float32)
    expected = fitted.predict_proba(fresh.astype(np.float64))
    module = CalibratedModule(torch.nn.Identity(), fitted)
    np.testing.assert_allclose(module(torch.from_numpy(fresh)).numpy(), expected, atol=1e-5)
    session = onnxruntime.InferenceSession(to_onnx(fitted).SerializeToString())
    _, chances, prediction = session.run(None, {"logits": fresh})
    np.testing.assert_allclose(chances, expected, atol=1e-5)
    np.testing.assert_array_equal(prediction, fitted.predict(fresh.astype(np.float64)))


def test_the_service_answers_for_every_label(tmp_path):
    from calibrant.shipping.artifact import read_artifact
    from calibrant.shipping.service import Served

    (scores, labels), (fresh, _) = problem(100, 3, rare=0.0)
    fitted = MultilabelCalibrator("platt").fit(scores, labels)
    save(fitted, tmp_path / "many.safetensors")
    values, predictions = Served(read_artifact(tmp_path / "many.safetensors")).answer(fresh, "probabilities")[:2]
    np.testing.assert_array_equal(values, fitted.predict_proba(fresh))
    np.testing.assert_array_equal(predictions, fitted.predict(fresh))
