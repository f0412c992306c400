"""Train the table: {cross entropy, focal, Brier} × {none, MMCE, AvUC, AvUC-GS, soft AvUC, soft ECE} on CIFAR-100.

    python papers/soft_objectives/run.py --data ../shared/data/cifar --out papers/soft_objectives/results/table.jsonl

Each finished run is one line of the output; `tables.py` turns lines into tables. `--tiny` runs every line of the
study on a few synthetic images on the CPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from pool import Job, Pool, Source
from settings import MAIN_ROWS, TABLE
from training import Recipe


def main(arguments: list[str] | None = None) -> int:
    """Command line of the study."""
    options = parse(arguments, __doc__)
    jobs = table_jobs(options.seeds, options.first_seed, options.rows, options.main_only)
    jobs += [Job(TABLE[row], options.first_seed) for row in options.once]
    if options.only:
        jobs = [Job(TABLE[int(row)], int(seed)) for row, seed in (pair.split(":") for pair in options.only)]
    if options.tiny:
        jobs = jobs[: options.tiny]
    pool = open_pool(options)
    failed = 0
    for job, result in pool.run(jobs):
        failed += result is None
        print(line(job, result), flush=True)
    pool.close()
    return 1 if failed == len(jobs) else 0


def table_jobs(n_seeds: int, first_seed: int, rows: list[int] | None, main_only: bool) -> list[Job]:
    """Main rows with every seed, then every other row once, then the other rows' further seeds."""
    if rows is not None:
        return [Job(TABLE[row], first_seed + seed) for seed in range(n_seeds) for row in rows]
    jobs = [Job(setting, first_seed + seed) for seed in range(n_seeds) for setting in TABLE[:MAIN_ROWS]]
    if main_only:
        return jobs
    return jobs + [Job(setting, first_seed + seed) for seed in range(n_seeds) for setting in TABLE[MAIN_ROWS:]]


def parse(arguments: list[str] | None, description: str | None) -> argparse.Namespace:
    """Options shared by the table and the tuning."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of cifar100.zip and val_index.npy")
    parser.add_argument("--out", type=Path, required=True, help="file of results, one JSON line a run; appended to")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rows", type=int, nargs="*", help="only these rows of the table, by number")
    parser.add_argument("--once", type=int, nargs="*", default=[], help="and these rows with the first seed only")
    parser.add_argument("--parameters", nargs="*", help="tuning: only the stages of these parameters")
    parser.add_argument("--tracks", nargs="*", help="tuning: only these tracks")
    parser.add_argument("--values", nargs="*", type=float, help="tuning: these candidates beside the start")
    parser.add_argument("--then-seeds", action="store_true", help="tuning: run each winner with every seed at once")
    parser.add_argument("--only", nargs="*", metavar="ROW:SEED", help="exactly these runs")
    parser.add_argument("--main-only", action="store_true", help="only the main rows")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--workers", type=int, default=3, help="runs at once")
    parser.add_argument("--budget-seconds", type=float, default=1e9, help="start no run that would not end in time")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--no-graphs", action="store_true")
    parser.add_argument("--no-shift", action="store_true", help="leave out the corrupted test sets")
    parser.add_argument("--tiny", type=int, nargs="?", const=3, default=0, help="this many tiny runs on the CPU")
    options = parser.parse_args(arguments)
    if not options.tiny and options.data is None:
        parser.error("--data is needed unless --tiny")
    return options


def open_pool(options: argparse.Namespace) -> Pool:
    """The workers these options ask for."""
    deadline = time.time() + options.budget_seconds
    if options.tiny:
        recipe = Recipe(network="tiny", epochs=2, batch=64, compiled=False, graphs=False)
        return Pool(Source(None, "cpu", shift=True), recipe, n_workers=1, deadline=deadline, out=options.out)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    recipe = Recipe(epochs=options.epochs, compiled=not options.no_compile, graphs=not options.no_graphs)
    source = Source(options.data, device, shift=not options.no_shift)
    return Pool(source, recipe, n_workers=options.workers, deadline=deadline, out=options.out)


def line(job: Job, result: dict[str, Any] | None) -> str:
    """One line of progress."""
    setting = job.setting
    name = f"{setting.row} β={setting.weight} κ={setting.kappa} T={setting.temperature} λ={setting.weight_decay}"
    if result is None:
        return f"{time.strftime('%H:%M:%S')} {job.tag} {name} seed {job.seed}: not run"
    test, held = result["test"], result["validation"]
    return (
        f"{time.strftime('%H:%M:%S')} {job.tag} {name} seed {job.seed}: "
        f"test {test['none']['accuracy']:.4f} ece {test['none']['ece']:.4f} mass {test['none']['mass_ece']:.4f} "
        f"ts {test['ts']['mass_ece']:.4f} soft {test['ts-soft']['mass_ece']:.4f}; "
        f"val {held['accuracy']:.4f} {held['ece']:.4f}; "
        f"{result['train_seconds']} s + {result['evaluate_seconds']} s {'+'.join(result['mode'])}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
