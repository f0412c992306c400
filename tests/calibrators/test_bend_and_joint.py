"""Bend and joint scaling: optimum, monotone, counts, extremes, array-API maps, and what each can learn."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

import calibrant
from calibrant import BendScaling, InputError, JointScaling
from calibrant.calibrators import confusion
from calibrant.calibrators.bend import solve, steps
from calibrant.calibrators.confusion import fit_base
from calibrant.calibrators.maps import numpy_space as xp
from calibrant.core.rows import Rows
from calibrant.core.softmax import log_softmax, softmax
from calibrant.core.zeros import floor_score


def scores_and_labels(n, seed=0, curve=lambda z: z / 2 - 1):
    rng = np.random.default_rng(seed)
    scores = 3 * rng.normal(size=n)
    return scores, (rng.random(n) < 1 / (1 + np.exp(-curve(scores)))).astype(int)


def log_loss(scores, labels):
    return np.logaddexp(0, np.where(labels == 1, -scores, scores)).mean()


def test_the_batched_solver_reaches_every_optimum():
    rng = np.random.default_rng(0)
    features, centre = rng.normal(size=(40, 3)), rng.normal(size=3)
    counts, ridge = rng.integers(0, 9, size=(6, 2, 40)).astype(float), 10.0 ** rng.integers(-1, 4, size=(6, 3))
    found = solve(features, counts, ridge, centre)
    for place in range(6):

        def objective(point, place=place):
            scores = features @ point
            loss = counts[place, 1] @ np.logaddexp(0, -scores) + counts[place, 0] @ np.logaddexp(0, scores)
            return loss + 0.5 * ridge[place] @ (point - centre) ** 2

        reference = minimize(objective, np.zeros(3), method="BFGS", options={"gtol": 1e-7})
        np.testing.assert_allclose(found[place], reference.x, atol=1e-4)


@pytest.mark.parametrize("curve", [lambda z: z / 2 - 1, lambda z: np.where(z > 0, 0.2 * z, 2 * z), lambda z: 0 * z - 2])
def test_bend_learns_lines_and_bends(curve):
    scores, labels = scores_and_labels(20_000, 0, curve)
    fitted = BendScaling().fit(scores, labels)
    grid = np.linspace(-4, 4, 41)
    assert np.abs(1 / (1 + np.exp(-fitted.transform(grid))) - 1 / (1 + np.exp(-curve(grid)))).max() < 0.03


@pytest.mark.parametrize("seed", range(6))
def test_bend_never_reverses_the_order(seed):
    scores, labels = scores_and_labels(60, seed, lambda z: -z)
    fitted = BendScaling().fit(scores, labels)
    grid = np.sort(np.concatenate([np.linspace(-1e4, 1e4, 2001), scores]))
    assert (np.diff(fitted.transform(grid)) >= 0).all()
    assert np.isfinite(fitted.transform(grid)).all()


def test_bend_reads_weights_as_counts_and_forgets_rows_of_weight_zero():
    scores, labels = scores_and_labels(300)
    weights = np.random.default_rng(2).integers(0, 3, 300)
    copies = np.repeat(np.arange(300), weights)
    weighted = BendScaling().fit(scores, labels, sample_weight=weights).transform(scores)
    np.testing.assert_allclose(weighted, BendScaling().fit(scores[copies], labels[copies]).transform(scores), atol=1e-6)


@pytest.mark.filterwarnings("ignore:BendScaling.*no optimum exists:calibrant.FitWarning")
@pytest.mark.parametrize(
    ("scores", "labels"),
    [
        (np.full(50, -0.1), np.arange(50) % 2),
        (np.arange(50.0) - 25, (np.arange(50) > 24).astype(int)),
        (np.arange(50.0), np.ones(50, dtype=int)),
        (np.repeat([-700.0, 700.0], 25), np.arange(50) % 2),
        (np.array([0.3, 0.4]), np.array([0, 1])),
        (1e-4 * np.arange(-10.0, 390.0), (np.arange(400) > 150).astype(int)),
    ],
)
def test_bend_survives_extremes(scores, labels):
    fitted = BendScaling().fit(scores, labels)
    probabilities = fitted.predict_proba(scores)
    assert np.isfinite(fitted.transform(scores)).all()
    assert log_loss(fitted.transform(scores), labels) <= log_loss(scores, labels) + 1e-3
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)


def test_bend_stays_near_the_identity_when_little_is_known():
    scores, labels = scores_and_labels(2000, 1, lambda z: z)
    losses = []
    for start in range(0, 2000, 100):
        part = slice(start, start + 100)
        losses.append(log_loss(BendScaling().fit(scores[part], labels[part]).transform(scores), labels))
    assert np.mean(losses) < log_loss(scores, labels) + 0.015


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_maps_over_the_array_api_give_the_same(dtype):
    scores, labels = scores_and_labels(800)
    bend = BendScaling().fit(scores, labels)
    limit = floor_score(bend.log_floor_)
    fresh = np.concatenate([np.linspace(-limit, limit, 400), bend.knots_]).astype(dtype)
    np.testing.assert_allclose(
        bend._map_binary(xp, fresh, bend._learned()), bend.transform(fresh), rtol=1e-6, atol=1e-6
    )
    logits, classes = confused(800)
    joint = JointScaling().fit(logits, classes)
    given = logits.astype(dtype)
    np.testing.assert_allclose(joint._map(xp, given, joint._learned()), joint.transform(given), rtol=1e-5, atol=1e-5)


def confused(n, seed=0):
    """Five classes; the last two are never true, and the network prefers them."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, n)
    logits = 2 * np.eye(5)[labels] + rng.normal(size=(n, 5)) + np.array([0.0, 0.0, 0.0, 1.0, 2.0])
    return logits, labels


def test_joint_reaches_its_optimum():
    logits, labels = confused(300)
    fitted = JointScaling(1.0).fit_rows(Rows(logits, labels, every_class=True))
    centred = (logits - logits.mean(axis=1, keepdims=True)) / fitted.temperature_
    inputs = np.hstack([np.log(1 + softmax(centred) / 0.01), centred])
    offset = fit_base(Rows(logits, labels))[1]
    off_diagonal = ~np.eye(5, dtype=bool)

    def objective(flat):
        matrix, linear, bias = flat[:25].reshape(5, 5), flat[25:50].reshape(5, 5), flat[50:]
        scores = inputs @ np.hstack([matrix, linear]).T + bias
        scale = np.diag(linear)
        ridge = 10 * (matrix**2).sum() + 30 * (linear[off_diagonal] ** 2).sum()
        ridge += 300 * ((scale - scale.mean()) ** 2).sum() + 100 * ((bias - offset) ** 2).sum()
        return -log_softmax(scores)[np.arange(300), labels].sum() + ridge

    found = np.concatenate([fitted.matrix_.ravel(), fitted.linear_.ravel(), fitted.bias_])
    reference = minimize(objective, found + 0.01, method="BFGS", options={"gtol": 1e-5})
    assert objective(found) <= reference.fun + 1e-5


@pytest.mark.parametrize("method", ["joint", "conf+shape"])
def test_folds_in_float32_choose_as_exact_ones_do(method, monkeypatch):
    val = calibrant.open_predictions("cifar10-resnet18#val")
    found = calibrant.get(method).fit(val.logits, val.labels).predict_proba(val.logits)
    monkeypatch.setattr(confusion, "SMALL", val.logits.size)
    exact = calibrant.get(method).fit(val.logits, val.labels).predict_proba(val.logits)
    np.testing.assert_allclose(found, exact, atol=5e-6)


def test_joint_beats_its_parts_where_classes_are_never_true():
    logits, labels = confused(1500)
    fresh, truth = confused(4000, seed=1)
    every = np.arange(4000)
    losses = {}
    for name in ("joint", "ts", "sms"):
        chooser = calibrant.AutoCalibrator([name]) if name != "ts" else calibrant.get(name)
        losses[name] = -log_softmax(chooser.fit(logits, labels).transform(fresh))[every, truth].mean()
    assert losses["joint"] < losses["sms"] + 0.005
    assert losses["joint"] < losses["ts"] - 0.3


def test_bad_parameters_are_refused():
    logits, labels = confused(50)
    for value in ("free", 0.0, -1.0, np.nan, True):
        with pytest.raises(InputError, match="strength must be a positive number"):
            JointScaling(value).fit(logits, labels)
    with pytest.raises(InputError, match="n_knots must be a whole number"):
        BendScaling(n_knots=1).fit(np.arange(4.0), [0, 1, 0, 1])


def test_bend_takes_steps_where_the_truth_has_them():
    rng = np.random.default_rng(4)
    scores = rng.uniform(-4, 4, 6000)
    chance = np.select([scores < -1, scores < 0.5, scores < 2], [0.1, 0.35, 0.4], 0.9)
    labels = (rng.random(6000) < chance).astype(int)
    fitted = BendScaling().fit(scores[:4000], labels[:4000])
    found = log_loss(fitted.transform(scores[4000:]), labels[4000:])
    truth = log_loss(np.log(chance / (1 - chance))[4000:], labels[4000:])
    # seven bends alone end 0.012 above the truth
    assert found < truth + 0.005


def test_steps_shrink_to_the_smooth_map_and_fill_empty_cells():
    smooth = np.array([0.1, 0.2, 0.3, 0.8])
    counts = np.array([[0.0, 8.0, 0.0, 2.0], [0.0, 2.0, 0.0, 8.0]])
    found = steps(smooth, counts)
    # two blocks of 10 rows, each averaged with 10 rows of the smooth map; empty cells lie between or beside them
    low, high = (2 + 10 * 0.2) / 20, (8 + 10 * 0.8) / 20
    np.testing.assert_allclose(found, [low, low, (low + high) / 2, high])


def test_steps_without_positives_shrink_to_the_smooth_map_by_information_not_by_rows():
    smooth, counts = np.array([0.005, 0.5]), np.array([[1400.0, 5.0], [0.0, 15.0]])
    prior = 10 * 0.25 / (0.005 * 0.995)
    expected = [prior * 0.005 / (1400 + prior), (15 + 10 * 0.5) / (20 + 10)]
    np.testing.assert_allclose(steps(smooth, counts), expected)
