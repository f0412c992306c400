"""Softmax and its logarithms, against a slow exact reference and at the ends of the number range."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from calibrant.core.softmax import log_probabilities, log_softmax, logsumexp, softmax

matrices = arrays(np.float64, (4, 5), elements=st.floats(-700, 700))


@given(matrices)
def test_against_exact_sums(logits: np.ndarray) -> None:
    for row, whole in zip(logits.tolist(), logsumexp(logits), strict=True):
        peak = max(row)
        exact = peak + math.log(math.fsum(math.exp(value - peak) for value in row))
        assert whole == pytest.approx(exact, rel=1e-13, abs=1e-13)


@given(matrices, st.floats(-1e3, 1e3))
def test_the_three_agree_and_ignore_a_constant(logits: np.ndarray, shift: float) -> None:
    probabilities = softmax(logits)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(np.exp(log_softmax(logits)), probabilities, rtol=1e-11, atol=1e-300)
    np.testing.assert_allclose(logits - logsumexp(logits)[:, None], log_softmax(logits), rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(softmax(logits + shift), probabilities, rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("function", [softmax, log_softmax, logsumexp])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_extreme_logits_stay_finite_and_keep_their_dtype(function: object, dtype: type) -> None:
    logits = np.array([[1e30, -1e30, 0], [88.0, 89.0, 90.0], [-1e4, -1e4, -1e4]], dtype)
    before = logits.copy()
    result = function(logits)  # type: ignore[operator]
    assert result.dtype == dtype
    assert np.isfinite(result).all()
    np.testing.assert_array_equal(logits, before)


def test_one_row_works_like_many() -> None:
    logits = np.array([0.5, -1.0, 2.0])
    np.testing.assert_array_equal(softmax(logits), softmax(logits[None])[0])
    assert logsumexp(logits) == logsumexp(logits[None])[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_probabilities_of_zero_become_finite_logits(dtype: type) -> None:
    probabilities = np.array([[1.0, 0.0], [0.25, 0.75]], dtype)
    logits = log_probabilities(probabilities)
    assert np.isfinite(logits).all()
    np.testing.assert_allclose(softmax(logits), probabilities, atol=1e-30, rtol=1e-6)


@pytest.mark.filterwarnings("error")
def test_the_widest_gap_gives_certainty_without_a_warning() -> None:
    logits = np.array([[3e38, -3e38]], np.float32)
    np.testing.assert_array_equal(softmax(logits), [[1, 0]])
    assert logsumexp(logits)[0] == np.float32(3e38)
    assert log_softmax(logits)[0, 0] == 0
