"""Chunks: every row once and in order, whatever lies behind; addresses that travel light; memory that stays flat."""

from __future__ import annotations

import pickle
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.data import Predictions, open_predictions, write_predictions
from calibrant.data.chunks import cut
from calibrant.data.source import ArraySource, PartsSource


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
    st.integers(0, 60),
    st.integers(1, 200),
    st.integers(1, 90),
)
def test_chunks_hold_every_row_once_and_in_order(sizes, start, length, elements):
    n = sum(sizes)
    values = np.arange(3.0 * n).reshape(n, 3)
    labels = np.arange(n) % 3
    borders = np.cumsum([0, *sizes])
    parts = PartsSource([ArraySource(values[a:b]) for a, b in pairwise(borders)], "parts")
    start = min(start, n - 1)
    stop = min(start + length, n)
    source = PartsSource([parts], rows=range(start, stop))
    predictions = Predictions(logits=values[start:stop], labels=labels[start:stop]).like(source=source)
    chunks = cut(predictions, elements=elements)
    assert [chunk.first_row for chunk in chunks] == np.cumsum([0, *(chunk.n for chunk in chunks)])[:-1].tolist()
    logits = [logits for chunk in chunks for _, logits, *_ in chunk.blocks(check=True)]
    assert np.array_equal(np.concatenate(logits), values[start:stop])
    assert np.array_equal(np.concatenate([chunk.predictions.labels for chunk in chunks]), labels[start:stop])
    assert all(chunk.n * 3 <= max(elements, 3) for chunk in chunks)


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".safetensors", ".npy"])
def test_chunks_of_files_travel_as_addresses(tmp_path, suffix):
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(5000, 20)), rng.integers(0, 20, 5000)
    write_predictions(Predictions.from_arrays(logits=logits, labels=labels), tmp_path / f"x{suffix}")
    chunks = cut(open_predictions(tmp_path / f"x{suffix}"), elements=20_000)
    sent = [pickle.dumps(chunk) for chunk in chunks]
    assert sum(map(len, sent)) < 8 * 5000 + 2000 * len(chunks)  # labels, and addresses
    back = [pickle.loads(one) for one in sent]
    assert np.array_equal(np.concatenate([own for one in back for _, own, *_ in one.blocks(check=True)]), logits)
    assert np.array_equal(np.concatenate([one.predictions.labels for one in back]), labels)


def test_parquet_is_cut_at_row_groups_and_deflate_not_at_all(tmp_path):
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(1000, 4)), rng.integers(0, 4, 1000)
    table = pa.table({"logits": list(logits), "labels": labels})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=150)
    chunks = cut(open_predictions(tmp_path / "x.parquet"), elements=800)
    assert [chunk.n for chunk in chunks] == [300, 300, 300, 100]
    np.savez_compressed(tmp_path / "x.npz", logits=logits, labels=labels)
    assert [chunk.n for chunk in cut(open_predictions(tmp_path / "x.npz"), elements=800)] == [1000]


MEMORY = """
import resource, sys
import calibrant as cal
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == 'darwin' else 2**10)
parts = cal.open_predictions(sys.argv[1])
cal.TemperatureScaling().fit(parts[:50000])
before = peak()
cal.TemperatureScaling().fit(parts)
print(peak() - before)
"""


def test_a_fit_takes_much_less_memory_than_its_data(tmp_path):
    for part in range(8):
        rng = np.random.default_rng(part)
        labels = rng.integers(0, 100, 80_000)
        logits = rng.standard_normal((80_000, 100), dtype=np.float32)
        logits[np.arange(80_000), labels] += 3
        np.save(tmp_path / f"{part}_logits.npy", logits)
        np.save(tmp_path / f"{part}_labels.npy", labels)
    out = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path)], capture_output=True, text=True, check=True
    ).stdout
    assert float(out) < 100  # MB, of 256 MB of logits
