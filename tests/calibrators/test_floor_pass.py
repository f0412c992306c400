"""Temperature scaling meets zeros in its own pass: the answer of zeros that were raised before it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, logsumexp

import calibrant as cal
from calibrant.core import progress
from calibrant.data import Predictions, write_predictions

N, K = 5000, 7
PLACES = {"none": [], "first": [0], "last": [N - 1], "sampled": list(range(0, N, 5)), "unsampled": [1, 2, 4998]}


def made(dtype: str = "float64", places: list[int] | None = None) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    labels = rng.integers(0, K, N)
    logits = 2 * rng.normal(size=(N, K))
    logits[np.arange(N), labels] += 2
    logits = logits.astype(dtype)
    for row in places or []:
        logits[row, (labels[row] + 1) % K] = -np.inf
    return logits, labels


def reference(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> tuple[float, float]:
    """Temperature and floor by their definitions, in float64."""
    wide, weights = logits.astype(np.float64), np.ones(len(labels)) if weights is None else weights
    p = np.exp(log_softmax(wide, axis=1))
    sampled = (np.arange(len(p)) % -(-len(p) // 2000) == 0) & (weights > 0)
    floor = 0.5 * p[sampled][p[sampled] > 0].min()
    wide = np.where(np.isneginf(wide), logsumexp(wide, axis=1, keepdims=True) + np.log(floor), wide)

    def loss(log_t: float) -> float:
        return -weights @ log_softmax(wide * np.exp(-log_t), axis=1)[np.arange(len(labels)), labels]

    return float(np.exp(minimize_scalar(loss, bounds=(-3, 3), method="bounded", options={"xatol": 1e-10}).x)), floor


def quietly(fit, *arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cal.FitWarning)
        return fit(*arguments, **options)


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("where", PLACES)
def test_zeros_wherever_they_are(monkeypatch, where, dtype, kernels):
    monkeypatch.setenv("CALIBRANT_KERNELS", kernels)
    logits, labels = made(dtype, PLACES[where])
    temperature, floor = reference(logits, labels)
    fitted = quietly(cal.TemperatureScaling().fit, logits, labels)
    assert fitted.temperature_ == pytest.approx(temperature, rel=3e-7)
    assert np.exp(fitted.log_floor_) == pytest.approx(floor, rel=3e-6)


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("weight", ["counts", "some 0"])
def test_weights(where, weight):
    logits, labels = made("float32", PLACES[where])
    weights = np.random.default_rng(5).integers(1 if weight == "counts" else 0, 4, N).astype(float)
    temperature, floor = reference(logits, labels, weights)
    fitted = quietly(cal.TemperatureScaling().fit, logits, labels, sample_weight=weights)
    assert fitted.temperature_ == pytest.approx(temperature, rel=3e-7)
    assert np.exp(fitted.log_floor_) == pytest.approx(floor, rel=3e-6)


def test_the_warning_is_one_and_names_the_line_of_the_fit():
    logits, labels = made("float32", PLACES["last"])
    with pytest.warns(cal.FitWarning, match="1 of 5000 rows hold a probability of 0") as caught:
        cal.TemperatureScaling().fit(logits, labels)
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize(("suffix", "kernels"), [(".npy", "numpy"), (".npy", "numba"), (".npz", "numpy")])
def test_files_give_the_answer_of_arrays(monkeypatch, tmp_path, where, suffix, kernels):
    monkeypatch.setenv("CALIBRANT_KERNELS", kernels)
    logits, labels = made("float32", PLACES[where])
    whole = quietly(cal.TemperatureScaling().fit, logits, labels)
    for part in range(5):
        own = slice(part * N // 5, (part + 1) * N // 5)
        one = Predictions.from_arrays(logits=logits[own], labels=labels[own])
        write_predictions(one, tmp_path / f"part-{part}{suffix}")
    stages: list[str] = []
    with progress.listen(lambda stage, *_: stages.append(stage)):
        chunked = quietly(cal.TemperatureScaling().fit, tmp_path)
    assert chunked.temperature_ == pytest.approx(whole.temperature_, rel=1e-7)
    assert chunked.log_floor_ == pytest.approx(whole.log_floor_, rel=1e-6)
    assert chunked.fingerprint_ == whole.fingerprint_
    if where == "none":
        assert "checking" not in stages  # the passes of the fit look at every value


def test_a_map_of_a_file(tmp_path):
    logits, labels = made("float32", PLACES["last"])
    np.save(tmp_path / "logits.npy", logits)
    mapped = quietly(cal.TemperatureScaling().fit, np.load(tmp_path / "logits.npy", mmap_mode="r"), labels)
    plain = quietly(cal.TemperatureScaling().fit, logits, labels)
    assert mapped.temperature_ == plain.temperature_
    assert mapped.log_floor_ == plain.log_floor_


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
@pytest.mark.parametrize("row", [0, 3, N - 1])
@pytest.mark.parametrize("value", [np.nan, -np.float64(np.nan), np.inf, "all -inf"])
def test_bad_values_are_named(monkeypatch, tmp_path, value, row, kernels):
    monkeypatch.setenv("CALIBRANT_KERNELS", kernels)
    logits, labels = made("float32")
    logits[row, slice(None) if value == "all -inf" else (labels[row] + 2) % K] = (
        -np.inf if value == "all -inf" else value
    )
    with pytest.raises(cal.InputError, match=f"row {row}"):
        cal.TemperatureScaling().fit(logits, labels)
    np.savez(tmp_path / "bad.npz", logits=logits, labels=labels)
    with pytest.raises(cal.InputError, match=f"row {row}"):
        cal.TemperatureScaling().fit(tmp_path / "bad.npz")


def test_bad_values_in_rows_of_weight_zero_are_named():
    logits, labels = made("float32")
    logits[7, 2] = np.nan
    weights = np.ones(N)
    weights[7] = 0
    with pytest.raises(cal.InputError, match="row 7"):
        cal.TemperatureScaling().fit(logits, labels, sample_weight=weights)
