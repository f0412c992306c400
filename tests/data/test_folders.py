"""Folders of parts, and the data that come with the package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calibrant import datasets
from calibrant.core.errors import InputError
from calibrant.core.schema import identifiers
from calibrant.data import Predictions, open_predictions, write_predictions
from calibrant.data.opening import EMBEDDED

RNG = np.random.default_rng(0)
WHOLE = Predictions.from_arrays(
    logits=RNG.normal(size=(30, 4)).astype(np.float32), labels=RNG.integers(0, 4, 30), weights=RNG.uniform(size=30)
)


@pytest.mark.parametrize("suffix", ["npz", "npy", "parquet", "safetensors", "csv", "csv.gz"])
def test_parts_in_the_order_of_their_names(tmp_path: Path, suffix: str) -> None:
    for number, start in enumerate(range(0, 30, 7)):
        write_predictions(WHOLE[start : start + 7], tmp_path / f"part-{number:03d}.{suffix}")
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / ".hidden.npz").write_text("")
    (tmp_path / "README.md").write_text("")
    predictions = open_predictions(tmp_path)
    np.testing.assert_array_equal(predictions.logits.astype(np.float32), WHOLE.logits)
    np.testing.assert_array_equal(predictions.labels, WHOLE.labels)
    np.testing.assert_array_equal(predictions.weights, WHOLE.weights)
    np.testing.assert_array_equal(predictions[5:25].labels, WHOLE.labels[5:25])
    np.testing.assert_array_equal(
        np.concatenate([chunk.values for chunk in predictions.chunks(5)]).astype(np.float32), WHOLE.logits
    )


def test_a_bad_value_names_its_part_and_the_row_there(tmp_path: Path) -> None:
    write_predictions(WHOLE[:10], tmp_path / "a.npz")
    logits = WHOLE.logits[:10].copy()
    logits[3, 1] = np.nan
    np.savez(tmp_path / "b.npz", logits=logits, labels=WHOLE.labels[:10], weights=np.ones(10))
    with pytest.raises(InputError, match=r"b\.npz: logits contains NaN in row 3, column 1"):
        _ = open_predictions(tmp_path).logits
    with pytest.raises(InputError, match=r"b\.npz: logits contains NaN in row 3, column 1"):
        _ = open_predictions(tmp_path)[12:15].logits


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            Predictions.from_arrays(logits=2 * np.eye(3), labels=[0, 1, 2], weights=np.ones(3)),
            "has 4 classes, but .* has 3",
        ),
        (Predictions.from_arrays(logits=2 * np.eye(4), labels=[0, 1, 2, 3]), "differ in .*weights: True and False"),
        (
            Predictions.from_arrays(probabilities=np.eye(4), labels=[0, 1, 2, 3], weights=np.ones(4)),
            "differ in kind: logits and probabilities",
        ),
    ],
)
def test_parts_must_agree(tmp_path: Path, other: Predictions, message: str) -> None:
    write_predictions(WHOLE, tmp_path / "a.npz")
    write_predictions(other, tmp_path / "b.parquet")
    with pytest.raises(InputError, match=rf"a\.npz .*{message}"):
        open_predictions(tmp_path)


def test_parts_are_aligned_by_name_and_identifiers_stay_exact(tmp_path: Path) -> None:
    big = 1234567890123456789
    (tmp_path / "a.csv").write_text(f"id,prob_a,prob_b,label\n{big},0.25,0.75,b\n{big + 1},0.5,0.5,a\n")
    (tmp_path / "b.csv").write_text(f"id,label,prob_b,prob_a\n{big + 2},a,0.1,0.9\n,b,0.2,0.8\n")
    found = open_predictions(tmp_path, cluster="id")
    np.testing.assert_array_equal(found.probabilities, [[0.25, 0.75], [0.5, 0.5], [0.9, 0.1], [0.8, 0.2]])
    assert found.labels.tolist() == [1, 0, 0, 1]
    assert identifiers(found.clusters)[1] == [str(big), str(big + 1), str(big + 2), "missing"]
    (tmp_path / "b.csv").write_text("id,label,prob_x,prob_y\n3,x,0.1,0.9\n")
    with pytest.raises(InputError, match=r"part 2 of 2: .*has the classes a, b, but .* has x, y"):
        open_predictions(tmp_path)


def test_a_folder_without_predictions(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no prediction files"):
        open_predictions(tmp_path)
    write_predictions(WHOLE, tmp_path / "a.npz")
    with pytest.raises(InputError, match="is a folder or pattern: labels"):
        open_predictions(tmp_path, labels=[0])


def test_prefix_of_every_part(tmp_path: Path) -> None:
    for name in "ab":
        write_predictions({"val": WHOLE, "test": WHOLE[:5]}, tmp_path / f"{name}.npz")
    assert open_predictions(f"{tmp_path}#val").n == 60
    assert open_predictions(f"{tmp_path}#test").n == 10


def test_mixed_precision_parts_keep_the_wider(tmp_path: Path) -> None:
    write_predictions(WHOLE, tmp_path / "a.npz")
    wide = Predictions.from_arrays(logits=np.full((2, 4), 0.1), labels=[0, 1], weights=[1, 1])
    write_predictions(wide, tmp_path / "b.npz")
    predictions = open_predictions(tmp_path)
    assert predictions.dtype == np.float64
    assert {chunk.values.dtype for chunk in predictions.chunks(4)} == {np.dtype(np.float64)}


@pytest.mark.parametrize(
    ("name", "n_classes", "accuracy"), [("cifar100-resnet18", 100, 0.735), ("cifar10-resnet18", 10, 0.933)]
)
def test_embedded_data(name: str, n_classes: int, accuracy: float) -> None:
    data = datasets.load(name)
    assert (data.val.n, data.test.n, data.test.n_classes) == (5000, 10000, n_classes)
    assert (data.test.logits.argmax(axis=1) == data.test.labels).mean() == pytest.approx(accuracy, abs=1e-3)
    assert open_predictions(f"{name}#test").name == f"{name}#test"
    np.testing.assert_array_equal(open_predictions(f"{name}#val").labels, data.val.labels)


def test_embedded_names() -> None:
    assert datasets.names() == ["cifar10-resnet18", "cifar100-resnet18"]
    with pytest.raises(InputError, match="choose one of cifar10-resnet18, cifar100-resnet18"):
        datasets.load("imagenet")
    with pytest.raises(InputError, match="cifar100-resnet18"):
        open_predictions("cifar100-resnet19")
    size = sum(path.stat().st_size for path in EMBEDDED.iterdir())
    assert size < 4e6


def test_real_files_of_the_project(shared_data: Path) -> None:
    path = shared_data / "zoo" / "c10_resnet18_ce.npz"
    clean = open_predictions(f"{path}#test")
    noisy = open_predictions(f"{path}#shift_noise_5", kind="logits")
    assert (noisy.logits.argmax(axis=1) == noisy.labels).mean() < (clean.logits.argmax(axis=1) == clean.labels).mean()
