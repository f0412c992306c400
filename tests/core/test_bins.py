"""The bin rule: edges, ties, weights, and the same answer in float32 and float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from calibrant.core.bins import check_n_bins, mass_index, place, quantile_edges, width_edges, width_index
from calibrant.core.errors import InputError

confidences = arrays(np.float64, st.integers(1, 40), elements=st.floats(0, 1))
# few distinct values: many ties
tied = arrays(np.float64, st.integers(1, 40), elements=st.sampled_from([0.1, 0.25, 0.5, 0.75, 1.0]))


@pytest.mark.parametrize("n_bins", [1, 2, 3, 7, 10, 13, 15, 20, 100])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_an_edge_belongs_to_the_bin_below_it(n_bins: int, dtype: type) -> None:
    edges = (np.arange(n_bins + 1) / n_bins).astype(dtype)
    expected = np.maximum(np.arange(n_bins + 1) - 1, 0)
    np.testing.assert_array_equal(width_index(edges, n_bins), expected)


@given(st.integers(1, 50), st.data())
def test_float32_and_float64_agree_on_edges(n_bins: int, data: st.DataObject) -> None:
    edge = data.draw(st.integers(0, n_bins)) / n_bins
    narrow = width_index(np.array([edge], np.float32), n_bins)
    wide = width_index(np.array([edge], np.float64), n_bins)
    assert narrow[0] == wide[0]


@given(confidences, st.integers(1, 30))
def test_width_bins_by_the_definition(confidence: np.ndarray, n_bins: int) -> None:
    edges = width_edges(n_bins)
    for value, index in zip(confidence, width_index(confidence, n_bins), strict=True):
        assert edges[index] < value <= edges[index + 1] or (value == 0 and index == 0)


def test_confidences_a_hair_outside() -> None:
    np.testing.assert_array_equal(width_index(np.array([-1e-9, 1 + 1e-9]), 5), [0, 4])


@given(tied, st.integers(1, 10))
def test_mass_bins_by_the_definition(confidence: np.ndarray, n_bins: int) -> None:
    """floor(M · (number of strictly smaller confidences) / n), for every row."""
    expected = [int(n_bins * np.sum(confidence < value) / len(confidence)) for value in confidence]
    np.testing.assert_array_equal(mass_index(confidence, n_bins), expected)


@given(confidences, st.integers(1, 10), st.randoms())
def test_mass_bins_do_not_depend_on_the_order(confidence: np.ndarray, n_bins: int, random: object) -> None:
    order = np.random.default_rng(len(confidence)).permutation(len(confidence))
    np.testing.assert_array_equal(mass_index(confidence, n_bins)[order], mass_index(confidence[order], n_bins))


def test_mass_bins_are_equal_without_ties() -> None:
    confidence = np.random.default_rng(0).permutation(np.linspace(0, 1, 150))
    np.testing.assert_array_equal(np.bincount(mass_index(confidence, 15)), np.full(15, 10))


@given(tied, st.integers(1, 10), st.data())
def test_a_whole_weight_is_the_row_repeated(confidence: np.ndarray, n_bins: int, data: st.DataObject) -> None:
    weights = data.draw(arrays(np.int64, len(confidence), elements=st.integers(0, 4)))
    if weights.sum() == 0:
        weights[0] = 1
    repeated = np.repeat(confidence, weights)
    np.testing.assert_array_equal(
        np.repeat(mass_index(confidence, n_bins, weights.astype(float)), weights), mass_index(repeated, n_bins)
    )


@given(tied, st.integers(1, 20), st.sampled_from([0.1, 0.3, 1 / 7, 1e-3, 3.3]), st.data())
def test_the_unit_of_the_weights_does_not_matter(
    confidence: np.ndarray, n_bins: int, unit: float, data: st.DataObject
) -> None:
    weights = data.draw(arrays(np.int64, len(confidence), elements=st.integers(1, 4))).astype(float)
    expected = mass_index(confidence, n_bins, weights)
    np.testing.assert_array_equal(mass_index(confidence, n_bins, unit * weights), expected)


def edges_of(confidence: np.ndarray, n_bins: int) -> np.ndarray:
    values, counts = np.unique(confidence, return_counts=True)
    return quantile_edges(values, counts.astype(float), n_bins)


@given(confidences, st.integers(1, 12))
def test_quantile_edges_rise_from_zero_to_one(confidence: np.ndarray, n_bins: int) -> None:
    edges = edges_of(confidence, n_bins)
    assert len(edges) == n_bins + 1
    assert (edges[0], edges[-1]) == (0, 1)
    assert (np.diff(edges) >= 0).all()
    assert np.ptp(place(confidence, edges)) < n_bins


@given(tied, st.integers(1, 40))
def test_quantile_edges_by_the_definition(confidence: np.ndarray, n_bins: int) -> None:
    """Midway between the sorted value of rank floor(n·j/M) and the next value that differs; above the last, 1."""
    ordered = np.sort(confidence)
    lower = [ordered[len(ordered) * j // n_bins] for j in range(1, n_bins)]
    inner = [0.5 * (low + min((one for one in ordered if one > low), default=1.0)) for low in lower]
    np.testing.assert_allclose(edges_of(confidence, n_bins), [0.0, *inner, 1.0], atol=1e-15)


def test_quantile_edges_between_values_leave_the_rows_of_each_bin() -> None:
    """Linear interpolation of the sorted values at n·j/M puts edges on values, and the same rows between them."""
    rng = np.random.default_rng(1)
    for confidence in (rng.random(23), rng.random(60).round(1), np.repeat(0.7, 9)):
        for n_bins in (1, 2, 5, 15, 40):
            at = len(confidence) * np.arange(n_bins + 1) / n_bins
            interpolated = np.interp(at, np.arange(len(confidence)), np.sort(confidence))
            np.testing.assert_array_equal(
                place(confidence, edges_of(confidence, n_bins)), place(confidence, interpolated)
            )


def test_quantile_edges_hold_the_same_mass() -> None:
    confidence = np.random.default_rng(0).beta(5, 1, 1000)
    counts = np.bincount(place(confidence, edges_of(confidence, 10)), minlength=10)
    assert np.ptp(counts) <= 2


@pytest.mark.parametrize("n_bins", [0, -1, 1.5, True, "15", None, np.float64(3)])
def test_numbers_of_bins_that_are_refused(n_bins: object) -> None:
    with pytest.raises(InputError, match="whole number of at least 1"):
        check_n_bins(n_bins)  # type: ignore[arg-type]


def test_numbers_of_bins_that_pass() -> None:
    assert check_n_bins(np.int32(7)) == 7
