"""Class loss scaling: its weights, its fixed point, its baselines, and what it does to long tails."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize_scalar

import calibrant
from calibrant import (
    ClassLossScaling,
    ClassTemperatureScaling,
    EnsembleTemperatureScaling,
    FitWarning,
    InputError,
    ShapeScaling,
    TemperatureScaling,
    VectorScaling,
)
from calibrant.calibrators.class_loss import (
    MAX_REFITS,
    TOLERANCE,
    FixedPoint,
    choose_shape,
    class_weights,
    normalise_losses,
)
from calibrant.core.softmax import log_softmax

losses = arrays(np.float64, st.integers(2, 12), elements=st.floats(0.01, 5.0).map(lambda x: round(x, 6)), unique=True)


def uneven(n=600, seed=0):
    """Four classes of different size and difficulty."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(4, n, p=[0.5, 0.25, 0.15, 0.1])
    margin = np.array([2.5, 2.0, 1.5, 1.0])[labels]
    return 3.0 * (rng.normal(size=(n, 4)) + margin[:, None] * np.eye(4)[labels]), labels


def mean_losses(scores, labels):
    values = -log_softmax(scores)[np.arange(len(labels)), labels]
    return np.array([values[labels == j].mean() for j in range(scores.shape[1])])


@given(losses, st.floats(0.1, 3.0), st.floats(1.5, 2.0))
def test_weights_are_odd_bounded_and_ordered_as_the_losses(values, alpha, beta):
    weights = class_weights(values, "normal", alpha, beta)
    assert (np.abs(weights) <= beta / 2).all()
    assert (np.diff(weights[np.argsort(values)]) >= 0).all()
    np.testing.assert_allclose(class_weights(-values, "normal", alpha, beta), -weights, atol=1e-9)


def test_slope_of_the_weight_at_zero():
    tiny = np.array([-1e-6, 1e-6, 0.0])
    values = class_weights(tiny, "centered_minmax", 0.7, 1.8)
    normal = normalise_losses(tiny, "centered_minmax")
    slope = 1.8 / 4 / 0.7
    assert values[2] == pytest.approx(slope * normal[2], abs=1e-9)
    step = 1e-5
    assert 0.5 * 1.8 * np.tanh(0.5 * step / 0.7) / step == pytest.approx(slope, rel=1e-6)


@given(losses, st.floats(0.1, 10.0), st.floats(-3.0, 3.0))
def test_normalisations_ignore_scale_and_offset(values, factor, offset):
    for name in ("normal", "centered_minmax", "minmax"):
        one, other = normalise_losses(values, name), normalise_losses(factor * values + offset, name)
        np.testing.assert_allclose(one, other, atol=1e-5)
    flat = normalise_losses(values, "minmax")
    np.testing.assert_allclose(normalise_losses(values, "centered_minmax"), flat - flat.mean(), atol=1e-12)


def test_normalised_losses_by_the_definition():
    losses = np.array([1.0, 2.0, 6.0])
    # the sample standard deviation: squares 4, 1 and 9 over n − 1 = 2
    np.testing.assert_allclose(normalise_losses(losses, "normal"), np.array([-2.0, -1.0, 3.0]) / np.sqrt(7.0))
    np.testing.assert_allclose(normalise_losses(losses, "minmax"), [0.0, 0.2, 1.0])
    np.testing.assert_allclose(normalise_losses(losses, "centered_minmax"), [-0.4, -0.2, 0.6])


@pytest.mark.parametrize("normalization", ["normal", "centered_minmax", "minmax"])
def test_the_answer_is_a_fixed_point(normalization):
    logits, labels = uneven()
    fitted = ClassLossScaling(TemperatureScaling(), normalization).fit(logits, labels)
    temperature = fitted.calibrator_.temperature_
    own = class_weights(mean_losses(logits / temperature, labels), normalization, fitted.alpha_, fitted.beta_)
    np.testing.assert_allclose(own, fitted.class_weights_, atol=1e-6)
    step = 1e-5
    above, below = (mean_losses(logits / (temperature + side), labels) for side in (step, -step))
    slope = (above - below) / (2 * step)
    assert abs((1 + own) @ slope) < 1e-6
    assert 0.1 <= fitted.alpha_ <= 0.5 * np.log(4)
    assert 1.5 <= fitted.beta_ <= 2.0
    assert len(fitted.objective_trace_) == len(fitted.std_trace_) == len(fitted.ece_trace_) == fitted.n_iter_ + 1
    assert fitted.std_trace_[-1] == pytest.approx(mean_losses(logits / temperature, labels).std(ddof=1))
    assert fitted.ece_trace_[-1] == pytest.approx(calibrant.metrics.ece(fitted.predict_proba(logits), labels))


def test_equal_classes_without_differences_are_temperature_scaling():
    rng = np.random.default_rng(0)
    base = 3 * (rng.normal(size=(50, 3)) + np.array([1.5, 0, 0]))
    logits = np.concatenate([np.roll(base, j, axis=1) for j in range(3)])
    labels = np.repeat(np.arange(3), 50)
    fitted = ClassLossScaling(TemperatureScaling()).fit(logits, labels)
    np.testing.assert_allclose(fitted.class_weights_, 0, atol=1e-9)
    assert fitted.calibrator_.temperature_ == pytest.approx(TemperatureScaling().fit(logits, labels).temperature_)


@pytest.mark.parametrize(("loss", "gamma", "smoothing"), [("focal", 3.0, 0.0), ("label_smoothing", 0.0, 0.05)])
def test_baselines_minimise_their_loss(loss, gamma, smoothing):
    logits, labels = uneven(300)

    def value(log_temperature):
        log_p = log_softmax(logits / np.exp(log_temperature))
        true = log_p[np.arange(len(labels)), labels]
        focal = -((1 - np.exp(true)) ** gamma) * true
        return ((1 - smoothing) * focal - smoothing * log_p.mean(axis=1)).mean()

    best = minimize_scalar(value, bounds=(-2, 4), method="bounded", options={"xatol": 1e-10}).x
    fitted = ClassLossScaling(TemperatureScaling(), loss=loss).fit(logits, labels)
    assert np.log(fitted.calibrator_.temperature_) == pytest.approx(best, abs=1e-4)
    assert (fitted.class_weights_ == 0).all()


@pytest.mark.parametrize(
    "inner",
    [EnsembleTemperatureScaling(), VectorScaling(penalty_bias=0.5), ClassTemperatureScaling(objective="nll")],
)
def test_any_likelihood_calibrator_takes_part(inner):
    logits, labels = uneven()
    fitted = ClassLossScaling(inner).fit(logits, labels)
    assert type(fitted.calibrator_) is type(inner)
    assert fitted.n_parameters_ == fitted.calibrator_.n_parameters_
    assert fitted.keeps_prediction == inner.keeps_prediction


def test_absent_classes_have_no_weight():
    logits, labels = uneven()
    wider = np.concatenate([logits, np.full((len(logits), 1), -3.0)], axis=1)
    fitted = ClassLossScaling(TemperatureScaling()).fit(wider, labels)
    assert fitted.class_weights_[4] == 0
    assert np.isfinite(fitted.objective_trace_).all()


def test_only_likelihoods_can_be_weighed():
    logits, labels = uneven(100)
    for wrong in (
        ClassLossScaling(TemperatureScaling("ece")),
        ClassLossScaling(TemperatureScaling(), normalization="rank"),
        ClassLossScaling(TemperatureScaling(), loss="hinge"),
        ClassLossScaling(ShapeScaling(), loss="label_smoothing"),
    ):
        with pytest.raises(InputError):
            wrong.fit(logits, labels)


@pytest.mark.parametrize(("name", "plain", "scaled"), [("c10lt", 0.0347, 0.0137), ("c100lt", 0.0416, 0.0213)])
def test_long_tails_are_mended(shared_data, name, plain, scaled):
    with np.load(shared_data / "zoo" / f"{name}_resnet18_ce.npz") as file:
        split = {key: file[key] for key in ("val_logits", "val_labels", "test_logits", "test_labels")}
    fit = split["val_logits"].astype(np.float32), split["val_labels"].astype(np.int64)
    test, truth = split["test_logits"].astype(np.float32), split["test_labels"].astype(np.int64)
    before = TemperatureScaling().fit(*fit).predict_proba(test)
    after = ClassLossScaling(TemperatureScaling()).fit(*fit).predict_proba(test)
    assert calibrant.metrics.ece(before, truth) == pytest.approx(plain, abs=0.002)
    assert calibrant.metrics.ece(after, truth) == pytest.approx(scaled, abs=0.002)


def test_the_detached_focal_baseline_balances_the_gradients_weighted_by_its_factor():
    logits, labels = uneven()
    fitted = ClassLossScaling(TemperatureScaling(), loss="focal_detached").fit(logits, labels)
    temperature = fitted.calibrator_.temperature_
    log_p = log_softmax(logits / temperature)
    own = log_p[np.arange(len(labels)), labels]
    pull = logits[np.arange(len(labels)), labels] - (np.exp(log_p) * logits).sum(axis=1)
    factor = (1 - np.exp(own)) ** 3
    assert (factor * pull).sum() == pytest.approx(0, abs=1e-4 * np.abs(factor * pull).sum())
    printed = ClassLossScaling(TemperatureScaling(), loss="focal").fit(logits, labels)
    assert abs(printed.calibrator_.temperature_ - temperature) > 0.01


def test_alpha_and_beta_after_a_first_step():
    logits, labels = uneven()
    fitted = {word: ClassLossScaling(TemperatureScaling(), alpha_beta=word) for word in ("refit", "first_step")}
    for one in fitted.values():
        one.fit(logits, labels)
        assert 0.1 <= one.alpha_ <= 0.5 * np.log(4) + 1e-12
        assert 1.5 <= one.beta_ <= 2.0
    before = mean_losses(logits, labels)
    weights = class_weights(before, "normal", 0.5 * np.log(4), 1.5)
    assert weights.argmax() == fitted["first_step"].class_weights_.argmax()
    start = ClassLossScaling(TemperatureScaling()).fit(logits, labels)
    assert start.alpha_ == fitted["refit"].alpha_
    with pytest.raises(InputError, match="alpha_beta must be one of refit, first_step, got 'later'"):
        ClassLossScaling(TemperatureScaling(), alpha_beta="later").fit(logits, labels)


def summed_losses(scores, labels):
    return mean_losses(scores, labels) * np.bincount(labels)


def test_printed_sums_are_a_fixed_point_of_their_own():
    """Σ_i (1 + w_i)·L_i with L_i the sum over the rows of class i: rows are weighed by 1 + w of their class alone."""
    logits, labels = uneven()
    fitted = ClassLossScaling(TemperatureScaling(), class_loss="sum").fit(logits, labels)
    expected = class_weights(summed_losses(fitted.transform(logits), labels), "normal", fitted.alpha_, fitted.beta_)
    np.testing.assert_allclose(fitted.class_weights_, expected, atol=1e-6)
    again = TemperatureScaling().fit(logits, labels, sample_weight=1 + fitted.class_weights_[labels])
    assert fitted.calibrator_.temperature_ == pytest.approx(again.temperature_, rel=1e-5)
    by_means = ClassLossScaling(TemperatureScaling()).fit(logits, labels)
    assert abs(fitted.calibrator_.temperature_ - by_means.calibrator_.temperature_) > 0.01


def test_sums_and_means_of_balanced_classes_are_the_same():
    logits, labels = uneven(1200)
    kept = np.concatenate([np.flatnonzero(labels == j)[:90] for j in range(4)])
    ways = [
        ClassLossScaling(TemperatureScaling(), class_loss=one).fit(logits[kept], labels[kept])
        for one in ("mean", "sum")
    ]
    assert ways[0].calibrator_.temperature_ == pytest.approx(ways[1].calibrator_.temperature_, rel=1e-9)
    with pytest.raises(InputError, match="class_loss must be one of mean, sum"):
        ClassLossScaling(TemperatureScaling(), class_loss="median").fit(logits, labels)


def test_without_bounds_equation_6_is_lower_and_leaves_them():
    logits, labels = uneven()
    before = mean_losses(logits, labels)
    after = mean_losses(logits / 2.5, labels)

    def spread(shape):
        return np.linalg.norm(before - class_weights(after, "normal", *shape) * (after - before) - after.mean())

    bounded, free = (choose_shape(before, after, "normal", 4, bounded=one) for one in (True, False))
    assert spread(free) < spread(bounded) - 1e-4
    assert not 1.5 <= free[1] <= 2
    fitted = ClassLossScaling(TemperatureScaling(), bounded=False).fit(logits, labels)
    assert not 1.5 <= fitted.beta_ <= 2
    assert np.isfinite(fitted.calibrator_.temperature_)


def similar_classes(n=3000, seed=0):
    """Six classes whose losses differ only by chance, in float32: the weights react steeply to the losses."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 6, n)
    return (3 * (rng.normal(size=(n, 6)) + 2 * np.eye(6)[labels])).astype(np.float32), labels


@pytest.mark.parametrize("normalization", ["normal", "centered_minmax", "minmax"])
@pytest.mark.parametrize("inner", ["ts", "ets", "cts-nll", "vs"])
def test_steep_class_weights_converge_whatever_the_last_bit(inner, normalization):
    logits, labels = similar_classes()
    neighbors = np.nextafter(
        logits, np.random.default_rng(1).choice([-np.inf, np.inf], logits.shape).astype(np.float32)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", FitWarning)
        one, other = (ClassLossScaling(calibrant.get(inner), normalization).fit(x, labels) for x in (logits, neighbors))
    np.testing.assert_allclose(one.class_weights_, other.class_weights_, atol=1e-4)
    np.testing.assert_allclose(one.predict_proba(logits), other.predict_proba(logits), atol=1e-5)


@pytest.mark.parametrize("detached", [False, True])
def test_focal_fits_of_two_classes_reach_the_minimum(detached):
    for seed in range(40):
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, 2, 200)
        logits = 3 * (rng.normal(size=(200, 2)) + np.eye(2)[labels])

        def value(log_temperature, logits=logits, labels=labels):
            loss = -log_softmax(logits / np.exp(log_temperature))[np.arange(200), labels]
            p = np.exp(-loss)
            # the integral of (1−p)^3 over −log p, or the focal loss
            detached_loss = loss + 3 * (p - 1) - 1.5 * (p**2 - 1) + (p**3 - 1) / 3
            return float((detached_loss if detached else (1 - p) ** 3 * loss).mean())

        best = minimize_scalar(value, bounds=(-1, 4), method="bounded", options={"xatol": 1e-9}).x
        with warnings.catch_warnings():
            warnings.simplefilter("error", FitWarning)
            fitted = ClassLossScaling(TemperatureScaling(), loss="focal_detached" if detached else "focal")
            fitted.fit(logits, labels)
        assert np.log(fitted.calibrator_.temperature_) == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize("loss", ["focal", "focal_detached"])
@pytest.mark.parametrize("inner", ["ets", "cts-nll", "vs"])
def test_focal_fits_are_refits_under_their_weights(inner, loss):
    logits, labels = uneven()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FitWarning)
        fitted = ClassLossScaling(calibrant.get(inner), loss=loss).fit(logits, labels)
    log_p = log_softmax(fitted.transform(logits))[np.arange(len(labels)), labels]
    p = np.exp(log_p)
    weights = (1 - p) ** 3 - (3 * p * (1 - p) ** 2 * log_p if loss == "focal" else 0.0)
    again = calibrant.get(inner).fit(logits, labels, sample_weight=weights / weights.mean())
    np.testing.assert_allclose(again.predict_proba(logits), fitted.predict_proba(logits), atol=1e-6)


@given(st.integers(0, 10_000), st.integers(2, 12), st.floats(-1.0, 2.0))
def test_the_search_finds_fixed_points_of_steep_decreasing_maps(seed, size, magnitude):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(size, size))
    slope, offset = root @ root.T / size * 10**magnitude, rng.normal(size=size)
    search, point = FixedPoint(20), np.zeros(size)
    for _ in range(MAX_REFITS):
        image = 0.75 * np.tanh(offset - slope @ point)
        if np.abs(image - point).max() <= TOLERANCE:
            break
        point = search.propose_point(point, image)
    assert np.abs(image - point).max() <= TOLERANCE


def test_weights_without_a_fixed_point_raise_a_warning():
    """Without bounds a class may lose all weight; the map without its column is another one, so the losses jump."""
    logits, labels = similar_classes(4000)
    weights = np.random.default_rng(1).uniform(0.5, 2, len(labels))
    scaling = ClassLossScaling(ClassTemperatureScaling(objective="nll"), bounded=False)
    with pytest.warns(FitWarning, match="the weights still change by"):
        scaling.fit(logits, labels, sample_weight=weights)


def test_balanced_minimizes_the_mean_of_the_class_losses(rng):
    labels = rng.choice(4, 800, p=[0.7, 0.2, 0.08, 0.02])
    logits = 3 * (rng.normal(size=(800, 4)) + np.eye(4)[labels])
    fitted = ClassLossScaling(TemperatureScaling(), loss="balanced").fit(logits, labels)
    assert (fitted.class_weights_ == 0).all()

    def mean_of_classes(log_temperature):
        losses = -log_softmax(logits / np.exp(log_temperature))[np.arange(800), labels]
        return np.mean([losses[labels == j].mean() for j in range(4)])

    expected = np.exp(minimize_scalar(mean_of_classes, bounds=(-3, 3), method="bounded", options={"xatol": 1e-9}).x)
    assert fitted.calibrator_.temperature_ == pytest.approx(expected, rel=1e-5)
