"""Names from files reach the terminal as text: no markup, no escape sequences, no traceback."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import calibrant
from calibrant.cli import main

HOSTILE = ["[/INST]", "[bold red]x", "cat\x1b[31m\x1b]0;title\x07", "\u202edog", "a\x9bb", ":smile:"]


def run(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(Path(calibrant.__file__).parents[1]), "FORCE_COLOR": "1"}
    command = [sys.executable, "-m", "calibrant", *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment)


@pytest.fixture
def hostile(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 6, 300)
    logits = rng.normal(size=(300, 6)) + 2 * np.eye(6)[labels]
    path = tmp_path / "[bold]val.npz"
    np.savez(path, logits=logits, labels=labels, class_names=np.array(HOSTILE))
    return path


def sound(text):
    """No control characters but those that rich writes for its own styles: ESC [ numbers m."""
    import re

    left = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", left) and "\x1b[31m" not in text


def test_class_names_are_text(hostile, tmp_path):
    for arguments in (
        ("measure", hostile, "--all"),
        ("compare", hostile, hostile, "--methods", "ts"),
        ("fit", hostile, "--method", "ts", "-o", tmp_path / "cal.safetensors"),
        ("info", tmp_path / "cal.safetensors"),
        ("apply", tmp_path / "cal.safetensors", hostile, "-o", tmp_path / "[red]out.npz"),
        ("convert", hostile, tmp_path / "copy.npz"),
    ):
        done = run(*arguments)
        assert done.returncode == 0, done.stderr
        assert sound(done.stdout), repr(done.stdout)
        assert sound(done.stderr), repr(done.stderr)
    shown = run("measure", hostile, "--all").stdout
    assert "[/INST]" in shown
    assert "\\x1b[31m" in shown or "cat" not in shown


def test_errors_spell_out_what_a_file_says(tmp_path):
    path = tmp_path / "bad.npz"
    np.savez(path, **{"lo\x1b[2Jgits": np.eye(3)})
    done = run("measure", path)
    assert done.returncode == 2
    assert sound(done.stderr), repr(done.stderr)
    (tmp_path / "bad.csv").write_text("label,probability_\x1b]0;x\x07,probability_b\n0,0.9,0.4\n")
    done = run("measure", tmp_path / "bad.csv")
    assert done.returncode == 2
    assert sound(done.stderr), repr(done.stderr)


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes on Linux only")
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_terminals_and_file_names_of_any_encoding_give_no_traceback(encoding, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 120)
    file = os.fsdecode(os.fsencode(tmp_path) + b"/a\xff.npz")
    np.savez(file, logits=rng.normal(size=(120, 3)) + 2 * np.eye(3)[labels], labels=labels)
    artifact, onnx = (f"{file[:-4]}.{suffix}" for suffix in ("safetensors", "onnx"))
    for code, arguments in (
        (0, ("measure", file)),
        (0, ("fit", file, "--method", "ts", "-o", artifact)),
        (0, ("info", artifact)),
        (0, ("apply", artifact, file, "-o", f"{file[:-4]}-out.npz")),
        (0, ("compare", file, file, "--methods", "none,ts", "--report", f"{file[:-4]}.html")),
        (2, ("export", artifact, "--onnx", onnx)),
        (2, ("measure", f"{file}.missing")),
    ):
        streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2)]
        monkeypatch.setattr("sys.stdout", streams[0])
        monkeypatch.setattr("sys.stderr", streams[1])
        monkeypatch.setattr("sys.argv", ["calibrant", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        streams[1].flush()
        errors = streams[1].buffer.getvalue().decode(encoding)
        assert (left.value.code or 0) == code, errors
        assert errors.count("error:") == (code == 2), errors
