"""Peak memory of commands on large files, and the loss of fitting candidates of `auto` to a sample of the rows.

python benchmarks/memory.py [--rows 1000000,2000000,5000000] [--classes 100] [--folder DIR]
python benchmarks/memory.py --loss [--rows 500000] [--classes 100] [--draws 20]

Each command runs in a process of its own; its peak is the largest resident memory, in which the scores of the file
count if they are mapped or read. The bound is the size of the scores plus 2 GB. `--loss` fits `auto` to all rows
and to a sample of them, and prints the difference of the log loss on 50,000 other rows.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

import calibrant as cal
from calibrant.calibrators.solvers import folds
from calibrant.core.errors import FitWarning

GIB = 2**30
BOUND = 2 * GIB
TEST_ROWS, BLOCK = 50_000, 100_000
METHODS = ("ts", "auto")


def draw(rng: np.random.Generator, n_rows: int, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Overconfident float32 logits, with scales and offsets of the classes, and their labels."""
    classes = np.random.default_rng(0)
    scale = classes.uniform(0.7, 1.6, n_classes).astype(np.float32)
    bias = classes.normal(0, 0.5, n_classes).astype(np.float32)
    labels = rng.integers(0, n_classes, n_rows)
    logits = rng.standard_normal((n_rows, n_classes), dtype=np.float32)
    logits *= 2
    logits[np.arange(n_rows), labels] += rng.uniform(2, 6, n_rows).astype(np.float32)
    logits *= scale
    logits += bias
    return logits, labels


def write_file(path: Path, n_rows: int, n_classes: int, seed: int) -> int:
    """Write logits and labels block by block; the bytes of the logits."""
    rng, logits_path, labels_path = np.random.default_rng(seed), path / "logits.npy", path / "labels.npy"
    path.mkdir()
    logits = np.lib.format.open_memmap(logits_path, "w+", np.float32, (n_rows, n_classes))
    labels = np.lib.format.open_memmap(labels_path, "w+", np.int64, (n_rows,))
    for start in range(0, n_rows, BLOCK):
        block = slice(start, min(start + BLOCK, n_rows))
        logits[block], labels[block] = draw(rng, block.stop - start, n_classes)
    return int(logits.nbytes)


def peak_of(*arguments: object) -> tuple[float, float, int]:
    """Peak resident bytes, seconds and exit code of a command."""
    started = os.times().elapsed
    process = subprocess.Popen(
        [sys.executable, "-m", "calibrant", *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_maxrss * 1024.0, os.times().elapsed - started, process.returncode


def print_peaks(sizes: list[int], n_classes: int, folder: Path) -> None:
    """Print one line per command, method and number of rows."""
    print("| rows | command | peak GB | bound GB | seconds | |\n| --- | --- | --- | --- | --- | --- |")
    test = folder / "test"
    write_file(test, TEST_ROWS, n_classes, 1)
    held_out = test / "logits.npy"
    for n_rows in sizes:
        source = folder / f"rows-{n_rows}"
        bytes_of_scores = write_file(source, n_rows, n_classes, 0)
        scores = source / "logits.npy"
        for method in METHODS:
            artifact = folder / f"{method}.safetensors"
            for verb, arguments in {
                "fit": ("fit", scores, "--method", method, "-o", artifact),
                "compare": ("compare", scores, held_out, "--methods", f"none,{method}"),
                "select": ("select", scores, "-o", folder / "selected.safetensors", *candidates_of(method)),
                "apply": ("apply", artifact, scores, "-o", folder / "out.npy"),
                "measure": ("measure", scores),
            }.items():
                if verb == "measure" and method != METHODS[0]:
                    continue
                peak, seconds, code = peak_of(*arguments)
                mark = "" if code == 0 else f"exit code {code}"
                mark = mark or ("" if peak <= bytes_of_scores + BOUND else "above the bound")
                called = verb if verb == "measure" else f"{verb} {method}"
                bound = (bytes_of_scores + BOUND) / GIB
                print(
                    f"| {n_rows:,} | {called} | {peak / GIB:.2f} | {bound:.2f} | {seconds:.0f} | {mark} |", flush=True
                )
        for one in source.iterdir():
            one.unlink()


def candidates_of(method: str) -> tuple[str, ...]:
    """Options of `select` that make it average the default candidates, or choose between two."""
    return () if method == "auto" else ("--candidates", f"none,{method}")


def print_losses(n_rows: int, n_classes: int, draws: int) -> None:
    """Print the log loss of `auto` fitted to a sample minus that of `auto` fitted to all rows, for each draw."""
    limit, differences = folds.SAMPLE_SCORES, []
    for seed in range(draws):
        logits, labels = draw(np.random.default_rng(seed), n_rows + TEST_ROWS, n_classes)
        losses = []
        for scores in (limit, sys.maxsize):
            folds.SAMPLE_SCORES = scores
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FitWarning)
                fitted = cal.AutoCalibrator().fit(logits[:n_rows], labels[:n_rows])
            losses.append(cal.metrics.nll(fitted.predict_proba(logits[n_rows:]), labels[n_rows:]))
        differences.append(losses[0] - losses[1])
        print(
            f"draw {seed}: sample {losses[0]:.6f}, all rows {losses[1]:.6f}, difference {differences[-1]:+.6f}",
            flush=True,
        )
    print(f"mean {np.mean(differences):+.6f}, largest {np.max(differences):+.6f} nats over {draws} draws")


def main() -> None:
    """Print a table of peaks, or the loss of sampling."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", help="numbers of rows, separated by commas")
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--folder", help="where files are written; a temporary folder by default")
    parser.add_argument("--loss", action="store_true", help="measure the loss of sampling")
    parser.add_argument("--draws", type=int, default=20)
    given = parser.parse_args()
    if given.loss:
        print_losses(int(given.rows or 500_000), given.classes, given.draws)
        return
    sizes = [int(one) for one in (given.rows or "1000000,2000000,5000000").split(",")]
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        print_peaks(sizes, given.classes, Path(folder))


if __name__ == "__main__":
    main()
