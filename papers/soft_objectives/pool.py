"""Several runs at once on one device: workers that keep their compiled network and take jobs until time is up."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import operator
import queue as queue_module
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evaluate import evaluate, shifted_test_sets
from images import Dataset, read_dataset, synthetic_dataset
from settings import Setting
from torch import multiprocessing
from training import Recipe, Trainer


@dataclasses.dataclass(frozen=True)
class Job:
    """A setting and a seed; `tag` says what it is run for, and of those waiting the lowest `rank` goes first.

    keep_logits : bring home the validation and test logits as well
    shift : measure the corrupted test sets too
    """

    setting: Setting
    seed: int
    tag: str = "table"
    rank: int = 0
    keep_logits: bool = False
    shift: bool = True


@dataclasses.dataclass(frozen=True)
class Source:
    """Where the images come from: a folder, or nothing for the synthetic ones."""

    folder: Path | None
    device: str
    shift: bool = True
    name: str = "cifar100"

    def open(self) -> Dataset:
        """The dataset on the device."""
        return synthetic_dataset() if self.folder is None else read_dataset(self.folder, self.name, self.device)


class Worker:
    """One network on the device and everything it is measured on."""

    def __init__(self, source: Source, recipe: Recipe) -> None:
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = True
        self.data, self.recipe, self.name = source.open(), recipe, source.name
        self.shifted = shifted_test_sets(self.data.test) if source.shift else {}
        self.trainer = Trainer(recipe, self.data.train, self.data.n_classes)

    def result(self, job: Job) -> dict[str, Any]:
        """Train and measure one job."""
        started = time.perf_counter()
        self.trainer.run(job.setting, job.seed)
        if self.trainer.on_gpu:
            torch.cuda.synchronize()
        trained = time.perf_counter()
        figures = evaluate(self.trainer, self.data, self.shifted if job.shift else {})
        kept = {"logits": self._logits()} if job.keep_logits else {}
        return {
            "tag": job.tag,
            "data": self.name,
            "row": job.setting.row,
            "setting": dataclasses.asdict(job.setting),
            "seed": job.seed,
            "recipe": dataclasses.asdict(self.recipe),
            "mode": sorted(self.trainer.modes),
            "train_seconds": round(trained - started, 2),
            "evaluate_seconds": round(time.perf_counter() - trained, 2),
            **figures,
            **kept,
        }

    def _logits(self) -> dict[str, np.ndarray]:
        parts = {"val": self.data.validation.images, "test": self.data.test.images}
        return {name: self.trainer.logits(images).half().cpu().numpy() for name, images in parts.items()}


FILE_BYTES = 4_500_000
"""Of logits from which a new file is begun."""

_rank = operator.attrgetter("rank")

Results = Iterator[tuple[Job, dict[str, Any] | None]]


class Pool:
    """`run(jobs)` yields each job with its result, or with None where time ran out or the run failed."""

    def __init__(self, source: Source, recipe: Recipe, *, n_workers: int, deadline: float, out: Path) -> None:
        self.deadline, self.out = deadline, out
        self.kept: dict[str, np.ndarray] = {}
        self.n_files = 1
        self.local: Worker | None = None
        if n_workers < 2:
            self.local = Worker(source, recipe)
            return
        context = multiprocessing.get_context("spawn")
        self.tasks, self.answers = context.Queue(), context.Queue()
        arguments = (source, recipe, deadline, self.tasks, self.answers)
        self.processes = [context.Process(target=_serve, args=arguments, daemon=True) for _ in range(n_workers)]
        for process in self.processes:
            process.start()

    def run(self, first: list[Job], more: Callable[[Job, dict[str, Any]], list[Job]] | None = None) -> Results:
        """Results as they come; `more(job, result)` may add jobs that depend on a result."""
        waiting, seconds = 0, 0.0
        queue = sorted(first, key=_rank)
        while queue or waiting:
            if self.local is not None:
                job = queue.pop(0)
                started = time.time()
                answer = _attempt(self.local, job) if started + seconds < self.deadline else None
                seconds = max(seconds, time.time() - started)
            else:
                # no more handed out than there are workers, so that jobs that follow from a result go first
                while queue and waiting < len(self.processes):
                    self.tasks.put(queue.pop(0))
                    waiting += 1
                received = self._receive()
                if received is None:
                    return
                job, answer = received
                waiting -= 1
            if answer is not None:
                self._write(answer)
                queue = sorted((more(job, answer) if more else []) + queue, key=_rank)
            yield job, answer

    def close(self) -> None:
        """Let the workers go."""
        if self.local is None:
            for _ in self.processes:
                self.tasks.put(None)
            for process in self.processes:
                process.join(timeout=20)

    def _receive(self) -> tuple[Job, dict[str, Any] | None] | None:
        """The next answer; None once every worker is gone or well past the deadline."""
        while any(process.is_alive() for process in self.processes) and time.time() < self.deadline + 60:
            with contextlib.suppress(queue_module.Empty):
                return self.answers.get(timeout=5)
        return None

    def _write(self, answer: dict[str, Any]) -> None:
        self.out.parent.mkdir(parents=True, exist_ok=True)
        logits = answer.pop("logits", None)
        if logits is not None:
            self._keep_logits(f"{answer['data']} {answer['row']} seed {answer['seed']}", logits)
        with self.out.open("a") as file:
            file.write(json.dumps(_rounded(answer)) + "\n")

    def _keep_logits(self, name: str, logits: dict[str, np.ndarray]) -> None:
        """Add the arrays to the last `logits-N.npz` beside the results; a file takes a few runs and stays small."""
        if sum(values.nbytes for values in self.kept.values()) >= FILE_BYTES:
            self.kept, self.n_files = {}, self.n_files + 1
        self.kept |= {f"{name} {part}": values for part, values in logits.items()}
        np.savez_compressed(self.out.parent / f"logits-{self.n_files}.npz", **self.kept)


def _serve(source: Source, recipe: Recipe, deadline: float, tasks: Any, answers: Any) -> None:
    worker = Worker(source, recipe)
    seconds = 0.0
    while (job := tasks.get()) is not None:
        started = time.time()
        fits = started + seconds < deadline
        answers.put((job, _attempt(worker, job) if fits else None))
        if fits:
            # the first run also compiles; a later one is the better forecast
            seconds = time.time() - started


def _attempt(worker: Worker, job: Job) -> dict[str, Any] | None:
    try:
        return worker.result(job)
    except Exception:
        traceback.print_exc()
        return None


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value
