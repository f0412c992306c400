"""Run the studies again and compare every table and claim with the ones kept here, character by character.

    python papers/check.py --data ../shared/data [--only cts weight_scaling] [--workers 2]

Exits 1 and prints the differing lines when a figure has moved.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from study_runner import BEGIN, END, main

HERE = Path(__file__).parent
STUDIES = ("weight_scaling", "cts", "sctl")
FILES = ("tables.md", "claims.md", "results.json")


def check(arguments: list[str] | None = None) -> int:
    """Compare every study; 0 when all agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds zoo/ and chestxray14/")
    parser.add_argument("--only", nargs="+", choices=STUDIES, default=list(STUDIES))
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args(arguments)
    failed = 0
    for name in options.only:
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            given = ["--data", str(options.data), "--out", folder, "--workers", str(options.workers)]
            main(HERE / name, given)
            moved = [
                line for file in FILES for line in differences(HERE / name / "results" / file, Path(folder) / file)
            ]
        readme = (HERE / name / "README.md").read_text(encoding="utf-8")
        claims = (HERE / name / "results" / "claims.md").read_text(encoding="utf-8")
        if readme.partition(BEGIN)[2].partition(END)[0] != claims:
            moved.append(f"{name}/README.md does not hold the claims of results/claims.md")
        verdict = f"{len(moved)} lines differ" if moved else "equal"
        print(f"{name}: {verdict} ({time.perf_counter() - started:.0f} s)", flush=True)
        print("\n".join(moved))
        failed += bool(moved)
    return 1 if failed else 0


def differences(kept: Path, made: Path) -> list[str]:
    """Lines that differ between two files."""
    texts = [path.read_text(encoding="utf-8").splitlines() for path in (kept, made)]
    return list(difflib.unified_diff(*texts, fromfile=str(kept), tofile="run again", lineterm="", n=0))


if __name__ == "__main__":
    raise SystemExit(check())
