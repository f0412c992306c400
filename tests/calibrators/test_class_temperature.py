"""Class temperature scaling against a search that recomputes everything for every trial."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant import ClassTemperatureScaling
from calibrant.core import progress
from calibrant.core.errors import FitWarning, InputError

GRID = np.arange(1, 101) / 10


def literal_outcome(logits, labels, weights, temperatures, n_bins):
    """ECE and accuracy, straight from the definition."""
    scores = logits / temperatures
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    confidence = (exponentials / exponentials.sum(axis=1, keepdims=True)).max(axis=1)
    correct = scores.argmax(axis=1) == labels
    edges = np.arange(1, n_bins) / n_bins
    index = np.searchsorted(edges, confidence, side="left")
    gaps = np.bincount(index, weights * (correct - confidence), n_bins)
    return np.abs(gaps).sum() / weights.sum(), (weights * correct).sum() / weights.sum()


def literal_search(
    logits, labels, weights=None, *, grid=GRID, n_bins=15, max_sweeps=5, preserve_accuracy=True, tolerance=0.0
):
    """Algorithm 1 of the paper, word for word, over the classes with rows; a tolerance allows a lower accuracy."""
    logits = logits.astype(np.float64)
    weights = np.ones(len(logits)) if weights is None else weights
    n_classes = logits.shape[1]
    starts = [literal_outcome(logits, labels, weights, np.full(n_classes, t), n_bins)[0] for t in grid]
    temperatures = np.full(n_classes, grid[int(np.argmin(starts))])
    floor = literal_outcome(logits, labels, weights, temperatures, n_bins)[1] - tolerance if tolerance else np.inf
    present = np.unique(labels)
    for _ in range(max_sweeps):
        before = temperatures.copy()
        for j in present if len(present) > 1 else range(n_classes):
            now, accuracy = literal_outcome(logits, labels, weights, temperatures, n_bins)
            lowest, chosen = np.inf, temperatures[j]
            for t in grid:
                trial = temperatures.copy()
                trial[j] = t
                ece, hits = literal_outcome(logits, labels, weights, trial, n_bins)
                if (hits >= min(accuracy, floor) - 1e-12 or not preserve_accuracy) and ece < lowest:
                    lowest, chosen = ece, t
            if lowest < now - 1e-12:
                temperatures[j] = chosen
        if (temperatures == before).all():
            break
    return temperatures


def awkward_logits(kind, n_rows, n_classes, labels, rng):
    logits = rng.normal(0, 3, (n_rows, n_classes)) + 2 * np.eye(n_classes)[labels]
    return {
        "plain": logits,
        "whole numbers": np.round(logits),
        "halves": np.round(2 * logits) / 2,
        "float16": logits.astype(np.float16).astype(np.float32),
        "float32": logits.astype(np.float32),
        "constant": np.zeros_like(logits),
        "huge": 1e4 * logits,
        "a class that never counts": logits - 60 * (np.arange(n_classes) == n_classes - 1),
        "a column of zeros": logits * (np.arange(n_classes) > 0),
        "repeated rows": np.repeat(logits[: n_rows // 2 + 1], 2, axis=0)[:n_rows],
    }[kind]


KINDS = [
    "plain",
    "whole numbers",
    "halves",
    "float16",
    "float32",
    "constant",
    "huge",
    "a class that never counts",
    "a column of zeros",
    "repeated rows",
]


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
@pytest.mark.parametrize("kind", KINDS)
@given(
    seed=st.integers(0, 10_000),
    n_rows=st.integers(1, 90),
    n_classes=st.sampled_from([2, 3, 5]),
    n_bins=st.sampled_from([15, 10, 1]),
    preserve_accuracy=st.booleans(),
    weighted=st.booleans(),
)
def test_equals_the_literal_search(kind, seed, n_rows, n_classes, n_bins, preserve_accuracy, weighted):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n_rows)
    logits = awkward_logits(kind, n_rows, n_classes, labels, rng)
    weights = rng.integers(1, 4, n_rows).astype(float) if weighted else None
    options = {"n_bins": n_bins, "max_sweeps": 2, "preserve_accuracy": preserve_accuracy}
    grid = GRID[rng.random(len(GRID)) < 0.25] if seed % 2 else np.arange(1, 21) / 5
    fitted = ClassTemperatureScaling(grid=grid, **options).fit(logits, labels, weights)
    np.testing.assert_array_equal(fitted.temperatures_, literal_search(logits, labels, weights, grid=grid, **options))


@pytest.mark.parametrize(("seed", "tolerance"), [(0, 0.01), (4, 0.01), (3, 0.03), (3, 1.0)])
def test_an_accuracy_tolerance_lies_between_both_searches(seed, tolerance):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, 300)
    logits = rng.normal(0, 3, (300, 4)) + 2 * np.eye(4)[labels]
    fitted = ClassTemperatureScaling(accuracy_tolerance=tolerance).fit(logits, labels)
    np.testing.assert_array_equal(fitted.temperatures_, literal_search(logits, labels, tolerance=tolerance))
    assert fitted.accuracy_trace_.min() >= fitted.accuracy_trace_[0] - tolerance - 1e-12
    free = ClassTemperatureScaling(preserve_accuracy=False).fit(logits, labels)
    if tolerance == 1.0:
        np.testing.assert_array_equal(fitted.temperatures_, free.temperatures_)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equals_the_literal_search_on_a_network(shared_data, dtype):
    with np.load(shared_data / "zoo" / "c10_resnet18_ce.npz") as file:
        logits, labels = file["val_logits"][:1000].astype(dtype), file["val_labels"][:1000].astype(np.int64)
    fitted = ClassTemperatureScaling().fit(logits, labels)
    np.testing.assert_array_equal(fitted.temperatures_, literal_search(logits, labels))


def test_equals_the_literal_search_on_many_classes(shared_data):
    with np.load(shared_data / "zoo" / "c100_resnet18_ce.npz") as file:
        logits, labels = file["val_logits"][:1000, :40].astype(np.float32), file["val_labels"][:1000].astype(np.int64)
    keep = labels < 40
    logits, labels = logits[keep], labels[keep]
    fitted = ClassTemperatureScaling(max_sweeps=1).fit(logits, labels)
    np.testing.assert_array_equal(fitted.temperatures_, literal_search(logits, labels, max_sweeps=1))


@given(seed=st.integers(0, 1000), n_classes=st.integers(2, 8))
def test_traces(seed, n_classes):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, 300)
    logits = rng.normal(0, 2, (300, n_classes)) + 2 * np.eye(n_classes)[labels]
    fitted = ClassTemperatureScaling().fit(logits, labels)
    assert (np.diff(fitted.ece_trace_) <= 1e-12).all()
    assert (np.diff(fitted.accuracy_trace_) >= -1e-12).all()
    assert len(fitted.ece_trace_) == len(fitted.accuracy_trace_) == fitted.n_iter_ + 1
    ece, accuracy = literal_outcome(logits, labels, np.ones(300), fitted.temperatures_, 15)
    assert fitted.ece_trace_[-1] == pytest.approx(ece, abs=1e-13)
    assert fitted.accuracy_trace_[-1] == pytest.approx(accuracy, abs=1e-13)
    np.testing.assert_array_equal(fitted.predict(logits), (logits / fitted.temperatures_).argmax(axis=1))


def test_unconstrained_search_reaches_lower_or_equal_ece_in_one_class_step(rng):
    labels = rng.integers(0, 2, 500)
    logits = rng.normal(0, 2, (500, 2)) + np.eye(2)[labels]
    kept = ClassTemperatureScaling(max_sweeps=1).fit(logits, labels)
    free = ClassTemperatureScaling(max_sweeps=1, preserve_accuracy=False).fit(logits, labels)
    assert kept.accuracy_trace_[-1] >= kept.accuracy_trace_[0]
    assert free.ece_trace_[0] == kept.ece_trace_[0]


def test_no_sweeps_is_one_temperature(rng):
    labels = rng.integers(0, 4, 400)
    logits = rng.normal(0, 2, (400, 4)) + np.eye(4)[labels]
    fitted = ClassTemperatureScaling(max_sweeps=0).fit(logits, labels)
    assert len(set(fitted.temperatures_)) == 1
    np.testing.assert_allclose(fitted.transform(logits), logits / fitted.temperatures_[0])


def test_a_constant_per_row_matters(rng):
    labels = rng.integers(0, 3, 400)
    logits = (rng.normal(0, 2, (400, 3)) + 2 * np.eye(3)[labels]) * [0.5, 1.0, 3.0]
    fitted = ClassTemperatureScaling().fit(logits, labels)
    assert len(set(fitted.temperatures_)) > 1
    assert np.abs(fitted.predict_proba(logits + 5) - fitted.predict_proba(logits)).max() > 1e-3
    assert ClassTemperatureScaling.requires_logits


def test_likelihood_objective_is_at_its_optimum(rng):
    labels = rng.integers(0, 4, 800)
    logits = 3 * rng.normal(0, 1, (800, 4)) + 3 * np.eye(4)[labels]
    fitted = ClassTemperatureScaling("nll").fit(logits, labels)
    probabilities = fitted.predict_proba(logits)
    # d NLL / d(1/T_j) = mean of (p_j − 1{y=j})·z_j
    gradient = ((probabilities - np.eye(4)[labels]) * logits).mean(axis=0)
    assert np.abs(gradient).max() < 1e-6


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
def test_progress_counts_every_class(rng):
    seen = []
    logits, labels = rng.normal(0, 2, (200, 3)), rng.integers(0, 3, 200)
    with progress.listen(lambda stage, done, total, note: seen.append((done, total))):
        fitted = ClassTemperatureScaling(max_sweeps=2).fit(logits, labels)
    assert [done for done, _ in seen] == list(range(1, 3 * fitted.n_iter_ + 1))
    assert {total for _, total in seen} == {6}


@pytest.mark.parametrize(
    ("parameters", "word"),
    [
        ({"objective": "brier"}, "objective"),
        ({"max_sweeps": -1}, "max_sweeps"),
        ({"max_sweeps": "two"}, "max_sweeps"),
        ({"max_sweeps": 1.5}, "max_sweeps"),
        ({"n_bins": 0}, "n_bins"),
        ({"grid": [-1.0, 2.0]}, "grid"),
        ({"grid": [0.0]}, "grid"),
    ],
)
def test_bad_parameters_are_named(parameters, word, rng):
    with pytest.raises(InputError, match=word):
        ClassTemperatureScaling(**parameters).fit(rng.normal(size=(10, 3)), rng.integers(0, 3, 10))


@pytest.mark.parametrize("seed", range(4))
def test_the_guarantees_hold_on_all_columns_with_a_class_without_rows(seed):
    rng = np.random.default_rng(seed)
    labels = rng.choice([0, 1, 3, 4], 300)
    logits = rng.normal(0, 3, (300, 5)) + 2 * np.eye(5)[labels]
    logits[:, 2] += 1.0  # often the largest
    with pytest.warns(FitWarning, match="1 of 5 classes have no fit rows"):
        fitted = ClassTemperatureScaling().fit(logits, labels)
    np.testing.assert_array_equal(fitted.temperatures_, literal_search(logits, labels))
    ece, accuracy = literal_outcome(logits, labels, np.ones(300), fitted.temperatures_, 15)
    assert accuracy >= (logits.argmax(axis=1) == labels).mean()
    assert (fitted.ece_trace_[-1], fitted.accuracy_trace_[-1]) == pytest.approx((ece, accuracy))
