"""What every verb promises: one line and exit 2 for a wrong request, 0 when the reader has seen enough."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

COMMAND = [sys.executable, "-m", "calibrant"]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("contract") / "good.npz"
    np.savez(path, logits=rng.normal(size=(60, 4)), labels=rng.integers(0, 4, 60))
    return path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["measure"], "Missing argument 'FILE'"),
        (["nope"], "No such command 'nope'"),
        (["measure", "x.npz", "--seed", "-1"], "--seed"),
        (["fit", "x.npz"], "--output"),
        (["fit", "x.npz", "--nope"], "--nope"),
    ],
)
def test_a_wrong_request_is_one_line(arguments: list[str], words: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ")
    assert words in done.stderr
    assert "--help" in done.stderr


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_reader_that_leaves_early_is_no_failure(file: Path, options: list[str]) -> None:
    command = [*COMMAND, "measure", str(file), "--resamples", "5", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 0
