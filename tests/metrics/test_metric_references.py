"""Each metric against an independent implementation: another library where it agrees by definition, else a loop."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from calibrant import metrics

DTYPES = [np.float16, np.float32, np.float64]


@pytest.fixture(params=DTYPES, ids=["float16", "float32", "float64"])
def problem(request):
    """Probabilities in a dtype, the same numbers in float64, labels, and how far the two may differ."""
    rng = np.random.default_rng(3)
    probabilities = rng.dirichlet(np.full(6, 0.5), 700).astype(request.param)
    labels = np.array([rng.choice(6, p=row / row.sum()) for row in probabilities.astype(np.float64)])
    return probabilities, probabilities.astype(np.float64), labels


def top(wide, labels):
    return wide.max(axis=1), (wide.argmax(axis=1) == labels).astype(float)


def literal_bins(confidence, n_bins, dtype):
    edges = (np.arange(n_bins + 1) / n_bins).astype(np.float32 if dtype == np.float16 else dtype).astype(float)
    found = []
    for b in range(n_bins):
        inside = [i for i, c in enumerate(confidence) if edges[b] < c <= edges[b + 1] or (b == 0 and c == 0)]
        if inside:
            found.append(inside)
    return found


def literal_mass_bins(confidence, n_bins):
    ranks = [sum(other < c for other in confidence) for c in confidence]
    index = [math.floor(n_bins * rank / len(confidence)) for rank in ranks]
    return [[i for i, j in enumerate(index) if j == b] for b in range(n_bins) if b in index]


def literal_ece(confidence, correct, bins, norm=1, weighting="bin"):
    total, worst = 0.0, 0.0
    for inside in bins:
        accuracy, mean = np.mean(correct[inside]), np.mean(confidence[inside])
        gaps = [abs(accuracy - mean)] * len(inside) if weighting == "bin" else abs(accuracy - confidence[inside])
        worst = max(worst, *gaps) if len(gaps) > 1 else max(worst, gaps[0])
        if norm != math.inf:
            total += sum(gap**norm for gap in gaps)
    return worst if norm == math.inf else (total / len(confidence)) ** (1 / norm)


@pytest.mark.parametrize("norm", [1, 2, math.inf])
@pytest.mark.parametrize("weighting", ["bin", "label"])
@pytest.mark.parametrize("n_bins", [1, 10, 15])
def test_ece_is_the_literal_sum(problem, norm, weighting, n_bins):
    probabilities, wide, labels = problem
    c, a = top(wide, labels)
    expected = literal_ece(c, a, literal_bins(c, n_bins, probabilities.dtype), norm, weighting)
    ours = metrics.ece(probabilities, labels, n_bins=n_bins, norm=norm, weighting=weighting)
    assert ours == pytest.approx(expected, abs=1e-7)
    expected = literal_ece(c, a, literal_mass_bins(c, n_bins), norm, weighting)
    ours = metrics.ece(probabilities, labels, n_bins=n_bins, norm=norm, weighting=weighting, binning="mass")
    assert ours == pytest.approx(expected, abs=1e-7)


def test_adaptive_ece_is_the_literal_sum(problem):
    probabilities, wide, labels = problem
    c, a = top(wide, labels)
    expected = literal_ece(c, a, literal_mass_bins(c, 15))
    assert metrics.adaptive_ece(probabilities, labels) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("norm", "theirs"), [(1, "l1"), (2, "l2"), (math.inf, "max")])
def test_ece_agrees_with_torchmetrics_off_the_edges(norm, theirs):
    torch = pytest.importorskip("torch")
    functional = pytest.importorskip("torchmetrics.functional.classification")
    rng = np.random.default_rng(4)
    probabilities = rng.dirichlet(np.full(5, 0.5), 2000)
    labels = rng.integers(0, 5, 2000)
    expected = functional.multiclass_calibration_error(
        torch.tensor(probabilities), torch.tensor(labels), num_classes=5, n_bins=15, norm=theirs
    )
    assert metrics.ece(probabilities, labels, norm=norm) == pytest.approx(float(expected), abs=2e-6)


def test_over_under_is_the_literal_sum(problem):
    probabilities, wide, labels = problem
    c, a = top(wide, labels)
    over = under = 0.0
    for inside in literal_bins(c, 15, probabilities.dtype):
        gap = np.mean(c[inside]) - np.mean(a[inside])
        over += len(inside) / len(c) * max(0, gap)
        under += len(inside) / len(c) * max(0, -gap)
    split = metrics.over_under_confidence(probabilities, labels)
    assert (split.over, split.under) == pytest.approx((over, under), abs=1e-9)


def test_classwise_metrics_are_literal_sums(problem):
    probabilities, wide, labels = problem
    n_classes = wide.shape[1]
    by_class, by_class_mass, ranges = [], [], []
    for j in range(n_classes):
        hit = (labels == j).astype(float)
        by_class.append(literal_ece(wide[:, j], hit, literal_bins(wide[:, j], 15, probabilities.dtype)))
        bins = literal_mass_bins(wide[:, j], 15)
        by_class_mass.append(literal_ece(wide[:, j], hit, bins, norm=2))
        ranges.append(sum(abs(np.mean(hit[i]) - np.mean(wide[i, j])) for i in bins) / 15)
    np.testing.assert_allclose(metrics.classwise_ece(probabilities, labels), by_class, atol=1e-7)
    assert metrics.classwise_ece(probabilities, labels, average="mean") == pytest.approx(np.mean(by_class), abs=1e-7)
    assert metrics.sce(probabilities, labels) == pytest.approx(np.mean(by_class), abs=1e-7)
    assert metrics.ace(probabilities, labels) == pytest.approx(np.mean(ranges), abs=1e-7)
    expected = math.sqrt(np.mean(np.square(by_class_mass)))
    assert metrics.marginal_ece(probabilities, labels) == pytest.approx(expected, abs=1e-7)


def test_debiased_ece_is_the_literal_sum(problem):
    probabilities, wide, labels = problem
    c, a = top(wide, labels)
    square = 0.0
    for inside in literal_bins(c, 15, probabilities.dtype):
        if len(inside) >= 2:
            accuracy = np.mean(a[inside])
            noise = accuracy * (1 - accuracy) / (len(inside) - 1)
            square += len(inside) / len(c) * ((np.mean(c[inside]) - accuracy) ** 2 - noise)
    expected = math.sqrt(max(0, square))
    assert metrics.debiased_ece(probabilities, labels) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_sweep_ece_is_the_literal_sweep(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 90))
    confidence = rng.random(n) if seed % 2 else rng.integers(0, 12, n) / 12
    sharpness = [1, 4, 40][seed % 3]
    correct = rng.random(n) < 1 / (1 + np.exp(-sharpness * (confidence - 0.5)))
    chosen = 1
    for count in range(1, n + 1):
        accuracies = [np.mean(correct[inside]) for inside in literal_mass_bins(confidence, count)]
        if any(later < earlier - 1e-12 for earlier, later in pairwise(accuracies)):
            break
        chosen = count
    expected = literal_ece(confidence, correct.astype(float), literal_mass_bins(confidence, chosen))
    assert metrics.sweep_ece(confidence, correct) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("wrong_rank", [1, 3, 40, 199])
def test_sweep_finds_a_single_late_break(wrong_rank):
    confidence = np.arange(1, 201) / 201
    correct = np.ones(200, dtype=bool)
    correct[wrong_rank] = False
    count = 1
    while True:
        accuracies = [np.mean(correct[inside]) for inside in literal_mass_bins(confidence, count + 1)]
        if np.any(np.diff(accuracies) < 0):
            break
        count += 1
    expected = literal_ece(confidence, correct.astype(float), literal_mass_bins(confidence, count))
    assert metrics.sweep_ece(confidence, correct) == pytest.approx(expected, abs=1e-12)


def test_sweep_finds_an_early_break_when_the_accuracy_also_rises_at_the_end():
    hits = np.array([1, 0, *[2] * 67, 4])  # of four rows per confidence
    confidence, correct = np.repeat(np.arange(1, 71) / 71, 4), (np.arange(4) < hits[:, None]).ravel()
    # 69 bins merge the first two confidences; 70 bins separate them, and the accuracy falls
    expected = literal_ece(confidence, correct, literal_mass_bins(confidence, 69))
    assert metrics.sweep_ece(confidence, correct) == pytest.approx(expected, abs=1e-12)


def test_ks_error_is_the_literal_maximum(problem):
    probabilities, wide, labels = problem
    c, a = top(wide, labels)
    expected = max(abs(sum((c - a)[c <= t])) / len(c) for t in c)
    assert metrics.ks_error(probabilities, labels) == pytest.approx(expected, abs=1e-12)


def reflected_smooth_error(confidence, correct, bandwidth, n_points=4000):
    t = (np.arange(n_points) + 0.5) / n_points
    total = np.zeros(n_points)
    for c, a in zip(confidence, correct, strict=True):
        for image in [c + 2 * m for m in (-2, -1, 0, 1, 2)] + [2 * m - c for m in (-2, -1, 0, 1, 2)]:
            total += (a - c) * np.exp(-((t - image) ** 2) / (2 * bandwidth**2))
    return np.abs(total / (bandwidth * math.sqrt(2 * math.pi)) / len(confidence)).mean()


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_smooth_ece_is_its_own_bandwidth(power):
    rng = np.random.default_rng(5)
    confidence = 1 - 0.7 * rng.random(300) ** 2
    correct = rng.random(300) < confidence**power
    value = metrics.smooth_ece(confidence, correct)
    assert reflected_smooth_error(confidence, correct, value) == pytest.approx(value, abs=2e-5)


def test_smooth_ece_agrees_with_relplot_away_from_the_ends(monkeypatch):
    relplot = pytest.importorskip("relplot")
    monkeypatch.setattr("relplot.config.smECE_mesh_pts", 5000)
    rng = np.random.default_rng(6)
    confidence = rng.uniform(0.3, 0.9, 3000)
    correct = rng.random(3000) < confidence + 0.1 * np.sin(12 * confidence)
    value = metrics.smooth_ece(confidence, correct)
    assert relplot.smECE_sigma(confidence, correct.astype(float), value) == pytest.approx(value, abs=1e-4)
    assert relplot.smECE(confidence, correct.astype(float)) == pytest.approx(value, abs=1e-3)


@pytest.mark.parametrize("weighting", ["bin", "label"])
@pytest.mark.parametrize("norm", [1, 2, math.inf])
def test_soft_ece_is_the_literal_sum(problem, weighting, norm):
    probabilities, wide, labels = problem
    c, a = top(wide, labels)
    u = []
    for confidence in c:
        raw = [math.exp(-((confidence - (j + 0.5) / 15) ** 2) / 0.01) for j in range(15)]
        u.append([value / sum(raw) for value in raw])
    u = np.array(u)
    size = u.sum(axis=0)
    accuracy, mean = u.T @ a / size, u.T @ c / size
    gap = np.abs(accuracy - mean) if weighting == "bin" else np.abs(accuracy - c[:, None])
    if norm == math.inf:
        expected = gap.max()
    elif weighting == "bin":
        expected = (size / len(c) @ gap**norm) ** (1 / norm)
    else:
        expected = ((u * gap**norm).sum() / len(c)) ** (1 / norm)
    ours = metrics.soft_ece(probabilities, labels, weighting=weighting, norm=norm)
    assert ours == pytest.approx(expected, abs=1e-9)


def test_mmce_is_the_literal_double_sum(problem):
    probabilities, wide, labels = problem
    c, a = top(wide, labels)
    kernel = np.exp(-np.abs(c[:, None] - c[None, :]) / 0.4)
    expected = math.sqrt((a - c) @ kernel @ (a - c)) / len(c)
    assert metrics.mmce(probabilities, labels) == pytest.approx(expected, abs=1e-12)


def test_proper_scores_agree_with_sklearn(problem):
    from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

    probabilities, wide, labels = problem
    kept = wide[np.arange(len(wide)), labels] > 1e-6
    p, y = probabilities[kept], labels[kept]
    exact = wide[kept]
    normalised = exact / exact.sum(axis=1, keepdims=True)
    rounding = {np.float16: 1e-3, np.float32: 1e-6, np.float64: 1e-12}[probabilities.dtype.type]
    assert metrics.nll(p, y) == pytest.approx(log_loss(y, normalised, labels=range(6)), abs=rounding)
    theirs = brier_score_loss(np.eye(6)[y], normalised, scale_by_half=False)
    assert metrics.brier(p, y) == pytest.approx(theirs, abs=rounding)
    assert metrics.accuracy(p, y) == pytest.approx(accuracy_score(y, exact.argmax(axis=1)))


def test_entropy_and_confidence_are_plain_means(problem):
    from scipy.stats import entropy

    probabilities, wide, labels = problem
    rounding = {np.float16: 1e-3, np.float32: 1e-6, np.float64: 1e-12}[probabilities.dtype.type]
    assert metrics.entropy(probabilities, labels) == pytest.approx(entropy(wide, axis=1).mean(), abs=rounding)
    assert metrics.confidence(probabilities, labels) == pytest.approx(wide.max(axis=1).mean(), abs=1e-12)


@pytest.mark.parametrize("decimals", [1, 12])
@pytest.mark.parametrize("weighted", [False, True])
def test_auroc_agrees_with_sklearn(decimals, weighted):
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(7)
    confidence = np.round(rng.uniform(0.5, 1, 400), decimals)
    correct = rng.random(400) < confidence
    p, y = np.stack([confidence, 1 - confidence], axis=1), (~correct).astype(int)
    weights = rng.random(400) if weighted else None
    expected = roc_auc_score(correct, confidence, sample_weight=weights)
    assert metrics.confidence_auroc(p, y, sample_weight=weights) == pytest.approx(expected, abs=1e-12)


def test_risk_coverage_and_its_area_are_literal_means():
    rng = np.random.default_rng(8)
    confidence = rng.permutation(np.linspace(0.5, 1, 150))
    correct = rng.random(150) < confidence
    p, y = np.stack([confidence, 1 - confidence], axis=1), (~correct).astype(int)
    order = np.argsort(-confidence)
    risks = [np.mean(~correct[order[: k + 1]]) for k in range(150)]
    # the first row predicts class 0 at confidence one half as well
    curve = metrics.risk_coverage(p, y)
    np.testing.assert_allclose(curve.risk, risks, atol=1e-12)
    np.testing.assert_allclose(curve.coverage, np.arange(1, 151) / 150)
    np.testing.assert_allclose(curve.threshold, confidence[order])
    assert metrics.aurc(p, y) == pytest.approx(np.mean(risks), abs=1e-12)


def test_aurc_of_ties_is_the_mean_over_their_orders():
    rng = np.random.default_rng(9)
    confidence = np.array([0.9, 0.9, 0.9, 0.7, 0.7, 0.6, 0.6, 0.6])
    correct = np.array([True, False, True, False, True, True, False, False])
    areas = []
    for _ in range(4000):
        order = np.lexsort((rng.random(8), -confidence))
        areas.append(np.mean(np.cumsum(~correct[order]) / np.arange(1, 9)))
    assert metrics.aurc(confidence, correct) == pytest.approx(np.mean(areas), abs=4 * np.std(areas) / math.sqrt(4000))


@pytest.mark.parametrize("levels", [4, 1000])
@pytest.mark.parametrize("n", [2, 3, 8, 61])
@pytest.mark.parametrize("weighted", [False, True])
def test_rank_changes_is_the_literal_pair_count(levels, n, weighted):
    rng = np.random.default_rng(10 * n + levels)
    before, after = rng.integers(0, levels, n) / levels, rng.integers(0, levels, n) / levels
    weights = rng.integers(1, 4, n) if weighted else np.ones(n, dtype=int)
    first, second = np.repeat(before, weights), np.repeat(after, weights)
    pairs = [(i, j) for i in range(len(first)) for j in range(i)]
    expected = np.mean([(first[i] - first[j]) * (second[i] - second[j]) < 0 for i, j in pairs])
    ours = metrics.rank_changes(before, after, sample_weight=weights if weighted else None)
    assert ours == pytest.approx(expected, abs=1e-12)


def test_rank_changes_sees_a_temperature_flip():
    logits = np.array([[2, 1.9, -5, -5, -5, -5, -5], [2.1, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2]])
    assert metrics.rank_changes(logits, logits / 3, from_logits=True) == 1.0
    assert metrics.rank_changes(logits, logits / 1.0001, from_logits=True) == 0.0


def test_classwise_losses_are_literal_means_and_absent_classes_are_left_out(problem):
    probabilities, wide, labels = problem
    labels = np.where(labels == 2, 3, labels)
    result = metrics.classwise_losses(probabilities, labels)
    assert result.classes.tolist() == [0, 1, 3, 4, 5]
    floor = float(np.finfo(np.float32 if probabilities.dtype == np.float16 else probabilities.dtype).eps)
    losses = [np.mean(-np.log(np.maximum(wide[labels == j, j], floor))) for j in result.classes]
    np.testing.assert_allclose(result.losses, losses, rtol=1e-12)
    assert result.variance == pytest.approx(np.var(losses))
    assert result.std == pytest.approx(np.std(losses))


def test_reliability_holds_the_bins_of_the_ece(problem):
    probabilities, wide, labels = problem
    c, a = top(wide, labels)
    for binning in ("width", "mass"):
        bins = metrics.reliability(probabilities, labels, binning=binning)
        assert bins.ece == pytest.approx(metrics.ece(probabilities, labels, binning=binning), abs=1e-12)
        assert bins.counts.sum() == len(c)
        full = bins.counts > 0
        inside = [(c >= low) & (c < high) for low, high in pairwise(bins.edges)]
        if binning == "mass":
            inside[-1] |= c == bins.edges[-1]
            np.testing.assert_array_equal(bins.counts, [rows.sum() for rows in inside])
            np.testing.assert_allclose(bins.accuracy[full], [a[r].mean() for r in inside if r.any()], atol=1e-12)
        assert np.isnan(bins.accuracy[~full]).all()


def test_a_million_float32_rows_give_the_float64_answer():
    rng = np.random.default_rng(11)
    logits = (rng.normal(size=(1_000_000, 4)) * 2).astype(np.float32)
    labels = np.where(rng.random(1_000_000) < 0.5, logits.argmax(axis=1), rng.integers(0, 4, 1_000_000))
    wide = logits.astype(np.float64)
    exact = np.exp(wide - wide.max(axis=1, keepdims=True))
    exact /= exact.sum(axis=1, keepdims=True)
    narrow = exact.astype(np.float32)
    c, a = top(exact, labels)
    index = np.clip(np.ceil(c * 15).astype(int) - 1, 0, 14)
    expected = np.abs(np.bincount(index, c - a)).sum() / len(c)
    assert metrics.ece(exact, labels) == pytest.approx(expected, abs=1e-9)
    assert metrics.ece(narrow, labels) == pytest.approx(expected, abs=1e-6)
    assert metrics.ece(logits, labels, from_logits=True) == pytest.approx(expected, abs=1e-6)
    of_label = exact[np.arange(len(exact)), labels]
    brier = (exact**2).sum(axis=1) - 2 * of_label + 1
    for values, from_logits in ((narrow, False), (logits, True)):
        assert metrics.nll(values, labels, from_logits=from_logits) == pytest.approx(-np.log(of_label).mean(), abs=1e-6)
        assert metrics.brier(values, labels, from_logits=from_logits) == pytest.approx(brier.mean(), abs=1e-6)
        for name in ("accuracy", "confidence", "adaptive_ece", "ks_error", "mmce"):
            metric = metrics.METRICS[name].function
            assert metric(values, labels, from_logits=from_logits) == pytest.approx(metric(exact, labels), abs=1e-6)


def test_real_predictions_of_a_network(shared_data):
    """The plain numpy figures of a public CIFAR-100 network, from the logits as they are."""
    with np.load(shared_data / "zoo" / "c100_resnet18_ce.npz") as file:
        logits, labels = file["test_logits"], file["test_labels"]
    wide = logits.astype(np.float64)
    p = np.exp(wide - wide.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    c, a = top(p, labels)
    index = np.ceil(c * 15).astype(int) - 1
    expected = np.abs(np.bincount(index, c - a)).sum() / len(c)
    assert metrics.ece(logits, labels, from_logits=True) == pytest.approx(expected, abs=1e-9)
    assert metrics.nll(logits, labels, from_logits=True) == pytest.approx(
        -np.log(p[np.arange(len(p)), labels]).mean(), abs=1e-9
    )
