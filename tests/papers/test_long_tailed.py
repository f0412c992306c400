"""Long-tailed subsets: the sizes of eq. 16, which rows, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import calibrant as cal

long_tailed_indices = cal.datasets.long_tailed_indices


@pytest.mark.parametrize(("n_classes", "each", "expected"), [(10, 5000, 20431), (100, 500, 19573)])
def test_the_sizes_of_the_paper(n_classes, each, expected):
    labels = np.random.default_rng(3).permutation(np.repeat(np.arange(n_classes), each))
    assert len(long_tailed_indices(labels, 0.1)) == expected


@given(
    n_classes=st.integers(2, 30),
    each=st.integers(1, 200),
    ratio=st.floats(0.01, 1.0),
    seed=st.integers(0, 5),
)
def test_every_class_keeps_its_share(n_classes, each, ratio, seed):
    labels = np.tile(np.arange(n_classes), each)
    places = long_tailed_indices(labels, ratio, seed)
    assert np.all(np.diff(places) > 0)
    counts = np.bincount(labels[places], minlength=n_classes)
    assert counts[0] == each
    assert np.all(np.diff(counts) <= 0)
    exact = each * ratio ** (np.arange(n_classes) / (n_classes - 1))
    assert np.all(np.abs(counts - exact) <= 1)
    assert np.all(counts <= exact * (1 + 1e-9))


def test_seed_decides_which_rows_and_not_how_many():
    labels = np.repeat(np.arange(5), 100)
    first, again, other = (long_tailed_indices(labels, 0.2, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert len(other) == len(first)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("labels", "ratio", "words"),
    [
        ([0, 0, 1, 1], 0.0, "ratio"),
        ([0, 0, 1, 1], 1.5, "ratio"),
        ([0, 0, 0], 0.5, "1 class"),
        ([0.5, 1.0], 0.5, "labels"),
        ([[0, 1]], 0.5, "labels"),
        ([0, 1, 1, 1, 0, 0, 2], 1.0, "class 2 has 1 rows"),
    ],
)
def test_refusals(labels, ratio, words):
    with pytest.raises(cal.InputError, match=words):
        long_tailed_indices(np.array(labels), ratio)
