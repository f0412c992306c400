"""The matrix problem with kept probabilities: the same numbers as chunk by chunk, and the optimum for many classes."""

from __future__ import annotations

import numpy as np
import pytest

import calibrant
from calibrant.calibrators.solvers import affine, penalties
from calibrant.calibrators.solvers.affine import AffineObjective, KeptObjective, Ridge, fit_affine
from calibrant.core.rows import Rows


def many_classes(n, n_classes, seed=0, weighted=False, signal=4.0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n)
    logits = 2 * rng.normal(size=(n, n_classes)) + signal * np.eye(n_classes)[labels]
    return Rows(logits, labels, rng.integers(1, 4, n).astype(float) if weighted else None)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("log_probabilities", [False, True])
def test_kept_probabilities_give_the_same_loss_gradient_and_product(weighted, log_probabilities):
    rows, ridge = many_classes(300, 70, weighted=weighted), Ridge(0.01, 0.02, 0.001)
    rng = np.random.default_rng(1)
    point, direction = 0.1 * rng.normal(size=(70, 71)) + np.eye(70, 71), rng.normal(size=(70, 71))
    plain, kept = (kind(rows, ridge, log_probabilities) for kind in (AffineObjective, KeptObjective))
    for other in (kept, kept.precise()):
        expected, found = plain.evaluate(point), other.evaluate(point)
        assert found[0] == pytest.approx(expected[0], abs=1e-12)
        np.testing.assert_allclose(found[1], expected[1], atol=1e-12)
        products = [one.curvature(point, given[2])[0](direction) for one, given in ((plain, expected), (other, found))]
        np.testing.assert_allclose(products[1], products[0], atol=1e-10)


@pytest.mark.parametrize("log_probabilities", [False, True])
def test_both_preconditioners_lead_to_the_same_optimum(monkeypatch, log_probabilities):
    # weak signal: no class can be told apart, so that every parameter has an optimum
    rows, ridge = many_classes(1000, 66, seed=2, signal=2.0), Ridge.odir(66 * 65 / 10, 0.66, 66)
    blocks = fit_affine(rows, ridge, log_probabilities=log_probabilities)
    monkeypatch.setattr(affine, "BLOCK_CLASSES", 10)
    means = fit_affine(rows, ridge, log_probabilities=log_probabilities)
    monkeypatch.setattr(affine, "KEPT_CLASSES", 1000)
    chunks = fit_affine(rows, ridge, log_probabilities=log_probabilities)
    for other in (means, chunks):
        assert other[2].converged
        np.testing.assert_allclose(other[0], blocks[0], atol=1e-5)
        np.testing.assert_allclose(other[1], blocks[1], atol=1e-4)


def test_a_large_problem_chooses_its_penalty_on_one_split_of_a_part_of_the_rows(monkeypatch):
    rows = many_classes(900, 5, seed=3)
    seen = []

    def fit(part, candidate, start):
        seen.append((candidate, part.n))
        return np.array([candidate])

    def loss(part, point):
        return abs(point[0] - 2) * part.n

    assert penalties.walk(rows, [4, 3, 2, 1, 0], fit, loss, seed=0) == 2
    assert [n for _, n in seen] == [600] * 15
    seen.clear()
    monkeypatch.setattr(penalties, "LARGE", 1000)
    assert penalties.walk(rows, [4, 3, 2, 1, 0], fit, loss, seed=0, most_logits=2250) == 2
    assert seen == [(4, 300), (3, 300), (2, 300), (1, 300)]


def test_dirichlet_calibration_of_many_classes_converges_without_a_warning():
    rows = many_classes(700, 260, seed=4)
    fitted = calibrant.get("dir").fit(rows.logits.astype(np.float32), rows.labels)
    assert fitted.n_iter_ < 60
