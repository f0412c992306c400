"""Bars appear in notebooks after a second and where asked for, and leave nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from calibrant.core import progress


@pytest.fixture(autouse=True)
def _restore():
    yield
    progress.show_progress(None)


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves when told to."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])

    def move(seconds: float) -> None:
        now[0] += seconds

    return move


def test_scripts_are_silent(capsys, clock):
    progress.show_progress(None)
    for done in range(5):
        progress.step("work", done, 5)
        clock(1.0)
    assert capsys.readouterr().err == ""


def test_a_bar_on_request_comes_late_and_goes_away(capsys, clock, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal for rich
    progress.show_progress(True)
    progress.step("work", 0, 4)
    assert capsys.readouterr().err == ""
    clock(1.5)
    progress.step("work", 1, 4, "second")
    shown = capsys.readouterr().err
    assert "work second" in shown
    assert "1 of 4" in shown
    clock(0.01)
    progress.step("work", 2, 4)
    assert capsys.readouterr().err == ""
    clock(1.0)
    progress.step("inner\x1b 7", 3, None)
    shown = capsys.readouterr().err
    assert "inner? 7" in shown
    assert "2 of 4" in shown
    progress.step("inner\x1b 8", 4, 4)
    progress.step("work", 4, 4)
    left = capsys.readouterr().err
    assert left.endswith("\x1b[2K")  # the last line is empty


def test_a_listener_takes_precedence(capsys, clock):
    progress.show_progress(True)
    heard = []
    with progress.listen(lambda *given: heard.append(given)):
        progress.step("work", 0, 2)
        clock(2.0)
        progress.step("work", 1, 2)
    assert heard == [("work", 0, 2, ""), ("work", 1, 2, "")]
    assert capsys.readouterr().err == ""


def test_a_notebook_shows_a_bar_and_clears_it(tmp_path):
    cells = [
        "from calibrant.core import progress\nprogress.PATIENCE_SECONDS = 0\n"
        "progress.PAUSE_SECONDS = 0\nfrom IPython.display import HTML\n"
        "seen = []\nkeep = progress._html\n"
        "progress._html = lambda *given: seen.append(keep(*given)) or seen[-1]\n"
        "for done in range(3):\n    progress.step('work <b>', done, 3)",
        "assert len(seen) == 3 and 'max=\"3\"' in seen[0] and '&lt;b&gt;' in seen[0], seen",
        "import calibrant as cal\ncal.show_progress(False)\nprogress.step('quiet', 1, 3)\nassert len(seen) == 3",
    ]
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [
        {"cell_type": "code", "id": f"c{i}", "metadata": {}, "outputs": [], "execution_count": None, "source": text}
        for i, text in enumerate(cells)
    ]}  # fmt: skip
    path = tmp_path / "bar.ipynb"
    path.write_text(json.dumps(notebook))
    command = [sys.executable, "-m", "jupyter", "nbconvert", "--to", "notebook", "--execute", "--inplace", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    outputs = json.loads(path.read_text())["cells"][0]["outputs"]
    # the work did not finish, but its cell did
    assert [one["data"]["text/html"] for one in outputs] in ([""], [[]], [[""]])
