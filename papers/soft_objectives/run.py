"""Train the table: {cross entropy, focal, Brier} × {none, MMCE, AvUC, AvUC-GS, soft AvUC, soft ECE} on CIFAR-100.

    python papers/soft_objectives/run.py --data ../shared/data/cifar --out papers/soft_objectives/results/table.jsonl

Each finished run is one line of the output, and runs that are there already are not made again; `tables.py` turns
lines into tables. `--tiny` runs every line of the study on a few synthetic images on the CPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from pool import Job, Pool, Source
from settings import MAIN_ROWS, TABLE, Setting
from training import Recipe

TINY_TRACK = "focal+mmce"
"""The row that `--tiny` tunes."""


def main(arguments: list[str] | None = None) -> int:
    """Command line of the study."""
    options = parse(arguments, __doc__)
    wanted = table_jobs(options.seeds, options.rows) if options.jobs is None else listed_jobs(options.jobs)
    jobs = missing(wanted, known_results(options), options.epochs, options.dataset)
    if options.tiny:
        jobs = jobs[: options.tiny]
    pool = open_pool(options)
    failed = 0
    for job, result in pool.run(jobs):
        failed += result is None
        print(line(job, result), flush=True)
    pool.close()
    return 1 if jobs and failed == len(jobs) else 0


def table_jobs(n_seeds: int, rows: list[int] | None) -> list[Job]:
    """Main rows with every seed, then every other row once, then the other rows' further seeds."""
    if rows is not None:
        return [Job(TABLE[row], seed) for seed in range(n_seeds) for row in rows]
    main_rows = [Job(setting, seed) for seed in range(n_seeds) for setting in TABLE[:MAIN_ROWS]]
    return main_rows + [Job(setting, seed) for seed in range(n_seeds) for setting in TABLE[MAIN_ROWS:]]


def known_results(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every run that is already in the folders given and in the output itself."""
    paths = [path for folder in options.known for path in sorted(folder.glob("*.jsonl"))]
    paths += [options.out] if options.out.exists() and options.out not in paths else []
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def listed_jobs(path: Path) -> list[Job]:
    """The jobs of a JSON file, in its order: a list of {"setting": {...}, "seed": 0, "keep_logits": false}."""
    entries = json.loads(path.read_text())
    return [Job(**{**one, "setting": Setting(**one["setting"]), "rank": place}) for place, one in enumerate(entries)]


def missing(jobs: list[Job], known: list[dict[str, Any]], epochs: int, dataset: str = "cifar100") -> list[Job]:
    """The jobs no known result of this dataset answers."""
    known = [run for run in known if run["recipe"]["epochs"] == epochs and run.get("data", "cifar100") == dataset]
    answered = {(Setting(**run["setting"]), run["seed"]) for run in known}
    return [job for job in jobs if (job.setting, job.seed) not in answered]


def parse(arguments: list[str] | None, description: str | None) -> argparse.Namespace:
    """Options shared by the table and the tuning."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of cifar100.zip or cifar10.zip and val_index.npy")
    parser.add_argument("--out", type=Path, required=True, help="file of results, one JSON line a run; appended to")
    parser.add_argument("--known", type=Path, nargs="*", default=[], help="folders of results not to run again")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, nargs="*", help="only these rows of the table, by number")
    parser.add_argument("--tracks", nargs="*", help="tuning: only these rows, by name")
    parser.add_argument("--jobs", type=Path, help="JSON list of runs to make instead of the table's")
    parser.add_argument("--dataset", choices=["cifar100", "cifar10"], default="cifar100")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--workers", type=int, default=4, help="runs at once")
    parser.add_argument("--budget-seconds", type=float, default=1e9, help="start no run that would not end in time")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--no-graphs", action="store_true")
    parser.add_argument("--no-shift", action="store_true", help="leave out the corrupted test sets")
    parser.add_argument(
        "--tiny",
        type=int,
        nargs="?",
        const=3,
        default=0,
        help=f"synthetic images on the CPU, in seconds: this many runs, or the tuning of {TINY_TRACK} with two seeds",
    )
    options = parser.parse_args(arguments)
    if not options.tiny and options.data is None:
        parser.error("--data is needed unless --tiny")
    if options.tiny:
        options.tracks, options.seeds = options.tracks or [TINY_TRACK], min(options.seeds, 2)
    return options


def open_pool(options: argparse.Namespace) -> Pool:
    """The workers these options ask for."""
    deadline = time.time() + options.budget_seconds
    if options.tiny:
        recipe = Recipe(network="tiny", epochs=2, batch=64, compiled=False, graphs=False)
        return Pool(Source(None, "cpu", shift=True), recipe, n_workers=1, deadline=deadline, out=options.out)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    recipe = Recipe(epochs=options.epochs, compiled=not options.no_compile, graphs=not options.no_graphs)
    source = Source(options.data, device, shift=not options.no_shift, name=options.dataset)
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
