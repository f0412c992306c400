"""Tune the secondary losses one number at a time: κ, then T, then β, then λ (Karandikar et al. 2021, app. G).

    python papers/soft_objectives/tune.py --data ../shared/data/cifar --out papers/soft_objectives/results/tuning.jsonl

At each stage every candidate is trained and the one of lowest validation ECE whose validation accuracy is within one
point of the best so far is kept. The test set plays no part. Rows of the table advance side by side: the main ones
through every stage with a seed of their own, the others through β alone with the table's first seed. Once a row is
tuned, its winner is trained with the table's seeds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from pool import Job
from run import known_results, line, missing, open_pool, parse
from settings import Setting

ACCURACY_ROOM = 0.01
TUNING_SEED = 100
"""Of the main rows, whose table then rests on other seeds than its tuning."""

Result = dict[str, Any]


def choose(results: Sequence[Result]) -> Result:
    """The result of lowest validation ECE among those within one point of the best validation accuracy."""
    best = max(result["validation"]["accuracy"] for result in results)
    close = [result for result in results if result["validation"]["accuracy"] >= best - ACCURACY_ROOM]
    return min(close, key=lambda result: result["validation"]["ece"])


@dataclass
class Track:
    """The tuning of one row: stages of (parameter, candidate values) still to come, and all results so far."""

    setting: Setting
    stages: list[tuple[str, tuple[float, ...]]]
    seed: int = TUNING_SEED
    rank: int = 0
    results: list[Result] = field(default_factory=list)
    waiting: set[Setting] = field(default_factory=set)

    @property
    def row(self) -> str:
        """The row of the table that is tuned."""
        return self.setting.row

    def know(self, results: Sequence[Result], epochs: int) -> None:
        """Take in what earlier runs found."""
        mine = [run for run in results if run["row"] == self.row and run["seed"] == self.seed]
        self.results += [run for run in mine if run["recipe"]["epochs"] == epochs]

    def next_jobs(self) -> list[Job]:
        """The untried candidates of the next stage that has any; the start is tried with the first stage."""
        while self.stages:
            tried = {Setting(**result["setting"]) for result in self.results}
            if self.setting in tried:
                self.setting = self.best
            parameter, values = self.stages.pop(0)
            fresh = [self.setting, *(self.setting.but(**{parameter: value}) for value in values)]
            fresh = [setting for setting in fresh if setting not in tried]
            if fresh:
                self.waiting = set(fresh)
                # every row's first candidate goes before any row's second
                return [Job(one, self.seed, self.row, self.rank + min(place, 1)) for place, one in enumerate(fresh)]
        return []

    def receive(self, job: Job, result: Result) -> list[Job]:
        """Take a result in; once the stage is complete, keep its best and open the next."""
        self.results.append(result)
        self.waiting.discard(job.setting)
        return [] if self.waiting else self.next_jobs()

    @property
    def best(self) -> Setting:
        """The setting validation prefers so far."""
        return Setting(**choose(self.results)["setting"])

    @property
    def done(self) -> bool:
        """Nothing is left to try."""
        return not self.waiting and not self.stages


def tracks() -> list[Track]:
    """What is tuned, from where, over which values; fixed before the runs were made."""
    soft_ece = Setting("focal", "soft_ece", weight=0.1, temperature=0.01)
    soft_avuc = Setting("focal", "soft_avuc", weight=0.3, kappa=0.48, temperature=0.1)
    interleaved = Setting("cross_entropy", "soft_ece", weight=2.0, temperature=0.01, interleaved=True)
    decays = ("weight_decay", (2.5e-4, 1e-3))
    return [
        Track(soft_ece, [("temperature", (0.003, 0.03)), ("weight", (0.05, 0.2, 0.3)), decays]),
        Track(
            soft_avuc,
            [("kappa", (0.3, 0.42, 0.54)), ("temperature", (0.03, 0.3)), ("weight", (0.1, 0.6)), decays],
        ),
        Track(interleaved, [("temperature", (0.03,)), ("weight", (0.5, 1.0, 5.0, 10.0)), ("weight_decay", (1e-3,))]),
        *_weight_tracks(),
    ]


def _weight_tracks() -> list[Track]:
    """The other rows: β alone."""
    weights: dict[tuple[str, str], tuple[float, ...]] = {
        ("focal", "mmce"): (0.1, 0.03, 0.3),
        ("focal", "avuc"): (0.1, 0.03, 0.3),
        ("focal", "avuc_gs"): (0.1, 0.03, 0.3),
        ("brier", "mmce"): (0.1, 0.03),
        ("brier", "avuc"): (0.1, 0.03),
        ("brier", "avuc_gs"): (0.1, 0.03),
        ("brier", "soft_avuc"): (0.1, 0.03),
        ("brier", "soft_ece"): (0.1, 0.03),
        ("cross_entropy", "soft_avuc"): (0.3, 0.1),
        ("cross_entropy", "soft_ece"): (0.3, 0.1),
        ("cross_entropy", "mmce"): (2.0, 0.5, 0.1),
        ("cross_entropy", "avuc"): (1.0, 0.1),
        ("cross_entropy", "avuc_gs"): (1.0, 0.1),
    }
    parameters: dict[str, dict[str, float]] = {
        "avuc": {"kappa": 1.0},
        "avuc_gs": {"kappa": 1.0},
        "soft_avuc": {"kappa": 0.3, "temperature": 0.1},
        "soft_ece": {"temperature": 0.01},
    }
    found = []
    for (primary, secondary), (start, *others) in weights.items():
        setting = Setting(primary, secondary, start).but(**parameters.get(secondary, {}))
        found.append(Track(setting, [("weight", tuple(others))], seed=0, rank=1))
    held_out = Setting("cross_entropy", "soft_avuc", 1.0, kappa=0.5, temperature=0.1, interleaved=True)
    return [*found, Track(held_out, [("weight", (0.3, 3.0))], seed=0, rank=1)]


def seed_jobs(track: Track, n_seeds: int) -> list[Job]:
    """The table's runs of a tuned row: at once for a main row, last for the others."""
    rank = 0 if track.rank == 0 else 3 + (track.setting.primary != "focal")
    return [Job(track.best, seed, rank=rank) for seed in range(n_seeds)]


def main(arguments: list[str] | None = None) -> int:
    """Command line of the tuning."""
    options = parse(arguments, __doc__)
    known = known_results(options)
    chosen = {track.row: track for track in tracks() if options.tracks is None or track.row in options.tracks}
    epochs = options.epochs
    for track in chosen.values():
        track.know(known, epochs)
    pool = open_pool(options)
    first = [job for track in chosen.values() for job in track.next_jobs()]
    for track in chosen.values():
        first += missing(seed_jobs(track, options.seeds), known, epochs) if track.done else []
    plain = [
        Job(Setting(primary), seed, rank=3) for primary in ("cross_entropy", "focal", "brier") for seed in range(3)
    ]
    first += missing(plain, known, epochs) if options.tracks is None else []

    def more(job: Job, result: Result) -> list[Job]:
        known.append(result)
        track = chosen.get(job.tag)
        if track is None:
            return []
        following = track.receive(job, result)
        return missing(seed_jobs(track, options.seeds), known, epochs) if track.done else following

    for job, result in pool.run(first, more):
        print(line(job, result), flush=True)
    pool.close()
    for track in chosen.values():
        if track.results:
            print(f"{track.row}: {track.best}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
