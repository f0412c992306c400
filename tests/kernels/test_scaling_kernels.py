"""Compiled and numpy twins of the scaling kernels agree, over dtypes, weights and layouts."""

from __future__ import annotations

import numpy as np
import pytest

from calibrant.calibrators.temperature import TemperatureScaling
from calibrant.core.errors import InputError
from calibrant.kernels import scaling
from calibrant.kernels.compiled import scaling as compiled

SHAPES = [(1, 2), (37, 5), (64, 33)]


def data(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=shape) * 4).astype(dtype)
    return logits, rng.integers(0, shape[1], shape[0]), rng.uniform(0, 2, shape[0])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-5), (np.float64, 1e-11)])
@pytest.mark.parametrize("weighted", [False, True])
def test_twins_agree(shape, dtype, tolerance, weighted):
    logits, labels, weights = data(shape, dtype)
    rng = np.random.default_rng(1)
    scale, bias, direction = rng.uniform(0.5, 1, shape[1]), rng.normal(size=shape[1]), rng.normal(size=(2, shape[1]))
    for name, parameters in (
        ("temperature_sums", (0.6,)),
        ("vector_sums", (scale, bias)),
        ("vector_product", (scale, bias, direction)),
    ):
        given = (logits, labels, weights if weighted else None, *parameters)
        for one, other in zip(getattr(scaling, name)(*given), getattr(compiled, name)(*given), strict=True):
            np.testing.assert_allclose(other, one, rtol=tolerance, atol=tolerance * np.abs(one).max() + 1e-12)
    betas = np.array([0.1, 1.0, 7.0])
    np.testing.assert_allclose(
        compiled.temperature_confidences(logits, betas), scaling.temperature_confidences(logits, betas), rtol=1e-12
    )


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-6), (np.float64, 1e-12)])
def test_the_whole_hessian_is_what_products_with_it_say(dtype, tolerance, weighted, order):
    logits, labels, weights = data((300, 7), dtype)
    rng = np.random.default_rng(1)
    scale, bias = rng.uniform(0.5, 1, 7), rng.normal(size=7)
    given = (np.asarray(logits, order=order), labels, weights if weighted else None, scale, bias)
    loss, gradient, hessian = scaling.vector_newton(*given)
    wide = (logits.astype(np.float64), *given[1:])
    expected = scaling.vector_sums(*wide)
    assert loss == pytest.approx(expected[0], rel=tolerance)
    np.testing.assert_allclose(gradient, expected[1], atol=tolerance * np.abs(expected[1]).max())
    columns = [scaling.vector_product(*wide, unit.reshape(2, 7))[0].ravel() for unit in np.eye(14)]
    np.testing.assert_allclose(hessian, np.stack(columns), atol=5 * tolerance * np.abs(hessian).max())
    without = scaling.vector_newton(*given, False)
    assert without[0] == loss
    assert (without[1] == gradient).all()
    assert without[2].size == 0


def test_temperature_sums_are_the_derivatives_of_the_loss():
    logits, labels, weights = data((40, 6), np.float64)
    beta, reach = 0.7, 1e-3
    at = [scaling.temperature_sums(logits, labels, weights, beta + k * reach) for k in (-2, -1, 0, 1, 2)]
    plain = np.array(
        [
            [value / (beta + k * reach) ** order for order, value in enumerate(sums)]
            for k, sums in zip((-2, -1, 0, 1, 2), at, strict=True)
        ]
    )
    for order in range(4):
        # the five-point rule: its error is of the order of reach⁴
        slope = (plain[0] - 8 * plain[1] + 8 * plain[3] - plain[4])[order] / (12 * reach)
        assert slope == pytest.approx(plain[2, order + 1], rel=1e-7)


def test_logits_further_apart_than_float32_reaches():
    logits = np.tile(np.array([[3e38, -3e38, 0.0]], np.float32), (20_000, 1))
    labels = np.arange(20_000) % 3
    sums = scaling.temperature_sums(logits, labels, None, 1e-38)
    np.testing.assert_allclose(
        sums, scaling.temperature_sums(logits.astype(np.float64), labels, None, 1e-38), rtol=1e-12
    )
    assert np.isfinite(sums).all()


@pytest.mark.parametrize("kernel", [scaling.temperature_sums, compiled.temperature_sums])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_temperature_sums_show_values_that_are_not_finite(kernel, bad, dtype):
    logits, labels, _ = data((2000, 33), dtype)
    logits[1234, 5] = bad
    labels[1234] = 6
    for beta in (1e-3, 1.0, 1e3):
        assert not np.isfinite(kernel(logits, labels, None, beta)).all()


def test_one_compilation_serves_every_layout():
    logits, labels, _ = data((40, 6), np.float32)
    frozen = logits.copy()
    frozen.flags.writeable = False
    answers = [
        compiled.temperature_sums(layout, labels, None, 0.5)
        for layout in (logits, frozen, np.asfortranarray(logits), np.repeat(logits, 2, axis=0)[::2])
    ]
    assert all(answer == answers[0] for answer in answers)
    signatures = compiled.temperature_sums.__wrapped__.signatures
    assert len({signature[0] for signature in signatures if "float32" in str(signature)}) == 1


@pytest.mark.parametrize("value", [-1e4, -200.0, -88.0, -30.0, -1.0, -1e-7, 0.0])
def test_exponentials_are_exact_to_their_precision(value):
    logits = np.array([[0.0, value]])
    for dtype, tolerance in ((np.float32, 3e-7), (np.float64, 1e-14)):
        loss = compiled.temperature_sums(logits.astype(dtype), np.array([0]), None, 1.0)[0]
        assert loss == pytest.approx(np.log1p(np.exp(dtype(value).astype(np.float64))), abs=tolerance)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scaling_twins_agree(dtype, monkeypatch):
    logits, _, _ = data((50, 7), dtype)
    scale, bias = np.linspace(0.5, 2, 7), np.arange(7.0)
    answers = []
    for kernels in ("numpy", "numba"):
        monkeypatch.setenv("CALIBRANT_KERNELS", kernels)
        answers.append(scaling.scale_rows(logits, scale, bias))
        assert answers[-1].dtype == dtype
    np.testing.assert_allclose(answers[0], answers[1], rtol=1e-6 if dtype == np.float32 else 1e-14, atol=1e-6)


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_logit_is_named_by_its_row_in_the_whole_matrix(bad, monkeypatch):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3, 2**19)).astype(np.float32)  # two rows fill a block
    for kernels in ("numpy", "numba"):
        monkeypatch.setenv("CALIBRANT_KERNELS", kernels)
        fitted = TemperatureScaling().fit(logits, [0, 1, 2])
        broken = logits.copy()
        broken[2, 5] = bad
        with pytest.raises(InputError, match="row 2, column 5"):
            fitted.transform(broken)


def test_rounding_never_moves_the_prediction():
    rng = np.random.default_rng(0)
    logits = (1 + np.float32(6e-8) * rng.integers(0, 4, (2000, 6))).astype(np.float32)
    scale = np.full(6, 0.31, np.float32)
    for kernel in (scaling.scale_block, compiled.scale_block):
        scaled = np.empty_like(logits)
        kernel(logits, scale, np.zeros(6, np.float32), scaled, True)
        assert (scaled.argmax(axis=1) == logits.argmax(axis=1)).all()
