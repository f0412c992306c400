"""What every metric promises, asked of every metric."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant import metrics
from calibrant.core.errors import InputError
from calibrant.core.softmax import softmax
from calibrant.metrics.inputs import ORDER_OF_ROWS

ABOUT_SCORES = {name for name, one in metrics.METRICS.items() if one.about == "score"} - {"kuiper_error"}
METRICS = {name: one.function for name, one in metrics.METRICS.items() if name not in ABOUT_SCORES}
NAMES = sorted(METRICS)


def additive(name):
    """Is a metric a function of sums over rows?"""
    try:
        return bool(metrics.streaming(name))
    except InputError:
        return False


ADDITIVE_NAMES = [name for name in NAMES if additive(name)]
SUMS = {"counts"}
"""Fields that are sums and not means: only these scale with the weights."""


def numbers(value):
    """The arrays in a result, by field."""
    if dataclasses.is_dataclass(value):
        return {field.name: np.asarray(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return {"value": np.asarray(value)}


def same(left, right, tolerance=1e-9):
    left, right = numbers(left), numbers(right)
    assert left.keys() == right.keys()
    for field, value in left.items():
        np.testing.assert_allclose(right[field], value, atol=tolerance, rtol=tolerance, err_msg=field)


def problem(seed, n=60, n_classes=5, coarse=False):
    rng = np.random.default_rng(seed)
    if coarse:
        probabilities = rng.multinomial(12, np.full(n_classes, 1 / n_classes), size=n) / 12
    else:
        probabilities = rng.dirichlet(np.full(n_classes, 0.5), n)
    return probabilities, rng.integers(0, n_classes, n), rng


@pytest.mark.parametrize("name", NAMES)
def test_signature(name):
    parameters = inspect.signature(METRICS[name]).parameters
    assert list(parameters)[:2] == ["probabilities", "labels"]
    options = list(parameters.values())[2:]
    assert all(option.kind is inspect.Parameter.KEYWORD_ONLY for option in options)
    assert parameters["sample_weight"].default is None
    assert parameters["from_logits"].default is False
    assert getattr(metrics, name) is METRICS[name]
    assert METRICS[name].__doc__
    assert ">>>" in METRICS[name].__doc__


@pytest.mark.parametrize("name", NAMES)
def test_result_is_a_float_a_vector_or_a_frozen_dataclass(name):
    probabilities, labels, _ = problem(0)
    value = METRICS[name](probabilities, labels)
    if dataclasses.is_dataclass(value):
        with pytest.raises(dataclasses.FrozenInstanceError):
            value.extra = 1
    else:
        assert type(value) is float or (isinstance(value, np.ndarray) and value.shape == (5,))


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 1000), coarse=st.booleans())
def test_row_order_does_not_matter(name, seed, coarse):
    probabilities, labels, rng = problem(seed, coarse=coarse)
    weights = rng.random(len(labels)) + 0.1
    order = rng.permutation(len(labels))
    metric = METRICS[name]
    same(metric(probabilities, labels), metric(probabilities[order], labels[order]), 1e-12)
    whole = metric(probabilities, labels, sample_weight=weights)
    same(whole, metric(probabilities[order], labels[order], sample_weight=weights[order]))


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 1000), coarse=st.booleans())
def test_weight_two_is_the_row_twice(name, seed, coarse):
    probabilities, labels, rng = problem(seed, coarse=coarse)
    copies = rng.integers(0, 4, len(labels))
    copies[0] = 2
    repeated = METRICS[name](np.repeat(probabilities, copies, axis=0), np.repeat(labels, copies))
    same(METRICS[name](probabilities, labels, sample_weight=copies), repeated, 1e-10)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"aurc", "debiased_ece", "reliability"}))
@given(seed=st.integers(0, 1000), coarse=st.booleans(), unit=st.sampled_from([0.1, 0.3, 1 / 7, 1e-3, 3.3]))
def test_the_unit_of_the_weights_does_not_matter(name, seed, coarse, unit):
    """Of those that count rows by their weights this is not asked."""
    probabilities, labels, rng = problem(seed, coarse=coarse)
    whole = METRICS[name](probabilities, labels)
    same(whole, METRICS[name](probabilities, labels, sample_weight=np.full(60, unit)))
    counts = rng.integers(1, 4, 60)
    weighted = METRICS[name](probabilities, labels, sample_weight=counts)
    same(weighted, METRICS[name](probabilities, labels, sample_weight=unit * counts))


@pytest.mark.parametrize("unit", [0.1, 0.3])
def test_the_unit_of_the_weights_does_not_matter_to_a_sweep(unit):
    for seed in range(100):
        probabilities, labels, rng = problem(seed, n=6 + seed % 19, coarse=True)
        counts = rng.integers(1, 3, len(labels))
        whole = metrics.sweep_ece(probabilities, labels, sample_weight=counts)
        assert metrics.sweep_ece(probabilities, labels, sample_weight=unit * counts) == pytest.approx(whole, abs=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_weights_of_one_are_no_weights(name):
    probabilities, labels, _ = problem(1)
    same(METRICS[name](probabilities, labels), METRICS[name](probabilities, labels, sample_weight=np.ones(60)), 1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_logits_give_the_answer_of_their_softmax(name):
    rng = np.random.default_rng(2)
    logits, labels = rng.normal(size=(80, 6)) * 3, rng.integers(0, 6, 80)
    same(METRICS[name](softmax(logits), labels), METRICS[name](logits, labels, from_logits=True))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_narrow_input_gives_the_answer_of_the_same_numbers_in_float64(name, dtype):
    # confidences off the bin edges, where a narrow number could change sides
    probabilities, labels, _ = problem(3, n=200)
    narrow = probabilities.astype(dtype)
    wide = narrow.astype(np.float64)
    labels = np.where(wide[np.arange(200), labels] > 1e-5, labels, wide.argmax(axis=1))
    tolerance = 1e-6 if name != "debiased_ece" else 1e-5
    same(METRICS[name](wide, labels), METRICS[name](narrow, labels), tolerance)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kernels", ["numpy", "numba"])
def test_compiled_kernels_give_the_same_answer(name, kernels, monkeypatch):
    probabilities, labels, _ = problem(4, n=300)
    expected = METRICS[name](probabilities, labels)
    monkeypatch.setenv("CALIBRANT_KERNELS", kernels)
    same(expected, METRICS[name](probabilities, labels), 1e-12)


CORNERS = {
    "one row, right": ([[0.7, 0.3]], [0]),
    "one row, wrong": ([[0.7, 0.3]], [1]),
    "all right": ([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]] * 5, [0, 2] * 5),
    "all wrong": ([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]] * 5, [1, 1] * 5),
    "certain and right": ([[1.0, 0.0]] * 4, [0] * 4),
    "certain and wrong": ([[1.0, 0.0]] * 4, [1] * 4),
    "constant confidence": ([[0.6, 0.4], [0.4, 0.6]] * 6, [0, 0] * 6),
    "uniform": ([[0.25] * 4] * 8, [0, 1, 2, 3] * 2),
    "integers": ([[1, 0], [0, 1]], [0, 0]),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("corner", CORNERS)
def test_corners_are_finite_and_within_bounds(name, corner):
    probabilities, labels = CORNERS[corner]
    result = numbers(METRICS[name](probabilities, labels))
    if name == "reliability":  # an empty bin has no mean
        full = result["counts"] > 0
        result |= {field: result[field][full] for field in ("confidence", "accuracy")}
    for field, value in result.items():
        assert np.isfinite(value).all(), (field, value)
        assert (value >= 0).all(), (field, value)
    bounded = set(NAMES) - {"nll", "brier", "entropy", "classwise_losses", "reliability"}
    if name in bounded:
        assert all((value <= 1 + 1e-12).all() for value in result.values())


@pytest.mark.parametrize("name", ["ece", "adaptive_ece", "ks_error", "mmce", "smooth_ece", "soft_ece", "sweep_ece"])
def test_constant_confidence_gives_the_gap(name):
    probabilities, labels = CORNERS["constant confidence"]
    assert METRICS[name](probabilities, labels) == pytest.approx(0.1, abs=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_weight_zero_are_not_there(name):
    probabilities, labels, rng = problem(5)
    weights = np.where(rng.random(60) < 0.5, 0.0, 1.0)
    kept = weights > 0
    same(METRICS[name](probabilities[kept], labels[kept]), METRICS[name](probabilities, labels, sample_weight=weights))


@pytest.mark.parametrize("name", ["ece", "soft_ece"])
@pytest.mark.parametrize("weighting", ["bin", "label"])
def test_rows_of_weight_zero_have_no_largest_gap(name, weighting):
    probabilities, labels = np.array([[0.75, 0.25], [0.5, 0.5], [1.0, 0.0]]), np.array([1, 1, 1])
    options = {"norm": np.inf, "weighting": weighting}
    weighted = METRICS[name](probabilities, labels, sample_weight=[2, 1, 0], **options)
    assert weighted == pytest.approx(METRICS[name](probabilities[:2], labels[:2], sample_weight=[2, 1], **options))


@pytest.mark.parametrize("name", ["ece", "soft_ece"])
@pytest.mark.parametrize("weighting", ["bin", "label"])
def test_certain_and_right_is_an_error_of_exactly_zero(name, weighting):
    for norm in (1, 2, np.inf):
        for n in range(1, 9):
            assert METRICS[name](np.eye(9)[:n], np.arange(n), norm=norm, weighting=weighting) == 0


BAD = {
    "labels reach 9": (np.full((4, 3), 1 / 3), [0, 1, 2, 9], None, "labels reach 9, but the probabilities"),
    "labels negative": (np.full((4, 3), 1 / 3), [0, 1, 2, -1], None, "labels go down to -1"),
    "labels float": (np.full((4, 3), 1 / 3), [0.0, 1.0, 2.0, 0.5], None, "labels must be whole numbers"),
    "rows differ": (np.full((4, 3), 1 / 3), [0, 1], None, "labels has 2 rows, but probabilities has 4"),
    "one column": (np.ones((4, 1)), [0, 1, 2, 0], None, "labels range from 0 to 2, but outcomes are 0 or 1"),
    "no rows": (np.ones((0, 3)), [], None, "minimum of 1"),
    "logits": (np.array([[5.0, -1.0]]), [0], None, r"from_logits=True"),
    "sums": (np.array([[0.5, 0.4]]), [0], None, "sum to 0.9, off by 0.1"),
    "nan": (np.array([[np.nan, 0.5]]), [0], None, "contains NaN in row 0, column 0"),
    "weights negative": (np.full((2, 2), 0.5), [0, 1], [1, -1], "weights must be 0 or more and finite"),
    "weights zero": (np.full((2, 2), 0.5), [0, 1], [0, 0], "at least one weight must be positive"),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", BAD)
def test_bad_input_is_named(name, bad):
    probabilities, labels, weights, words = BAD[bad]
    with pytest.raises(InputError, match=words) as caught:
        METRICS[name](probabilities, labels, sample_weight=weights)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_infinite_logits_are_named(name):
    with pytest.raises(InputError, match="logits contains Inf in row 1, column 1"):
        METRICS[name]([[1.0, 2.0], [0.0, np.inf]], [0, 1], from_logits=True)
    with pytest.raises(InputError, match="logits is -Inf in all columns of row 1"):
        METRICS[name]([[1.0, 2.0], [-np.inf, -np.inf]], [0, 1], from_logits=True)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("ece", {"n_bins": 0}, "n_bins must be a whole number"),
        ("ece", {"norm": 0.5}, "norm must be 1, 2 or inf"),
        ("ece", {"binning": "equal"}, "binning must be one of 'width', 'mass'"),
        ("ece", {"weighting": "row"}, "weighting must be one of 'bin', 'label'"),
        ("classwise_ece", {"average": "sum"}, "average must be one of 'mean'"),
        ("mmce", {"width": 0.0}, "width must be at least 0.01"),
        ("soft_ece", {"temperature": 0.0}, "temperature must be above 0"),
        ("soft_ece", {"decay": 1.0}, "decay must be above 1"),
    ],
)
def test_bad_options_are_named(name, options, words):
    probabilities, labels, _ = problem(6)
    with pytest.raises(InputError, match=words):
        METRICS[name](probabilities, labels, **options)


def test_misspelt_options_raise():
    probabilities, labels, _ = problem(6)
    with pytest.raises(TypeError):
        metrics.ece(probabilities, labels, bins=10)
    with pytest.raises(TypeError):
        metrics.streaming("ece", bins=10)


ranked = sorted(set(NAMES) - set(ADDITIVE_NAMES) - {"ace", "marginal_ece"})


@pytest.mark.parametrize("name", [*ranked, "ece", "reliability", "soft_ece", "debiased_ece"])
def test_confidences_and_correctness_are_rows_too(name):
    probabilities, labels, rng = problem(7)
    weights = rng.random(60)
    confidence, correct = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    expected = METRICS[name](probabilities, labels, sample_weight=weights)
    same(expected, METRICS[name](confidence, correct, sample_weight=weights), 1e-12)


def chunk(values, labels, weights, kind="probabilities"):
    rows = {"values": values, "labels": labels, "weights": weights}
    return SimpleNamespace(**rows, kind=kind, task="multiclass", flat=False)


@pytest.mark.parametrize("name", ADDITIVE_NAMES)
@given(seed=st.integers(0, 1000), weighted=st.booleans(), cuts=st.lists(st.integers(1, 59), max_size=5))
def test_44_chunks_merged_in_any_order_are_the_whole(name, seed, weighted, cuts):
    probabilities, labels, rng = problem(seed)
    weights = rng.integers(0, 3, 60).astype(float) if weighted else None
    edges = [0, *sorted(set(cuts)), 60]
    parts = []
    for start, stop in pairwise(edges):
        part = metrics.streaming(name)
        rows = slice(start, stop)
        part.update(chunk(probabilities[rows], labels[rows], None if weights is None else weights[rows]))
        parts.append(part)
    rng.shuffle(parts)
    merged = metrics.streaming(name)
    for part in parts:
        merged.merge(part)
    whole = METRICS[name](probabilities, labels, sample_weight=weights)
    same(whole, merged.value(), 1e-12 if name != "debiased_ece" else 1e-8)


@pytest.mark.parametrize("name", ADDITIVE_NAMES)
def test_arrays_and_logits_are_chunks_too(name):
    rng = np.random.default_rng(9)
    logits, labels = rng.normal(size=(80, 4)), rng.integers(0, 4, 80)
    whole = METRICS[name](logits, labels, from_logits=True)
    metric = metrics.streaming(name)
    metric.update(logits[:30], labels[:30], from_logits=True)
    metric.update(chunk(logits[30:], labels[30:], None, "logits"))
    same(whole, metric.value(), 1e-12)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ece", {"norm": 2, "n_bins": 7}),
        ("ece", {"norm": np.inf}),
        ("ece", {"norm": 2, "weighting": "label"}),
        ("soft_ece", {"norm": 1, "temperature": 0.1}),
        ("soft_ece", {"weighting": "label", "decay": 10.0}),
        ("classwise_ece", {"norm": 2, "n_bins": 5}),
    ],
)
def test_additive_options_are_those_of_the_function(name, options):
    probabilities, labels, rng = problem(10)
    weights = rng.random(60)
    metric = metrics.streaming(name, **options)
    for rows in (slice(0, 11), slice(11, 60)):
        metric.update(probabilities[rows], labels[rows], weights[rows])
    same(METRICS[name](probabilities, labels, sample_weight=weights, **options), metric.value(), 1e-12)


def test_several_metrics_share_one_pass():
    probabilities, labels, rng = problem(11)
    weights = rng.random(60)
    several = [metrics.streaming(name) for name in ADDITIVE_NAMES]
    metrics.update_all(several, chunk(probabilities[:25], labels[:25], weights[:25]))
    metrics.update_all(several, probabilities[25:], labels[25:], weights[25:])
    for name, metric in zip(ADDITIVE_NAMES, several, strict=True):
        same(METRICS[name](probabilities, labels, sample_weight=weights), metric.value(), 1e-12)


def test_a_predictions_object_is_a_chunk():
    data = pytest.importorskip("calibrant.data")
    rng = np.random.default_rng(12)
    logits, labels = rng.normal(size=(50, 4)), rng.integers(0, 4, 50)
    predictions = data.Predictions.from_arrays(logits=logits, labels=labels)
    metric = metrics.streaming("ece").update(predictions)
    assert metric.value() == pytest.approx(metrics.ece(logits, labels, from_logits=True), abs=1e-12)


def test_additive_misuse_is_named():
    probabilities, labels, _ = problem(13)
    with pytest.raises(InputError, match="has seen no row"):
        metrics.streaming("ece").value()
    with pytest.raises(InputError, match=r"cannot merge ece\(n_bins=10\) into ece"):
        metrics.streaming("ece").merge(metrics.streaming("ece", n_bins=10))
    with pytest.raises(InputError, match="cannot merge nll"):
        metrics.streaming("brier").merge(metrics.streaming("nll"))
    with pytest.raises(InputError, match=ORDER_OF_ROWS):
        metrics.streaming("ece", weighting="label")
    metric = metrics.streaming("classwise_ece").update(probabilities, labels)
    with pytest.raises(InputError, match="has seen 5 classes, but this chunk has 2"):
        metric.update(np.full((3, 2), 0.5), [0, 1, 0])


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ([0.5, 0.6], [0.5], "before has 2 rows, but after has 1"),
        ([0.5, np.nan], [0.5, 0.6], "before is nan in row 1"),
        (np.zeros((2, 2, 2)), [0.5, 0.6], "before must have 1 dimension, got 3"),
    ],
)
def test_rank_changes_names_bad_input(before, after, words):
    with pytest.raises(InputError, match=words):
        metrics.rank_changes(before, after)


def test_rank_changes_corners():
    assert metrics.rank_changes([0.5], [0.7]) == 0.0
    assert metrics.rank_changes([0.5, 0.5], [0.7, 0.6]) == 0.0
    assert metrics.rank_changes([0.5, 0.6], [0.7, 0.6]) == 1.0
    with pytest.raises(InputError, match=r"sums to 0\.5, but pairs need more than 1"):
        metrics.rank_changes([0.5, 0.6], [0.7, 0.6], sample_weight=[0.25, 0.25])


def test_metrics_load_no_heavy_package():
    heavy = ["sklearn", "scipy", "torch", "numba", "matplotlib", "pyarrow", "dask"]
    code = f"import sys, calibrant.metrics; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
