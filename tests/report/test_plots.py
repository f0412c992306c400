"""The figures for papers: the data behind them against independent computations, and that they draw."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant import plots
from calibrant.core.errors import InputError
from calibrant.core.softmax import softmax
from calibrant.evaluation.consistency import reliability_bins


@pytest.fixture(scope="module")
def scores() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(3)
    labels = generator.integers(0, 5, 800)
    return softmax(3 * generator.normal(size=(800, 5)) + 4 * np.eye(5)[labels]), labels


@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 300),
    n_bins=st.integers(1, 20),
    binning=st.sampled_from(["width", "mass"]),
)
def test_bins_add_up_to_the_whole(seed: int, n: int, n_bins: int, binning: str) -> None:
    generator = np.random.default_rng(seed)
    confidence, correct = generator.random(n).round(2), generator.random(n) < 0.6
    bins = reliability_bins(confidence, correct, n_bins=n_bins, binning=binning)
    assert bins.count.sum() == bins.n == n
    full = bins.filled
    assert np.isclose(bins.share[full] @ bins.confidence[full], confidence.mean())
    assert np.isclose(bins.share[full] @ bins.accuracy[full], correct.mean())
    assert np.isclose(bins.over - bins.under, confidence.mean() - correct.mean())
    assert (bins.accuracy_low <= bins.accuracy + 1e-12)[full].all()
    assert (bins.accuracy_high >= bins.accuracy - 1e-12)[full].all()
    assert (bins.noise_low <= bins.noise_high)[full].all()


def test_ece_of_the_diagram_is_the_plain_loop(scores: tuple[np.ndarray, np.ndarray]) -> None:
    probabilities, labels = scores
    confidence, correct = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    expected = 0.0
    for j in range(15):
        inside = (confidence > j / 15) & (confidence <= (j + 1) / 15)
        if inside.any():
            expected += inside.mean() * abs(confidence[inside].mean() - correct[inside].mean())
    assert np.isclose(plots.reliability(probabilities, labels).ece, expected)


def test_a_weight_of_two_is_the_row_twice(rng: np.random.Generator) -> None:
    confidence, correct, weights = rng.random(200), rng.random(200) < 0.5, rng.integers(1, 4, 200)
    weighted = reliability_bins(confidence, correct, weights=weights.astype(float))
    repeated = reliability_bins(np.repeat(confidence, weights), np.repeat(correct, weights))
    for name in ("confidence", "accuracy", "share"):
        np.testing.assert_allclose(getattr(weighted, name), getattr(repeated, name))


def test_chance_band_holds_95_percent_of_calibrated_accuracies(rng: np.random.Generator) -> None:
    confidence = rng.beta(5, 1.2, 2000)
    bins = reliability_bins(confidence, rng.random(2000) < confidence, n_bins=10)
    full, index = bins.filled, np.minimum((confidence * 10).astype(int), 9)
    inside = []
    for _ in range(600):
        correct = rng.random(2000) < confidence
        accuracy = np.bincount(index, weights=correct, minlength=10) / np.maximum(np.bincount(index, minlength=10), 1)
        accuracy = accuracy[np.bincount(index, minlength=10) > 0]
        inside.append((accuracy >= bins.noise_low[full] - 1e-9) & (accuracy <= bins.noise_high[full] + 1e-9))
    share, large = np.mean(inside, axis=0), bins.count[full] >= 30
    assert large.sum() >= 5
    assert (np.abs(share[large] - 0.95) < 0.03).all()


def test_a_bin_of_one_row_that_went_the_likely_way_lies_within_chance() -> None:
    bins = reliability_bins(np.array([0.05, 0.95]), np.array([False, True]))
    assert (bins.noise_low <= bins.accuracy)[bins.filled].all()
    assert (bins.accuracy <= bins.noise_high)[bins.filled].all()


def test_class_errors_equal_a_loop_over_classes_and_bins(scores: tuple[np.ndarray, np.ndarray]) -> None:
    probabilities, labels = scores
    result = plots.class_calibration(probabilities, labels)
    for j in range(5):
        p, hit = probabilities[:, j], labels == j
        over = under = 0.0
        for b in range(15):
            inside = (p > b / 15) & (p <= (b + 1) / 15)
            if inside.any():
                gap = p[inside].mean() - hit[inside].mean()
                over, under = over + inside.mean() * max(0, gap), under + inside.mean() * max(0, -gap)
        assert np.isclose(result.over[j], over)
        assert np.isclose(result.under[j], under)
        assert np.isclose(result.accuracy[j], (probabilities.argmax(axis=1) == labels)[hit].mean())


def test_absent_class_has_no_accuracy() -> None:
    result = plots.class_calibration([[0.5, 0.3, 0.2], [0.2, 0.5, 0.3]], [0, 1])
    assert np.isnan(result.accuracy[2])
    assert result.count[2] == 0


def test_paths_on_the_simplex_are_distributions_that_lose_confidence() -> None:
    paths = plots.simplex_paths([0.7, 0.2, 0.1])
    for path in (paths.temperature, paths.weight):
        np.testing.assert_allclose(path.sum(axis=1), 1)
        np.testing.assert_allclose(path[0], [0.7, 0.2, 0.1])
        assert (np.diff(path[:, 0]) < 0).all()
        assert (path.argmax(axis=1)[:-1] == 0).all()
    # weight scaling is a straight line, temperature scaling is not
    assert np.linalg.matrix_rank(paths.weight - paths.weight[0], tol=1e-9) == 1
    assert np.linalg.matrix_rank(paths.temperature - paths.temperature[0], tol=1e-3) == 2


def test_entropy_of_uniform_rows_is_log_k() -> None:
    assert np.isclose(plots.error_and_entropy(np.full((4, 8), 1 / 8), [0, 1, 2, 3]).entropy, np.log(8))


def figures(scores: tuple[np.ndarray, np.ndarray]) -> dict[str, tuple]:
    probabilities, labels = scores
    models = {"none": probabilities, "flat": 0.7 * probabilities + 0.06}
    return {
        "reliability_diagram": (probabilities, labels),
        "class_ece_vs_accuracy": (probabilities, labels),
        "class_temperature_vs_accuracy": ([1.0, 1.5, 2.0], [0.9, 0.8, 0.7]),
        "accuracy_confidence_curve": (models, labels),
        "ece_vs_entropy": (models, labels),
        "loss_traces": ({"ce": [3.0, 2.0, 1.5], "focal": [2.0, 1.0]},),
        "simplex_trajectories": (),
        "risk_coverage_curve": (models, labels),
        "shift_curves": ([0, 1, 2], {"none": [0.1, 0.2, 0.3]}, {"none": [0.01, 0.01, 0.02]}),
    }


NAMES = list(figures((np.full((1, 2), 0.5), np.zeros(1, dtype=int))))


@pytest.mark.parametrize("name", NAMES)
def test_figure_draws_into_given_axes_and_returns_them(name: str, scores: tuple[np.ndarray, np.ndarray]) -> None:
    from matplotlib.figure import Figure

    ax = Figure().add_subplot()
    assert getattr(plots, name)(*figures(scores)[name], ax=ax, title="a title") is ax
    assert ax.get_title() == "a title"
    assert ax.has_data()


@pytest.mark.parametrize("name", NAMES)
def test_figure_without_axes_makes_its_own_and_renders(
    name: str, scores: tuple[np.ndarray, np.ndarray], tmp_path
) -> None:
    ax = getattr(plots, name)(*figures(scores)[name])
    ax.figure.savefig(tmp_path / "figure.png", dpi=40)
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_class_loss_trace_draws_all_classes() -> None:
    ax = plots.class_loss_trace(np.linspace(1, 0, 40).reshape(10, 4)).plot()
    assert len(ax.lines) == 4 + 3 + 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: plots.reliability_diagram([[0.5, 0.6]], [0]), "sum to 1.1"),
        (lambda: plots.reliability_diagram([[0.5, 0.5]], [2]), "labels reach 2"),
        (lambda: plots.reliability([[0.5, 0.5]], [0], binning="odd"), "'odd'"),
        (lambda: plots.class_temperature_vs_accuracy([1, 2], [0.5]), r"\(2,\).*\(1,\)"),
        (lambda: plots.class_loss_trace([1.0, 2.0]), r"shape \(2,\)"),
        (lambda: plots.class_loss_trace([[1.0, 2.0]], class_shares=[1.0]), "2 classes"),
        (lambda: plots.simplex_paths([0.5, 0.5, 0.5]), "sum to 1"),
        (lambda: plots.shift_curves([0, 1], {"ts": [0.1]}), "1 values, but there are 2"),
    ],
)
def test_bad_input_says_both_sides(call, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()


def test_computing_the_data_never_loads_matplotlib() -> None:
    code = (
        "import sys, calibrant\n"
        "calibrant.plots.reliability([[0.9, 0.1]], [0]); calibrant.plots.simplex_paths()\n"
        "assert 'matplotlib' not in sys.modules and 'altair' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_drawing_leaves_pyplot_alone() -> None:
    code = (
        "import sys, calibrant\n"
        "calibrant.plots.reliability_diagram([[0.9, 0.1]], [0])\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def overlaps(first, second, slack: float = 0.5) -> bool:
    return (
        first.x0 + slack < second.x1
        and second.x0 + slack < first.x1
        and first.y0 + slack < second.y1
        and second.y0 + slack < first.y1
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("title", [None, "CIFAR-100, ResNet-18"])
def test_nothing_overprints_in_a_journal_column(name: str, title: str | None) -> None:
    from itertools import combinations

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    generator = np.random.default_rng(3)
    labels = generator.integers(0, 20, 1000)
    given = softmax(3 * generator.normal(size=(1000, 20)) + 5 * np.eye(20)[labels]), labels
    calls = figures(given)
    long = {f"{word} scaling, kept": values for word, values in zip(("temperature", "vector", "shape", "class", "bin"),
            (calls["risk_coverage_curve"][0]["none"],) * 5, strict=True)}  # fmt: skip
    for several in ("accuracy_confidence_curve", "ece_vs_entropy", "risk_coverage_curve"):
        calls[several] = (long, labels)
    figure = Figure(figsize=(3.5, 2.6), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    ax = getattr(plots, name)(*calls[name], ax=figure.add_subplot(), title=title)
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    axes = ax.get_window_extent(renderer)
    legend = ax.get_legend().get_window_extent(renderer)
    assert not overlaps(legend, axes)
    heading = [ax.title.get_window_extent(renderer)] if title else []
    boxes = [legend, *heading, *(text.get_window_extent(renderer) for text in ax.texts)]
    labels_shown = []
    if ax.axison:
        labels_shown = [ax.xaxis.label.get_window_extent(renderer), ax.yaxis.label.get_window_extent(renderer)]
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            shown = [tick.label1 for tick in axis.get_major_ticks() if low - 1e-9 <= tick.get_loc() <= high + 1e-9]
            labels_shown += [text.get_window_extent(renderer) for text in shown if text.get_text()]
    for first, second in combinations([*boxes, *labels_shown], 2):
        assert not overlaps(first, second), (name, first, second)
    for box in [*boxes, *labels_shown[:2]]:
        assert box.x0 > -1
        assert box.y0 > -1
        assert box.x1 < figure.bbox.x1 + 1
        assert box.y1 < figure.bbox.y1 + 1


def test_panels_of_a_paper_have_titles_at_one_height_and_small_type():
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    probabilities, labels = np.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]]), [0, 1, 1]
    figure = Figure(figsize=(6.6, 2.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 3, sharey=True)
    for ax, rows in zip(panels, (3, 2, 1), strict=True):
        plots.reliability_diagram(probabilities[:rows], labels[:rows], legend=False, title=str(rows), ax=ax)
    figure.canvas.draw()
    assert all(ax.get_legend() is None for ax in panels)
    assert len({round(ax.title.get_window_extent().y0, 3) for ax in panels}) == 1
    sizes = {text.get_fontsize() for ax in panels for text in (ax.title, ax.xaxis.label, *ax.get_xticklabels())}
    assert max(sizes) <= 8
    assert "ECE 45.00%\nn = 2" in {text.get_text() for text in panels[1].texts}
    # no text leaves the figure
    for ax in panels:
        assert figure.bbox.x0 <= ax.get_tightbbox().x0
        assert ax.get_tightbbox().x1 <= figure.bbox.x1 + 1
    wide = plots.reliability_diagram(probabilities, labels, title="wide")
    assert wide.get_legend() is not None
    assert wide.title.get_fontsize() > 8
