"""Every source of rows offers the same things, and they agree with the rows in memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calibrant.core.errors import InputError
from calibrant.core.rows import Rows, Smoothing
from calibrant.core.statistic import statistic
from calibrant.data import Predictions
from calibrant.data.chunks import file_rows
from calibrant.engines.engine import LocalEngine


def factor(logits, labels, weights):
    return (1.0 + (labels == 1),)


@pytest.fixture(scope="module")
def rows():
    generator = np.random.default_rng(0)
    logits, labels = generator.normal(size=(300, 4)), generator.integers(0, 4, 300)
    return Rows(logits, labels, generator.integers(1, 3, 300).astype(float))


@pytest.fixture(scope="module")
def chunked(rows):
    given = Predictions.from_arrays(logits=rows.logits, labels=rows.labels, weights=rows.weights)
    return file_rows(given, LocalEngine())


@statistic
def loss(logits, labels, weights):
    own = logits[np.arange(len(labels)), labels]
    return own.sum() if weights is None else weights @ own, np.zeros(4) if weights is None else np.full(
        4, weights.sum()
    )


def columns(logits, labels, weights):
    return logits.argmax(axis=1), labels


@pytest.mark.parametrize("view", [lambda given: given, lambda given: given.reweighted(factor)])
def test_rows_in_memory_and_in_chunks_agree(rows, chunked, view):
    left, right = view(rows), view(chunked)
    assert left.total_weight == pytest.approx(right.total_weight)
    np.testing.assert_allclose(left.class_weight(), right.class_weight())
    np.testing.assert_allclose(left.weights, right.weights)
    for mine, theirs in zip(left.total(loss), right.total(loss), strict=True):
        np.testing.assert_allclose(mine, theirs)
    for mine, theirs in zip(left.gather(columns), right.gather(columns), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_allclose(left.whole().weights, right.whole().weights)


def test_smoothing_moves_weight_between_labels_only(rows):
    smoothed = replace(rows, each=Smoothing(0.2))
    assert smoothed.class_weight().sum() == pytest.approx(rows.total_weight)
    np.testing.assert_array_equal(smoothed.weights, rows.weights)
    with pytest.raises(InputError, match="needs one label per row"):
        smoothed.whole()
