"""Top-k predictions: exact at temperature 1, and bounds that hold at any other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import calibrant as cal
from calibrant.core.errors import InputError
from calibrant.core.top_k_bounds import log_masses
from calibrant.data import open_predictions, write_predictions
from calibrant.data.top_k import TopKPredictions, top_rows
from calibrant.metrics import METRICS, stream

EXACT = ("accuracy", "confidence", "nll", "ece", "over_under_confidence", "debiased_ece", "soft_ece", "reliability",
         "classwise_losses", "adaptive_ece", "smooth_ece", "ks_error", "aurc")  # fmt: skip


def made_up(n: int = 1500, k: int = 60, spread: float = 2.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, k, n)
    return spread * rng.normal(size=(n, k)) + 6 * np.eye(k)[labels] * rng.uniform(0, 1, (n, 1)), labels


def numbers(value) -> np.ndarray:
    if isinstance(value, (float, int, np.ndarray)):
        return np.ravel(np.asarray(value, dtype=float))
    return np.concatenate([numbers(getattr(value, name)) for name in value.__dataclass_fields__])


@pytest.mark.parametrize("k", [1, 5, 60])
def test_top_label_metrics_and_nll_are_exact(k):
    logits, labels = made_up()
    found = stream(TopKPredictions.from_logits(logits, labels, k=k), EXACT)
    for name in EXACT:
        direct = METRICS[name](logits, labels, from_logits=True)
        np.testing.assert_allclose(numbers(found[name]), numbers(direct), rtol=1e-9, atol=1e-9, err_msg=name)


@given(
    st.integers(0, 10_000),
    st.integers(1, 12),
    st.floats(0.05, 20),
    st.sampled_from([0.01, 0.5, 2.0, 10.0]),
    st.sampled_from([0.0, 0.9]),
)
def test_the_bounds_hold_against_all_logits(seed, k, temperature, spread, tied):
    rng = np.random.default_rng(seed)
    logits = spread * rng.normal(size=(20, 12))
    logits[rng.uniform(size=logits.shape) < tied] = -spread
    labels = rng.integers(0, 12, 20)
    predictions = TopKPredictions.from_logits(logits, labels, k=k)
    low, high = log_masses(top_rows(predictions.values, labels, 12), 1 / temperature)
    scaled = (logits - logits.max(axis=1, keepdims=True)) / temperature
    true = np.log(np.exp(scaled).sum(axis=1))
    assert (low <= true + 1e-9).all()
    assert (true <= high + 1e-9).all()
    exact_low, exact_high = log_masses(top_rows(predictions.values, labels, 12), 1.0)
    np.testing.assert_allclose(exact_low, exact_high, atol=1e-9)


@pytest.mark.parametrize("k", [2, 10, 30, 60])
@pytest.mark.parametrize("spread", [0.5, 2.0, 6.0])
def test_the_temperature_of_all_logits_lies_within_the_bounds(k, spread):
    logits, labels = made_up(spread=spread)
    full = cal.TemperatureScaling().fit(logits, labels)
    predictions = TopKPredictions.from_logits(logits, labels, k=k)
    fitted = cal.TemperatureScaling().fit_predictions(predictions)
    low, high = fitted.temperature_bounds_
    assert low <= full.temperature_ <= high
    assert low <= fitted.temperature_ <= high
    true = cal.metrics.nll(logits / fitted.temperature_, labels, from_logits=True)
    at = stream(predictions.at_temperature(fitted.temperature_), ["nll"])["nll"]
    assert abs(at - true) <= fitted.tail_error_ + 1e-9
    if k == 60:
        assert fitted.tail_error_ == pytest.approx(0, abs=1e-12)
        assert fitted.temperature_ == pytest.approx(full.temperature_, rel=1e-6)


def test_more_columns_never_widen_the_bound():
    logits, labels = made_up()
    errors = [
        cal.TemperatureScaling().fit_predictions(TopKPredictions.from_logits(logits, labels, k=k)).tail_error_
        for k in (1, 3, 10, 30, 60)
    ]
    assert errors == sorted(errors, reverse=True)


@pytest.mark.parametrize("name", ["none", "ws", "cws", "hb", "iso", "spline"])
def test_methods_of_the_confidence_alone_are_exact(name):
    logits, labels = made_up()
    top = cal.get(name).fit_predictions(TopKPredictions.from_logits(logits, labels, k=3))
    full = cal.get(name).fit(logits, labels)
    # what was learned, not what becomes of the fit rows: those that lie on an edge may move by their last bit
    learned = ("weight_", "weights_", "edges_", "values_", "knots_", "confidences_")
    for attribute in [name for name in learned if hasattr(full, name)]:
        np.testing.assert_allclose(getattr(top, attribute), getattr(full, attribute), atol=1e-9, err_msg=attribute)
    assert top.tail_error_ == 0


@pytest.mark.parametrize("name", ["vs", "ets", "ts-ece", "cts", "bts", "sctl+ts", "ms", "ts+top", "pts"])
def test_methods_of_which_the_bound_says_nothing_are_refused_by_name(name):
    logits, labels = made_up(50)
    calibrator = cal.get(name)
    predictions = TopKPredictions.from_logits(logits, labels, k=3)
    with pytest.raises(
        InputError, match=f"only the 3 largest of 60 logits per row: too few for {type(calibrator).__name__}"
    ):
        calibrator.fit_predictions(predictions)


def test_metrics_that_need_every_class_are_refused_by_name():
    predictions = TopKPredictions.from_logits(*made_up(50), k=3)
    for name, words in (("brier", "AdditiveBrier"), ("entropy", "AdditiveEntropy"), ("sce", "AdditiveSce")):
        with pytest.raises(InputError, match=f"too few for {words}"):
            stream(predictions, [name])
    with pytest.raises(InputError, match="too few for the logits of all classes"):
        _ = predictions.logits


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_files_come_back(tmp_path, suffix):
    logits, labels = made_up(200)
    predictions = TopKPredictions.from_logits(logits, labels, k=4)
    write_predictions(predictions, tmp_path / f"top{suffix}")
    back = open_predictions(tmp_path / f"top{suffix}")
    assert isinstance(back, TopKPredictions)
    assert (back.n, back.n_classes, back.k) == (200, 60, 4)
    np.testing.assert_array_equal(back.values, predictions.values)
    np.testing.assert_array_equal(back[50:60].values, predictions.values[50:60])


def test_parquet_and_parts(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    logits, labels = made_up(300)
    for part in range(3):
        own = slice(100 * part, 100 * part + 100)
        arrays = TopKPredictions.from_logits(logits[own], labels[own], k=4).arrays()
        arrays["n_classes"] = np.repeat(arrays["n_classes"], 100)
        table = {name: list(array) if array.ndim == 2 else array for name, array in arrays.items()}
        pq.write_table(pa.table(table), tmp_path / f"{part}.parquet")
    parts = open_predictions(tmp_path)
    whole = TopKPredictions.from_logits(logits, labels, k=4)
    np.testing.assert_array_equal(parts.values, whole.values)
    one, other = (cal.TemperatureScaling().fit_predictions(given) for given in (parts, whole))
    assert one.temperature_ == pytest.approx(other.temperature_, rel=1e-7)
    assert one.tail_error_ == pytest.approx(other.tail_error_, rel=1e-6)


def test_labels_outside_need_their_logit(tmp_path):
    logits, labels = made_up(100)
    arrays = TopKPredictions.from_logits(logits, labels, k=2).arrays()
    del arrays["label_values"]
    np.savez(tmp_path / "top.npz", **arrays)
    predictions = open_predictions(tmp_path / "top.npz")
    assert stream(predictions, ["ece"])["ece"] == pytest.approx(cal.metrics.ece(logits, labels, from_logits=True))
    with pytest.raises(InputError, match="add label_values"):
        stream(predictions, ["nll"])
    with pytest.raises(InputError, match="add label_values"):
        cal.TemperatureScaling().fit_predictions(predictions)


def test_what_cannot_be_the_top_of_a_row_is_refused(tmp_path):
    logits, labels = made_up(20)
    arrays = TopKPredictions.from_logits(logits, labels, k=3).arrays()
    for change, words in (
        ({"rest": arrays["rest"] + 50}, "store the k largest"),
        ({"indices": np.zeros_like(arrays["indices"])}, "give distinct classes 0..59"),
        ({"indices": arrays["indices"] + 60}, "give distinct classes 0..59"),
        ({"values": np.full_like(arrays["values"], np.nan)}, "values or rest is not finite in row 0"),
        ({"n_classes": np.array([2])}, "n_classes is"),
        ({"rest": arrays["rest"][:-1]}, "rest has shape"),
    ):
        np.savez(tmp_path / "bad.npz", **{**arrays, **change})
        with pytest.raises(InputError, match=words):
            _ = open_predictions(tmp_path / "bad.npz").values


def test_many_classes_cost_only_the_stored_columns():
    rng = np.random.default_rng(0)
    n, k, n_classes = 2000, 20, 128_000
    values = -np.sort(-rng.normal(0, 3, (n, k)), axis=1)
    indices = np.argsort(rng.uniform(size=(n, 40)), axis=1)[:, :k] * 3000
    rest = values.min(axis=1) + rng.uniform(0, 3, n)
    labels = indices[np.arange(n), rng.integers(0, 3, n)]
    predictions = TopKPredictions.from_arrays(
        values=values, indices=indices, rest=rest, n_classes=n_classes, labels=labels
    )
    fitted = cal.TemperatureScaling().fit_predictions(predictions)
    assert fitted.temperature_bounds_[0] <= fitted.temperature_ <= fitted.temperature_bounds_[1]
    assert predictions.values.nbytes == n * (2 * k + 2) * 8
