"""Groups and clusters: false alarms, coverage of simultaneous and of cluster intervals, calibrators of groups, speed.

    python benchmarks/groups.py [chance] [clusters] [files --data DIR] [speed] [--runs 1000]

`chance`: groups that share one calibration; how often the group test rejects at 5%, and how often the intervals of the
signed gap hold the truth in all groups at once. `clusters`: ten rows per cluster with within-cluster correlation 0.5.
`files`: methods with and without groups, fitted on `val_*` and measured on `test_*` of every file that has groups.
`speed`: `calibrant measure FILE --by group` of 1,000,000 rows in 500 groups, in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

import calibrant as cal
from calibrant import metrics
from calibrant.data import Predictions
from calibrant.evaluation.bootstrap import draw, percentile_interval
from calibrant.evaluation.consistency import consistency_test
from calibrant.evaluation.groups import group_analysis, make_grouping

PARTS = ("chance", "clusters", "files", "speed")
SCENES = {
    "calibrated, 8 groups": (3000, 8, (4.0, 1.0), 1.0),
    "calibrated, 20 groups": (6000, 20, (5.0, 1.5), 1.0),
    "few errors, 5 groups": (4000, 5, (20.0, 1.0), 1.0),
    "one map, overconfident, 10 groups": (5000, 10, (6.0, 1.0), 1.5),
}
"""Rows, groups, the Beta distribution of confidence, and the power that turns it into the chance of being right."""
METHODS = ("ts", "vs", "svs", "shape")
FEWEST_ROWS = 30


def chance(runs: int) -> None:
    """Rejections of the group test and joint coverage of the gaps."""
    print(f"{'scene':<36} {'group test rejects':>19} {'all gaps covered':>17} {'ECE p < .05':>12}")
    for name, (rows, groups, beta, power) in SCENES.items():
        rejected, covered, alarms = 0, 0, []
        for seed in range(runs):
            generator = np.random.default_rng([seed, rows])
            group = generator.choice(groups, rows, p=generator.dirichlet(np.full(groups, 2.0)))
            confidence = generator.beta(*beta, rows)
            truth = confidence**power
            right = generator.random(rows) < truth
            found = group_analysis(confidence, right, make_grouping({"g": group}, rows), resamples=400, seed=seed)
            rejected += found.differ.p_value < 0.05
            inside = []
            for one in found.groups:
                gap = float((confidence - truth)[group == int(one.by["g"])].mean())
                interval = one.metrics["gap"]
                inside.append(not np.isfinite(interval.low) or interval.low <= gap <= interval.high)
                alarms.append(one.noise_floor.p_value < 0.05)
            covered += all(inside)
        print(f"{name:<36} {rejected / runs:>18.1%} {covered / runs:>16.1%} {np.mean(alarms):>11.1%}", flush=True)


def clusters(runs: int) -> None:
    """Coverage of the accuracy and of the gaps of groups, and false alarms of the ECE, with clusters and without."""
    n_clusters, size = 150, 10
    code = np.repeat(np.arange(n_clusters), size)
    counts = {name: [0, 0] for name in ("accuracy", "gaps of 3 groups", "ECE p < .05", "group test p < .05")}
    for seed in range(runs):
        generator = np.random.default_rng([seed, 10])
        stated = generator.uniform(0.6, 0.95, n_clusters)
        # Beta(c, 1 − c) chances have mean c, and rows of one cluster the correlation 1/2
        right = generator.random((n_clusters, size)) < generator.beta(stated, 1 - stated)[:, None]
        confidence, right = np.repeat(stated, size), right.ravel()
        group = np.repeat(generator.integers(0, 3, n_clusters), size)
        truth = confidence.mean()
        for place, given in enumerate((None, code)):
            drawn = draw(len(right), 400, seed, given)
            moved = drawn.mean_draws(right[:, None], np.ones(len(right)))[:, 0]
            low, high = percentile_interval(right.mean() + moved, right.mean())
            counts["accuracy"][place] += low <= truth <= high
            found = group_analysis(
                confidence, right, make_grouping({"g": group}, len(right)), clusters=given, resamples=400, seed=seed
            )
            gaps = [one.metrics["gap"] for one in found.groups]
            counts["gaps of 3 groups"][place] += all(gap.low <= 0 <= gap.high for gap in gaps)
            test = consistency_test(confidence, right, draws=400, seed=seed, clusters=given)
            counts["ECE p < .05"][place] += test.p_value < 0.05
            counts["group test p < .05"][place] += found.differ.p_value < 0.05
    print(f"{'':<22} {'rows':>8} {'clusters':>9}")
    for name, (plain, clustered) in counts.items():
        print(f"{name:<22} {plain / runs:>7.1%} {clustered / runs:>8.1%}")


def files(folder: Path) -> None:
    """Log loss and worst-group ECE on test rows, with the inner method and with its groups."""
    paths = [*sorted(folder.glob("vlm_*.npz")), *sorted(folder.glob("binary_nba.npz"))]
    if not paths:
        print(f"no files with groups in {folder}: give --data")
        return
    for suffix in ("+group", "+multi"):
        for method in METHODS:
            changes = np.array([_file(path, method, method + suffix) for path in paths])
            print(
                f"{method + suffix:<12} {len(paths)} files: log loss {changes[:, 0].mean():+.4f} on the mean, "
                f"{changes[:, 0].min():+.4f} to {changes[:, 0].max():+.4f}, lower in {(changes[:, 0] < -1e-9).sum()}, "
                f"higher in {(changes[:, 0] > 1e-9).sum()}; worst-group ECE "
                f"{100 * changes[:, 1].mean():+.2f} points on the mean",
                flush=True,
            )


def _file(path: Path, plain: str, grouped: str) -> tuple[float, float]:
    with np.load(path, allow_pickle=False) as data:
        (z, y, g), (u, v, h) = (_half(data, half) for half in ("val", "test"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = cal.get(plain).fit(z, y).predict_proba(u)
        after = cal.get(grouped).fit(z, y, groups=g).predict_proba(u, groups=h)
    worst = [
        max(metrics.ece(p[h == name], v[h == name]) for name in np.unique(h) if (h == name).sum() >= FEWEST_ROWS)
        for p in (before, after)
    ]
    return metrics.nll(after, v) - metrics.nll(before, v), worst[1] - worst[0]


def _half(data: np.lib.npyio.NpzFile, half: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if f"{half}_logits" in data.files:
        scores = data[f"{half}_logits"].astype(np.float64)
    else:
        p = data[f"{half}_probability"].astype(np.float64)
        scores = np.log(p) - np.log1p(-p)
    return scores, data[f"{half}_labels"], data[f"{half}_group"]


def speed() -> None:
    """Seconds and peak memory of a measurement by group."""
    generator = np.random.default_rng(0)
    rows, classes, groups = 1_000_000, 10, 500
    labels = generator.integers(0, classes, rows)
    logits = generator.normal(size=(rows, classes), scale=2.0).astype(np.float32)
    logits[np.arange(rows), labels] += 4
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npz"
        np.savez(path, logits=logits, labels=labels, group=generator.integers(0, groups, rows))
        command = [sys.executable, "-m", "calibrant", "measure", str(path), "--by", "group", "--json"]
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ)
        seconds = time.perf_counter() - started
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"measure --by, {rows:,} rows × {groups} groups × 1,000 resamples: {seconds:.1f} s, of which processor")
        print(f"{used.ru_utime + used.ru_stime:.1f} s; {used.ru_maxrss * 1024 / 1e9:.2f} GB")
        given = Predictions(logits=logits, labels=labels, groups={"group": generator.integers(0, groups, rows)})
        started = time.perf_counter()
        cal.measure(given, by="group", cluster=generator.integers(0, rows // 10, rows))
        print(f"the same in Python with {rows // 10:,} clusters: {time.perf_counter() - started:.1f} s")


def main() -> None:
    """Run the parts that were asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=PARTS, help="chance, clusters, files, speed")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--data", type=Path, default=Path("shared/data/external"))
    given = parser.parse_args()
    for part in given.parts:
        print(f"== {part}", flush=True)
        if part in ("chance", "clusters"):
            {"chance": chance, "clusters": clusters}[part](given.runs)
        elif part == "files":
            files(given.data)
        else:
            speed()


if __name__ == "__main__":
    main()
