"""The methods for one score per row against independent computations and on degenerate data."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.calibration import _SigmoidCalibration
from sklearn.isotonic import IsotonicRegression

from calibrant import metrics
from calibrant.calibrators.registry import get
from calibrant.core.errors import FitWarning
from calibrant.core.softmax import sigmoid
from calibrant.kernels.isotonic import isotonic_values, merge_groups, score_groups, venn_abers_tables
from calibrant.kernels.logistic import fit_logistic

SEEDS = range(50)
LIKELIHOOD = ("platt", "beta", "quad", "spline", "iso")


def problem(seed, n=None):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(60, 300)) if n is None else n
    scores = rng.normal(size=n) * rng.choice([0.7, 2.5]) + rng.choice([-2.5, 0.0])
    if seed % 3 == 0:
        scores = np.round(scores, 1)
    labels = (rng.random(n) < sigmoid(rng.choice([0.4, 1.0, 1.6]) * scores + 0.5 * rng.normal())).astype(int)
    labels[:4] = 0, 1, 1, 0
    scores[:4] = -1.0, -1.5, 0.5, 1.0  # never separable
    weights = rng.integers(0, 4, n) if seed % 2 else None
    if weights is not None:
        weights[:4] = 1
    return scores, labels, weights


def quiet(name, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        return get(name).fit(*args, **kwargs)


@pytest.mark.parametrize("seed", SEEDS)
def test_platt_is_the_regression_of_statsmodels(seed):
    scores, labels, weights = problem(seed)
    fitted = quiet("platt", scores, labels, sample_weight=weights)
    model = sm.GLM(
        labels,
        np.stack([scores, np.ones_like(scores)], axis=1),
        family=sm.families.Binomial(),
        freq_weights=np.ones(len(labels)) if weights is None else weights,
    )
    expected = model.fit(tol=1e-14, maxiter=300).params
    assert [fitted.slope_, fitted.intercept_] == pytest.approx(expected, abs=1e-6)
    # 45
    probabilities = fitted.predict_proba(scores)[:, 1]
    assert metrics.calibration_slope(probabilities, labels, sample_weight=weights) == pytest.approx(1, abs=1e-6)
    assert metrics.calibration_intercept(probabilities, labels, sample_weight=weights) == pytest.approx(0, abs=1e-6)
    assert metrics.observed_expected(probabilities, labels, sample_weight=weights) == pytest.approx(1, abs=1e-9)


def loss_of(score, labels, weights):
    losses = np.logaddexp(0, score) - labels * score
    return np.average(losses, weights=weights)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", ["beta", "quad"])
def test_no_other_optimiser_finds_a_better_increasing_map(name, seed):
    scores, labels, weights = problem(seed)
    fitted = quiet(name, scores, labels, sample_weight=weights)
    counted = scores if weights is None else scores[weights > 0]
    low, high = counted.min(), counted.max()
    if name == "beta":
        columns = np.stack([-np.logaddexp(0, -scores), np.logaddexp(0, scores), np.ones_like(scores)])
        bounds, constraints, start = [(0, None), (0, None), (None, None)], [], [1.0, 1.0, 0.0]
    else:
        inside = np.clip(scores, low, high)  # rows of weight 0 may lie outside
        columns = np.stack([np.ones_like(scores), inside, inside**2])
        bounds, start = None, [0.0, 1.0, 0.0]
        constraints = [{"type": "ineq", "fun": lambda c, end=end: c[1] + 2 * c[2] * end} for end in (low, high)]
    found = minimize(
        lambda c: loss_of(c @ columns, labels, weights),
        start,
        method="SLSQP",
        bounds=bounds,
        constraints=constraints,
        options={"ftol": 1e-14, "maxiter": 2000},
    )
    own = loss_of(fitted.transform(scores), labels, weights)
    assert own <= found.fun + 1e-7
    assert own == pytest.approx(found.fun, abs=1e-5)


def test_quadratic_map_goes_on_straight():
    scores, labels, _ = problem(1, n=300)
    fitted = quiet("quad", scores, labels)
    low, high = fitted.range_
    assert (low, high) == (scores.min(), scores.max())
    c0, c1, c2 = fitted.coef_
    inside = np.linspace(low, high, 50)
    np.testing.assert_allclose(fitted.transform(inside), c0 + c1 * inside + c2 * inside**2, atol=1e-9)
    # the floor is beyond the largest score by more than 2 steps
    step = 0.3
    beyond = fitted.transform(np.array([high, high + step, high + 2 * step, low - 2 * step, low - step, low]))
    assert beyond[1] - beyond[0] == pytest.approx(beyond[2] - beyond[1])
    assert beyond[1] - beyond[0] == pytest.approx(step * max(c1 + 2 * c2 * high, 0), abs=1e-9)
    assert beyond[5] - beyond[4] == pytest.approx(step * max(c1 + 2 * c2 * low, 0), abs=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_isotonic_is_that_of_scikit_learn(seed):
    scores, labels, weights = problem(seed)
    reference = IsotonicRegression(out_of_bounds="clip").fit(scores, labels, sample_weight=weights)
    groups = score_groups(scores, labels, None if weights is None else weights.astype(float))
    np.testing.assert_allclose(isotonic_values(groups), reference.predict(groups.scores), atol=1e-12)
    fitted = quiet("iso", scores, labels, sample_weight=weights)
    fresh = np.random.default_rng(seed + 1000).normal(size=200) * 3
    total = len(scores) if weights is None else weights.sum()
    expected = np.clip(reference.predict(fresh), 0.5 / total, 1 - 0.5 / total)
    np.testing.assert_allclose(fitted.predict_proba(fresh)[:, 1], expected, atol=0.5 / total + 1e-12)
    # between blocks that are neither all 0 nor all 1 nothing is clipped
    inner = fitted.knots_[(fitted.values_ > 1 / total) & (fitted.values_ < 1 - 1 / total)]
    between = (fresh >= inner.min()) & (fresh <= inner.max())
    assert between.sum() > 5
    np.testing.assert_allclose(fitted.predict_proba(fresh)[between, 1], expected[between], atol=1e-6)
    # 46
    again = fitted.predict_proba(scores)[:, 1]
    inside = (again > 1 / total) & (again < 1 - 1 / total)
    if inside.sum() > 2:
        kept = None if weights is None else weights[inside]
        if kept is None or kept.sum() > 0:
            parts = metrics.score_decomposition(again[inside], labels[inside], sample_weight=kept)
            assert parts.miscalibration == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("seed", range(50))
def test_venn_abers_is_that_of_two_refits_per_point(seed, compiled, monkeypatch):
    monkeypatch.setenv("CALIBRANT_KERNELS", "numba" if compiled else "numpy")
    rng = np.random.default_rng(seed)
    scores, labels, weights = problem(seed, n=40)
    if seed % 10 == 9:
        labels[:] = seed % 4 // 2
    mass = np.ones(40) if weights is None else weights
    fresh = np.concatenate([np.round(rng.normal(size=6) * 3, 1), rng.choice(scores, 6)])
    ends = quiet("va", scores, labels, sample_weight=weights).predict_interval(fresh)
    for point, (low, high) in zip(fresh, ends, strict=True):
        for label, value in ((0, low), (1, high)):
            refit = IsotonicRegression().fit(
                np.append(scores, point), np.append(labels, label), sample_weight=np.append(mass, 1)
            )
            assert value == pytest.approx(refit.predict([point])[0], abs=1e-6)


def test_50_venn_abers_brackets_its_forecast_and_narrows():
    widths = []
    for n in (100, 1000, 10_000):
        rng = np.random.default_rng(n)
        scores = rng.normal(size=n) * 2
        fitted = get("va").fit(scores, rng.random(n) < sigmoid(scores))
        grid = np.linspace(-8, 8, 400)
        low, high = fitted.predict_interval(grid).T
        forecast = fitted.predict_proba(grid)[:, 1]
        np.testing.assert_allclose(forecast, high / (1 - low + high), atol=1e-12)
        assert (low <= forecast + 1e-12).all()
        assert (forecast <= high + 1e-12).all()
        assert (np.diff(forecast) >= -1e-12).all()
        widths.append((high - low).mean())
    assert widths[0] > widths[1] > widths[2]


def test_compiled_and_plain_groups_agree():
    from calibrant.kernels.compiled.isotonic import merge_groups as compiled

    rng = np.random.default_rng(0)
    positive, negative = np.sort(np.round(rng.normal(size=500), 1)), np.sort(np.round(rng.normal(size=700), 1))
    for one, other in zip(merge_groups(positive, negative), compiled(positive, negative), strict=True):
        np.testing.assert_array_equal(one, other)
    low, high = venn_abers_tables(merge_groups(positive, negative))
    assert (np.diff(low) >= -1e-12).all()
    assert (np.diff(high) >= -1e-12).all()


def test_logistic_fit_of_many_rows_starts_from_a_sample_and_ends_at_the_optimum():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=120_000) * 2 + 30
    labels = (rng.random(120_000) < sigmoid(0.7 * (scores - 30) - 3)).astype(float)
    found = fit_logistic(scores[None], labels)
    score = found.point[0] * scores + found.point[1]
    residual = sigmoid(score) - labels
    assert found.converged
    assert abs(residual.mean()) < 1e-12
    assert abs((residual * (scores - 30)).mean()) < 1e-12


def degenerate(kind):
    rng = np.random.default_rng(1)
    scores = rng.normal(size=2000) * 2 - 3
    labels = (rng.random(2000) < sigmoid(scores)).astype(int)
    if kind == "all 0":
        labels[:] = 0
    if kind == "all 1":
        labels[:] = 1
    if kind == "five positives":
        labels[:] = 0
        labels[rng.choice(2000, 5, replace=False)] = 1
    if kind == "constant":
        scores[:] = 1.7
    if kind == "separable":
        labels = (scores > -2).astype(int)
    if kind == "separable and sure":
        labels = (scores > -2).astype(int)
        scores = np.where(labels == 1, 15.0, -20.0) + rng.normal(size=2000)
    if kind == "reversed":
        labels = (scores < -2).astype(int)
    if kind == "two rows":
        scores, labels = scores[:2], np.array([0, 1])
    if kind == "one row":
        scores, labels = scores[:1], np.array([1])
    if kind == "tiny scale":
        scores, labels = scores * 1e-8, (scores > -2).astype(int)
    if kind == "far away":
        scores = scores + 600
    if kind == "rounded to 0 and 1":
        trees = rng.binomial(20, sigmoid(scores)) / 20
        scores = np.clip(np.log(np.maximum(trees, 0.025) / np.maximum(1 - trees, 0.025)), -9, 9)
    return scores, labels


KINDS = (
    "all 0",
    "all 1",
    "five positives",
    "constant",
    "separable",
    "separable and sure",
    "reversed",
    "two rows",
    "one row",
    "tiny scale",
    "far away",
    "rounded to 0 and 1",
)


def allowed_loss(scores, labels):
    """The log loss of the scores unchanged, and what smoothed targets may add to it if a threshold separates them."""
    before = metrics.nll(np.clip(sigmoid(scores), 1e-15, 1 - 1e-15), labels)
    signed = np.where(labels == 1, scores, -scores)
    counts = np.bincount(labels, minlength=2)
    if counts.min() > 0 and scores[labels == 0].max() > scores[labels == 1].min():
        return before + 1e-9
    # the fit minimises the loss of the smoothed targets, which is the log loss and this difference
    return before + float((signed / (counts[labels] + 2)).mean()) + 1e-9


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LIKELIHOOD)
def test_degenerate_data_never_lose_to_the_scores_as_they_are(name, kind):
    scores, labels = degenerate(kind)
    fitted = quiet(name, scores, labels)
    for key, value in vars(fitted).items():
        if key.endswith("_") and isinstance(value, (float, np.ndarray)) and np.asarray(value).dtype.kind == "f":
            assert np.isfinite(value).all(), key
    after = metrics.nll(fitted.transform(scores), labels, from_logits=True)
    assert after <= allowed_loss(scores, labels)
    grid = np.linspace(scores.min() - 5, scores.max() + 5, 200)
    probabilities = fitted.predict_proba(grid)[:, 1]
    assert np.isfinite(fitted.transform(grid)).all()
    assert ((probabilities >= 0) & (probabilities <= 1)).all()


@pytest.mark.parametrize("name", ["va", "hb", "shape"])
@pytest.mark.parametrize("kind", KINDS)
def test_degenerate_data_give_finite_maps(name, kind):
    scores, labels = degenerate(kind)
    fitted = quiet(name, scores, labels)
    assert np.isfinite(fitted.transform(np.linspace(scores.min() - 5, scores.max() + 5, 200))).all()


@pytest.mark.parametrize("name", ["platt", "beta", "quad", "spline"])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("all 0", "all labels are equal"),
        ("separable", "separates the classes"),
        ("constant", "all scores are equal"),
        ("five positives", "only 5 rows of one class"),
    ],
)
def test_degenerate_data_are_said(name, kind, words):
    with pytest.warns(FitWarning, match=words):
        get(name).fit(*degenerate(kind))


def test_penalty_pulls_to_the_identity():
    scores, labels, _ = problem(2, n=300)
    for name, identity in (("platt", [1, 0]), ("beta", [1, 1, 0]), ("quad", [0, 1, 0])):
        strong = get(name, penalty=1e9).fit(scores, labels)
        point = (
            np.ravel(strong.coef_)
            if name == "quad"
            else [getattr(strong, key) for key in ("slope_", "a_", "b_", "intercept_") if hasattr(strong, key)]
        )
        assert point == pytest.approx(identity, abs=1e-4)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", ["platt", "beta"])
def test_separable_data_give_the_optimum_of_the_smoothed_targets(name, seed):
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=80) * rng.choice([0.3, 2.0])
    labels = (scores > rng.choice([-0.1, 0.1])).astype(int)
    if seed % 3 == 0:
        labels[:] = seed % 2
    weights = rng.integers(1, 4, 80)
    fitted = quiet(name, scores, labels, sample_weight=weights)
    columns = scores[None] if name == "platt" else np.stack([-np.logaddexp(0, -scores), np.logaddexp(0, scores)])
    count = np.bincount(labels, weights, 2)
    targets = np.array([1 / (count[0] + 2), (count[1] + 1) / (count[1] + 2)])[labels]

    def objective(point):
        score = point[:-1] @ columns + point[-1]
        return weights @ (np.logaddexp(0, score) - targets * score)

    bounds = [(None if name == "platt" else 0.0, None)] * len(columns) + [(None, None)]
    start = np.append(np.ones(len(columns)), 0.0)
    found = minimize(objective, start, bounds=bounds, method="L-BFGS-B", options={"ftol": 1e-16, "gtol": 1e-10})
    own = np.array([getattr(fitted, key) for key in ("slope_", "a_", "b_", "intercept_") if hasattr(fitted, key)])
    assert objective(own) <= found.fun + 1e-9


@given(st.integers(0, 200), st.floats(0.01, 100.0), st.floats(-300.0, 300.0), st.booleans())
@pytest.mark.parametrize("name", ["platt", "quad", "spline"])
def test_shifting_and_scaling_the_scores_changes_no_probability(name, seed, scale, shift, separable):
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=60)
    labels = (scores + (0.0 if separable else 0.8) * rng.normal(size=60) > 0.3).astype(int)
    labels[[scores.argmin(), scores.argmax()]] = 0, 1
    plain, moved = (quiet(name, given, labels).predict_proba(given) for given in (scores, scale * scores + shift))
    np.testing.assert_allclose(moved, plain, atol=1e-6)


@given(st.integers(0, 200), st.floats(0.01, 100.0), st.floats(10.0, 300.0), st.sampled_from([-1, 1]))
def test_bend_of_scores_that_another_threshold_separates_is_platt_scaling(seed, scale, shift, sign):
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=60)
    labels = (scores > 0.3).astype(int)
    labels[[scores.argmin(), scores.argmax()]] = 0, 1
    moved = scale * (scores + sign * shift)
    outputs = [quiet(name, moved, labels).predict_proba(moved) for name in ("bend", "platt")]
    np.testing.assert_allclose(*outputs, atol=1e-9)
    np.testing.assert_allclose(outputs[0], quiet("platt", scores, labels).predict_proba(scores), atol=1e-6)


@pytest.mark.parametrize("name", ["platt", "beta", "quad", "spline", "bend"])
def test_separable_scores_far_from_zero_give_moderate_probabilities(name):
    rng = np.random.default_rng(0)
    scores = np.concatenate([rng.uniform(50, 60, 40), rng.uniform(200, 210, 40)])
    labels = np.repeat([0, 1], 40)
    order = rng.permutation(80)
    fitted = quiet(name, scores[order[:40]], labels[order[:40]])
    assert metrics.nll(fitted.predict_proba(scores[order[40:]])[:, 1], labels[order[40:]]) < 0.1


@pytest.mark.parametrize("seed", range(8))
def test_platt_of_separable_scores_is_the_sigmoid_of_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    scores = 40 * rng.normal(size=50) - 10
    labels = (scores > 5).astype(int)
    reference = _SigmoidCalibration().fit(scores, labels).predict(scores)
    np.testing.assert_allclose(quiet("platt", scores, labels).predict_proba(scores)[:, 1], reference, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_shape_of_one_score_never_loses_to_the_scores_as_they_are(kind):
    scores, labels = degenerate(kind)
    after = metrics.nll(quiet("shape", scores, labels).transform(scores), labels, from_logits=True)
    assert after <= allowed_loss(scores, labels)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("value", [0.0, 1e-3, 3.0, -700.0, 1e9])
@pytest.mark.parametrize("name", ["platt", "beta", "quad", "spline"])
def test_equal_scores_get_the_base_rate_and_others_keep_their_distance(name, value, weighted):
    labels = np.array([1, 1, 1, 0, 0, 0, 0, 0, 0, 0])
    weights = np.array([4.0, 1, 1, 1, 1, 1, 1, 1, 1, 2]) if weighted else None
    rate = np.average(labels, weights=weights)
    with pytest.warns(FitWarning, match="scores are equal"):
        fitted = get(name).fit(np.full(10, value), labels, sample_weight=weights)
    odds = np.log(rate / (1 - rate))
    expected = sigmoid(odds + np.array([0.0, 0.5, -0.5]))  # within the floor of zeros, at half the smallest probability
    assert fitted.predict_proba(value + np.array([0.0, 0.5, -0.5]))[:, 1] == pytest.approx(expected, abs=1e-6)
