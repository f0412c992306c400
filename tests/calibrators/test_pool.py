"""A linear pool: its weights against another optimiser, and what it promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import softmax

import calibrant as cal
from calibrant.calibrators.pool import LinearPool, pool_weights
from calibrant.calibrators.solvers.folds import content_folds
from calibrant.core.errors import InputError
from calibrant.core.rows import Rows

pytestmark = pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")


def problem(n=400, n_classes=4, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n)
    return 2.5 * (rng.normal(size=(n, n_classes)) + 1.5 * np.eye(n_classes)[labels]), labels


def scores(n=400, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    return 3 * (rng.normal(size=n) + 1.5 * labels - 0.5), labels


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 5), st.floats(0, 5))
def test_no_other_weights_have_a_lower_loss(seed, count, prior_rows):
    rng = np.random.default_rng(seed)
    log_probabilities = np.log(rng.dirichlet(np.full(3, 0.5), size=(60, count))[:, :, 0] + 1e-9)
    mass = rng.integers(1, 4, 60).astype(float)

    def loss(weights):
        return -mass @ np.log(np.exp(log_probabilities) @ weights) - prior_rows * np.log(weights).sum()

    found, trace = pool_weights(log_probabilities, mass, prior_rows)
    assert found.min() >= 0
    assert found.sum() == pytest.approx(1)
    rivals = minimize(
        loss,
        np.full(count, 1 / count),
        bounds=[(1e-9, 1)] * count,
        constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1},
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-12},
    )
    assert trace[-1] * mass.sum() <= rivals.fun + 1e-5
    np.testing.assert_allclose(found, np.where(found > 0, rivals.x, 0) / rivals.x[found > 0].sum(), atol=2e-3)
    assert rivals.x[found == 0].max(initial=0) < 0.021


def test_a_row_of_probability_zero_rules_a_calibrator_out_but_breaks_nothing():
    certain = np.array([[-1e5, -1.0], [-0.01, -1.0], [-0.01, -1.0]])
    weights, _ = pool_weights(certain, None, 0.0)
    assert np.isfinite(weights).all()
    assert weights[1] > 0.3


def test_many_prior_rows_give_equal_weights():
    logits, labels = problem()
    np.testing.assert_allclose(
        LinearPool(["ts", "vs", "shape"], prior_rows=1e6).fit(logits, labels).weights_, 1 / 3, atol=1e-3
    )


def test_a_pool_of_one_is_that_one():
    logits, labels = problem()
    expected = cal.get("ts").fit(logits, labels).predict_proba(logits)
    np.testing.assert_allclose(LinearPool(["ts"]).fit(logits, labels).predict_proba(logits), expected, atol=1e-12)


def test_the_pool_is_the_weighted_mean_of_its_members():
    logits, labels = problem()
    fitted = LinearPool(["ts", "iso", "vs"]).fit(logits, labels)
    assert len(fitted.weights_) > 1
    mean = sum(w * one.predict_proba(logits) for w, one in zip(fitted.weights_, fitted.calibrators_, strict=True))
    np.testing.assert_allclose(fitted.predict_proba(logits), mean, atol=1e-12)
    values, labels = scores()
    fitted = LinearPool(["platt", "iso"]).fit(values, labels)
    mean = sum(w * one.predict_proba(values) for w, one in zip(fitted.weights_, fitted.calibrators_, strict=True))
    np.testing.assert_allclose(fitted.predict_proba(values), mean, atol=1e-12)


def test_held_out_answers_are_those_of_fits_without_the_fold():
    logits, labels = problem()
    rows = Rows(logits, labels)
    fold = content_folds(rows, 5, 0)
    pool = LinearPool(["ts", "iso"])
    answers = pool.fit_held_out(rows, fold)
    assert len(pool.weights_) == 2
    expected = np.zeros_like(logits)
    for part in range(5):
        out = fold == part
        for weight, place in zip(pool.weights_, pool.places_, strict=True):
            one = cal.get(["ts", "iso"][place]).fit(logits[~out], labels[~out])
            expected[out] += weight * one.predict_proba(logits[out])
    np.testing.assert_allclose(softmax(answers, axis=1), expected, atol=1e-6)


def test_facts_are_those_that_all_members_have():
    assert LinearPool(["ts", "shape"]).keeps_prediction
    assert not LinearPool(["ts", "vs"]).keeps_prediction
    assert LinearPool(["platt", "iso"]).keeps_ranking == (
        cal.get("platt").keeps_ranking and cal.get("iso").keeps_ranking
    )
    assert LinearPool(["ts", "cts"]).requires_logits


def test_a_pool_of_increasing_maps_is_increasing():
    values, labels = scores()
    fitted = LinearPool.of([cal.get(name).fit(values, labels) for name in ("bend", "iso", "beta")], np.full(3, 1 / 3))
    answers = fitted.predict_proba(np.linspace(-15, 15, 4001))[:, 1]
    assert fitted.keeps_ranking
    assert np.diff(answers).min() >= 0


def test_a_pool_of_kept_predictions_keeps_them():
    logits, labels = problem()
    fitted = LinearPool(["ts", "vs+keep"]).fit(logits, labels)
    for rows in (logits, np.round(logits), np.zeros((3, 4))):
        np.testing.assert_array_equal(fitted.predict(rows), rows.argmax(axis=1))


def test_weights_of_rows_are_copies():
    logits, labels = problem(150)
    counts = np.random.default_rng(3).integers(1, 3, len(labels))
    weighted = LinearPool(["ts", "vs"]).fit(logits, labels, sample_weight=counts)
    copied = LinearPool(["ts", "vs"]).fit(np.repeat(logits, counts, axis=0), np.repeat(labels, counts))
    np.testing.assert_allclose(weighted.predict_proba(logits), copied.predict_proba(logits), atol=1e-6)


def test_artifact_holds_the_pool(tmp_path):
    for name, (given_scores, labels) in {"multi": problem(), "binary": scores()}.items():
        fitted = LinearPool(["ts", "iso"]).fit(given_scores, labels)
        cal.save(fitted, tmp_path / f"{name}.safetensors")
        loaded = cal.load(tmp_path / f"{name}.safetensors")
        np.testing.assert_array_equal(loaded.predict_proba(given_scores), fitted.predict_proba(given_scores))
    loaded.weights_ = np.array([0.5])
    with pytest.raises(InputError, match="as many weights as calibrators must sum to 1"):
        loaded._check_learned()


def test_bad_input_names_the_remedy():
    logits, labels = problem(60)
    for parameters, words in (
        ({"calibrators": "ts"}, "must be a list"),
        ({"calibrators": []}, "1 to 10 calibrators, got 0"),
        ({"prior_rows": -1.0}, "at least 0, got -1.0"),
    ):
        with pytest.raises(InputError, match=words):
            LinearPool(**parameters).fit(logits, labels)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_row_gets_the_answer_of_a_batch_and_of_the_members_by_themselves(dtype):
    logits, labels = problem(600, 5)
    fitted = LinearPool(["ts", "shape", "conf+shape+top", "joint+shape+top"], prior_rows=50).fit(logits, labels)
    assert len(fitted.calibrators_) == 4
    some = logits[:20].astype(dtype)
    whole = fitted.predict_proba(some)
    members = [one.predict_proba(some.astype(np.float64)) for one in fitted.calibrators_]
    tolerance = 1e-6 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(whole, np.tensordot(fitted.weights_, members, 1), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose([fitted.predict_proba(one[None])[0] for one in some], whole, rtol=tolerance)


def test_a_prediction_follows_what_was_learned_last():
    logits, labels = problem(600, 5)
    fitted = LinearPool(["ts", "shape"], prior_rows=50).fit(logits, labels)
    before = fitted.transform(logits)
    temperature = next(one for one in fitted.calibrators_ if isinstance(one, cal.TemperatureScaling))
    temperature.temperature_ *= 2
    assert not np.array_equal(before, fitted.transform(logits))
    fitted.fit(logits[:300], labels[:300])
    again = LinearPool(["ts", "shape"], prior_rows=50).fit(logits[:300], labels[:300])
    np.testing.assert_array_equal(fitted.transform(logits), again.transform(logits))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("names", [["none", "ts-bayes"], ["none", "ts", "ts-bayes", "shape", "conf+shape+top"], ["ts"]])
def test_an_average_is_the_sum_of_its_members(names, dtype):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 200)
    logits = 2.0 * (rng.normal(size=(200, 4)) + 1.5 * np.eye(4)[labels])
    weights = np.arange(1.0, len(names) + 1)
    weights /= weights.sum()
    members = [cal.get(name).fit(logits, labels) for name in names]
    pool = LinearPool.of(members, weights)
    rows = np.concatenate([logits, 40 * logits, 1000 * logits]).astype(dtype)  # the last have probabilities of 0
    expected = sum(w * one.predict_proba(rows) for w, one in zip(weights, members, strict=True))
    np.testing.assert_allclose(pool.predict_proba(rows), expected, atol=1e-12 if dtype == np.float64 else 1e-5)
    assert np.isfinite(pool.transform(rows)).all()
    single = np.concatenate([pool.predict_proba(rows[place : place + 1]) for place in range(0, len(rows), 7)])
    np.testing.assert_allclose(single, pool.predict_proba(rows)[::7], atol=1e-12 if dtype == np.float64 else 1e-6)
