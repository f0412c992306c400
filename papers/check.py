"""Run again what runs on a CPU, and compare every table, claim and README with those kept, character by character.

    python papers/check.py --data ../shared/data [--only cts weight_scaling] [--workers 2]

Exits 1 and prints the differing lines when a figure has moved. What needs a GPU is not run again: the tables and
verdicts of those studies are computed from their committed results.
"""

from __future__ import annotations

import argparse
import difflib
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from study_runner import BEGIN, END, main

HERE = Path(__file__).parent
PREDICTIONS = ("weight_scaling", "cts", "sctl")
"""Studies that need nothing but predictions."""

STUDIES = (*PREDICTIONS, "neural_clamping", "soft_objectives")
FILES = ("tables.md", "claims.md", "results.json")
CLAMPING_FILES = ("c100_resnet20_ce-outputs.json", "c10_resnet20_ce-outputs.json", "stored-logits.json", "scales.json")


def check(arguments: list[str] | None = None) -> int:
    """Compare every study; 0 when all agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, required=True, help="folder that holds zoo/, chestxray14/, external/, cifar/"
    )
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
    print(f"{len(options.only) - failed} of {len(options.only)} studies equal ({time.perf_counter() - begun:.0f} s)")
    return 1 if failed else 0


def rerun(name: str, data: Path, workers: int) -> list[str]:
    """Differences of a study on predictions, run again."""
    with tempfile.TemporaryDirectory() as folder:
        main(HERE / name, ["--data", str(data), "--out", folder, "--workers", str(workers)])
        moved = [line for file in FILES for line in differences(HERE / name / "results" / file, Path(folder) / file)]
    readme = (HERE / name / "README.md").read_text(encoding="utf-8")
    claims = (HERE / name / "results" / "claims.md").read_text(encoding="utf-8")
    if readme.partition(BEGIN)[2].partition(END)[0] != claims:
        moved.append(f"{name}/README.md does not hold the claims of results/claims.md")
    return moved


def rerun_clamping(data: Path) -> list[str]:
    """Differences of the part of the clamping study that runs on a CPU."""
    home = HERE / "neural_clamping"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(home / "run.py"), "--data", str(data), "--out", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return [line for file in CLAMPING_FILES for line in differences(home / "results" / file, Path(folder) / file)]


def stale_readme(name: str) -> list[str]:
    """Differences of a README and its claims to what its own script writes from the committed results."""
    moved = []
    for file, made in (
        ("README.md", "tables.filled((tables.HERE / 'README.md').read_text(encoding='utf-8'))"),
        ("results/claims.json", "tables.claims_data()"),
    ):
        command = [sys.executable, "-c", f"import tables; print({made}, end='')"]
        done = subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8", cwd=HERE / name)
        moved += _compare((HERE / name / file).read_text(encoding="utf-8"), done.stdout, f"{name}/{file}")
    return moved


def differences(kept: Path, made: Path) -> list[str]:
    """Lines that differ between two files."""
    return _compare(kept.read_text(encoding="utf-8"), made.read_text(encoding="utf-8"), str(kept))


def _compare(kept: str, made: str, name: str) -> list[str]:
    lines = kept.splitlines(), made.splitlines()
    return list(difflib.unified_diff(*lines, fromfile=name, tofile="run again", lineterm="", n=0))


if __name__ == "__main__":
    raise SystemExit(check())
