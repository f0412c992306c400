"""The input gate: good input passes unchanged, bad input is named."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from calibrant.core.arrays import (
    PROBABILITY_TOLERANCE,
    check_labels,
    check_matrix,
    check_values,
    check_weights,
    explain_bad_values,
    widen,
)
from calibrant.core.errors import InputError


@pytest.mark.parametrize(
    ("stored", "kept"),
    [("f2", "f4"), ("f4", "f4"), ("f8", "f8"), (">f4", "f4"), (">f8", "f8"), ("i4", "f8"), ("?", "f8"), ("u1", "f8")],
)
def test_widening(stored: str, kept: str) -> None:
    array = np.array([[1, 0], [0, 1]], dtype=stored)
    wide = check_matrix(array)
    assert wide.dtype == np.dtype(kept)
    assert wide.dtype.isnative
    np.testing.assert_array_equal(wide, array)


def test_good_floats_are_not_copied() -> None:
    array = np.zeros((3, 2), np.float32)
    assert check_matrix(array) is array
    assert widen(array) is array


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros(3), r"2 dimensions .* got 1, shape \(3,\)"),
        (np.zeros((2, 2, 2)), "got 3"),
        (np.zeros((0, 3)), r"0 sample\(s\)"),
        (np.zeros((3, 1)), r"1 feature\(s\).*minimum of 2"),
        (np.zeros((3, 0)), r"0 feature\(s\)"),
        (np.array([["a", "b"]]), "real numbers, got dtype string"),
        (np.array([[1, None]]), "got dtype object"),
        (np.zeros((2, 2), complex), "complex"),
        ([[1.0, 2.0], [1.0]], "cannot be read as an array"),
        (None, "got dtype object"),
        (np.zeros((2, 2), "M8[s]"), "datetime64"),
    ],
)
def test_matrices_that_are_refused(values: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_matrix(values)


def test_sparse_matrices_are_refused() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(InputError, match="sparse"):
        check_matrix(sparse.csr_matrix(np.eye(3)))


@pytest.mark.parametrize("dtype", ["i1", "u1", "i4", "u8", ">i2"])
def test_labels_of_any_whole_number_type(dtype: str) -> None:
    labels = check_labels(np.array([0, 2, 1], dtype=dtype), 3, 3)
    assert labels.dtype == np.int64
    np.testing.assert_array_equal(labels, [0, 2, 1])
    np.testing.assert_array_equal(check_labels(labels[:, None], 3, 3), labels)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, 12], r"labels reach 12, but the logits have columns 0\.\.9"),
        ([0, -4, 1], r"labels go down to -4, but the logits have columns 0\.\.9"),
        ([0.0, 1.0, 2.5], "whole numbers.*2.5 in row 2.*float64"),
        (["a", "b", "c"], "string"),
        ([True, False, True], "bool"),
        ([0, 1], "labels has 2 rows, but logits has 3"),
        (np.zeros((3, 10)), "1 dimension, got 2"),
        (np.array([0, 1, 2**64 - 1], dtype=np.uint64), "18446744073709551615"),
        ([0, None, 1], "object"),
        (0, "1 dimension, got 0"),
    ],
)
def test_labels_that_are_refused(labels: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_labels(labels, 3, 10)


def test_no_labels_at_all() -> None:
    with pytest.raises(InputError, match="0 rows"):
        check_labels(np.empty(0, int), 0, 3)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, -2, 1], "is -2 in row 1"),
        ([0, 0, 0], "sums to .* over 3 rows"),
        ([1, np.nan, 1], "nan in row 1"),
        ([1, 1, np.inf], "inf in row 2"),
        ([1e308] * 3, r"reaches 1e\+308 and its sum overflows"),
        ([1, 1], r"shape \(2,\), but there are 3 rows"),
        (np.ones((3, 2)), r"shape \(3, 2\)"),
        (["a"] * 3, "string"),
        (0, "sums to"),
    ],
)
def test_weights_that_are_refused(weights: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_weights(weights, 3)


def test_weights_that_pass() -> None:
    assert check_weights(None, 3) is None
    np.testing.assert_array_equal(check_weights(2, 3), [2.0, 2.0, 2.0])
    np.testing.assert_array_equal(check_weights([0, 1, 0], 3), [0.0, 1.0, 0.0])


@given(
    arrays(np.float32, (6, 4), elements=st.floats(-(2.0**127), 2.0**127, width=32)),
    st.integers(0, 5),
    st.integers(0, 3),
    st.sampled_from([np.nan, np.inf]),
)
def test_any_value_that_is_not_finite_is_found_and_no_other(
    logits: np.ndarray, row: int, column: int, value: float
) -> None:
    check_values(logits, from_logits=True)
    logits[row - 1, column] = -np.inf  # a probability of 0
    check_values(logits, from_logits=True)
    logits[row, column] = value
    with pytest.raises(InputError, match=rf"in row {row + 100}, column {column}"):
        check_values(logits, from_logits=True, first_row=100)


@given(arrays(np.float64, (5, 3), elements=st.floats(0.01, 1)), st.integers(0, 4), st.floats(-0.4, 0.4))
def test_rows_of_probabilities_must_sum_to_one(values: np.ndarray, row: int, off: float) -> None:
    probabilities = values / values.sum(axis=1, keepdims=True)
    check_values(probabilities, from_logits=False)
    probabilities[row] *= 1 + off
    if abs(off) < PROBABILITY_TOLERANCE / 2:
        check_values(probabilities, from_logits=False)
    elif abs(off) > 2 * PROBABILITY_TOLERANCE and probabilities.max() <= 1:
        with pytest.raises(InputError, match=rf"row {row} sum to .*, off by"):
            check_values(probabilities, from_logits=False, name="probabilities")


def test_logits_given_as_probabilities() -> None:
    with pytest.raises(InputError, match=r"range from -3 to 5, but probabilities lie in \[0, 1\]: if these are logits"):
        check_values(np.array([[5.0, -3.0]]), from_logits=False, name="probabilities")


def test_float16_probabilities_pass() -> None:
    rng = np.random.default_rng(0)
    values = rng.dirichlet(np.ones(1000), size=50).astype(np.float16)
    check_values(check_matrix(values), from_logits=False)


def test_nothing_to_explain() -> None:
    explain_bad_values(np.ones((2, 2)), from_logits=True, name="logits")
    explain_bad_values(np.full((2, 2), 0.5), from_logits=False, name="probabilities")
