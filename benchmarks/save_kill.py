"""kill -9 while an artifact is being saved over another: the file must always be the old or the new one.

python benchmarks/save_kill.py --kills 200
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import time
from pathlib import Path

import numpy as np

from calibrant import VectorScaling, load, save
from calibrant.shipping.artifact import digest_of


def calibrators(trace_length: int) -> list[VectorScaling]:
    """Two calibrators of different numbers; a long trace makes writing the file most of the time of a save."""
    n_classes = 10
    made = []
    for value in (1.0, 2.0):
        calibrator = VectorScaling()
        calibrator.n_features_in_, calibrator.classes_ = n_classes, np.arange(n_classes)
        calibrator.n_iter_, calibrator.objective_trace_, calibrator.fit_seconds_ = 1, np.full(trace_length, value), 0.0
        calibrator.scale_, calibrator.bias_ = np.full(n_classes, value), np.zeros(n_classes)
        made.append(calibrator)
    return made


def run(kills: int, seed: int = 0, trace_length: int = 1_000_000) -> dict[str, int]:
    """Save without end in a child process, kill it, look at the file; returns what was found how often."""
    rng = random.Random(seed)
    pair = calibrators(trace_length)
    counts = {"old_or_new": 0, "broken": 0, "killed_inside_save": 0, "left_over_files": 0}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cal.safetensors"
        save(pair[0], path)
        started = time.perf_counter()
        save(pair[1], path)
        duration = time.perf_counter() - started
        whole = set()
        for calibrator in pair:
            save(calibrator, path)
            whole.add(digest_of(path.read_bytes()))
        for _ in range(kills):
            counts["killed_inside_save"] += _kill_once(pair, path, rng.uniform(0, 2.5 * duration))
            intact = digest_of(path.read_bytes()) in whole and load(path).scale_[0] in (1.0, 2.0)
            counts["old_or_new" if intact else "broken"] += 1
        counts["left_over_files"] = len(list(Path(folder).iterdir())) - 1
    return counts


def _kill_once(pair: list[VectorScaling], path: Path, delay: float) -> bool:
    """Fork a child that saves both in turn, kill it after the delay; was it inside a save?"""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        turn = 0
        while True:
            os.write(writer, b"(")
            save(pair[turn % 2], path)
            os.write(writer, b")")
            turn += 1
    os.close(writer)
    os.read(reader, 1)  # the first save has begun
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    marks = b"(" + os.read(reader, 1 << 16)
    os.close(reader)
    return marks.endswith(b"(")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    arguments = parser.parse_args()
    started = time.perf_counter()
    counts = run(arguments.kills)
    print(f"{arguments.kills} kills in {time.perf_counter() - started:.0f} s: {counts}")
    raise SystemExit(bool(counts["broken"]))


if __name__ == "__main__":
    main()
