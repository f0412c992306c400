"""Shape, confusion, kept predictions and label shift: optimum, order, held-out answers, shift undone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.base import clone

import calibrant
from calibrant import ConfusionScaling, InputError, KeptPrediction, LabelShift, ShapeScaling, TemperatureScaling
from calibrant.calibrators.label_shift import estimate_prior
from calibrant.calibrators.maps import numpy_space as numpy_namespace
from calibrant.calibrators.second_stage import SAME_SHAPE, SHAPE_PRIOR_ROWS, fit_shape, put_first, stacked_features
from calibrant.core.errors import FitWarning
from calibrant.core.rows import Rows
from calibrant.core.softmax import log_softmax, softmax


def problem(n, n_classes, seed=0, scale=2.0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n)
    return scale * (rng.normal(size=(n, n_classes)) + 1.5 * np.eye(n_classes)[labels]), labels


def mean_nll(logits, labels):
    return -log_softmax(logits)[np.arange(len(labels)), labels].mean()


def test_the_shape_is_the_optimum_of_its_convex_problem():
    logits, labels = problem(400, 5)
    every = np.arange(len(labels))
    inputs = stacked_features(logits)

    def objective(point):
        scores = log_softmax(np.tensordot(point, inputs, 1))
        return -scores[every, labels].sum() + 0.5 * SHAPE_PRIOR_ROWS * ((point - SAME_SHAPE) ** 2).sum()

    found = fit_shape(Rows(logits, labels))
    shape, trace = found.point, found.trace
    reference = minimize(objective, SAME_SHAPE, method="BFGS", options={"gtol": 1e-7}).x
    np.testing.assert_allclose(shape, reference, atol=1e-4)
    assert objective(shape) <= objective(reference) + 1e-9
    assert (np.diff(trace) <= 1e-12).all()


def test_of_two_classes_no_feature_repeats_another():
    logits, labels = problem(500, 2)
    inputs = stacked_features(logits)
    np.testing.assert_allclose(inputs[1][:, 1] - inputs[1][:, 0], inputs[0][:, 1] - inputs[0][:, 0], atol=1e-6)
    shape = fit_shape(Rows(logits, labels)).point
    assert shape[1] == 0

    def objective(free):
        scores = log_softmax(np.tensordot(np.insert(free, 1, 0.0), inputs, 1))
        pull = 0.5 * SHAPE_PRIOR_ROWS * ((free - np.array([1.0, 0.0, 0.0])) ** 2).sum()
        return -scores[np.arange(500), labels].sum() + pull

    reference = minimize(objective, np.array([1.0, 0.0, 0.0]), method="BFGS", options={"gtol": 1e-7})
    assert objective(np.delete(shape, 1)) <= reference.fun + 1e-8


@pytest.mark.parametrize("strength", [1.0, 60.0])
def test_saturated_biased_logits_do_not_collapse(strength):
    rng = np.random.default_rng(0)
    labels = (rng.random(3000) < 0.2).astype(int)
    scores = strength * (rng.normal(size=3000) + 2 * labels + 1)
    logits = np.column_stack([np.zeros(3000), scores])
    base_rate = -(0.2 * np.log(0.2) + 0.8 * np.log(0.8))
    for name in ("conf", "vs", "joint"):
        assert mean_nll(calibrant.get(name).fit(logits, labels).transform(logits), labels) < 0.65 * base_rate


@given(st.integers(0, 10_000), st.integers(2, 6), st.sampled_from([0.1, 3.0, 1e4]))
def test_the_shape_keeps_every_prediction(seed, n_classes, scale):
    logits, labels = problem(60, n_classes, seed, scale)
    fitted = ShapeScaling().fit(logits, labels)
    for dtype in (np.float32, np.float64):
        given_logits = logits.astype(dtype)
        calibrated = fitted.transform(given_logits)
        assert calibrated.dtype == dtype
        assert np.isfinite(calibrated).all()
        assert (calibrated.argmax(axis=1) == given_logits.argmax(axis=1)).all()


def test_the_shape_never_loses_to_the_temperature_on_its_fit_data():
    logits, labels = problem(800, 6)
    bent = mean_nll(ShapeScaling().fit(logits, labels).transform(logits), labels)
    assert bent <= mean_nll(TemperatureScaling().fit(logits, labels).transform(logits), labels) + 1e-9


def test_confusion_scaling_reaches_its_optimum():
    logits, labels = problem(300, 4)
    penalty, scale_penalty, bias_penalty = 1.0, 30.0, 10.0
    fitted = ConfusionScaling(penalty, penalty_scale=scale_penalty, penalty_bias=bias_penalty).fit(logits, labels)
    scaled = logits / fitted.temperature_
    centred, evidence = scaled - scaled.mean(axis=1, keepdims=True), np.log(1 + softmax(scaled) / 0.01)

    def objective(flat):
        matrix, scale, bias = flat[:16].reshape(4, 4), flat[16:20], flat[20:]
        scores = centred * scale + evidence @ matrix.T + bias
        ridge = penalty * (matrix**2).sum() + scale_penalty * ((scale - scale.mean()) ** 2).sum()
        return len(labels) * mean_nll(scores, labels) + ridge + bias_penalty * (bias**2).sum()

    found = np.concatenate([fitted.matrix_.ravel(), fitted.scale_, fitted.bias_])
    reference = minimize(objective, np.r_[np.zeros(16), np.ones(4), np.zeros(4)], method="BFGS").fun
    assert objective(found) <= reference + 1e-6
    np.testing.assert_allclose(
        fitted.transform(logits), centred * fitted.scale_ + evidence @ fitted.matrix_.T + fitted.bias_, atol=1e-12
    )


def test_confusion_scaling_learns_what_classes_say_of_each_other():
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(9000, 3))
    # the more the network says 0, the more of it is really 2
    confusion = np.zeros((3, 3))
    confusion[2, 0] = 0.5
    truth = softmax(logits + np.log(1 + softmax(logits) / 0.01) @ confusion.T)
    labels = (truth.cumsum(axis=1) > rng.random((9000, 1))).argmax(axis=1)
    fitted = ConfusionScaling().fit(logits[:6000], labels[:6000])
    plain = TemperatureScaling().fit(logits[:6000], labels[:6000])
    assert fitted.matrix_[2, 0] == fitted.matrix_.max()
    assert fitted.matrix_[2, 0] > 0.1
    losses = [mean_nll(one.transform(logits[6000:]), labels[6000:]) for one in (fitted, plain)]
    assert losses[0] < losses[1] - 0.01


def test_infinite_penalties_leave_a_temperature():
    logits, labels = problem(200, 3)
    fitted = ConfusionScaling(np.inf, penalty_scale=np.inf, penalty_bias=np.inf).fit(logits, labels)
    plain = TemperatureScaling().fit(logits, labels)
    np.testing.assert_allclose(fitted.predict_proba(logits), plain.predict_proba(logits), atol=1e-12)


def test_many_classes_learn_no_confusion_matrix():
    logits, labels = problem(600, 300)
    assert not ConfusionScaling().fit(logits, labels).matrix_.any()


@pytest.mark.parametrize("value", ["free", -1.0, np.nan])
def test_bad_penalties_are_refused(value):
    logits, labels = problem(50, 3)
    with pytest.raises(InputError, match="penalty must be a number"):
        ConfusionScaling(value).fit(logits, labels)


@given(st.integers(0, 10_000), st.integers(2, 5))
def test_carried_predictions_come_first_and_keep_the_mass(seed, n_classes):
    rng = np.random.default_rng(seed)
    scores = log_softmax(rng.normal(size=(20, n_classes)) * 3)
    wanted = rng.integers(0, n_classes, 20)
    kept = put_first(numpy_namespace, scores, np.eye(scores.shape[1])[wanted])
    assert (kept.argmax(axis=1) == wanted).all()
    # the two that swap share what they had, so nothing is lost unless a third was ahead as well
    every, rest = np.arange(20), scores.copy()
    pair = np.logaddexp(scores[every, wanted], scores.max(axis=1)) - np.log(2)
    rest[every, wanted] = rest[every, scores.argmax(axis=1)] = -np.inf
    alone = pair > rest.max(axis=1) + 1e-6
    np.testing.assert_allclose(np.exp(kept[alone]).sum(axis=1), 1, atol=1e-9)
    same = scores.argmax(axis=1) == wanted
    np.testing.assert_allclose(kept[same], scores[same], atol=1e-9)


def test_predictions_are_kept_where_the_inner_calibrator_would_change_them():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 1000)
    logits = rng.normal(size=(1000, 3)) + 3 * np.eye(3)[labels] + np.array([2.5, 0.0, 0.0])
    kept, free = (one.fit(logits, labels) for one in (KeptPrediction(calibrant.VectorScaling()), calibrant.get("vs")))
    assert (free.predict(logits) != logits.argmax(axis=1)).mean() > 0.05
    assert (kept.predict(logits) == logits.argmax(axis=1)).all()
    assert mean_nll(kept.transform(logits), labels) < mean_nll(
        TemperatureScaling().fit(logits, labels).transform(logits), labels
    )


@pytest.mark.parametrize("name", ["ts", "vs", "ts+top", "shape", "conf", "conf+shape+keep"])
def test_held_out_answers_come_from_fits_without_the_row(name):
    logits, labels = problem(300, 4)
    fold = np.arange(300) % 3
    one = calibrant.get(name)
    answers = one.fit_held_out(Rows(logits, labels), fold)
    assert answers.shape == logits.shape
    # what the labels of a fold say must not reach that fold's own answers, but for a last stage of four numbers
    changed = labels.copy()
    changed[fold == 0] = (labels[fold == 0] + 1) % 4
    other = clone(one).fit_held_out(Rows(logits, changed), fold)
    if one.additive:
        np.testing.assert_allclose(other[fold == 0], answers[fold == 0], atol=1e-9)
        whole = clone(one).fit(logits, labels)
        np.testing.assert_allclose(one.predict_proba(logits), whole.predict_proba(logits), atol=1e-9)


def test_label_shift_of_scores_that_rank_backwards_follows_the_priors():
    rng = np.random.default_rng(0)
    labels = rng.choice(3, 600, p=[0.7, 0.2, 0.1])
    with pytest.warns(FitWarning, match="temperature"):
        fitted = LabelShift(TemperatureScaling()).fit(rng.normal(size=(600, 3)) - 2 * np.eye(3)[labels], labels)
    np.testing.assert_allclose(fitted.offset_, np.log(fitted.target_prior_ / fitted.prior_))


def test_label_shift_undoes_a_prior_that_the_network_learned():
    rng = np.random.default_rng(1)
    prior = np.array([0.7, 0.2, 0.1])
    labels = rng.choice(3, 6000, p=prior)
    logits = rng.normal(size=(6000, 3)) + 1.5 * np.eye(3)[labels]
    logits = 1.5 * logits + np.log(prior)
    balanced = rng.integers(0, 3, 6000)
    target = 1.5 * (rng.normal(size=(6000, 3)) + 1.5 * np.eye(3)[balanced]) + np.log(prior)
    plain = TemperatureScaling().fit(logits, labels)
    for given_prior in ("uniform", [1, 1, 1], target):
        shifted = LabelShift(TemperatureScaling(), given_prior).fit(logits, labels)
        np.testing.assert_allclose(shifted.target_prior_, 1 / 3, atol=0.05)
        assert mean_nll(shifted.transform(target), balanced) < mean_nll(plain.transform(target), balanced) - 0.02
        assert (shifted.predict(target) == balanced).mean() > (plain.predict(target) == balanced).mean()


def test_the_fit_prior_as_target_changes_nothing():
    logits, labels = problem(400, 3)
    counts = np.bincount(labels, minlength=3) + 0.5
    shifted = LabelShift(TemperatureScaling(), counts).fit(logits, labels)
    np.testing.assert_allclose(shifted.offset_, 0, atol=1e-12)
    plain = TemperatureScaling().fit(logits, labels)
    np.testing.assert_allclose(shifted.predict_proba(logits), plain.predict_proba(logits), atol=1e-9)


def test_expectation_maximisation_finds_the_prior_of_calibrated_data():
    rng = np.random.default_rng(3)
    source, target = np.array([0.6, 0.3, 0.1]), np.array([0.1, 0.3, 0.6])
    labels = rng.choice(3, 20_000, p=target)
    evidence = rng.normal(size=(20_000, 3)) + 2 * np.eye(3)[labels]
    # Bayes' rule with the source prior: log-likelihood ratios of unit normals are 2·x
    probabilities = softmax(2 * evidence + np.log(source))
    np.testing.assert_allclose(estimate_prior(probabilities, source), target, atol=0.02)


@pytest.mark.parametrize("prior", [[0.5, 0.5], [-1, 1, 1], [0, 0, 0], [np.nan, 1, 1], "even", np.zeros((5, 2))])
def test_bad_priors_are_refused(prior):
    logits, labels = problem(50, 3)
    with pytest.raises(InputError, match="target_prior"):
        LabelShift(TemperatureScaling(), prior).fit(logits, labels)


def test_label_shift_ships(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    logits, labels = problem(300, 4)
    fitted = LabelShift(ShapeScaling(), [4, 3, 2, 1]).fit(logits, labels)
    calibrant.save(fitted, tmp_path / "shift.safetensors")
    again = calibrant.load(tmp_path / "shift.safetensors")
    assert np.array_equal(again.transform(logits), fitted.transform(logits))
    from calibrant.shipping.onnx import to_onnx

    session = onnxruntime.InferenceSession(to_onnx(fitted).SerializeToString())
    (answer,) = session.run(["probabilities"], {"logits": logits.astype(np.float32)})
    np.testing.assert_allclose(answer, fitted.predict_proba(logits), atol=1e-5)
