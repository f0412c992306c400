"""The matrix problem with kept probabilities: the same numbers as chunk by chunk, and the optimum for many classes."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import calibrant
from calibrant.calibrators.affine import log_features, logit_features
from calibrant.calibrators.solvers import likelihood
from calibrant.calibrators.solvers.likelihood import Affine, Ridge, fit_matrix, on_numpy
from calibrant.core.errors import FitWarning
from calibrant.core.rows import Rows


def many_classes(n, n_classes, seed=0, weighted=False, signal=4.0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n)
    logits = 2 * rng.normal(size=(n, n_classes)) + signal * np.eye(n_classes)[labels]
    return Rows(logits, labels, rng.integers(1, 4, n).astype(float) if weighted else None)


def ridge_of(n_classes, off_diagonal, bias, diagonal=0.0):
    strength = np.full((n_classes, n_classes + 1), off_diagonal)
    np.fill_diagonal(strength, diagonal)
    strength[:, -1] = bias
    return Ridge(strength, np.eye(n_classes, n_classes + 1, dtype=bool))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("features", [partial(on_numpy, one) for one in (logit_features, log_features)])
def test_kept_probabilities_give_the_same_loss_gradient_and_product(weighted, features, monkeypatch):
    rows, ridge = many_classes(300, 70, weighted=weighted), ridge_of(70, 0.01, 0.02, 0.001)
    rng = np.random.default_rng(1)
    point, direction = 0.1 * rng.normal(size=(70, 71)) + np.eye(70, 71), rng.normal(size=(70, 71))
    kept = Affine(rows, features).penalised(ridge)
    monkeypatch.setattr(likelihood, "KEPT_ELEMENTS", 0)
    plain = Affine(rows, features).penalised(ridge)
    assert plain.blocks is None
    expected, found = plain.evaluate(point, False), kept.evaluate(point, False)
    assert found[0] == pytest.approx(expected[0], abs=1e-12)
    np.testing.assert_allclose(found[1], expected[1], atol=1e-12)
    products = [one.curvature(point, given[2])[0](direction) for one, given in ((plain, expected), (kept, found))]
    np.testing.assert_allclose(products[1], products[0], atol=1e-10)


@pytest.mark.parametrize("features", [partial(on_numpy, one) for one in (logit_features, log_features)])
def test_both_preconditioners_lead_to_the_same_optimum(monkeypatch, features):
    # weak signal: no class can be told apart, so that every parameter has an optimum
    rows, ridge = many_classes(1000, 66, seed=2, signal=2.0), ridge_of(66, 0.2, 0.02)
    means = fit_matrix(rows, features, ridge)
    monkeypatch.setattr(likelihood, "BLOCK_WORK", 1 << 32)
    blocks = fit_matrix(rows, features, ridge)
    monkeypatch.setattr(likelihood, "KEPT_ELEMENTS", 0)
    chunks = fit_matrix(rows, features, ridge)
    for other in (means, chunks):
        assert other.converged
        np.testing.assert_allclose(other.point[:, :-1], blocks.point[:, :-1], atol=1e-5)
        np.testing.assert_allclose(other.point[:, -1], blocks.point[:, -1], atol=1e-4)


def test_a_shift_that_all_classes_share_is_solved_at_once():
    rows = many_classes(200, 5, seed=5)
    strength = np.full((5, 6), 0.01)
    np.fill_diagonal(strength, 0.0)
    objective = Affine(rows, partial(on_numpy, logit_features)).penalised(Ridge(strength))
    point = np.eye(5, 6)
    _, gradient, reuse = objective.evaluate(point, False)
    product, solve = objective.curvature(point, reuse)
    shared = np.tile(np.arange(1.0, 7.0), (5, 1))
    np.testing.assert_allclose(product(shared), strength * shared, atol=1e-15)
    np.testing.assert_allclose(solve(product(shared)), shared, rtol=1e-9)
    np.testing.assert_allclose(gradient.mean(axis=0), 0.0, atol=1e-16)


def test_a_flat_optimum_far_away_is_none():
    def sums(point, last):
        away = 1e-6 * (point - 1e6)
        return 1.0 + 0.5 * float(away @ away), 1e-6 * away, 1e-12 * np.eye(1)

    found = likelihood.search(likelihood.Dense(sums, 1.0, np.zeros((1, 1))), np.ones(1))
    assert found.point[0] > 1e5
    assert found.diverging
    assert not found.converged


def test_a_weight_that_nothing_holds_is_said_to_grow():
    # one class is certain but for one row, so that its own weight is free to grow on flat ground
    logits = np.array(
        [[0, 15.7, 1.6], [0, -8.7, 1.2], [0.1, 46.3, 0.4], [0, 65.5, -0.6], [0.1, -0.6, -0.7], [0.1, 23.4, 0]]
    )
    with pytest.warns(FitWarning, match="grow without bound"):
        calibrant.get("dir").fit(logits, [2, 2, 0, 1, 0, 0])


def test_free_biases_of_a_matrix_sum_to_zero():
    rows = many_classes(400, 6, seed=6, signal=2.0)
    fitted = calibrant.MatrixScaling(penalty_bias=0.0).fit(rows.logits.astype(np.float32), rows.labels)
    assert np.abs(fitted.bias_).max() > 0.01
    assert fitted.bias_.sum() == pytest.approx(0, abs=1e-12)


def test_a_large_problem_chooses_its_penalty_on_one_split_of_a_part_of_the_rows(monkeypatch):
    rows = many_classes(900, 5, seed=3)
    seen = []

    def fit(part, candidate, start):
        seen.append((candidate, part.n))
        return np.array([candidate])

    def loss(part, point):
        return abs(point[0] - 2) * part.n

    assert likelihood.choose(rows, [4, 3, 2, 1, 0], fit, loss, seed=0) == 2
    assert [n for _, n in seen] == [600] * 15
    seen.clear()
    monkeypatch.setattr(likelihood, "LARGE", 1000)
    assert likelihood.choose(rows, [4, 3, 2, 1, 0], fit, loss, seed=0, most_logits=2250) == 2
    assert seen == [(4, 300), (3, 300), (2, 300), (1, 300)]


def test_dirichlet_calibration_of_many_classes_converges_without_a_warning():
    rows = many_classes(700, 260, seed=4)
    fitted = calibrant.get("dir").fit(rows.logits.astype(np.float32), rows.labels)
    assert fitted.n_iter_ < 60
