"""Tune the secondary losses one number at a time: κ, then T, then β, then λ (Karandikar et al. 2021, app. G).

    python papers/soft_objectives/tune.py --data ../shared/data/cifar --out papers/soft_objectives/results/tuning.jsonl

At each stage every candidate is trained and the one of lowest validation ECE whose validation accuracy is within one
point of the best so far is kept. The test set plays no part. Tracks (one per secondary loss) advance side by side.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from pool import Job
from run import line, open_pool, parse, table_jobs
from settings import FOCAL_SOFT_AVUC, FOCAL_SOFT_ECE, INTERLEAVED_SOFT_ECE, TABLE, Setting

ACCURACY_ROOM = 0.01


def choose(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The result of lowest validation ECE among those within one point of the best validation accuracy."""
    best = max(result["validation"]["accuracy"] for result in results)
    close = [result for result in results if result["validation"]["accuracy"] >= best - ACCURACY_ROOM]
    return min(close, key=lambda result: result["validation"]["ece"])


@dataclass
class Track:
    """The tuning of one setting: stages of (parameter, candidate values) still to come, and all results so far."""

    name: str
    setting: Setting
    stages: list[tuple[str, tuple[float, ...]]]
    seed: int = 100
    results: list[dict[str, Any]] = field(default_factory=list)
    waiting: set[Setting] = field(default_factory=set)

    def next_jobs(self) -> list[Job]:
        """The candidates of the next stage that has any untried."""
        tried = {Setting(**result["setting"]) for result in self.results}
        while self.stages:
            parameter, values = self.stages.pop(0)
            fresh = {self.setting.but(**{parameter: value}) for value in values} | {self.setting}
            fresh -= tried
            if fresh:
                self.waiting = fresh
                return [Job(setting, self.seed, tag=self.name) for setting in sorted(fresh, key=str)]
        return []

    def receive(self, job: Job, result: dict[str, Any]) -> list[Job]:
        """Take a result in; once the stage is complete, keep its best and open the next."""
        self.results.append(result)
        self.waiting.discard(job.setting)
        if self.waiting:
            return []
        self.setting = Setting(**choose(self.results)["setting"])
        return self.next_jobs()


def tracks(
    parameters: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    values: Sequence[float] | None = None,
) -> list[Track]:
    """What is tuned, from the settings the table starts with.

    `parameters` keeps only some of the stages, `names` some of the tracks, `values` replaces the candidates.
    """
    decay = ("weight_decay", (1e-3,))
    every = [
        Track("focal+soft_ece", FOCAL_SOFT_ECE, [("temperature", (0.003, 0.03)), ("weight", (0.2, 0.3)), decay]),
        Track(
            "focal+soft_avuc",
            FOCAL_SOFT_AVUC,
            [("kappa", (0.3, 0.42)), ("temperature", (0.3,)), ("weight", (0.2,)), decay],
        ),
        Track("interleaved soft_ece", INTERLEAVED_SOFT_ECE, [("weight", (5.0, 10.0))]),
    ]
    for track in every:
        stages = [stage for stage in track.stages if parameters is None or stage[0] in parameters]
        track.stages = [(name, tuple(values or candidates)) for name, candidates in stages]
    return [track for track in every if names is None or track.name in names]


def main(arguments: list[str] | None = None) -> int:
    """Command line of the tuning."""
    options = parse(arguments, __doc__)
    by_name = {track.name: track for track in tracks(options.parameters, options.tracks, options.values)}
    if options.tiny:
        by_name = dict(list(by_name.items())[-options.tiny :])
    pool = open_pool(options)
    first = [job for track in by_name.values() for job in track.next_jobs()]
    first += table_jobs(options.seeds, options.first_seed, options.rows, False) if options.rows else []
    first += [Job(TABLE[row], options.first_seed) for row in options.once]

    def more(job: Job, result: dict[str, Any]) -> list[Job]:
        if job.tag not in by_name:
            return []
        track = by_name[job.tag]
        following = track.receive(job, result)
        if options.then_seeds and not track.waiting and not following:
            following = [Job(track.setting, seed) for seed in range(options.seeds)]
        return following

    for job, result in pool.run(first, more):
        print(line(job, result), flush=True)
    pool.close()
    for track in by_name.values():
        if track.results:
            print(f"{track.name}: {choose(track.results)['setting']}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
