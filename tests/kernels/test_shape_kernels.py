"""Compiled and numpy twins of the shape kernels agree, and both agree with the map of the method."""

from __future__ import annotations

import numpy as np
import pytest

import calibrant as cal
from calibrant.calibrators.confusion import ConfusionScaling, PathScaling
from calibrant.core.rows import Rows
from calibrant.kernels import shape
from calibrant.kernels.compiled import shape as compiled

THETA = np.array([1.1, 0.2, -0.1, 0.3])


def data(n_classes: int, dtype: str = "float64", n: int = 400) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n_classes)
    labels = rng.integers(0, n_classes, n)
    logits = 3 * rng.normal(size=(n, n_classes))
    logits[np.arange(n), labels] += 3
    logits[:5] *= 100  # rows that are certain
    return logits.astype(dtype), labels, rng.integers(1, 4, n).astype(float)


@pytest.mark.parametrize("n_classes", [2, 7, 64, 131])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("weighted", [False, True])
def test_twins_agree(n_classes, dtype, weighted):
    logits, labels, weights = data(n_classes, dtype)
    given = logits, labels, weights if weighted else None, THETA
    for one, other in zip(shape.shape_sums(*given), compiled.shape_sums(*given), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-9, atol=1e-9 * np.abs(one).max())
    np.testing.assert_allclose(
        compiled.bent_losses_of(*given)[0], shape.bent_losses_of(*given)[0], rtol=1e-9, atol=1e-9
    )
    tolerance = 1e-6 if dtype == "float32" else 1e-9
    scores = compiled.bent_scores(logits, THETA)
    assert scores.dtype == logits.dtype
    np.testing.assert_allclose(scores, shape.bent_scores(logits, THETA), rtol=tolerance, atol=tolerance)


def test_the_compiled_transform_is_the_map(monkeypatch):
    logits, labels, _ = data(40, "float32")
    fitted = cal.ShapeScaling().fit(logits, labels)
    plain = fitted.transform(logits)
    monkeypatch.setenv("CALIBRANT_KERNELS", "numba")
    fast = fitted.transform(logits)
    np.testing.assert_allclose(fast, plain, rtol=2e-6, atol=2e-6)
    np.testing.assert_array_equal(fast.argmax(axis=1), logits.argmax(axis=1))


@pytest.mark.parametrize("name", ["shape", "conf+shape+top"])
def test_fits_do_not_depend_on_the_kernels(monkeypatch, name):
    logits, labels, _ = data(30, "float32", 1500)
    found = []
    for kernels in ("numpy", "numba"):
        monkeypatch.setenv("CALIBRANT_KERNELS", kernels)
        found.append(cal.get(name).fit(logits, labels).predict_proba(logits))
    np.testing.assert_allclose(found[1], found[0], atol=2e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_walk_over_scales_ends_where_the_one_with_a_matrix_does(weighted):
    logits, labels, weights = data(12, "float64", 3000)
    rows = Rows(logits, labels, weights if weighted else None)
    path = [(np.inf, np.inf, np.inf), (np.inf, 30.0, 10.0), (np.inf, 3.0, 1.0)]
    method = ConfusionScaling()
    (start, plain), (other, fast) = (
        walk(method, rows, path, None, last=True) for walk in (PathScaling._walk, ConfusionScaling._walk)
    )
    assert other.unit == start.unit
    for (expected, _), (found, _) in zip(plain, fast, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)
    few = Rows(logits.astype(np.float32), labels, rows.weights)
    *_, (rough, _) = method._walk(few, path, np.float32, last=False)[1]
    np.testing.assert_allclose(rough, expected, atol=5e-3)


@pytest.mark.parametrize(("scale", "bias"), [(np.inf, 5.0), (5.0, np.inf)])
def test_many_classes_with_only_scales_or_only_biases(scale, bias):
    logits, labels, _ = data(260, "float32", 1200)
    fitted = cal.ConfusionScaling(np.inf, penalty_scale=scale, penalty_bias=bias).fit(logits, labels)
    assert (np.ptp(fitted.scale_) > 1e-6) == (scale < np.inf)
    assert (np.ptp(fitted.bias_) > 1e-6) == (bias < np.inf)
