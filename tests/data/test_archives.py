"""`.npz`, `.npy` and `.safetensors`: parts, names, claims that are refused before anything is allocated."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from calibrant.core.errors import InputError
from calibrant.data import Predictions, open_parts, open_predictions, write_predictions

RNG = np.random.default_rng(0)


def header_bytes(shape: tuple[int, ...], dtype: np.dtype) -> bytes:
    """The npy header of a row-major array."""
    stream = io.BytesIO()
    entry = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, entry)
    return stream.getvalue()


LOGITS = RNG.normal(size=(6, 3)).astype(np.float32)
LABELS = RNG.integers(0, 3, 6).astype(np.uint8)


def test_a_part_is_picked_by_its_prefix(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, val_logits=LOGITS, val_labels=LABELS, test_probabilities=np.full((2, 4), 0.25), test_labels=[0, 1])
    assert open_predictions(f"{path}#val").n == 6
    assert open_predictions(f"{path}#test").kind == "probabilities"
    with pytest.raises(InputError, match=r"no logits or probabilities, only test_labels, .*parts: test, val"):
        open_predictions(path)
    with pytest.raises(InputError, match=r"a\.npz#train has no train_logits"):
        open_predictions(f"{path}#train")


def test_an_archive_without_the_keys_lists_those_it_has(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=LOGITS, y=LABELS)
    with pytest.raises(
        InputError,
        match=r"has no logits or probabilities, only x, y: name them .*say their kind=$",
    ):
        open_predictions(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", logits=LOGITS, z=LABELS)
    with pytest.raises(InputError, match=r"no labels, only logits, z.*; try .*labels='z'"):
        open_predictions(tmp_path / "a.npz")
    assert open_predictions(tmp_path / "a.npz", labels=LABELS).n == 6
    assert not open_predictions(tmp_path / "a.npz", require_labels=False).has_labels
    assert not open_parts(tmp_path / "a.npz", require_labels=False)[""].has_labels


def test_what_the_values_are_is_said_not_guessed(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, logits=LOGITS, probabilities=np.full((6, 3), 1 / 3), labels=LABELS)
    with pytest.raises(InputError, match="both logits and probabilities"):
        open_predictions(path)
    assert open_predictions(path, kind="probabilities").kind == "probabilities"
    np.savez(path, logits=LOGITS, labels=LABELS)
    with pytest.raises(InputError, match="has no probabilities, only labels, logits"):
        open_predictions(path, kind="probabilities")
    with pytest.raises(InputError, match="kind must be"):
        open_predictions(path, kind="scores")


def test_a_bare_name_needs_its_kind_and_shares_the_labels_of_its_family(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, shift_noise_3=LOGITS, shift_labels=LABELS, labels=LABELS[:2])
    assert open_predictions(f"{path}#shift_noise_3", kind="logits").n == 6
    with pytest.raises(InputError, match="does not say what it holds"):
        open_predictions(f"{path}#shift_noise_3")


def test_several_parts_round_trip(tmp_path: Path) -> None:
    parts = {name: Predictions.from_arrays(logits=LOGITS + i, labels=LABELS) for i, name in enumerate(["val", "test"])}
    for suffix in ("npz", "safetensors"):
        write_predictions(parts, tmp_path / f"a.{suffix}")
        again = open_parts(tmp_path / f"a.{suffix}")
        assert sorted(again) == ["test", "val"]
        np.testing.assert_array_equal(again["test"].logits, LOGITS + 1)
    with pytest.raises(InputError, match=r"can hold one part, but there are 2 \(val, test\)"):
        write_predictions(parts, tmp_path / "a.parquet")


def test_what_we_write_numpy_reads_and_its_values_lie_aligned(tmp_path: Path) -> None:
    whole = Predictions.from_arrays(logits=LOGITS, labels=LABELS, class_names=["a", "b", "c"])
    write_predictions(whole, tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as loaded:
        np.testing.assert_array_equal(loaded["logits"], LOGITS)
        assert list(loaded["class_names"]) == ["a", "b", "c"]
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        assert archive.testzip() is None
    data = (tmp_path / "a.npz").read_bytes()
    assert data.index(LOGITS.tobytes()) % 64 == 0


@pytest.mark.parametrize("packed", [False, True])
def test_column_major_arrays(tmp_path: Path, packed: bool) -> None:
    save = np.savez_compressed if packed else np.savez
    save(tmp_path / "a.npz", logits=np.asfortranarray(LOGITS), labels=LABELS)
    predictions = open_predictions(tmp_path / "a.npz")
    np.testing.assert_array_equal(predictions[2:5].logits, LOGITS[2:5])
    np.testing.assert_array_equal(predictions.logits, LOGITS)


def test_float16_that_overflowed_says_so(tmp_path: Path) -> None:
    with np.errstate(over="ignore"):
        np.savez(tmp_path / "a.npz", logits=(LOGITS * 1e6).astype(np.float16), labels=LABELS)
    with pytest.raises(InputError, match=r"a\.npz: logits contains -?Inf in row \d, column \d.*float16.*65504"):
        _ = open_predictions(tmp_path / "a.npz").logits


def test_float16_is_widened_without_loss(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", logits=LOGITS.astype(np.float16), labels=LABELS)
    predictions = open_predictions(tmp_path / "a.npz")
    assert predictions.logits.dtype == np.float32
    np.testing.assert_array_equal(predictions.logits, LOGITS.astype(np.float16))


def test_object_arrays_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", logits=LOGITS.astype(object), labels=LABELS)
    with pytest.raises(InputError, match=r"logits\.npy has dtype object"):
        open_predictions(tmp_path / "a.npz")
    np.save(tmp_path / "a_logits.npy", LOGITS.astype(object), allow_pickle=True)
    with pytest.raises(InputError, match="has dtype"):
        open_predictions(tmp_path / "a_logits.npy")


def test_a_changed_byte_is_noticed(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", logits=LOGITS, labels=LABELS)
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[data.index(LOGITS.tobytes()) + 5] ^= 4
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(InputError, match="CRC"):
        open_predictions(tmp_path / "a.npz")


HUGE = 10**12


@pytest.mark.parametrize("shape", [(HUGE, 3), (3, HUGE), (2**63, 2**63), (6, 3, 0), (-1, 3)])
def test_a_header_that_claims_the_moon(tmp_path: Path, shape: tuple[int, ...]) -> None:
    header = header_bytes((6, 3), LOGITS.dtype).replace(b"(6, 3)", str(shape).encode().ljust(6))
    size = (len(header) - 10).to_bytes(2, "little")
    array = header[:8] + size + header[10:] + LOGITS.tobytes()
    (tmp_path / "a_logits.npy").write_bytes(array)
    np.save(tmp_path / "a_labels.npy", LABELS)
    with pytest.raises(InputError, match=r"a_logits\.npy"):
        open_predictions(tmp_path / "a_logits.npy")
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(tmp_path / "a.npz", "w", method) as archive:
            archive.writestr("logits.npy", array)
        with pytest.raises(InputError, match=r"a\.npz"):
            open_predictions(tmp_path / "a.npz", labels=LABELS)
    entry = {"logits": {"dtype": "F32", "shape": list(shape), "data_offsets": [0, 72]}}
    text = json.dumps(entry).encode()
    (tmp_path / "a.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + LOGITS.tobytes())
    with pytest.raises(InputError, match=r"a\.safetensors"):
        open_predictions(tmp_path / "a.safetensors", labels=LABELS)


def test_a_file_of_holes_cannot_claim_endless_rows(tmp_path: Path) -> None:
    """Four tebibytes of nothing take no disk; the number of rows is refused before labels are made for them."""
    with (tmp_path / "a_logits.npy").open("wb") as file:
        file.write(header_bytes((2**33, 2), np.dtype(np.float16)))
        file.truncate(file.tell() + 2**35)
    with pytest.raises(InputError, match="claims 8589934592 rows, but at most"):
        open_predictions(tmp_path / "a_logits.npy", require_labels=False)


def test_an_archive_that_unpacks_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALIBRANT_MAX_EXPANDED_BYTES", str(2**24))
    n_rows = 40_000
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("logits.npy", "w") as stream:
            stream.write(header_bytes((n_rows, 100), np.dtype(np.float64)))
            for _ in range(n_rows // 10_000):
                stream.write(bytes(8 * 100 * 10_000))
        archive.writestr("labels.npy", header_bytes((n_rows,), np.dtype(np.uint8)) + bytes(n_rows))
    assert (tmp_path / "a.npz").stat().st_size < 2**20
    with pytest.raises(InputError, match=r"unpacks \d+ bytes to \d+ or more, over 200 times"):
        open_predictions(tmp_path / "a.npz")


def test_an_entry_that_lies_about_its_size(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", logits=LOGITS, labels=LABELS)
    data = (tmp_path / "a.npz").read_bytes()
    true = (128 + LOGITS.nbytes).to_bytes(4, "little")
    (tmp_path / "a.npz").write_bytes(data.replace(true, (2**31).to_bytes(4, "little")))
    with pytest.raises(InputError):
        open_predictions(tmp_path / "a.npz")


def test_names_in_an_archive_are_never_paths(tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    with zipfile.ZipFile(folder / "a.npz", "w") as archive:
        for name, array in (("logits", LOGITS), ("labels", LABELS), ("../../evil", LABELS), ("/evil", LABELS)):
            archive.writestr(f"{name}.npy", header_bytes(array.shape, array.dtype) + array.tobytes())
    assert open_predictions(folder / "a.npz").n == 6
    with pytest.raises(InputError, match=r"has no \.\./\.\./evil_labels"):
        open_predictions(f"{folder}/a.npz#../../evil", kind="logits")
    assert sorted(os.listdir(tmp_path)) == ["inside"]
    assert os.listdir(folder) == ["a.npz"]


def test_encrypted_and_exotic_members(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("logits.npy", header_bytes(LOGITS.shape, LOGITS.dtype) + LOGITS.tobytes())
    with pytest.raises(InputError, match="zip method 14"):
        open_predictions(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", logits=LOGITS, labels=LABELS)
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(InputError, match="encrypted"):
        open_predictions(tmp_path / "a.npz")


def test_a_pair_of_npy_files_finds_itself(tmp_path: Path) -> None:
    np.save(tmp_path / "logits.npy", LOGITS)
    np.save(tmp_path / "labels.npy", LABELS)
    np.save(tmp_path / "val_logits.npy", LOGITS[:4])
    np.save(tmp_path / "val_labels.npy", LABELS[:4])
    np.save(tmp_path / "scores.npy", LOGITS)
    assert open_predictions(tmp_path / "logits.npy").n == 6
    assert open_predictions(tmp_path / "val_logits.npy").n == 4
    assert open_predictions(tmp_path / "val.npy").n == 4
    assert open_predictions(tmp_path / "scores.npy", kind="logits", labels=tmp_path / "labels.npy").n == 6
    with pytest.raises(InputError, match=r"scores\.npy does not say what it holds"):
        open_predictions(tmp_path / "scores.npy")
    with pytest.raises(InputError, match="has no labels"):
        open_predictions(tmp_path / "scores.npy", kind="logits")
    with pytest.raises(InputError, match="companion"):
        open_predictions(tmp_path / "labels.npy")
    with pytest.raises(InputError, match=r"nothing\.npy cannot be read: there is no such file"):
        open_predictions(tmp_path / "scores.npy", kind="logits", labels=tmp_path / "nothing.npy")


@pytest.mark.parametrize(
    "header", [b"-" * 9000 + b"1", b"(" * 9000, b"[" * 150 + b"]" * 150, b"{'descr': 1}", b"\xff" * 99]
)
def test_strange_npy_headers(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "logits.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(InputError, match="header is damaged"):
        open_predictions(tmp_path / "logits.npy")


def test_bfloat16_tensors(tmp_path: Path) -> None:
    halves = (LOGITS.view(np.uint32) >> 16).astype("<u2")
    expected = (halves.astype(np.uint32) << 16).view(np.float32)
    entry = {"logits": {"dtype": "BF16", "shape": [6, 3], "data_offsets": [0, 36]}}
    text = json.dumps(entry).encode()
    (tmp_path / "a.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + halves.tobytes())
    predictions = open_predictions(tmp_path / "a.safetensors", labels=LABELS)
    np.testing.assert_array_equal(predictions.logits, expected)


def test_what_we_write_safetensors_reads(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    write_predictions(Predictions.from_arrays(logits=LOGITS, labels=LABELS), tmp_path / "a.safetensors")
    np.testing.assert_array_equal(load_file(tmp_path / "a.safetensors")["logits"], LOGITS)


@pytest.mark.parametrize("name", ["missing.npz", "missing", "missing.npz#val", "a\0b.npz"])
def test_a_missing_file(name: str) -> None:
    with pytest.raises(InputError, match="does not exist"):
        open_predictions(name)


def test_an_unknown_suffix(tmp_path: Path) -> None:
    (tmp_path / "a.mat").write_bytes(b"x")
    with pytest.raises(InputError, match=r"suffix \.mat, but the known ones are \.npz"):
        open_predictions(tmp_path / "a.mat")


def test_a_file_name_with_a_hash(tmp_path: Path) -> None:
    np.savez(tmp_path / "run#3.npz", logits=LOGITS, labels=LABELS, val_logits=LOGITS[:2], val_labels=LABELS[:2])
    assert open_predictions(tmp_path / "run#3.npz").n == 6
    assert open_predictions(f"{tmp_path}/run#3.npz#val").n == 2


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "a.npz", logits=LOGITS, labels=LABELS)

    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied", "a.npz")

    monkeypatch.setattr(zipfile, "ZipFile", refuse)
    with pytest.raises(InputError, match=r"a\.npz cannot be read: .*Permission denied"):
        open_predictions(tmp_path / "a.npz")


def test_what_nobody_asks_for_need_not_be_readable(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", logits=LOGITS, labels=LABELS, meta=np.array([{"epoch": 3}], dtype=object))
    assert open_predictions(tmp_path / "a.npz").n == 6
    with pytest.raises(InputError, match=r"meta\.npy has dtype object"):
        open_predictions(f"{tmp_path}/a.npz#meta", kind="logits")
    entries = {
        "logits": {"dtype": "F32", "shape": [6, 3], "data_offsets": [0, 72]},
        "cache": {"dtype": "F8_E5M2", "shape": [6, 3], "data_offsets": [0, 18]},
    }
    text = json.dumps(entries).encode()
    (tmp_path / "a.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + LOGITS.tobytes())
    assert open_predictions(tmp_path / "a.safetensors", labels=LABELS).n == 6


@pytest.mark.parametrize(
    "text",
    [b"[" * 100_000, b'{"a":' * 100_000, b"[]", b"3", b'{"logits": 3}', b'{"logits": {"dtype": ["F32"]}}', b"\xff"],
)
def test_strange_safetensors_headers(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "a.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(InputError, match=r"a\.safetensors"):
        open_predictions(tmp_path / "a.safetensors", labels=LABELS)


def test_a_name_that_is_too_long() -> None:
    with pytest.raises(InputError, match=r"cannot be read: .*File name too long|does not exist"):
        open_predictions("x" * 5000 + ".npz")


@pytest.mark.parametrize("shape", [[-3, -2], [-6], [6, -1], [2.5, 2], ["3", 2], [True, 6], 6, None])
def test_a_safetensors_shape_that_is_no_list_of_counts_is_rejected(tmp_path: Path, shape: object) -> None:
    entry = {"dtype": "F64", "shape": shape, "data_offsets": [0, 48]}
    text = json.dumps({"logits": entry, "labels": {"dtype": "I64", "shape": [3], "data_offsets": [48, 72]}}).encode()
    content = np.arange(6.0).tobytes() + np.arange(3).tobytes()
    (tmp_path / "a.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + content)
    with pytest.raises(InputError, match="logits") as caught:
        open_predictions(tmp_path / "a.safetensors")
    assert "\n" not in str(caught.value)


def test_a_torch_file_that_unpacks_without_end(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data/0", bytes(2**22))
    with pytest.raises(InputError, match=r"unpacks \d+ bytes to 4194304 or more"):
        open_predictions(tmp_path / "a.pt")
