"""Code blocks of Markdown pages: found, run, and held to the output that is printed beside them."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^(?P=indent)```[ ]*$", re.M | re.S)
NOT_RUN = re.compile(r"<!-- not run: .+? -->\s*\Z")
PRINTS = "# →"
"""`print(x)  # → 0.5` promises that 0.5 is printed."""


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, the line it starts on, and whether it says `not run`."""

    language: str
    body: str
    line: int
    runs: bool


def blocks(text: str) -> list[Block]:
    found = []
    for match in FENCE.finditer(text):
        indent = match["indent"]
        body = "".join(line.removeprefix(indent) for line in match["body"].splitlines(keepends=True))
        before = text[: match.start()]
        found.append(Block(match["language"], body, before.count("\n") + 1, not NOT_RUN.search(before)))
    return found


def pages() -> list[Path]:
    """Every page with words of our own; papers and benchmarks document runs of hours and are left out."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def run_page(page: Path, folder: Path) -> int:
    """Run the blocks of a page in order, in one namespace and in the current folder; returns how many ran."""
    namespace: dict[str, Any] = {"__name__": "docs"}
    n_run, printed = 0, ""
    for block in blocks(page.read_text(encoding="utf-8")):
        place = f"{page.relative_to(ROOT)}:{block.line}"
        if block.language == "python" and block.runs:
            printed = run_python(block.body, namespace, place, folder)
        elif block.language == "bash" and block.runs:
            printed = run_command(["bash", "-euo", "pipefail", "-c", block.body], place, folder)
        elif block.language == "text" and block.runs:
            check_lines(block.body, printed, place)
            continue
        else:
            continue
        n_run += 1
    return n_run


def run_python(body: str, namespace: dict[str, Any], place: str, folder: Path) -> str:
    if "__main__" in body:  # a script, such as one that starts worker processes
        script = folder / "script.py"
        script.write_text(body, encoding="utf-8")
        printed = run_command([sys.executable, str(script)], place, folder)
    else:
        captured = io.StringIO()
        with contextlib.redirect_stdout(captured):
            exec(compile(body, place, "exec"), namespace)
        printed = captured.getvalue()
    promised = [line.split(PRINTS, 1)[1].strip() for line in body.splitlines() if PRINTS in line]
    if promised:
        assert printed.split("\n")[: len(promised)] == promised, f"{place} prints {printed!r}, not {promised}"
    return printed


def run_command(command: list[str], place: str, folder: Path) -> str:
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{place} ends with {done.returncode}: {done.stdout[-500:]}{done.stderr[-1500:]}"
    return done.stdout


def check_lines(shown: str, printed: str, place: str) -> None:
    """Every shown line occurs in what was printed; `…` stands for lines left out."""
    have = {line.strip() for line in printed.splitlines()}
    for line in shown.splitlines():
        if line.strip() not in ("", "…"):
            assert line.strip() in have, f"{place} shows {line.strip()!r}, which was not printed:\n{printed[-1500:]}"
