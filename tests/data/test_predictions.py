"""`Predictions`: the views of one set of rows agree, and nothing is guessed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import calibrant
from calibrant.core import progress
from calibrant.core.errors import InputError
from calibrant.data import Predictions, open_predictions, write_predictions


def random_set(n: int = 20, k: int = 4, seed: int = 0) -> Predictions:
    rng = np.random.default_rng(seed)
    return Predictions.from_arrays(
        logits=rng.normal(size=(n, k)), labels=rng.integers(0, k, n), weights=rng.uniform(0.1, 1, n)
    )


def test_public_names() -> None:
    assert calibrant.Predictions is Predictions
    assert calibrant.open_predictions is open_predictions


@given(arrays(np.float64, (5, 3), elements=st.floats(-50, 50)))
def test_logits_and_probabilities_say_the_same(logits: np.ndarray) -> None:
    labels = np.zeros(5, int)
    first = Predictions.from_arrays(logits=logits, labels=labels)
    second = Predictions.from_arrays(probabilities=first.probabilities, labels=labels)
    np.testing.assert_allclose(second.probabilities, first.probabilities, rtol=1e-12)
    np.testing.assert_allclose(np.exp(second.logits), first.probabilities, rtol=1e-12, atol=1e-300)


def test_exactly_one_of_logits_and_probabilities() -> None:
    with pytest.raises(InputError, match="either logits or probabilities"):
        Predictions.from_arrays(labels=[0])
    with pytest.raises(InputError, match="not both"):
        Predictions.from_arrays(logits=[[0.0, 1]], probabilities=[[0.5, 0.5]], labels=[0])


def test_labels_are_asked_for_only_where_needed() -> None:
    bare = Predictions.from_arrays(logits=[[0.0, 1.0]], name="new.npz")
    assert not bare.has_labels
    assert bare[:1].probabilities.shape == (1, 2)
    with pytest.raises(InputError, match=r"new\.npz has no labels"):
        _ = bare.labels


@given(st.integers(-25, 25), st.integers(-25, 25))
def test_slices_follow_numpy(start: int, stop: int) -> None:
    whole = random_set()
    expected = whole.values[start:stop]
    if len(expected) == 0:
        with pytest.raises(InputError, match="0 of the 20 rows"):
            whole[start:stop]
        return
    part = whole[start:stop]
    np.testing.assert_array_equal(part.values, expected)
    np.testing.assert_array_equal(part.weights, whole.weights[start:stop])
    np.testing.assert_array_equal(part[::-1].labels, whole.labels[start:stop][::-1])


def test_rows_hold_what_calibrators_need() -> None:
    whole = random_set()
    rows = whole.rows()
    assert (rows.n, rows.n_classes) == (20, 4)
    assert rows.logits is whole.logits
    assert rows.weights is whole.weights


def test_wrong_indices() -> None:
    whole = random_set()
    with pytest.raises(IndexError):
        whole[20]
    with pytest.raises(IndexError, match="boolean index did not match"):
        whole[np.ones(3, bool)]
    with pytest.raises(InputError, match="at least 1 row, got 0"):
        next(whole.chunks(0))


def test_a_part_may_have_weights_of_zero() -> None:
    whole = Predictions.from_arrays(logits=np.eye(3), labels=[0, 1, 2], weights=[0, 0, 1])
    assert [float(chunk.weights[0]) for chunk in whole.chunks(1)] == [0, 0, 1]
    assert whole[:2].n == 2


def test_class_names_must_fit() -> None:
    with pytest.raises(InputError, match="class_names has 3 names, but logits has 2 columns"):
        Predictions.from_arrays(logits=np.eye(2), labels=[0, 1], class_names=["a", "b", "c"])


def test_reading_reports_progress(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", logits=np.zeros((10, 2)), labels=np.zeros(10, int))
    steps: list[tuple[int, int | None]] = []
    with progress.listen(lambda stage, done, total, note: steps.append((done, total))):
        list(open_predictions(tmp_path / "a.npz").chunks(4))
    assert steps[-1] == (10, 10)


def test_import_loads_no_heavy_package() -> None:
    code = (
        "import sys, calibrant; calibrant.open_predictions('cifar10-resnet18#val').logits;"
        "heavy = {'pyarrow', 'sklearn', 'scipy', 'numba', 'torch', 'pandas', 'safetensors', 'matplotlib'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_a_pass_over_a_large_file_needs_little_memory(tmp_path: Path, kind: str) -> None:
    """1.2 GB of equal rows; peak memory may grow by a few chunks of 64 MB."""
    n_rows, n_classes = 3_000_000, 100
    path = tmp_path / f"big_{kind}.npy"
    np.save(tmp_path / "big_labels.npy", np.zeros(n_rows, np.uint8))
    with path.open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (n_rows, n_classes)}
        np.lib.format.write_array_header_1_0(file, header)
        if kind == "logits":
            file.truncate(file.tell() + n_rows * n_classes * 4)  # a hole in the file: zeros that take no disk
        else:
            n_rows = 300_000
            file.seek(0)
            np.lib.format.write_array_header_1_0(file, {**header, "shape": (n_rows, n_classes)})
            np.save(tmp_path / "big_labels.npy", np.zeros(n_rows, np.uint8))
            block = np.full((10_000, n_classes), 0.01, np.float32).tobytes()
            for _ in range(n_rows // 10_000):
                file.write(block)
    code = (
        "import resource, sys; from calibrant.data import open_predictions\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "predictions = open_predictions(sys.argv[1]); before = peak(); rows = 0\n"
        "for chunk in predictions.chunks(): rows += chunk.values.shape[0]\n"
        "print(rows, peak() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    rows, growth = done.stdout.split()
    assert int(rows) == n_rows
    assert float(growth) / (2**20 if sys.platform == "darwin" else 2**10) < 400  # MB, of bytes or KB


@pytest.mark.parametrize("name", ["cifar10-resnet18", "cifar100-resnet18"])
def test_embedded_rows_are_in_the_order_that_their_description_says(name):
    data = calibrant.datasets.load(name)
    assert "`test` are sorted by class" in type(data).__doc__
    assert (np.diff(data.test.labels) >= 0).all()
    assert len(np.unique(data.val.labels[:500])) == data.val.n_classes


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".csv", ".jsonl"])
def test_label_shares_are_written_and_read_back(tmp_path: Path, suffix: str) -> None:
    whole = Predictions(logits=2 * np.eye(3), label_shares=[[0.5, 0.5, 0], [0, 1, 0], [0.25, 0.25, 0.5]])
    write_predictions(whole, tmp_path / f"a{suffix}")
    np.testing.assert_array_equal(open_predictions(tmp_path / f"a{suffix}").label_shares, whole.label_shares)
