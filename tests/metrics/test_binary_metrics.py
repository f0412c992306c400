"""Metrics of one probability per row against statsmodels, scikit-learn and their definitions written out."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from itertools import pairwise

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as reference
from sklearn.isotonic import IsotonicRegression

import calibrant as cal
from calibrant import metrics
from calibrant.core.errors import FitWarning, InputError
from calibrant.core.softmax import sigmoid
from calibrant.evaluation.groups import group_analysis, make_grouping
from calibrant.metrics.record import facts

BINARY = {
    name: one.function for name, one in metrics.METRICS.items() if one.about == "score" and name != "kuiper_error"
}
SEEDS = range(50)


def problem(seed, n=None):
    """Scores with ties, weights, rare events; (p, y, weights or None)."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(60, 400)) if n is None else n
    score = rng.normal(size=n) * rng.choice([0.5, 2.0]) + rng.choice([-3.0, 0.0])
    if seed % 3 == 0:
        score = np.round(score, 1)  # ties
    p = sigmoid(score)
    y = (rng.random(n) < sigmoid(rng.choice([0.4, 1.0, 1.6]) * score + rng.normal() * 0.5)).astype(int)
    y[:2] = 0, 1
    weights = rng.integers(0, 4, n) if seed % 2 else None
    if weights is not None:
        weights[:2] = 1
    return p, y, weights


def separable(p, y, weights):
    kept = np.ones(len(p), bool) if weights is None else weights > 0
    ones, zeros = p[kept & (y == 1)], p[kept & (y == 0)]
    return zeros.max() <= ones.min() or ones.max() <= zeros.min()


def glm(columns, y, weights, offset=None):
    weights = np.ones(len(y)) if weights is None else weights
    model = sm.GLM(y, columns, family=sm.families.Binomial(), freq_weights=weights, offset=offset)
    return model.fit(tol=1e-14, maxiter=300)


@pytest.mark.parametrize("seed", SEEDS)
def test_slope_and_intercept_are_those_of_statsmodels(seed):
    p, y, weights = problem(seed)
    score = np.log(p / (1 - p))
    if not separable(p, y, weights):
        fitted = glm(np.stack([np.ones_like(score), score], axis=1), y, weights).params
        assert metrics.calibration_slope(p, y, sample_weight=weights) == pytest.approx(fitted[1], abs=1e-6)
    large = glm(np.ones((len(y), 1)), y, weights, offset=score).params
    assert metrics.calibration_intercept(p, y, sample_weight=weights) == pytest.approx(large[0], abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_discrimination_and_brier_are_those_of_scikit_learn(seed):
    p, y, weights = problem(seed)
    auc = reference.roc_auc_score(y, p, sample_weight=weights)
    assert metrics.roc_auc(p, y, sample_weight=weights) == pytest.approx(auc, abs=1e-12)
    precision = reference.average_precision_score(y, p, sample_weight=weights)
    assert metrics.average_precision(p, y, sample_weight=weights) == pytest.approx(precision, abs=1e-12)
    brier = reference.brier_score_loss(y, p, sample_weight=weights)
    assert metrics.brier(p, y, sample_weight=weights) == pytest.approx(brier, abs=1e-12)
    log_loss = reference.log_loss(y, p, sample_weight=weights, labels=[0, 1])
    assert metrics.nll(p, y, sample_weight=weights) == pytest.approx(log_loss, abs=1e-12)


def literal_curve(p, y, weights):
    """METHODS §7: logistic regression on a restricted cubic spline, rows repeated in place of weights."""
    copies = np.ones(len(p), int) if weights is None else weights
    p, y = np.repeat(p, copies), np.repeat(y, copies)
    s = np.log(p / (1 - p))
    for least, percentiles in ((100, [5, 27.5, 50, 72.5, 95]), (30, [5, 35, 65, 95]), (10, [10, 50, 90])):
        t = np.percentile(s, percentiles)
        if len(p) >= least and (np.diff(t) > 1e-9).all():
            break
    else:
        t = np.empty(0)

    def plus(x):
        return np.where(x > 0, x, 0.0) ** 3

    columns = [np.ones_like(s), s]
    for j in range(max(len(t) - 2, 0)):
        term = plus(s - t[j]) - plus(s - t[-2]) * (t[-1] - t[j]) / (t[-1] - t[-2])
        columns.append((term + plus(s - t[-1]) * (t[-2] - t[j]) / (t[-1] - t[-2])) / (t[-1] - t[0]) ** 2)
    return p, glm(np.stack(columns, axis=1), y, None).fittedvalues


def test_flexible_curve_is_the_spline_regression_of_statsmodels():
    compared = 0
    for seed in range(60):
        p, y, weights = problem(seed, n=300)
        if min(y.sum(), len(y) - y.sum()) < 15 or separable(p, y, weights):
            y = np.where(np.random.default_rng(seed).random(300) < 0.2, 1 - y, y)
        if weights is not None:
            weights = weights + 1
        with np.errstate(over="ignore"):
            expanded, curve = literal_curve(p, y, weights)
        if curve.min() < 1e-6:
            # one end of the spline separates the classes: without a ridge the regression has no optimum to compare
            continue
        compared += 1
        gaps = np.abs(curve - expanded)
        index = metrics.integrated_calibration_index(p, y, sample_weight=weights)
        assert index == pytest.approx(gaps.mean(), abs=1e-6)
        assert metrics.e50(p, y, sample_weight=weights) == pytest.approx(np.median(gaps), abs=1e-6)
        assert metrics.e90(p, y, sample_weight=weights) == pytest.approx(np.percentile(gaps, 90), abs=1e-6)
    assert compared >= 50


@pytest.mark.parametrize("seed", SEEDS)
def test_definitions_written_out(seed):
    p, y, weights = problem(seed)
    w = np.ones(len(p)) if weights is None else weights.astype(float)
    n = w.sum()
    assert metrics.observed_expected(p, y, sample_weight=weights) == pytest.approx(w @ y / (w @ p), abs=1e-12)
    sums = [0.0] + [(w * (y - p))[p <= t].sum() / n for t in np.unique(p)]
    assert metrics.kuiper_error(p, y, sample_weight=weights) == pytest.approx(max(sums) - min(sums), abs=1e-12)
    edges = np.arange(16) / 15
    gaps = []
    for low, high in pairwise(edges):
        inside = (p > low) & (p <= high) & (w > 0)
        if inside.any():
            gaps.append((w[inside].sum(), abs(w[inside] @ (p - y)[inside]) / w[inside].sum()))
    expected = sum(mass * gap for mass, gap in gaps) / n
    assert metrics.ece(p, y, sample_weight=weights) == pytest.approx(expected, abs=1e-12)
    assert metrics.mce(p, y, sample_weight=weights) == pytest.approx(max(gap for _, gap in gaps), abs=1e-12)
    for t in (0.05, 0.3, 0.5):
        flagged, found = w[p >= t].sum(), w[(p >= t) & (y == 1)].sum()
        benefit = found / n - (flagged - found) / n * t / (1 - t)
        assert metrics.net_benefit(p, y, [t], sample_weight=weights)[0] == pytest.approx(benefit, abs=1e-12)
        at = metrics.threshold_metrics(p, y, t, sample_weight=weights)
        assert at.sensitivity == pytest.approx(found / (w @ y), abs=1e-12)
        assert at.specificity == pytest.approx(w[(p < t) & (y == 0)].sum() / (w @ (1 - y)), abs=1e-12)
        assert at.flagged == pytest.approx(flagged / n, abs=1e-12)
        if 0 < flagged < n:
            assert at.ppv == pytest.approx(found / flagged, abs=1e-12)
            assert at.npv == pytest.approx(w[(p < t) & (y == 0)].sum() / (n - flagged), abs=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("score", ["nll", "brier"])
def test_decomposition_is_that_of_an_isotonic_refit(seed, score):
    p, y, weights = problem(seed)
    w = np.ones(len(p)) if weights is None else weights.astype(float)
    kept = w > 0
    fitted = IsotonicRegression(out_of_bounds="clip").fit(p[kept], y[kept], w[kept]).predict(p[kept])
    rate = np.full(kept.sum(), w @ y / w.sum())

    def mean_score(q):
        with np.errstate(divide="ignore", invalid="ignore"):
            losses = np.where(y[kept] == 1, -np.log(q), -np.log1p(-q))
        return np.average((q - y[kept]) ** 2 if score == "brier" else losses, weights=w[kept])

    parts = metrics.score_decomposition(p, y, score=score, sample_weight=weights)
    assert parts.score == pytest.approx(mean_score(p[kept]), abs=1e-12)
    assert parts.uncertainty == pytest.approx(mean_score(rate), abs=1e-12)
    assert parts.miscalibration == pytest.approx(mean_score(p[kept]) - mean_score(fitted), abs=1e-9)
    assert parts.discrimination == pytest.approx(mean_score(rate) - mean_score(fitted), abs=1e-9)
    # 47
    total = parts.miscalibration - parts.discrimination + parts.uncertainty
    assert total == pytest.approx(parts.score, abs=1e-12)


@given(st.integers(0, 10_000))
def test_48_kuiper_ks_and_the_mean_gap(seed):
    p, y, weights = problem(seed, n=40)
    kuiper = metrics.kuiper_error(p, y, sample_weight=weights)
    largest = metrics.ks_error(p, y, sample_weight=weights)
    assert kuiper >= largest - 1e-12 >= kuiper / 2 - 2e-12
    assert abs(np.average(p - y, weights=weights)) <= largest + 1e-12


@given(st.integers(0, 10_000))
def test_49_net_benefit(seed):
    p, y, weights = problem(seed, n=40)
    prevalence = np.average(y, weights=weights)
    curve = metrics.decision_curve(p, y, np.append(np.arange(100) / 100, prevalence), sample_weight=weights)
    assert curve.treat_all[0] == pytest.approx(prevalence, abs=1e-12)
    assert curve.treat_all[-1] == pytest.approx(0.0, abs=1e-12)
    assert (curve.model <= prevalence + 1e-12).all()


@pytest.mark.parametrize("name", sorted(BINARY))
def test_contract(name):
    metric = BINARY[name]
    parameters = inspect.signature(metric).parameters
    assert list(parameters)[:2] == ["probabilities", "labels"]
    assert parameters["sample_weight"].default is None
    assert parameters["from_logits"].default is False
    assert getattr(metrics, name) is metric
    assert ">>>" in metric.__doc__
    p, y, _ = problem(4)
    score = np.log(p / (1 - p))
    value = metric(p, y)
    fields = [f.name for f in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else None

    def numbers(result):
        return np.concatenate([np.ravel(getattr(result, f)) for f in fields]) if fields else np.ravel(result)

    np.testing.assert_allclose(numbers(metric(score, y, from_logits=True)), numbers(value), atol=1e-9)
    copies = np.random.default_rng(1).integers(0, 3, len(p))
    weighted = metric(p, y, sample_weight=copies)
    np.testing.assert_allclose(
        numbers(metric(np.repeat(p, copies), np.repeat(y, copies))), numbers(weighted), atol=1e-8
    )
    with pytest.raises(InputError, match="one positive class"):
        metric(np.stack([1 - p, p], axis=1), y)
    with pytest.raises(InputError, match="from_logits=True"):
        metric(score, y)
    with pytest.raises(InputError, match="outcomes are 0 or 1"):
        metric(p, y + 1)


@pytest.mark.parametrize("name", sorted(set(metrics.METRICS) - set(BINARY) - {"classwise_losses"}))
def test_one_probability_per_row_asks_about_the_positive_class(name):
    p, y, weights = problem(7)
    metric = metrics.METRICS[name].function
    value = metric(p, y, sample_weight=weights)
    from_score = metric(np.log(p / (1 - p)), y, sample_weight=weights, from_logits=True)
    if isinstance(value, float):
        assert from_score == pytest.approx(value, abs=1e-9)
    if name in {"ece", "adaptive_ece", "ks_error", "sweep_ece", "debiased_ece", "mmce", "smooth_ece", "soft_ece"}:
        # pairs of a confidence and correct or not: the top label of a matrix whose runner-up gets the rest
        top = np.maximum(p, 1 - p)
        of_pairs = metric(top, y, sample_weight=weights)
        of_matrix = metric(np.stack([top, 1 - top], axis=1), 1 - y, sample_weight=weights)
        assert of_pairs == pytest.approx(of_matrix, abs=1e-9)
    if name == "accuracy":
        assert value == pytest.approx(np.average((p >= 0.5) == y, weights=weights))
    if name == "confidence":
        assert value == pytest.approx(np.average(p, weights=weights))
    if name == "entropy":
        entropy = -(p * np.log(p) + (1 - p) * np.log1p(-p))
        assert value == pytest.approx(np.average(entropy, weights=weights))
    if name in {"classwise_ece", "sce"}:
        assert np.ravel(value) == pytest.approx(metrics.ece(p, y, sample_weight=weights), abs=1e-12)


def test_infinite_logits_are_probabilities_of_zero_and_one():
    score = np.array([-np.inf, -1.0, 0.5, np.inf])
    y = [0, 0, 1, 1]
    assert metrics.ece(score, y, from_logits=True) == metrics.ece(sigmoid(score), y)
    assert metrics.nll(score, y, from_logits=True) == pytest.approx(metrics.nll(sigmoid(score), y), abs=1e-12)
    assert np.isinf(metrics.score_decomposition([0.0, 0.5], [1, 0]).miscalibration)
    assert np.isfinite(metrics.calibration_slope([0.0, 0.0, 0.3, 0.4, 1.0], [0, 1, 0, 1, 1]))


@pytest.mark.parametrize("name", ["calibration_slope", "calibration_intercept", "integrated_calibration_index", "e90"])
@pytest.mark.parametrize(
    ("p", "y"),
    [
        (np.linspace(0.1, 0.9, 50), np.arange(50) >= 25),
        (np.linspace(0.1, 0.9, 50), np.zeros(50, int)),
        (np.linspace(0.1, 0.9, 50), np.ones(50, int)),
        (np.full(50, 0.3), np.arange(50) < 10),
        (np.array([0.5]), np.array([1])),
        (np.array([0.0, 1.0]), np.array([0, 1])),
    ],
    ids=["separable", "all 0", "all 1", "constant", "one row", "certain"],
)
def test_degenerate_data_give_finite_numbers(name, p, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        assert np.isfinite(BINARY[name](p, y))


def test_a_slope_without_a_finite_estimate_is_said():
    with pytest.warns(FitWarning, match="a threshold separates the classes"):
        metrics.calibration_slope([0.1, 0.2, 0.8], [0, 0, 1])
    with pytest.warns(FitWarning, match="all probabilities are equal"):
        metrics.calibration_slope([0.2, 0.2, 0.2], [0, 0, 1])
    with pytest.warns(FitWarning, match="calibration_slope: all labels are equal"):
        assert metrics.calibration_slope([0.1, 0.2, 0.8], [0, 0, 0]) == 1.0
    with pytest.warns(FitWarning, match="all labels are equal"):
        metrics.calibration_intercept([0.1, 0.2, 0.8], [0, 0, 0])


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
@pytest.mark.parametrize("p", [1e-9, 0.01, 0.3, 0.5, 0.999, 0.0, 1.0])
def test_the_slope_of_equal_probabilities_is_one(p):
    assert metrics.calibration_slope(np.full(40, p), np.arange(40) % 4 > 0) == 1.0
    weights = np.where(np.arange(40) < 20, 1.0, 0.0)
    values = np.where(weights > 0, p, 0.7)
    assert metrics.calibration_slope(values, np.arange(40) % 4 > 0, sample_weight=weights) == 1.0
    rows = cal.Predictions(probabilities=np.full(40, max(p, 1e-12)), labels=np.arange(40) % 4 > 0, task="binary")
    slope = cal.measure(rows, resamples=20).metrics["calibration_slope"]
    assert slope.value == 1.0
    assert np.isnan([slope.low, slope.high]).all()  # no resample has a slope either


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
@given(
    seed=st.integers(0, 999),
    shift=st.floats(-300, 300),
    scale=st.floats(1e-3, 100),
    sign=st.sampled_from([-1, 1]),
    separable=st.booleans(),
)
def test_the_slope_of_shifted_and_scaled_log_odds_is_the_slope_divided_by_the_scale(
    seed, shift, scale, sign, separable
):
    """Also of separable scores far from 0, for which a pull to 1 returned 1 or 0."""
    generator = np.random.default_rng(seed)
    score = generator.normal(size=40)
    y = sign * (score + (0 if separable else 1) * generator.normal(size=40)) > 0
    y[:2] = [True, False] if not separable else y[:2]
    slope = metrics.calibration_slope(score, y, from_logits=True)
    moved = metrics.calibration_slope(shift + scale * score, y, from_logits=True)
    assert scale * moved == pytest.approx(slope, rel=1e-4, abs=1e-6)
    if separable and 0 < y.sum() < 40:
        assert sign * slope > 1


def test_a_group_of_equal_probabilities_has_no_slope():
    p, ward = np.repeat([0.2, 0.9], 200), np.repeat(["a", "b"], 200)
    p[:200] = np.linspace(0.1, 0.4, 200)
    y = np.arange(400) % 4 == 0
    found = group_analysis(p, y, make_grouping({"ward": ward}, 400), about="positive class", resamples=20)
    assert np.isfinite(found.group(ward="a").metrics["calibration_slope"].value)
    assert np.isnan(found.group(ward="b").metrics["calibration_slope"].value)


def test_band_of_the_flexible_curve_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(200):
        p = sigmoid(rng.normal(size=400) * 1.5)
        curve = metrics.flexible_calibration(p, rng.random(400) < p)
        inner = slice(20, 80)
        covered.append(((curve.low <= curve.probability) & (curve.probability <= curve.high))[inner].mean())
    assert 0.90 < np.mean(covered) < 0.985


@pytest.mark.parametrize("seed", range(30))
def test_threshold_metrics_are_shares_or_unknown(seed):
    """Sums of fractional weights round: nobody on one side of a threshold has no share, and no share leaves [0, 1]."""
    rng = np.random.default_rng(seed)
    p = rng.integers(1, 10, 50) / 10 if seed % 2 else 0.3 + 0.5 * rng.random(50)
    y, weights = rng.integers(0, 2, 50), rng.choice([0.1, 0.2, 0.3, 0.7, 1 / 3], 50)
    cuts = np.concatenate([[0.0, 0.05, 1.0], p])
    found = metrics.threshold_metrics(p, y, cuts, sample_weight=weights)
    assert np.isnan(found.npv[cuts <= p.min()]).all()
    assert np.isnan(found.ppv[cuts > p.max()]).all()
    for share in (found.sensitivity, found.specificity, found.ppv, found.npv, found.flagged):
        known = share[~np.isnan(share)]
        assert ((known >= 0) & (known <= 1)).all()
    assert (found.flagged[cuts <= p.min()] == 1).all()
    assert np.isnan(found.npv).sum() == (cuts <= p.min()).sum()


@pytest.mark.parametrize(
    ("thresholds", "words"),
    [([0.5, 1.5], r"\[0, 1\], got 0.5 to 1.5"), ([-0.1], r"got -0.1"), ([], "got none"), ([np.nan], "got nan"),
     ([0.2, 1.0], "thresholds below 1"), (1.0, "thresholds below 1")],
)  # fmt: skip
def test_net_benefit_rejects_thresholds_outside_0_to_1_and_none_at_all(thresholds, words):
    for function in (metrics.net_benefit, metrics.decision_curve):
        with pytest.raises(InputError, match=words):
            function([0.1, 0.6, 0.8], [0, 0, 1], thresholds)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("integrated_calibration_index", True), ("e50", True), ("e90", True), ("ece", True), ("ks_error", True),
     ("roc_auc", False), ("calibration_slope", False), ("nll", False)],
)  # fmt: skip
def test_noise_adds_to_the_sizes_of_gaps_only(name, expected):
    assert facts(name).absolute == expected


def test_observed_to_expected_needs_an_expected_event():
    with pytest.raises(InputError, match="needs a positive sum"):
        metrics.observed_expected([0.0, 0.0], [0, 1])
    with pytest.raises(InputError, match="needs a positive sum"):
        metrics.observed_expected([0.0, 0.5], [0, 1], sample_weight=[1.0, 0.0])
