"""All cells of table 2 on CIFAR-10: β of each tuned over four values, three seeds, a network of a quarter of the cost.

    python papers/soft_objectives/cells.py --data ../shared/data/cifar --out papers/soft_objectives/results/11.jsonl

The network is a ResNet-18 whose first layer halves the image, trained for 24 epochs at the paper's batch of 512. Seed 0
tunes; the winner of the paper's rule is trained with seeds 1 and 2. MMCE has a second row, its reweighted form.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from pool import Job, Pool, Source
from run import known_results, line, missing, parse
from settings import PRIMARY, Setting
from training import Recipe
from tune import Result, Track

RECIPE = Recipe(network="resnet18-half", epochs=24, batch=512)
DATASET = "cifar10"
SEEDS = 3
WEIGHTS = {"cross_entropy": (1.0, 0.3, 3.0, 10.0), "focal": (0.1, 0.03, 0.3, 1.0), "brier": (0.1, 0.03, 0.3, 1.0)}
"""β of each primary loss, a factor of thirty apart; fixed before the runs were made."""

SECONDARIES: dict[str, dict[str, float]] = {
    "soft_avuc": {"kappa": 0.48, "temperature": 0.1},
    "soft_ece": {"temperature": 0.01},
    "mmce": {},
    "avuc": {"kappa": 1.0},
    "avuc_gs": {"kappa": 1.0},
    "mmce_weighted": {},
}
SHIFTED = ("cross_entropy+none", "focal+none", "brier+none", "focal+soft_ece", "focal+soft_avuc")
"""Rows that are measured on corrupted images too."""


def cell_tracks() -> list[Track]:
    """β of every cell."""
    found = []
    for secondary, given in SECONDARIES.items():
        for primary in ("focal", "cross_entropy", "brier"):
            start, *others = WEIGHTS[primary]
            setting = Setting(primary, secondary, start).but(**given)
            found.append(Track(setting, [("weight", tuple(others))], seed=0, rank=1))
    return found


def final(setting: Setting, seed: int) -> Job:
    """A run of the table, its logits kept."""
    return Job(setting, seed, rank=0, keep_logits=True, shift=setting.row in SHIFTED)


def main(arguments: list[str] | None = None) -> int:
    """Tune and train until the time is up."""
    options = parse(arguments, __doc__)
    recipe = Recipe(network="tiny", epochs=1, batch=64, compiled=False, graphs=False) if options.tiny else RECIPE
    known: list[Result] = [run for run in known_results(options) if run["recipe"]["network"] == recipe.network]
    tracks = {track.row: track for track in cell_tracks() if options.tracks is None or track.row in options.tracks}
    for track in tracks.values():
        track.know(known, recipe.epochs)
    plain = [final(Setting(primary), seed) for primary in PRIMARY for seed in range(SEEDS)]
    first = missing(plain, known, recipe.epochs, DATASET) if options.tracks is None else []
    for track in tracks.values():
        first += [Job(job.setting, job.seed, job.tag, job.rank, shift=False) for job in track.next_jobs()]
        if track.done:
            first += _winners(track, known, recipe)
    source = Source(None, "cpu") if options.tiny else Source(options.data, "cuda", name=DATASET)
    deadline = time.time() + options.budget_seconds
    workers = 1 if options.tiny else options.workers
    pool = Pool(source, recipe, n_workers=workers, deadline=deadline, out=options.out)

    def more(job: Job, result: Result) -> list[Job]:
        known.append(result)
        track = tracks.get(job.tag)
        if track is None:
            return []
        following: list[Any] = track.receive(job, result)
        return _winners(track, known, recipe) if track.done else following

    for job, result in pool.run(first, more):
        print(line(job, result), flush=True)
    pool.close()
    return 0


def _winners(track: Track, known: list[Result], recipe: Recipe) -> list[Job]:
    jobs = [final(track.best, seed) for seed in range(1, SEEDS)]
    return missing(jobs, known, recipe.epochs, DATASET)


if __name__ == "__main__":
    raise SystemExit(main())
