"""Command line shared by the studies; it keeps the claims of a README equal to what the run says."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
# sums in one order: with several threads the last digits of a fit depend on how many there are
os.environ.setdefault("OMP_NUM_THREADS", "1")

from calibrant.core.errors import InputError
from studies import RESAMPLES, run_study
from studies.writing import write_study

BEGIN, END = "<!-- claims -->\n", "<!-- end -->"


def main(home: Path, arguments: list[str] | None = None) -> int:
    """Command line of `papers/NAME/run.py`; NAME is the folder's."""
    parser = argparse.ArgumentParser(description=f"The study {home.name}.")
    parser.add_argument("--data", type=Path, required=True, help="folder of .npz files with val and test predictions")
    parser.add_argument("--out", type=Path, help="folder of results; without it, those kept here are rewritten")
    parser.add_argument("--resamples", type=int, default=RESAMPLES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="networks fitted side by side, each in a process")
    options = parser.parse_args(arguments)
    if options.out is not None and options.out.exists() and not options.out.is_dir():
        parser.error(f"{options.out} is a file: give the path of a folder to write to")
    given = {"resamples": options.resamples, "seed": options.seed, "workers": options.workers}
    try:
        study = run_study(home.name, options.data, **given)
    except InputError as error:
        parser.error(str(error))
    for path in write_study(study, options.out or home / "results"):
        print(f"wrote {path}", flush=True)
    if options.out is None:
        readme = home / "README.md"
        readme.write_text(with_claims(readme.read_text(encoding="utf-8"), study.claims_markdown()), encoding="utf-8")
    return 0


def with_claims(text: str, claims: str) -> str:
    """The README with this table between its two marks."""
    head, found, rest = text.partition(BEGIN)
    if not found or END not in rest:
        raise SystemExit(f"the README has no section between {BEGIN.strip()} and {END}")
    return head + BEGIN + claims + rest[rest.index(END) :]
