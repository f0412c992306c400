"""One set of promises for every file format: what goes in comes out, bad input is one line, damage is never a crash."""

from __future__ import annotations

import gzip
import pickle
import resource
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.core.errors import InputError
from calibrant.data import Predictions, open_predictions, write_predictions

N, K = 7, 3
Writer = Callable[[Path, dict[str, Any]], Path]


def save_npz(folder: Path, arrays: dict[str, Any]) -> Path:
    np.savez(folder / "set.npz", **arrays)
    return folder / "set.npz"


def save_packed_npz(folder: Path, arrays: dict[str, Any]) -> Path:
    np.savez_compressed(folder / "set.npz", **arrays)
    return folder / "set.npz"


def save_npy(folder: Path, arrays: dict[str, Any]) -> Path:
    for name, array in arrays.items():
        np.save(folder / f"set_{name}.npy", array)
    return folder / f"set_{'logits' if 'logits' in arrays else 'probabilities'}.npy"


def save_parquet(folder: Path, arrays: dict[str, Any], fixed: bool = True) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {}
    for name, array in arrays.items():
        if array.ndim == 1:
            columns[name] = pa.array(array)
        elif fixed:
            columns[name] = pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), array.shape[1])
        else:
            columns[name] = pa.array(list(array), pa.list_(pa.from_numpy_dtype(array.dtype)))
    # two row groups; without statistics the file is small, and cutting it at every byte quick
    table = pa.table(columns)
    pq.write_table(table, folder / "set.parquet", row_group_size=4, write_statistics=False, store_schema=fixed)
    return folder / "set.parquet"


def save_list_parquet(folder: Path, arrays: dict[str, Any]) -> Path:
    return save_parquet(folder, arrays, fixed=False)


def save_safetensors(folder: Path, arrays: dict[str, Any]) -> Path:
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, folder / "set.safetensors")
    return folder / "set.safetensors"


def csv_text(arrays: dict[str, Any]) -> str:
    kind = "logits" if "logits" in arrays else "probabilities"
    prefix = {"logits": "logit_", "probabilities": "probability_"}[kind]
    values = arrays[kind]
    names = [name for name in ("labels", "weights") if name in arrays]
    lines = [",".join([*names, *(f"{prefix}{column}" for column in range(values.shape[1]))])]
    for row in range(len(values)):
        lines.append(",".join([*(str(arrays[name][row]) for name in names), *(repr(float(v)) for v in values[row])]))
    return "\n".join(lines) + "\n"


def save_csv(folder: Path, arrays: dict[str, Any]) -> Path:
    (folder / "set.csv").write_text(csv_text(arrays))
    return folder / "set.csv"


def save_packed_csv(folder: Path, arrays: dict[str, Any]) -> Path:
    (folder / "set.csv.gz").write_bytes(gzip.compress(csv_text(arrays).encode()))
    return folder / "set.csv.gz"


def save_pickle(folder: Path, arrays: dict[str, Any]) -> Path:
    (folder / "set.pkl").write_bytes(pickle.dumps(arrays))
    return folder / "set.pkl"


WRITERS: dict[str, Writer] = {
    "npz": save_npz,
    "npz packed": save_packed_npz,
    "npy": save_npy,
    "parquet": save_parquet,
    "parquet of lists": save_list_parquet,
    "safetensors": save_safetensors,
    "csv": save_csv,
    "csv.gz": save_packed_csv,
    "pickle": save_pickle,
}
"""How the format's own tools write it: the readers are tested against those, not against our writers."""

every_format = pytest.mark.parametrize("save", WRITERS.values(), ids=list(WRITERS))
writable = pytest.mark.parametrize("suffix", ["npz", "npy", "parquet", "safetensors", "csv", "csv.gz"])


def good(kind: str = "logits") -> dict[str, Any]:
    rng = np.random.default_rng(1)
    values = rng.normal(size=(N, K)).astype(np.float32)
    if kind == "probabilities":
        values = np.exp(values) / np.exp(values).sum(axis=1, keepdims=True)
    return {kind: values, "labels": rng.integers(0, K, N), "weights": rng.uniform(0.5, 2, N)}


@every_format
@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_reads_what_others_wrote(tmp_path: Path, save: Writer, kind: str) -> None:
    arrays = good(kind)
    predictions = open_predictions(save(tmp_path, arrays))
    assert (predictions.kind, predictions.n, predictions.n_classes, len(predictions)) == (kind, N, K, N)
    np.testing.assert_array_equal(predictions.values.astype(np.float32), arrays[kind])
    np.testing.assert_array_equal(predictions.labels, arrays["labels"])
    np.testing.assert_array_equal(predictions.weights, arrays["weights"])
    np.testing.assert_allclose(predictions.probabilities.sum(axis=1), 1, rtol=1e-6)


@every_format
def test_chunks_and_slices_hold_the_same_rows(tmp_path: Path, save: Writer) -> None:
    arrays = good()
    predictions = open_predictions(save(tmp_path, arrays))
    for rows in (1, 2, 3, N, 100):
        chunks = list(predictions.chunks(rows))
        assert all(chunk.n <= rows for chunk in chunks)
        # one memory layout for all formats, so that kernels are compiled once
        assert all(chunk.values.flags.carray and chunk.values.dtype.isnative for chunk in chunks)
        np.testing.assert_array_equal(np.concatenate([c.values for c in chunks]).astype(np.float32), arrays["logits"])
        np.testing.assert_array_equal(np.concatenate([c.labels for c in chunks]), arrays["labels"])
        np.testing.assert_array_equal(np.concatenate([c.weights for c in chunks]), arrays["weights"])
    for index in (slice(2, 6), slice(4, None), slice(None, None, 2), [5, 0, 0], arrays["labels"] == 1, -1):
        part = open_predictions(save(tmp_path, arrays))[index]
        expected = np.atleast_2d(arrays["logits"][index])
        np.testing.assert_array_equal(part.values.astype(np.float32), expected)
        np.testing.assert_array_equal(part.labels, np.atleast_1d(arrays["labels"][index]))
        np.testing.assert_array_equal(np.concatenate([c.values for c in part.chunks(2)]), part.values)


@every_format
def test_changing_an_array_never_changes_the_file(tmp_path: Path, save: Writer) -> None:
    path = save(tmp_path, good())
    before = path.read_bytes()
    next(open_predictions(path).chunks()).values[:] = 5
    assert path.read_bytes() == before


@every_format
def test_predictions_travel_to_other_processes(tmp_path: Path, save: Writer) -> None:
    predictions = open_predictions(save(tmp_path, good()))
    there = pickle.loads(pickle.dumps(predictions))
    np.testing.assert_array_equal(there.values, predictions.values)


@writable
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_round_trip(tmp_path: Path, suffix: str, dtype: type) -> None:
    rng = np.random.default_rng(2)
    names = ["cat", "dog, big", 'the "other" Ünï']
    whole = Predictions.from_arrays(
        logits=rng.normal(size=(N, K)).astype(dtype) * 1e3,
        labels=rng.integers(0, K, N),
        weights=rng.uniform(size=N),
        class_names=names,
    )
    files = write_predictions(whole, tmp_path / f"out.{suffix}")
    assert sorted(tmp_path.iterdir()) == sorted(files)
    again = open_predictions(tmp_path / f"out.{suffix}")
    np.testing.assert_array_equal(again.values.astype(dtype), whole.values)
    np.testing.assert_array_equal(again.labels, whole.labels)
    np.testing.assert_array_equal(again.weights, whole.weights)
    assert again.class_names == tuple(names)


def spoil(case: str) -> tuple[dict[str, Any], list[str]]:
    """Arrays with one fault, and what the message must say."""
    arrays = good("probabilities" if case.startswith("probabilities") else "logits")
    if case == "nan":
        arrays["logits"][4, 1] = np.nan
        return arrays, ["logits", "NaN", "row 4", "column 1"]
    if case == "inf":
        arrays["logits"][6, 2] = np.inf
        return arrays, ["logits", "Inf", "row 6", "column 2"]
    if case == "label too large":
        arrays["labels"][2] = 12
        return arrays, ["labels", "12", "0..2"]
    if case == "label negative":
        arrays["labels"][2] = -1
        return arrays, ["labels", "-1", "0..2"]
    if case == "label float":
        arrays["labels"] = arrays["labels"] + 0.5
        return arrays, ["labels", "whole numbers"]
    if case == "label text":
        arrays["labels"] = np.array(["cat"] * N)
        return arrays, ["label", "number"]
    if case == "one class":
        arrays["logits"] = arrays["logits"][:, :1].copy()
        return arrays, ["logits", "1 feature", "minimum of 2"]
    if case == "no rows":
        return {name: array[:0] for name, array in arrays.items()}, ["logits", "0 sample"]
    if case == "probabilities that sum to less":
        arrays["probabilities"][3] *= 0.9
        return arrays, ["probabilities", "row 3", "0.9", "0.1"]
    if case == "probabilities that are logits":
        arrays["probabilities"] = np.random.default_rng(0).normal(size=(N, K)).astype(np.float32) * 5
        return arrays, ["probabilities", "range from", "logits"]
    if case == "weight negative":
        arrays["weights"][1] = -2.0
        return arrays, ["weights", "-2", "row 1"]
    if case == "weights zero":
        arrays["weights"][:] = 0
        return arrays, ["weights", "sums to", f"{N} rows"]
    if case == "weight nan":
        arrays["weights"][5] = np.nan
        return arrays, ["weights", "nan", "row 5"]
    if case == "weights overflow":
        arrays["weights"][:] = 1e308
        return arrays, ["weights", "1e+308"]
    arrays["labels"] = arrays["labels"][:-2]
    return arrays, ["labels", str(N), str(N - 2)]


CASES = [
    *("nan", "inf", "label too large", "label negative", "label float", "label text", "one class", "no rows"),
    *("probabilities that sum to less", "probabilities that are logits"),
    *("weight negative", "weights zero", "weight nan", "weights overflow", "row counts differ"),
]


def possible(save: Writer, case: str) -> bool:
    """A table has one number of rows, and safetensors holds no texts."""
    if case == "row counts differ":
        return save not in (save_csv, save_packed_csv, save_parquet, save_list_parquet)
    return case != "label text" or save is not save_safetensors


@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name, save in WRITERS.items() for case in CASES if possible(save, case)]
)
def test_bad_input_is_one_line_that_names_file_field_and_numbers(tmp_path: Path, name: str, case: str) -> None:
    save = WRITERS[name]
    arrays, words = spoil(case)
    if save is save_list_parquet and case == "no rows":
        words = ["logits", "0"]
    path = save(tmp_path, arrays)
    with pytest.raises(InputError) as caught:
        use(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(tmp_path / "set") in message
    for word in words:
        assert word in message, message


def use(path: Path) -> Predictions:
    """Open a file and read all of it."""
    predictions = open_predictions(path)
    assert np.isfinite(predictions.values).all()
    assert predictions.values.shape == (predictions.n, predictions.n_classes)
    for chunk in predictions.chunks(2):
        assert np.isfinite(chunk.logits).all()
    return predictions


def outcome(path: Path) -> Predictions | None:
    """The predictions, or None where the file is bad input; any other exception passes through."""
    try:
        return use(path)
    except InputError as error:
        message = str(error)
    assert str(path) in message
    assert "\n" not in message
    return None


@pytest.fixture(scope="module")
def bounded() -> Iterator[None]:
    """Whatever a damaged file claims, a gigabyte more of address space has to do."""
    if not Path("/proc/self/statm").exists():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@every_format
def test_a_file_cut_at_any_byte_is_bad_input_or_still_valid(tmp_path: Path, save: Writer, bounded: None) -> None:
    path = save(tmp_path, good())
    whole = path.read_bytes()
    expected = use(path)
    survived = 0
    for length in range(0, len(whole), 16 if save is save_pickle else 1):  # a pickle costs a process
        path.write_bytes(whole[:length])
        cut = outcome(path)
        if cut is not None:
            survived += 1
            # only a table of text can lose its end and still be one: whole rows less, or a shorter last number
            assert cut.n <= expected.n
            np.testing.assert_array_equal(cut.values[: cut.n - 1], expected.values[: cut.n - 1])
    assert survived == 0 or path.suffix == ".csv"


@every_format
def test_an_empty_file_says_so(tmp_path: Path, save: Writer) -> None:
    path = save(tmp_path, good())
    path.write_bytes(b"")
    with pytest.raises(InputError, match=r"empty|0 bytes"):
        open_predictions(path)


edits = st.lists(
    st.tuples(st.sampled_from(["set", "flip", "insert", "delete", "number"]), st.floats(0, 1), st.integers(0, 255)),
    min_size=1,
    max_size=4,
)


def mutate(data: bytes, changes: list[tuple[str, float, int]]) -> bytes:
    content = bytearray(data)
    for how, where, value in changes:
        place = int(where * max(len(content) - 1, 0))
        if how == "set":
            content[place] = value
        elif how == "flip":
            content[place] ^= 1 << (value % 8)
        elif how == "insert":
            content[place:place] = bytes([value]) * (value % 9)
        elif how == "delete":
            del content[place : place + value % 9]
        else:
            content[place : place + 4] = (0x7FFFFFFF - value).to_bytes(4, "little")
    return bytes(content)


@pytest.mark.parametrize("save", [save for save in WRITERS.values() if save is not save_pickle])
@settings(max_examples=150)
@given(changes=edits)
def test_a_damaged_file_is_bad_input_or_still_valid(
    tmp_path: Path, save: Writer, bounded: None, changes: list[tuple[str, float, int]]
) -> None:
    path = save(tmp_path, good())
    data = path.read_bytes()
    # pyarrow may end the process for a damaged footer of a parquet file: only what lies before it is damaged here
    footer = int.from_bytes(data[-8:-4], "little") + 8 if path.suffix == ".parquet" else 0
    sound = len(data) - footer
    path.write_bytes(mutate(data[:sound], changes) + data[sound:])
    outcome(path)


@settings(max_examples=20)
@given(changes=edits)
def test_a_damaged_pickle_is_bad_input_or_still_valid(
    tmp_path: Path, bounded: None, changes: list[tuple[str, float, int]]
) -> None:
    path = save_pickle(tmp_path, good())
    path.write_bytes(mutate(path.read_bytes(), changes))
    outcome(path)


@settings(max_examples=150)
@given(changes=edits)
def test_a_damaged_table_inside_a_sound_gzip(
    tmp_path: Path, bounded: None, changes: list[tuple[str, float, int]]
) -> None:
    path = save_packed_csv(tmp_path, good())
    path.write_bytes(gzip.compress(mutate(csv_text(good()).encode(), changes)))
    outcome(path)


@settings(max_examples=150)
@given(changes=edits)
def test_a_damaged_array_inside_a_sound_archive(
    tmp_path: Path, bounded: None, changes: list[tuple[str, float, int]]
) -> None:
    """The checksum agrees, so the damage reaches the reader of the array's own header."""
    import io
    import zipfile

    path = tmp_path / "set.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in good().items():
            stream = io.BytesIO()
            np.save(stream, array)
            data = stream.getvalue()
            archive.writestr(f"{name}.npy", mutate(data, changes) if zlib.crc32(name.encode()) % 2 else data)
    outcome(path)
