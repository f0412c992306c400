"""Many files as one: patterns, addresses behind fsspec, and parts that are bad."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest

import calibrant as cal
from calibrant.core.errors import InputError
from calibrant.data import Predictions, open_parts, open_predictions, write_predictions


@pytest.fixture
def eight(tmp_path: Path) -> tuple[Path, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 800)
    logits = (rng.normal(size=(800, 4)) + 2 * np.eye(4)[labels]).astype(np.float32)
    folder = tmp_path / "parts"
    folder.mkdir()
    for part in range(8):
        own = slice(100 * part, 100 * part + 100)
        suffix = (".npz", ".parquet", ".safetensors", ".npy")[part % 4]
        one = Predictions.from_arrays(logits=logits[own], labels=labels[own])
        write_predictions(one, folder / f"p{part}{suffix}")
    return folder, logits, labels


def test_a_pattern_is_the_files_that_match_in_order(eight):
    folder, logits, labels = eight
    every = open_predictions(f"{folder}/p*")
    assert np.array_equal(every.logits, logits)
    assert np.array_equal(every.labels, labels)
    some = open_predictions(f"{folder}/p[04].npz")
    assert np.array_equal(some.logits, np.concatenate([logits[:100], logits[400:500]]))
    deep = open_predictions(f"{folder.parent}/**/p?.parquet")
    assert deep.n == 200


def test_a_pattern_that_matches_nothing(tmp_path):
    with pytest.raises(InputError, match=r"\*.npz holds no prediction files"):
        open_predictions(f"{tmp_path}/*.npz")


def test_a_pattern_with_a_part_of_each_file(tmp_path):
    for number in range(2):
        rng = np.random.default_rng(number)
        np.savez(tmp_path / f"{number}.npz", val_logits=rng.normal(size=(5, 3)), val_labels=rng.integers(0, 3, 5))
    assert open_predictions(f"{tmp_path}/*.npz#val").n == 10


def damage(folder: Path) -> None:
    content = bytearray((folder / "p4.npz").read_bytes())
    content[1000] ^= 0xFF
    (folder / "p4.npz").write_bytes(content)
    values = np.load(folder / "p3_logits.npy")
    values[50, 1] = np.inf
    np.save(folder / "p3_logits.npy", values)


def test_a_bad_part_is_named_with_its_number(eight):
    folder, _, _ = eight
    damage(folder)
    with pytest.raises(InputError, match=r"part 5 of 8: .*p4.npz is not a whole npz archive"):
        open_predictions(folder)


def test_bad_parts_are_left_out_and_listed(eight):
    folder, logits, labels = eight
    damage(folder)
    left = open_predictions(folder, skip_bad_parts=True)
    good = np.concatenate([np.arange(300), np.arange(500, 800)])
    assert np.array_equal(left.logits, logits[good])
    assert np.array_equal(left.labels, labels[good])
    assert len(left.skipped) == 2
    assert "part 4 of 8: " in left.skipped[0]
    assert "p3_logits.npy: logits contains Inf in row 50, column 1" in left.skipped[0]
    assert "p4.npz is not a whole npz archive" in left.skipped[1]


def test_parts_of_another_shape_are_bad_too(eight):
    folder, _, _ = eight
    np.savez(folder / "p9.npz", logits=np.zeros((3, 5)), labels=np.zeros(3, int))
    with pytest.raises(InputError, match=r"part 9 of 9: .*has 4 classes, but .* has 5"):
        open_predictions(folder)
    left = open_predictions(folder, skip_bad_parts=True)
    assert (left.n, len(left.skipped)) == (800, 1)


def test_nothing_is_skipped_unasked_or_unseen(eight):
    folder, _, _ = eight
    assert open_predictions(folder, skip_bad_parts=True).skipped == ()
    for path in folder.iterdir():
        path.write_bytes(b"")
    with pytest.raises(InputError, match="all 8 parts are bad; the first: part 1 of 8"):
        open_predictions(folder, skip_bad_parts=True)


@pytest.fixture
def bucket(eight, tmp_path, monkeypatch):
    """The same parts in fsspec's file system in memory."""
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder, logits, labels = eight
    system = fsspec.filesystem("memory")
    for path in folder.iterdir():
        system.pipe_file(f"/bucket/parts/{path.name}", path.read_bytes())
    yield "memory://bucket/parts", logits, labels
    system.rm("/bucket", recursive=True)


def test_addresses_behind_fsspec(bucket):
    address, logits, labels = bucket
    whole = open_predictions(address)
    assert np.array_equal(whole.logits, logits)
    assert np.array_equal(whole.labels, labels)
    assert open_predictions(f"{address}/p*.npz").n == 200
    one = open_predictions(f"{address}/p3_logits.npy")
    assert np.array_equal(one.logits, logits[300:400])
    fitted = cal.TemperatureScaling().fit(address)
    assert fitted.temperature_ == pytest.approx(cal.TemperatureScaling().fit(logits, labels).temperature_, abs=1e-6)


def test_every_companion_of_a_remote_matrix_is_fetched(bucket):
    system = pytest.importorskip("fsspec").filesystem("memory")
    pair = Predictions(confidence=np.array([0.9, 0.6]), correct=np.array([1, 0]), clusters=np.array([4, 4]))
    for path in write_predictions(pair, Path(tempfile.mkdtemp()) / "answers.npy"):
        system.pipe_file(f"/bucket/pairs/{path.name}", path.read_bytes())
    found = open_predictions("memory://bucket/pairs/answers_confidence.npy")
    assert found.task == "pairs"
    assert found.labels.tolist() == [1, 0]
    assert found.clusters.tolist() == [4, 4]


def test_a_remote_file_is_read_with_the_names_it_was_opened_with(bucket, tmp_path):
    system = pytest.importorskip("fsspec").filesystem("memory")
    probabilities = np.random.default_rng(0).dirichlet([1, 1, 1], 5)
    rows = [{"probabilities": dict(zip("abc", row, strict=True)), "label": "a"} for row in probabilities.tolist()]
    system.pipe_file("/bucket/one/a.jsonl", "\n".join(map(json.dumps, rows)).encode())
    found = open_predictions("memory://bucket/one/a.jsonl", class_names=["c", "b", "a"])
    assert np.array_equal(found.values, probabilities[:, ::-1])
    assert found.labels.tolist() == [2] * 5


def test_what_was_fetched_stays_below_its_bound(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("CALIBRANT_CACHE_BYTES", "4000")
    monkeypatch.setattr("calibrant.data.opening.IN_USE_SECONDS", -1.0)
    whole = open_predictions(bucket[0])
    assert np.array_equal(whole.logits, bucket[1])
    kept = [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in kept) < 8000


def test_remote_trouble_is_one_line(bucket):
    with pytest.raises(InputError, match=r"memory://bucket/none.npz cannot be read: there is no such file"):
        open_predictions("memory://bucket/none.npz")
    with pytest.raises(InputError, match=r"no prediction files"):
        open_predictions("memory://bucket/*.npz")
    with pytest.raises(InputError, match=r"nonsense://x/y.npz cannot be read: .*nonsense"):
        open_predictions("nonsense://x/y.npz")


def test_parts_of_an_address_behind_fsspec(bucket):
    address, logits, _ = bucket
    (whole,) = open_parts(address).values()
    assert np.array_equal(whole.logits, logits)


def test_an_empty_path_is_no_folder():
    with pytest.raises(InputError, match="the path is empty"):
        open_predictions("")


def test_file_addresses_are_plain_paths(eight):
    folder, logits, _ = eight
    assert np.array_equal(open_predictions(f"file://{folder}/p0.npz").logits, logits[:100])


def test_large_negative_identifiers_of_parts_keep_their_digits(tmp_path: Path) -> None:
    ids = [np.array([1.0, 2.0]), np.array([-(2**53) - 1, -(2**53) - 3])]
    for name, column in zip("ab", ids, strict=True):
        np.savez(tmp_path / f"{name}.npz", logits=np.eye(2), labels=[0, 1], clusters=column)
    found = open_predictions(tmp_path / "*.npz", cluster="clusters").clusters
    assert {str(one) for one in ids[1]} <= set(map(str, found))
