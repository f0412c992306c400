"""Fits that are killed at random moments and started again, and fits that are asked to end.

python benchmarks/attack/kills.py --kills 50

After SIGKILL a fit with the same checkpoint must end with the very temperature of a fit that was never killed. After
SIGTERM nothing may be left in the temporary folder or beside the output.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import calibrant

FIT = [sys.executable, "-m", "calibrant", "fit"]


def write(folder: Path, parts: int = 4, n: int = 60_000, n_classes: int = 50) -> None:
    rng = np.random.default_rng(0)
    for part in range(parts):
        labels = rng.integers(0, n_classes, n)
        logits = 2 * rng.standard_normal((n, n_classes), dtype=np.float32)
        logits[np.arange(n), labels] += 4
        np.savez(folder / f"part{part}.npz", logits=logits, labels=labels)


def start(folder: Path, output: Path, scratch: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "TMPDIR": str(scratch)}
    command = [*FIT, str(folder), "--method", "vs", "-o", str(output), "--checkpoint", str(output.with_suffix(".log"))]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    kills, rng = parser.parse_args().kills, random.Random(0)
    counts = {"killed": 0, "finished": 0, "other answers": 0, "terminated": 0, "left behind": 0, "exit codes": 0}
    with tempfile.TemporaryDirectory() as name:
        folder, scratch = Path(name) / "data", Path(name) / "scratch"
        folder.mkdir()
        scratch.mkdir()
        write(folder)
        output = Path(name) / "cal.safetensors"
        started = time.perf_counter()
        start(folder, output, scratch).wait()
        duration = time.perf_counter() - started
        expected = calibrant.load(output).scale_
        while counts["killed"] < kills:
            output.unlink(missing_ok=True)
            while not output.exists():
                process = start(folder, output, scratch)
                try:
                    process.wait(timeout=rng.uniform(0.1, 1.3) * duration)
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    counts["killed"] += 1
            counts["finished"] += 1
            counts["other answers"] += not np.array_equal(calibrant.load(output).scale_, expected)
        for path in scratch.iterdir():
            path.unlink()  # a killed process cannot clean up
        for _ in range(max(kills // 5, 1)):
            process = start(folder, output.with_name("other.safetensors"), scratch)
            time.sleep(rng.uniform(0.3, 0.9) * duration)
            process.send_signal(signal.SIGTERM)
            counts["exit codes"] += process.wait() not in (0, 128 + signal.SIGTERM, -signal.SIGTERM)
            counts["terminated"] += 1
            counts["left behind"] += len(list(scratch.iterdir())) + len(list(Path(name).glob(".other*")))
    for what, count in counts.items():
        print(f"{what:<16}{count:>6}")
    raise SystemExit(1 if counts["other answers"] or counts["left behind"] or counts["exit codes"] else 0)


if __name__ == "__main__":
    main()
