"""PosteriorTemperatureScaling: its posterior and evidence against direct integration, and fits without an optimum."""

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

import calibrant as cal
from calibrant.calibrators.posterior_temperature import log_prior, quadrature


def blobs(n, seed, scale=3.0, n_classes=4):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n)
    return scale * (np.eye(n_classes)[labels] + rng.normal(size=(n, n_classes))), labels


def integrate(logits, labels, weights=None):
    """Log evidence and posterior mean of softmax(z/T) by summation over 4,000 temperatures."""
    points = np.linspace(-5.8, 6.2, 4001)
    weights = np.ones(len(labels)) if weights is None else weights
    true = [log_softmax(logits / t, axis=1)[np.arange(len(labels)), labels] @ weights for t in np.exp(points)]
    log_density = log_prior(points) + np.array(true)
    mass = np.exp(log_density - log_density.max())
    evidence = log_density.max() + np.log(mass.sum() * (points[1] - points[0]))
    shares = sum(m * softmax(logits[:20] / t, axis=1) for m, t in zip(mass / mass.sum(), np.exp(points), strict=True))
    return evidence, shares


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
@pytest.mark.parametrize("n", [1, 12, 300])
def test_posterior_and_evidence_equal_direct_integration(n):
    logits, labels = blobs(n, 0)
    weights = np.random.default_rng(1).uniform(0.5, 2.0, n)
    fitted = cal.get("ts-bayes").fit(logits, labels, sample_weight=weights)
    evidence, shares = integrate(logits, labels, weights)
    assert fitted.log_evidence_ == pytest.approx(evidence, abs=1e-5 * n + 1e-4)
    # temperatures of a posterior weight below 0.01 are dropped
    np.testing.assert_allclose(fitted.predict_proba(logits[:20]), shares, atol=0.01)
    assert 1 <= len(fitted.temperatures_) == len(fitted.weights_) <= 7
    assert fitted.weights_.sum() == pytest.approx(1.0)


def test_random_rows_that_are_all_right_do_no_harm():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 20_000)
    logits = 3 * (np.eye(4)[labels] + rng.normal(size=(20_000, 4)) / 3)
    before, ratios = cal.metrics.nll(softmax(logits, axis=1), labels), []
    for part in rng.permutation(1200).reshape(40, 30):
        if (logits[part].argmax(axis=1) == labels[part]).all():
            fitted = cal.get("ts-bayes").fit(logits[part], labels[part])
            ratios.append(cal.metrics.nll(fitted.predict_proba(logits), labels) / before)
    assert len(ratios) > 5
    assert max(ratios) < 1.3


def test_many_rows_give_the_temperature_of_the_highest_likelihood():
    logits, labels = blobs(200_000, 0)
    fitted, point = cal.get("ts-bayes").fit(logits, labels), cal.get("ts").fit(logits, labels)
    assert len(fitted.temperatures_) == 1
    assert fitted.temperatures_[0] == pytest.approx(point.temperature_, rel=2e-3)


def test_one_score_per_row_equals_two_columns():
    rng = np.random.default_rng(0)
    scores = 3 * rng.normal(size=80)
    labels = (rng.random(80) < 1 / (1 + np.exp(-scores / 2))).astype(int)
    one = cal.get("ts-bayes").fit(scores, labels)
    two = cal.get("ts-bayes").fit(np.stack([np.zeros(80), scores], axis=1), labels)
    np.testing.assert_array_equal(one.temperatures_, two.temperatures_)
    np.testing.assert_allclose(one.predict_proba(scores), two.predict_proba(np.c_[np.zeros(80), scores]), rtol=1e-12)


def test_quadrature_integrates_polynomials_exactly():
    points = np.linspace(-1.0, 2.0, 101)
    mass = np.full(101, 1 / 101)
    nodes, weights = quadrature(points, mass)
    for degree in range(14):
        assert weights @ nodes**degree == pytest.approx(mass @ points**degree, abs=1e-9)
