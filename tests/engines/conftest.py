"""Data in parts, and one small cluster for all tests that need one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from calibrant.data import Predictions, write_predictions


def made_up(n: int = 4000, k: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, k, n)
    logits = 3 * (rng.normal(size=(n, k)) + 2 * np.eye(k)[labels])
    return logits.astype(np.float32), labels


def write_parts(folder: Path, logits, labels, borders, suffixes=(".npz",), weights=None) -> Path:
    folder.mkdir(exist_ok=True)
    for part, (start, stop) in enumerate(pairwise(borders)):
        own = slice(start, stop)
        chosen = None if weights is None else weights[own]
        one = Predictions.from_arrays(logits=logits[own], labels=labels[own], weights=chosen)
        write_predictions(one, folder / f"part-{part:03}{suffixes[part % len(suffixes)]}")
    return folder


@pytest.fixture(scope="session", name="made_up")
def made_up_fixture():
    return made_up


@pytest.fixture(scope="session", name="write_parts")
def write_parts_fixture():
    return write_parts


@pytest.fixture(scope="session")
def cluster() -> Iterator[object]:
    pytest.importorskip("distributed")
    from calibrant.engines.dask import DaskEngine

    engine = DaskEngine(n_workers=2)
    yield engine
    engine.close()
