"""Run the studies that need no GPU again, and compare their tables, claims and READMEs with the committed ones.

    python papers/check.py --data ../shared/data [--only cts weight_scaling] [--workers 2]

Exits 1 and prints the differing lines. Words, verdicts and counts have to be equal. A number with decimals may differ
by TOLERANCE units of its last printed place, the fourth at most, since processors round differently. Tables and
verdicts of studies that need a GPU are computed from their committed results.
"""

from __future__ import annotations

import argparse
import difflib
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import overview
from study_runner import BEGIN, END, main

HERE = Path(__file__).parent
PREDICTIONS = ("weight_scaling", "cts", "sctl")
"""Studies that need nothing but predictions."""

STUDIES = (*PREDICTIONS, "neural_clamping", "soft_objectives")
FILES = ("tables.md", "claims.md", "results.json")
TOLERANCE = 2
NUMBER = re.compile(r"[+−-]?\d+\.\d+")
MARKS = re.compile(r"\*\*|</?u>")
"""Marks of the lowest and second value of a column, which may change between values that are equal within TOLERANCE."""

CLAMPING_FILES = ("c100_resnet20_ce-outputs.json", "c10_resnet20_ce-outputs.json", "stored-logits.json", "scales.json")


def check(arguments: list[str] | None = None) -> int:
    """Compare the studies; 0 if all agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with zoo/, chestxray14/, external/, cifar/")
    parser.add_argument("--only", nargs="+", choices=STUDIES, default=list(STUDIES))
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args(arguments)
    failed, begun = 0, time.perf_counter()
    for name in options.only:
        started = time.perf_counter()
        if name in PREDICTIONS:
            moved = rerun(name, options.data, options.workers)
        else:
            moved = rerun_clamping(options.data) if name == "neural_clamping" else []
            moved += stale_readme(name)
        verdict = f"{len(moved)} lines differ" if moved else "equal"
        print(f"{name}: {verdict} ({time.perf_counter() - started:.0f} s)", flush=True)
        print("\n".join(moved))
        failed += bool(moved)
    stale = overview.stale()
    print("\n".join(stale) or "papers/README.md: equal")
    failed += bool(stale)
    print(f"{failed or 'no'} differences ({time.perf_counter() - begun:.0f} s)")
    return 1 if failed else 0


def rerun(name: str, data: Path, workers: int) -> list[str]:
    """Differences of a study on predictions, run again."""
    with tempfile.TemporaryDirectory() as folder:
        main(HERE / name, ["--data", str(data), "--out", folder, "--workers", str(workers)])
        home = HERE / name / "results"
        moved = [line for file in FILES for line in differences(home / file, Path(folder) / file)]
        moved += moved_measurements(home / "measurements.npz", Path(folder) / "measurements.npz")
    readme = (HERE / name / "README.md").read_text(encoding="utf-8")
    claims = (HERE / name / "results" / "claims.md").read_text(encoding="utf-8")
    if readme.partition(BEGIN)[2].partition(END)[0] != claims:
        moved.append(f"{name}/README.md does not have the claims of results/claims.md")
    return moved


def rerun_clamping(data: Path) -> list[str]:
    """Differences of the part of the clamping study that runs on a CPU."""
    home = HERE / "neural_clamping"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(home / "run.py"), "--data", str(data), "--out", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return [line for file in CLAMPING_FILES for line in differences(home / "results" / file, Path(folder) / file)]


def stale_readme(name: str) -> list[str]:
    """Differences of a README and its claims to the output of its script on the committed results."""
    moved = []
    for file, made in (
        ("README.md", "tables.filled((tables.HERE / 'README.md').read_text(encoding='utf-8'))"),
        ("results/claims.json", "tables.claims_data()"),
    ):
        command = [sys.executable, "-c", f"import tables; print({made}, end='')"]
        done = subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8", cwd=HERE / name)
        moved += _compare((HERE / name / file).read_text(encoding="utf-8"), done.stdout, f"{name}/{file}")
    return moved


def differences(committed: Path, made: Path) -> list[str]:
    """Lines that differ between two files by more than the tolerance."""
    return _compare(committed.read_text(encoding="utf-8"), made.read_text(encoding="utf-8"), str(committed))


def moved_measurements(committed: Path, made: Path) -> list[str]:
    """Names of measurements whose value or draws differ by more than 0.02 points."""
    with np.load(committed) as old, np.load(made) as new:
        if old["names"].tolist() != new["names"].tolist():
            return [f"{committed} has other names than the new measurements"]
        gaps = np.abs(old["values"] - new["values"]), np.abs(old["deviations"] - new["deviations"]).max(axis=1) * 1e-6
        moved = np.maximum(*gaps) > 0.01 * 0.01 * TOLERANCE
        return [f"{committed}: {name}" for name in old["names"][moved]]


def close(first: str, second: str) -> bool:
    """Return whether two lines have the same words, and numbers within the tolerance."""
    lines = [MARKS.sub("", line) for line in (first, second)]
    if NUMBER.sub("#", lines[0]) != NUMBER.sub("#", lines[1]):
        return False
    for one, other in zip(*(NUMBER.findall(line) for line in lines), strict=True):
        # JSON leaves out zeros at the end, so that the longer one shows the last place
        places = min(4, max(len(number.partition(".")[2]) for number in (one, other)))
        gap = abs(float(one.replace("−", "-")) - float(other.replace("−", "-")))
        if gap > (TOLERANCE + 0.01) * 10.0**-places:
            return False
    return True


def _compare(committed: str, made: str, name: str) -> list[str]:
    lines = committed.splitlines(), made.splitlines()
    if len(lines[0]) == len(lines[1]) and all(close(one, other) for one, other in zip(*lines, strict=True)):
        return []
    return list(difflib.unified_diff(*lines, fromfile=name, tofile="run again", lineterm="", n=0))


if __name__ == "__main__":
    raise SystemExit(check())
