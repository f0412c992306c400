"""Fits that are asked to end at random moments: nothing may be left in the temporary folder or beside the output.

python benchmarks/attack/kills.py --kills 10
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
    command = [*FIT, str(folder), "--method", "vs", "-o", str(output)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    kills, rng = parser.parse_args().kills, random.Random(0)
    counts = {"terminated": 0, "left behind": 0, "exit codes": 0}
    with tempfile.TemporaryDirectory() as name:
        folder, scratch = Path(name) / "data", Path(name) / "scratch"
        folder.mkdir()
        scratch.mkdir()
        write(folder)
        output = Path(name) / "cal.safetensors"
        started = time.perf_counter()
        start(folder, output, scratch).wait()
        duration = time.perf_counter() - started
        for _ in range(kills):
            process = start(folder, output.with_name("other.safetensors"), scratch)
            time.sleep(rng.uniform(0.3, 0.9) * duration)
            process.send_signal(signal.SIGTERM)
            counts["exit codes"] += process.wait() not in (0, 128 + signal.SIGTERM, -signal.SIGTERM)
            counts["terminated"] += 1
            counts["left behind"] += len(list(scratch.iterdir())) + len(list(Path(name).glob(".other*")))
    for what, count in counts.items():
        print(f"{what:<16}{count:>6}")
    raise SystemExit(1 if counts["left behind"] or counts["exit codes"] else 0)


if __name__ == "__main__":
    main()
