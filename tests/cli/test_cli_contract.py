"""A wrong request is one line on stderr and exit code 2."""

from __future__ import annotations

import subprocess
import sys

import pytest

COMMAND = [sys.executable, "-m", "calibrant"]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False)


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
