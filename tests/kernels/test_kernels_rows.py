"""The fused scan: twins agree, bad values are met in the same pass, ties go to the first class."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from calibrant.core.errors import InputError
from calibrant.core.softmax import softmax
from calibrant.kernels import bins, rows
from calibrant.kernels.compiled import bins as compiled_bins
from calibrant.kernels.compiled import exponential as elementary
from calibrant.kernels.compiled import rows as compiled_rows

DTYPES = [np.float32, np.float64]


def matrices(dtype, seed=0, n=500, n_classes=13):
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(n, n_classes)) * 4).astype(dtype)
    logits[0] = 1.5  # every class ties
    logits[1] = -np.abs(logits[1])
    logits[2, :] = -3e3
    logits[2, 4] = 3e3  # a probability of exactly one
    logits[3, [2, 7]] = 50.0  # two classes tie
    return logits, rng.integers(0, n_classes, n)


def close(left, right, tolerance):
    for name, a, b in zip(rows.RowColumns._fields, left, right, strict=True):
        assert a.dtype == b.dtype, name
        np.testing.assert_allclose(a.astype(float), b.astype(float), atol=tolerance, rtol=tolerance, err_msg=name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("level", [rows.CORRECT, rows.TOP, rows.SCORES, rows.ALL])
def test_twins_agree_on_logits(dtype, level):
    logits, labels = matrices(dtype)
    plain, plain_bad = rows.scan_logits(logits, labels, level)
    compiled, compiled_bad = compiled_rows.scan_logits(logits, labels, level)
    assert not plain_bad
    assert not compiled_bad
    close(plain, compiled, 1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("level", [rows.CORRECT, rows.TOP, rows.SCORES, rows.ALL])
def test_twins_agree_on_probabilities(dtype, level):
    logits, labels = matrices(dtype)
    probabilities = softmax(logits)
    plain, plain_bad = rows.scan_probabilities(probabilities, labels, level)
    compiled, compiled_bad = compiled_rows.scan_probabilities(probabilities, labels, level)
    assert not plain_bad
    assert not compiled_bad
    close(plain, compiled, 1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("module", [rows, compiled_rows])
def test_columns_are_what_their_names_say(dtype, module):
    logits, labels = matrices(dtype)
    wide = logits.astype(np.float64)
    p = np.exp(wide - wide.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    columns, _ = module.scan_logits(logits, labels, rows.ALL)
    onehot = np.eye(p.shape[1])[labels]
    np.testing.assert_allclose(columns.confidence, p.max(axis=1), rtol=1e-13)
    np.testing.assert_array_equal(columns.prediction, logits.argmax(axis=1))
    np.testing.assert_array_equal(columns.correct, logits.argmax(axis=1) == labels)
    of_label = p[np.arange(len(p)), labels]
    likely = of_label > 0
    np.testing.assert_allclose(columns.nll[likely], -np.log(of_label[likely]), atol=1e-12)
    np.testing.assert_allclose(columns.brier, ((p - onehot) ** 2).sum(axis=1), atol=1e-13)
    entropy = -np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0).sum(axis=1)
    np.testing.assert_allclose(columns.entropy, entropy, atol=1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("module", [rows, compiled_rows])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_bad_values_are_met_in_the_pass(dtype, module, bad):
    logits, labels = matrices(dtype)
    probabilities = softmax(logits)
    logits[7, 3] = probabilities[7, 3] = bad
    # −inf is a logit: a probability of 0
    assert module.scan_logits(logits, labels, rows.TOP)[1] == (bad != -np.inf)
    assert module.scan_probabilities(probabilities, labels, rows.TOP)[1]


@pytest.mark.parametrize("module", [rows, compiled_rows])
@pytest.mark.parametrize("change", [0.002, -0.002])
def test_rows_that_do_not_sum_to_one_are_met(module, change):
    probabilities = softmax(matrices(np.float64)[0])
    probabilities[9, 0] += change
    assert module.scan_probabilities(probabilities, np.zeros(len(probabilities), int), rows.TOP)[1]


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
def test_scan_names_the_row_of_a_later_block(kernels, monkeypatch):
    monkeypatch.setenv("CALIBRANT_KERNELS", kernels)
    probabilities = np.full((600_000, 2), 0.5, dtype=np.float32)
    probabilities[555_555] = np.nan
    with pytest.raises(InputError, match="probabilities contains NaN in row 555555, column 0"):
        rows.scan(probabilities, None, from_logits=False)
    logits = np.zeros((600_000, 2), dtype=np.float32)
    logits[555_555, 1] = np.inf
    with pytest.raises(InputError, match="logits contains Inf in row 555555, column 1"):
        rows.scan(logits, None, from_logits=True)


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
def test_scan_of_blocks_is_the_scan_of_the_whole(kernels, monkeypatch):
    monkeypatch.setenv("CALIBRANT_KERNELS", kernels)
    rng = np.random.default_rng(1)
    logits, labels = rng.normal(size=(300_000, 8)), rng.integers(0, 8, 300_000)
    whole, _ = rows.scan_logits(logits, labels, rows.ALL)
    close(rows.scan(logits, labels, from_logits=True), whole, 1e-12)


def test_read_only_and_strided_matrices_are_scanned(monkeypatch):
    monkeypatch.setenv("CALIBRANT_KERNELS", "numba")
    logits, labels = matrices(np.float64)
    expected = rows.scan(logits, labels, from_logits=True)
    logits.flags.writeable = False
    close(rows.scan(logits, labels, from_logits=True), expected, 0)
    wide = np.repeat(logits, 2, axis=1)[:, ::2]
    close(rows.scan(wide, labels, from_logits=True), expected, 0)
    close(rows.scan(np.asfortranarray(logits), labels, from_logits=True), expected, 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_correct_alone_is_the_correct_of_the_predictions(dtype):
    rng = np.random.default_rng(5)
    # few distinct values: many ties for the maximum, before and after the label
    probabilities = (rng.multinomial(4, np.full(6, 1 / 6), size=2000) / 4).astype(dtype)
    labels = rng.integers(0, 6, 2000)
    expected = probabilities.argmax(axis=1) == labels
    for module in (rows, compiled_rows):
        columns, bad = module.scan_probabilities(probabilities, labels, rows.CORRECT)
        assert not bad
        np.testing.assert_array_equal(columns.correct, expected)
        np.testing.assert_array_equal(columns.confidence, probabilities.max(axis=1))
        assert len(columns.prediction) == 0


def test_huge_finite_logits_are_no_error():
    logits = np.array([[3e38, -3e38], [-3e38, -3e38]], dtype=np.float32)
    columns = rows.scan(logits, np.array([0, 1]), from_logits=True)
    np.testing.assert_allclose(columns.confidence, [1, 0.5])
    assert np.isfinite(columns.entropy).all()
    compiled, bad = compiled_rows.scan_logits(logits, np.array([0, 1]), rows.ALL)
    assert not bad
    close(columns, compiled, 1e-12)


def test_polynomial_exp_and_log_are_accurate():
    x = np.linspace(-708, 0, 20_001)
    ours = np.array([elementary.exp_negative_64(value) for value in x])
    np.testing.assert_allclose(ours, np.exp(x), rtol=1e-15)
    p = np.concatenate([np.exp(x), 1 - np.logspace(-16, -1, 50), [1.0]])
    ours = np.array([elementary.log_positive(value) for value in p])
    np.testing.assert_allclose(ours, np.log(p), rtol=2e-15, atol=1e-16)


def test_polynomials_keep_their_rounding_inside_a_reordering_caller():
    # compiled afresh from within a fast caller, as the first call of a process may do
    options = {name: elementary.exp_negative_64.targetoptions.get(name) for name in ("fastmath", "error_model")}
    exp_negative = njit(**options)(elementary.exp_negative_64.py_func)
    log_positive = njit(**options)(elementary.log_positive.py_func)

    @njit(fastmath={"reassoc", "contract", "nsz", "arcp"})
    def totals(x):
        total, logs = 0.0, 0.0
        for value in x:
            total += exp_negative(value)
            logs += log_positive(-value)
        return total, logs

    x = np.linspace(-30, -0.01, 1001)
    np.testing.assert_allclose(totals(x), (np.exp(x).sum(), np.log(-x).sum()), rtol=1e-13)


@given(
    values=st.lists(st.integers(0, 60), min_size=1, max_size=30),
    n_bins=st.sampled_from([1, 2, 3, 7, 10, 15, 20, 30, 60]),
    dtype=st.sampled_from(DTYPES),
    weighted=st.booleans(),
)
def test_bin_twins_agree_on_and_off_the_edges(values, n_bins, dtype, weighted):
    confidence = (np.array(values) / 60).astype(dtype)
    correct = np.arange(len(values)) % 2 == 0
    weights = np.linspace(0, 2, len(values)) if weighted else None
    plain = bins.width_sums(confidence, correct, weights, n_bins)
    np.testing.assert_allclose(compiled_bins.width_sums(confidence, correct, weights, n_bins), plain, atol=1e-12)
    # the literal rule: (lo, hi], zero in the first bin
    edges = (np.arange(n_bins + 1) / n_bins).astype(dtype)
    for b in range(n_bins):
        inside = (confidence > edges[b]) & (confidence <= edges[b + 1]) | ((b == 0) & (confidence == 0))
        expected = inside.sum() if weights is None else weights[inside].sum()
        assert plain[0, b] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighted", [False, True])
def test_class_bin_twins_agree(dtype, weighted):
    rng = np.random.default_rng(2)
    probabilities = rng.dirichlet(np.full(9, 0.3), 400).astype(dtype)
    labels = rng.integers(0, 9, 400)
    weights = rng.random(400) if weighted else None
    plain = bins.class_width_sums(probabilities, labels, weights, 15)
    compiled = compiled_bins.class_width_sums(probabilities, labels, weights, 15)
    np.testing.assert_allclose(compiled, plain, atol=1e-10)
