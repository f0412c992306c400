"""Speed of the metrics beside numpy itself and beside the peers, all in one run.

    PYTHONPATH=src .venv-peers/bin/python benchmarks/metrics.py [--repeats 7] [--skip-slow]

Only ratios within one run mean anything: every pair is timed in turn, and medians are compared. A peer that is not
installed is left out and said so.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
import tracemalloc
from collections.abc import Callable
from functools import partial

import numpy as np

from calibrant import metrics
from calibrant.core.softmax import softmax
from calibrant.kernels.rows import scan
from calibrant.metrics.top_label import ece, mmce

Row = tuple[str, float, str, float, float, str, str]


def alternate(first: Callable[[], object], second: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median seconds of two jobs timed in turn, after one warm-up each."""
    first()
    second()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for job, spent in zip((first, second), times, strict=True):
            start = time.perf_counter()
            job()
            spent.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def row(name: str, ours: float, peer: str, theirs: float, goal: str) -> Row:
    if goal.startswith("≥"):
        ratio = theirs / ours
        met = ratio >= float(goal[1:].strip("×"))
        return name, ours, peer, theirs, ratio, f"{goal} faster", "yes" if met else "NO"
    ratio = ours / theirs
    return name, ours, peer, theirs, ratio, f"{goal} its time", "yes" if ratio <= float(goal[1:].strip("×")) else "NO"


def installed(package: str) -> bool:
    found = importlib.util.find_spec(package) is not None
    if not found:
        print(f"{package} is not installed: left out")
    return found


def top_label(repeats: int) -> list[Row]:
    """ECE from probabilities, 1,000,000 × 100 float32."""
    rng = np.random.default_rng(0)
    probabilities = rng.standard_exponential((1_000_000, 100), dtype=np.float32) ** 3
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    labels = rng.integers(0, 100, 1_000_000)
    name = "ece 1,000,000×100 float32"
    ours = partial(metrics.ece, probabilities, labels)
    rows = [row(name, *swap(alternate(ours, lambda: np.max(probabilities, axis=1), repeats), "np.max(axis=1)"), "≤2×")]
    if installed("torchmetrics"):
        import torch
        from torchmetrics.functional.classification import multiclass_calibration_error

        torch.set_num_threads(2)
        tensors = torch.from_numpy(probabilities), torch.from_numpy(labels)
        peer = partial(multiclass_calibration_error, *tensors, num_classes=100, n_bins=15, norm="l1")
        rows.append(row(name, *swap(alternate(ours, peer, repeats), "torchmetrics"), "≥10×"))
    if installed("netcal"):
        from netcal.metrics import ECE

        rows.append(
            row(name, *swap(alternate(ours, lambda: ECE(15).measure(probabilities, labels), repeats), "netcal"), "≥5×")
        )
    return rows


def swap(times: tuple[float, float], peer: str) -> tuple[float, str, float]:
    return times[0], peer, times[1]


def fused(repeats: int) -> list[Row]:
    """ECE + NLL + Brier + accuracy from logits, 25,000 × 1,000 float32, in one pass."""
    rng = np.random.default_rng(1)
    logits = (rng.standard_normal((25_000, 1_000), dtype=np.float32)) * 3
    labels = rng.integers(0, 1_000, 25_000)

    def ours() -> tuple[float, ...]:
        columns = scan(logits, labels, from_logits=True, columns="scores")
        score = ece(columns.confidence, columns.correct)
        return score, columns.nll.mean(), columns.brier.mean(), columns.correct.mean()

    times = alternate(ours, lambda: np.copy(logits), repeats)
    return [row("ece+nll+brier+accuracy from logits 25,000×1,000", *swap(times, "np.copy"), "≤5×")]


def classwise(repeats: int, skip_slow: bool) -> list[Row]:
    """Classwise ECE, 25,000 × 1,000."""
    rng = np.random.default_rng(2)
    probabilities = softmax(rng.standard_normal((25_000, 1_000), dtype=np.float32) * 3)
    labels = rng.integers(0, 1_000, 25_000)
    if skip_slow or not installed("calibration"):
        return []
    from calibration import get_calibration_error

    metrics.classwise_ece(probabilities, labels)
    ours_times = []
    for _ in range(repeats):
        start = time.perf_counter()
        metrics.classwise_ece(probabilities, labels)
        ours_times.append(time.perf_counter() - start)
    start = time.perf_counter()
    get_calibration_error(probabilities, labels, p=1, debias=False, mode="marginal")
    theirs = time.perf_counter() - start
    name = "classwise_ece 25,000×1,000"
    return [row(name, statistics.median(ours_times), "uncertainty-calibration", theirs, "≥100×")]


def kernel_error() -> str:
    """mmce of 100,000 confidences: seconds and the memory it allocates."""
    rng = np.random.default_rng(3)
    confidence = rng.random(100_000)
    correct = rng.random(100_000) < confidence
    mmce(confidence, correct)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        mmce(confidence, correct)
        times.append(time.perf_counter() - start)
    tracemalloc.start()
    mmce(confidence, correct)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return (
        f"mmce n=100,000: {statistics.median(times) * 1e3:.1f} ms (goal < 1 s), peak {peak / 1e6:.1f} MB "
        f"= {peak / 100_000:.0f} bytes a sample (an n×n matrix would take 80 GB)"
    )


def accuracy_of_float32() -> str:
    """How far float32 input of a million rows is from the float64 answer, ours and torchmetrics."""
    rng = np.random.default_rng(4)
    wide = rng.dirichlet(np.full(10, 0.2), 1_000_000)
    labels = rng.integers(0, 10, 1_000_000)
    exact = metrics.ece(wide, labels)
    error = abs(metrics.ece(wide.astype(np.float32), labels) - exact)
    line = f"ece of 1,000,000 float32 rows: off the float64 answer by {error:.1e}"
    if installed("torchmetrics"):
        import torch
        from torchmetrics.functional.classification import multiclass_calibration_error

        tensors = torch.from_numpy(wide.astype(np.float32)), torch.from_numpy(labels)
        theirs = float(multiclass_calibration_error(*tensors, num_classes=10, n_bins=15, norm="l1"))
        line += f"; torchmetrics by {abs(theirs - exact):.1e}"
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--skip-slow", action="store_true", help="leave out the peer that takes 20 s a call")
    options = parser.parse_args()
    rows = [*top_label(options.repeats), *fused(options.repeats), *classwise(options.repeats, options.skip_slow)]
    print(f"\n| {'metric':<48} | {'ours ms':>8} | {'beside':<24} | {'ms':>9} | {'ratio':>7} | {'goal':<14} | met |")
    print(f"|{'-' * 50}|{'-' * 10}|{'-' * 26}|{'-' * 11}|{'-' * 9}|{'-' * 16}|-----|")
    for name, ours, peer, theirs, ratio, goal, met in rows:
        print(
            f"| {name:<48} | {ours * 1e3:>8.1f} | {peer:<24} | {theirs * 1e3:>9.1f} | {ratio:>6.2f}× | {goal:<14} "
            f"| {met:<3} |"
        )
    print(f"\n{kernel_error()}\n{accuracy_of_float32()}")


if __name__ == "__main__":
    main()
