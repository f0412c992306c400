"""Compiled kernels work without a folder for their cache, on a full disk and beside a damaged cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import calibrant

MEASURE = """
import os, sys
import numpy as np
mode = sys.argv[1]
if mode == "no folder":
    # what numba meets as a user without HOME below a read-only root
    import numba.core.caching as caching
    caching.CacheImpl._locator_classes = []
    for kind in vars(caching).values():
        if isinstance(kind, type) and issubclass(kind, caching.CacheImpl):
            kind._locator_classes = []
if mode == "full disk":
    import resource, signal
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from calibrant import metrics
logits = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
print(metrics.accuracy(logits, logits.argmax(axis=1), from_logits=True))
"""


def run(mode, folder):
    environment = {
        **os.environ,
        "CALIBRANT_KERNELS": "numba",
        "NUMBA_CACHE_DIR": str(folder),
        "PYTHONPATH": str(Path(calibrant.__file__).parents[1]),
    }
    command = [sys.executable, "-c", MEASURE, mode]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment)


@pytest.mark.parametrize(
    "mode",
    [
        "no folder",
        pytest.param(
            "full disk", marks=pytest.mark.skipif(os.name == "nt", reason="Windows cannot limit the size of files")
        ),
    ],
)
def test_without_a_place_for_the_cache(mode, tmp_path):
    done = run(mode, tmp_path)
    assert done.stdout == "1.0\n", done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "compiled in memory" in done.stderr


def test_beside_a_damaged_cache(tmp_path):
    assert run("as usual", tmp_path).stderr == ""
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert kept
    for path in kept:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    done = run("as usual", tmp_path)
    assert done.stdout == "1.0\n", done.stderr
    assert "compiled in memory" in done.stderr
