"""Maps of one score that are fitted pass by pass equal those fitted in memory."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from calibrant import get, open_predictions
from calibrant.calibrators import prepare
from calibrant.core.errors import FitWarning
from calibrant.core.softmax import sigmoid
from calibrant.data import chunks

METHODS = ("platt", "beta", "quad")


SEEN: list[int] = []
"""Chunks of each streamed fit."""


@pytest.fixture(autouse=True)
def _stream(monkeypatch):
    made = prepare.file_rows

    def counted(*arguments):
        rows = made(*arguments)
        SEEN.append(len(rows.blocks._chunks()))
        return rows

    SEEN.clear()
    monkeypatch.setattr(prepare, "file_rows", counted)
    monkeypatch.setattr(prepare, "STREAM_BYTES", 0)
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 700)
    monkeypatch.setattr(chunks.cut, "__kwdefaults__", {"elements": 700})


def problem(n=5000, seed=0, slope=0.6, shift=-0.5):
    rng = np.random.default_rng(seed)
    scores = 3 * rng.normal(size=n) - 1
    return scores, (rng.random(n) < sigmoid(slope * scores + shift)).astype(np.int64)


def both(method, tmp_path, scores, labels, weights=None, *, kind="logits", **parameters):
    """The map of the file and that of the arrays, as probabilities of the scores; and what each fit warned of."""
    file = tmp_path / "rows.npz"
    np.savez(file, **{kind: scores, "labels": labels}, **({} if weights is None else {"weights": weights}))
    predictions = open_predictions(file, task="binary")
    said, fitted = [], []
    for fit in (
        lambda made: made.fit(predictions),
        lambda made: made.fit(predictions.logits, labels, sample_weight=weights),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FitWarning)
            fitted.append(fit(get(method, **parameters)))
        said.append([str(one.message) for one in caught if issubclass(one.category, FitWarning)])
    assert SEEN[-1] >= 3
    assert said[0] == said[1]
    assert fitted[0].fingerprint_ == fitted[1].fingerprint_
    assert fitted[0].n_rows_ == fitted[1].n_rows_
    assert fitted[0].log_floor_ == pytest.approx(fitted[1].log_floor_, rel=1e-12)
    grid = np.linspace(-30, 30, 601)
    left, right = (one.predict_proba(grid)[:, 1] for one in fitted)
    np.testing.assert_allclose(left, right, atol=1e-6)
    assert fitted[0].task_ == "binary"
    return fitted[0], said[0]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weighted", [False, True])
def test_files_equal_arrays(method, dtype, weighted, tmp_path):
    scores, labels = problem()
    weights = np.random.default_rng(1).integers(0, 4, len(scores)).astype(float) if weighted else None
    both(method, tmp_path, scores.astype(dtype), labels, weights)


@pytest.mark.parametrize("method", METHODS)
def test_penalties_far_origins_and_probabilities(method, tmp_path):
    scores, labels = problem(3000, 2)
    both(method, tmp_path, scores, labels, penalty=5.0)
    both(method, tmp_path, scores + 20, labels)
    both(method, tmp_path, sigmoid(scores), labels, kind="probabilities")


@pytest.mark.parametrize("method", METHODS)
def test_zeros_have_the_floor_of_the_arrays(method, tmp_path):
    scores, labels = problem(3000, 3)
    _, said = both(method, tmp_path, sigmoid(scores).round(2), labels, kind="probabilities")
    assert any("hold a probability of 0" in one for one in said)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", ["separable", "one class", "constant", "rare"])
def test_difficult_data(method, case, tmp_path):
    scores, labels = problem(2000, 4)
    if case == "separable":
        labels = (scores > 0.5).astype(np.int64)
    if case == "one class":
        labels = np.zeros(2000, np.int64)
    if case == "constant":
        scores = np.full(2000, -1.25)
    if case == "rare":
        labels = (np.arange(2000) < 5).astype(np.int64)
    _, said = both(method, tmp_path, scores, labels)
    assert said


def test_parts_are_joined_and_the_map_is_saved_in_few_passes(tmp_path):
    scores, labels = problem(6000, 5)
    for part in range(3):
        own = slice(2000 * part, 2000 * part + 2000)
        np.savez(tmp_path / f"part-{part}.npz", logits=scores[own], labels=labels[own])
    fitted = get("platt").fit(open_predictions(f"{tmp_path}/part-*.npz", task="binary"))
    expected = get("platt").fit(scores, labels)
    assert fitted.slope_ == pytest.approx(expected.slope_, abs=1e-6)
    assert fitted.intercept_ == pytest.approx(expected.intercept_, abs=1e-6)
    assert fitted.n_iter_ <= 6


def test_small_files_and_other_methods_are_read_into_memory(monkeypatch, tmp_path):
    scores, labels = problem(500)
    np.savez(tmp_path / "rows.npz", logits=scores, labels=labels)
    predictions = open_predictions(tmp_path / "rows.npz", task="binary")
    expected = get("iso").fit(scores, labels).predict_proba(scores)
    np.testing.assert_array_equal(get("iso").fit(predictions).predict_proba(scores), expected)
    monkeypatch.setattr(prepare, "STREAM_BYTES", 1 << 20)
    assert not SEEN
    expected = get("beta").fit(scores, labels).predict_proba(scores)
    np.testing.assert_array_equal(get("beta").fit(predictions).predict_proba(scores), expected)
    assert not SEEN
