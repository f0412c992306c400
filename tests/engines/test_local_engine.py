"""Fits from files on threads: the answer of the arrays, whatever the parts and the number of threads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import calibrant as cal
from calibrant.calibrators.registry import names
from calibrant.core import progress
from calibrant.core.errors import InputError
from calibrant.data import chunks as chunks_module
from calibrant.data.chunks import file_rows
from calibrant.engines.engine import opened
from calibrant.metrics import METRICS, stream, streaming

FORTY = np.linspace(0, 4000, 41).astype(int)
METHODS = {name: cal.get(name) for name in names()}
# fits that put rows into folds read a scratch copy on disk, as the others without `additive` do
READING = [name for name, one in METHODS.items() if one.additive or not one.cross_fits]


def numbers(value) -> np.ndarray:
    if isinstance(value, (float, int, np.ndarray)):
        return np.ravel(np.asarray(value, dtype=float))
    fields = [getattr(value, name) for name in value.__dataclass_fields__]
    return np.concatenate([numbers(field) for field in fields])


@pytest.fixture(scope="module")
def forty(
    tmp_path_factory: pytest.TempPathFactory, made_up, write_parts
) -> tuple[cal.Predictions, np.ndarray, np.ndarray, np.ndarray]:
    logits, labels = made_up()
    weights = np.random.default_rng(1).uniform(0.5, 2, len(labels))
    suffixes = (".npz", ".parquet", ".safetensors", ".npy")
    folder = write_parts(tmp_path_factory.mktemp("forty") / "parts", logits, labels, FORTY, suffixes, weights)
    return cal.open_predictions(folder), logits, labels, weights


@pytest.mark.parametrize("name", [name for name in READING if not METHODS[name].trains_network])
def test_forty_files_give_the_fit_of_the_arrays(forty, name):
    parts, logits, labels, weights = forty
    whole = cal.get(name).fit(logits, labels, sample_weight=weights)
    chunked = cal.get(name).fit(parts)
    gap = np.abs(whole.predict_proba(logits.astype(float)) - chunked.predict_proba(logits.astype(float)))
    assert gap.max() <= 1e-6
    assert chunked.n_rows_ == len(labels)
    assert chunked.fingerprint_ == whole.fingerprint_


def test_streamed_metrics_are_those_of_the_arrays(forty):
    parts, logits, labels, weights = forty
    ranked = ["adaptive_ece", "smooth_ece", "ks_error", "confidence_auroc"]
    found = stream(parts) | stream(parts, ranked)
    for name, value in found.items():
        direct = METRICS[name].function(logits, labels, sample_weight=weights, from_logits=True)
        np.testing.assert_allclose(numbers(value), numbers(direct), rtol=1e-10, atol=1e-12, err_msg=name)
    (own,) = stream(parts, [streaming("ece", n_bins=30)]).values()
    assert own == pytest.approx(cal.metrics.ece(logits, labels, n_bins=30, sample_weight=weights, from_logits=True))


def test_metrics_that_cannot_be_streamed_are_named(forty):
    with pytest.raises(InputError, match="marginal_ece ranks every class"):
        stream(forty[0], ["marginal_ece"])
    with pytest.raises(InputError, match="nonsense is not the name"):
        stream(forty[0], ["nonsense"])


@pytest.mark.parametrize("pieces", [1, 3, 40])
def test_neither_parts_nor_threads_change_the_answer(tmp_path, monkeypatch, made_up, write_parts, pieces):
    monkeypatch.setattr(chunks_module.cut, "__kwdefaults__", {"elements": 1500})
    logits, labels = made_up(3000)
    folder = write_parts(tmp_path / "parts", logits, labels, np.linspace(0, 3000, pieces + 1).astype(int))
    parts = cal.open_predictions(folder)
    found = set()
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("CALIBRANT_THREADS", threads)
        found.add(cal.VectorScaling().fit(parts).scale_.tobytes())
    assert len(found) == 1
    whole = cal.VectorScaling().fit(logits, labels)
    np.testing.assert_allclose(np.frombuffer(found.pop()), whole.scale_, atol=1e-6)


def test_values_in_memory_and_probabilities_can_be_cut_too(forty):
    _, logits, labels, _ = forty
    probabilities = cal.Identity().fit(logits, labels).predict_proba(logits)
    predictions = cal.Predictions.from_arrays(probabilities=probabilities, labels=labels)
    one = cal.TemperatureScaling().fit(predictions).temperature_
    assert one == pytest.approx(cal.TemperatureScaling().fit(predictions.logits, labels).temperature_, abs=1e-6)


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["ts", "ws"])
def test_a_bad_value_is_named_with_file_part_and_row(tmp_path, monkeypatch, made_up, write_parts, kernels, bad, name):
    monkeypatch.setenv("CALIBRANT_KERNELS", kernels)
    logits, labels = made_up(300)
    folder = write_parts(tmp_path / "parts", logits, labels, [0, 100, 200, 300], (".npy",))
    values = np.load(folder / "part-001_logits.npy")
    values[7, 2] = bad
    np.save(folder / "part-001_logits.npy", values)
    with pytest.raises(InputError, match=r"part 2 of 3: .*part-001_logits.npy: logits contains .* in row 7, column 2"):
        cal.get(name).fit(folder)
    with pytest.raises(InputError, match=r"part 2 of 3: .*part-001_logits.npy: logits contains .* in row 7, column 2"):
        stream(cal.open_predictions(folder))


@pytest.mark.parametrize("name", ["ts", "vs", "ets"])
def test_probabilities_in_a_file_must_sum_to_one_in_every_row(tmp_path, made_up, name):
    logits, labels = made_up(3000)
    probabilities = cal.Identity().fit(logits, labels).predict_proba(logits)
    probabilities[2000] /= 2  # behind the rows that are looked at when the file is opened
    np.savez(tmp_path / "a.npz", probabilities=probabilities, labels=labels)
    with pytest.raises(InputError, match=r"probabilities of row 2000 sum to 0\.5"):
        cal.get(name).fit(tmp_path / "a.npz")


def test_progress_tells_pass_speed_and_temperature(forty):
    seen = []
    with progress.listen(lambda *step: seen.append(step)):
        cal.TemperatureScaling().fit(forty[0])
    passes = [step for step in seen if step[0].startswith("pass")]
    assert passes[0][0] == "pass 1"
    assert all(0 <= done <= total == 4000 for _, done, total, _ in passes)
    assert any("rows/s T 1." in note for *_, note in passes)


def test_per_row_columns_wait_in_a_scratch_file_when_large(forty, monkeypatch):
    monkeypatch.setattr("calibrant.data.chunks.SPILL_BYTES", 1000)
    parts, logits, labels, weights = forty
    spilled = cal.get("cws").fit(parts)
    assert np.array_equal(spilled.weights_, cal.get("cws").fit(logits, labels, sample_weight=weights).weights_)
    with opened("local") as engine:
        rows = file_rows(parts, engine)
        whole = rows.whole()
        assert isinstance(whole.logits, np.memmap)
        assert np.array_equal(whole.logits, logits)
        scratch = Path(whole.logits.filename)
    del rows, whole
    assert not scratch.exists()


def test_cross_validated_penalties_split_a_scratch_copy(forty):
    parts, logits, labels, weights = forty
    options = {"penalty_off_diagonal": "cv"}
    chunked = cal.MatrixScaling(**options).fit(parts)
    whole = cal.MatrixScaling(**options).fit(logits, labels, sample_weight=weights)
    assert chunked.penalties_ == whole.penalties_
    np.testing.assert_allclose(chunked.matrix_, whole.matrix_, atol=1e-5)


def test_engines_have_names():
    with pytest.raises(InputError, match="no engine is called 'spark'"), opened("spark"):
        pass
    with pytest.raises(InputError, match="run\\(\\) and close\\(\\)"), opened(7):
        pass
