"""Resampling: the draws, the two kinds of interval, and that tables of cells say what the metrics say."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.core.bins import mass_index, total_gap, width_index
from calibrant.core.errors import InputError
from calibrant.core.softmax import softmax
from calibrant.evaluation.bootstrap import ROW_LIMIT, draw, inverted_interval, percentile_interval, poisson_table
from calibrant.evaluation.intervals import Cells, Intervals
from calibrant.evaluation.scoring import chosen_metrics, column_rows, estimated
from calibrant.kernels.rows import RowColumns
from calibrant.metrics import adaptive_ece, ece
from calibrant.metrics.inputs import Checked, check
from calibrant.metrics.record import ClassSpread, Gaps
from calibrant.metrics.top_label import laplacian_root, reflected_gaussian


def mean_intervals(columns, weights, drawn):
    """Intervals and draws of means of columns."""
    intervals, draws = {}, {}
    for name, column in columns.items():
        mass = np.ones(len(column[drawn.rows])) if weights is None else weights[drawn.rows]
        value = float(np.average(column, weights=weights))
        draws[name] = value + drawn.mean_draws(column[drawn.rows][:, None], mass)[:, 0]
        intervals[name] = percentile_interval(draws[name], value)
    return intervals, draws


def cells_of(confidence, correct, weights, drawn, n_bins=15, **options):
    """Cells of confidences and correctness."""
    return Cells(Checked(confidence, correct.astype(int), weights, False, "pairs"), drawn, n_bins, **options)


def binned(cells, index):
    """Residual and noise of bins."""
    onehot = np.eye(int(index.max()) + 1)[index]
    return cells.residual @ onehot, cells.noise @ onehot


def estimates(names, confidence, correct, drawn, task="pairs"):
    """Figures with intervals of confidences and correctness."""
    rows = RowColumns(confidence, np.zeros(len(correct), int), correct, np.ones(len(correct)), correct, correct)
    rows = column_rows(rows, drawn, None, task=task, of_logits=False)
    return estimated(chosen_metrics(names, task), rows, drawn, 15, paired=True)[0]


def columns(n: int, seed: int, gap: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    confidence = 1 - 0.8 * generator.beta(1, 3, n)
    return confidence, generator.random(n) < np.clip(confidence - gap, 0, 1)


def test_counts_follow_a_poisson_law():
    table = poisson_table()
    assert table.mean() == pytest.approx(1, abs=2e-4)
    assert table.var() == pytest.approx(1, abs=5e-3)
    assert (table == 0).mean() == pytest.approx(np.exp(-1), abs=1e-4)


def test_draws_repeat_under_a_seed_and_refuse_nonsense():
    assert np.array_equal(draw(50, 20, 3).counts, draw(50, 20, 3).counts)
    assert not np.array_equal(draw(50, 20, 3).counts, draw(50, 20, 4).counts)
    assert (draw(1, 200, 0).counts.sum(axis=1) > 0).all()
    with pytest.raises(InputError, match="got 0"):
        draw(50, 0, 0)


def test_sums_over_resamples_are_exact_to_float64():
    """Float32 products would differ between processors from the seventh digit on."""
    drawn, columns = draw(5000, 100, 0), np.random.default_rng(0).lognormal(sigma=3.0, size=(2, 5000))
    cell = np.random.default_rng(1).integers(0, 3, 5000)
    for place in (0, 57, 99):
        rows = np.repeat(np.arange(5000), drawn.counts[place])
        expected = [[math.fsum(column[rows[cell[rows] == k]]) for k in range(3)] for column in columns]
        assert drawn.cell_sums(cell, columns, 3)[place] == pytest.approx(np.array(expected), rel=1e-12)
        assert drawn.sums(columns.T)[place] == pytest.approx(np.sum(expected, axis=1), rel=1e-12)


def test_mean_interval_has_the_width_of_the_standard_error():
    column = np.random.default_rng(0).exponential(size=3000)
    intervals, _ = mean_intervals({"x": column}, None, draw(3000, 4000, 0))
    low, high = intervals["x"]
    assert low < column.mean() < high
    assert (high - low) / 2 == pytest.approx(1.96 * column.std() / np.sqrt(3000), rel=0.06)


def test_many_rows_are_thinned_and_the_noise_scaled():
    column = np.random.default_rng(0).normal(size=20_000)
    assert draw(20_000, 5, 0).counts.shape == (5, ROW_LIMIT)
    low, high = mean_intervals({"x": column}, None, draw(20_000, 2000, 0))[0]["x"]
    assert (high - low) / 2 == pytest.approx(1.96 / np.sqrt(20_000), rel=0.08)


def test_weights_act_as_copies():
    column = np.array([0.0, 1.0, 2.0, 5.0])
    weights = np.array([1.0, 2.0, 1.0, 3.0])
    intervals, draws = mean_intervals({"x": column}, weights, draw(4, 50, 0))
    counts = draw(4, 50, 0).counts * weights
    assert draws["x"] == pytest.approx((counts @ column) / counts.sum(axis=1), rel=1e-12)
    assert intervals["x"][0] <= np.average(column, weights=weights) <= intervals["x"][1]


@given(st.integers(0, 10_000), st.integers(1, 20))
def test_cells_add_up_to_the_bins_of_the_metrics(seed, n_bins):
    generator = np.random.default_rng(seed)
    confidence = np.round(generator.random(60), 2)  # ties and values on edges
    correct = generator.random(60) < 0.5
    weights = generator.integers(1, 4, 60).astype(float) if seed % 2 else None
    cells = cells_of(confidence, correct, weights, draw(60, 3, 0), n_bins=n_bins, fine=7)
    assert total_gap(binned(cells, cells.width)[0]) == pytest.approx(
        ece(confidence, correct, sample_weight=weights, n_bins=n_bins)
    )
    adaptive = adaptive_ece(confidence, correct, sample_weight=weights, n_bins=n_bins)
    assert total_gap(binned(cells, cells.mass)[0]) == pytest.approx(adaptive)
    assert (np.diff(cells.confidence) > 0).all()


def test_noise_of_cells_is_that_of_explicit_resamples():
    confidence, correct = columns(300, 1)
    drawn = draw(300, 40, 2)
    cells = cells_of(confidence, correct, None, drawn, fine=1)
    residual, noise = binned(cells, cells.width)
    for place in (0, 17, 39):
        resampled = ece(confidence, correct, sample_weight=drawn.counts[place].astype(float))
        assert total_gap(residual + noise[place]) == pytest.approx(resampled, rel=1e-12)


def test_intervals_cover_a_known_error_and_hold_the_estimate():
    missed = 0
    for seed in range(120):
        confidence, correct = columns(600, seed, gap=0.1)
        truth = 0.1  # every confidence is 0.1 too high (all lie above 0.2)
        found = estimates(["ece"], confidence, correct, draw(600, 300, seed))["ece"]
        assert found.low <= found.value <= found.high
        missed += not found.low <= truth <= found.high
    assert missed <= 14  # 6 expected; 14 has a chance below 0.2%


def test_bins_without_rows_do_not_narrow_the_interval():
    missed = 0
    for seed in range(120):
        confidence, correct = columns(2000, seed, gap=0.05)  # all lie above 0.2: three bins are empty
        found = estimates(["ece"], confidence, correct, draw(2000, 200, seed))["ece"]
        missed += not found.low <= 0.05 <= found.high
    assert missed <= 14  # 6 expected; with the common gap spread over empty bins there were 20


def test_interval_of_calibrated_data_starts_at_zero():
    starts = []
    for seed in range(60):
        confidence, correct = columns(500, seed, gap=0.0)
        starts.append(estimates(["ece"], confidence, correct, draw(500, 300, seed))["ece"].low)
    assert np.mean(np.array(starts) == 0) > 0.9


def test_inverted_interval_of_one_clear_gap_is_the_normal_interval():
    noise = 0.01 * np.random.default_rng(0).standard_normal((20_000, 1))
    low, high = inverted_interval(total_gap, np.array([0.2]), noise, value=0.2)
    assert low == pytest.approx(0.2 - 0.0196, abs=6e-4)
    assert high == pytest.approx(0.2 + 0.0196, abs=6e-4)


def test_inverted_interval_of_nothing():
    assert inverted_interval(total_gap, np.zeros(3), np.zeros((10, 3)), value=0.0) == (0.0, 0.0)


def test_percentile_interval_holds_the_value():
    assert percentile_interval(np.array([1.0, 2.0]), 5.0)[1] == 5.0
    assert np.isnan(percentile_interval(np.array([np.nan]), 1.0)[0])


def test_smooth_figures_of_cells_are_near_the_exact_ones():
    confidence, correct = columns(4000, 5)
    cells = cells_of(confidence, correct, None, draw(4000, 200, 0))
    found = estimates(["soft_ece", "smooth_ece", "mmce"], confidence, correct, draw(4000, 200, 0))
    root = laplacian_root(cells, 0.0)
    assert np.sqrt(((cells.residual @ root) ** 2).sum()) == pytest.approx(found["mmce"].value, rel=1e-3)
    kernel = reflected_gaussian(cells, found["smooth_ece"].value)
    assert np.abs(cells.residual @ kernel).mean() == pytest.approx(found["smooth_ece"].value, rel=1e-2)
    for one in found.values():
        assert 0.02 < one.low <= one.value <= one.high < 0.09


def test_laplacian_root_is_exact_with_ties():
    points = np.array([0.1, 0.4, 0.4, 0.9])
    root = laplacian_root(SimpleNamespace(confidence=points), 0.0)
    assert root @ root.T == pytest.approx(np.exp(-np.abs(points[:, None] - points) / 0.4))


def test_ranking_figures():
    confidence, correct = columns(3000, 6)
    for one in estimates(["confidence_auroc", "aurc"], confidence, correct, draw(3000, 400, 0)).values():
        assert one.low < one.value < one.high
        assert one.high - one.low < 0.06


def test_monotone_bins_never_fall():
    confidence, correct = columns(2000, 7)
    cells = cells_of(confidence, correct, None, draw(2000, 3, 0))
    index = cells.table(Gaps("monotone", total_gap), 0.0).argmax(axis=1)
    share, right = np.bincount(index, cells.share), np.bincount(index, cells.share * cells.confidence - cells.residual)
    assert index.max() >= 1
    assert (np.diff(right / share) >= -1e-12).all()


@pytest.mark.parametrize("binning", ["width", "mass"])
@pytest.mark.parametrize("weighted", [False, True])
def test_class_noise_equals_explicit_resamples(weighted, binning):
    generator = np.random.default_rng(0)
    probabilities = softmax(2 * generator.normal(size=(200, 6)))
    labels = generator.integers(0, 6, 200)
    weights = generator.uniform(0.5, 2, 200) if weighted else None
    mass = np.ones(200) if weights is None else weights
    drawn = draw(200, 30, 0)
    rows: Any = check(probabilities, labels, weights, from_logits=False)
    rows.kept, rows.draws = probabilities, drawn
    used, noise = Intervals(rows, drawn, [], 5)._class_noise(binning)
    gaps = probabilities - np.eye(6)[labels]
    index = width_index(probabilities.ravel(), 5).reshape(200, 6)
    if binning == "mass":
        index = np.stack([mass_index(column, 5, weights) for column in probabilities.T], axis=1)

    def residual(counts):
        table = np.zeros((6, 5))
        for j in range(6):
            table[j] = np.bincount(index[:, j], counts * gaps[:, j], minlength=5)
        return table.ravel() / counts.sum()

    expected = residual(mass * drawn.counts[11]) - residual(mass)
    assert noise[11] == pytest.approx(expected[used], abs=1e-6)
    assert not np.delete(expected, used).any()


def test_fewer_rows_keep_the_scale():
    drawn = draw(1000, 500, 0).fewer(250)
    assert drawn.counts.shape == (500, 250)
    assert drawn.shrink == pytest.approx(0.5)


@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_class_losses_are_redrawn_however_little_of_a_class_is_drawn(scale):
    generator = np.random.default_rng(4)
    labels = np.repeat([0, 1, 2], [60, 2, 3])
    probabilities = generator.dirichlet(np.ones(3), 65)
    drawn = draw(65, 40, 0)
    rows: Any = check(probabilities, labels, np.full(65, scale), from_logits=False)
    rows.draws = drawn
    _, draws = Intervals(rows, drawn, [], 5)._class_spread(ClassSpread("nll"), 1.0)
    losses = -np.log(probabilities[np.arange(65), labels])
    rare = 0
    for counts, found in zip(drawn.counts, draws, strict=True):
        means = [losses[labels == one].mean() for one in range(3)]
        for one in range(3):
            own = labels == one
            rare += counts[own].sum() == 1
            if counts[own].any():
                means[one] = np.average(losses[own], weights=counts[own])
        assert found == pytest.approx(np.std(means), abs=1e-9)
    assert rare > 5
