"""The compiled and the numpy row moments, against the definition."""

from __future__ import annotations

import numpy as np
import pytest

from calibrant.kernels import scaling as plain
from calibrant.kernels.compiled import scaling as compiled


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [0.1, 5.0, 1e4])
@pytest.mark.parametrize("module", [plain, compiled])
def test_row_moments(module, dtype, scale, rng):
    logits = (scale * rng.normal(0, 1, (70, 33))).astype(dtype)
    inverse = rng.uniform(0.2, 3, 70) / max(scale, 1)
    shifted = (logits - logits.max(axis=1, keepdims=True)).astype(np.float64)
    exponentials = np.exp(inverse[:, None] * shifted)
    expected = np.stack([(exponentials * shifted**k).sum(axis=1) for k in range(5)], axis=1)
    tolerance = 3e-5 if dtype is np.float32 and module is compiled else 1e-6 if dtype is np.float32 else 1e-12
    np.testing.assert_allclose(module.row_moments(logits, inverse), expected, rtol=tolerance)


def test_read_only_and_strided_input(rng):
    logits = rng.normal(0, 1, (20, 12))[:, ::2]
    expected = plain.row_moments(logits, np.ones(20))
    logits.flags.writeable = False
    np.testing.assert_allclose(compiled.row_moments(logits, np.ones(20)), expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_powers_of_large_logits_do_not_overflow(dtype, rng):
    logits = (1e12 * rng.normal(0, 1, (70, 33))).astype(dtype)
    inverse = np.full(70, 1e-12)
    np.testing.assert_allclose(
        compiled.row_moments(logits, inverse), plain.row_moments(logits, inverse), rtol=3e-5, atol=0
    )
