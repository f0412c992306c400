"""Speed of the binary and multi-label methods beside scikit-learn and the venn-abers package.

`python benchmarks/binary.py [--peers PYTHON] [--runs 5] [--processor-time]`: prints a table; each figure is the best of
some runs, on as many cores as the process may use. `--processor-time` counts the seconds of all cores together, which
other work on the machine changes little. `--peers` names the interpreter of an environment in which `venn-abers` is
installed;
without it the package is timed here if it is installed, and left out if not.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings

import numpy as np

VENN_ABERS = """
import json, sys, time
import numpy as np
from venn_abers import VennAbers
rng = np.random.default_rng(0)
n = int(sys.argv[1])
p = 1 / (1 + np.exp(-2 * rng.normal(size=2 * n)))
y = (rng.random(2 * n) < p).astype(int)
best = 1e9
clock = time.process_time if sys.argv[3] == "processor" else time.perf_counter
for _ in range(int(sys.argv[2])):
    started = clock()
    calibrator = VennAbers()
    calibrator.fit(np.stack([1 - p[:n], p[:n]], axis=1), y[:n])
    found = calibrator.predict_proba(np.stack([1 - p[n:], p[n:]], axis=1))
    best = min(best, clock() - started)
print(json.dumps({"seconds": best, "high": found[1][:50, 1].tolist()}))
"""


def best_of(work, runs, clock=time.perf_counter):
    """Seconds of the fastest run, after one that compiles and warms up."""
    work()
    seconds = []
    for _ in range(runs):
        started = clock()
        work()
        seconds.append(clock() - started)
    return min(seconds)


def problem(n, seed=0):
    rng = np.random.default_rng(seed)
    scores = 2 * rng.normal(size=n)
    return scores, (rng.random(n) < 1 / (1 + np.exp(-0.6 * scores + 0.3))).astype(int)


def many_labels(n, n_labels):
    rng = np.random.default_rng(0)
    slopes, shifts = 0.7 + 0.3 * rng.normal(size=n_labels), rng.normal(size=n_labels) - 1
    scores = 2 * rng.normal(size=(n, n_labels)) - 2
    return scores, rng.random((n, n_labels)) < 1 / (1 + np.exp(-(slopes * scores + shifts)))


def time_venn_abers(python, n, runs, clock):
    """Seconds of the venn-abers package, in its own process."""
    done = subprocess.run(
        [python, "-c", VENN_ABERS, str(n), str(runs), "processor" if clock is time.process_time else "wall"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    return json.loads(done.stdout)["seconds"] if done.returncode == 0 else None


def main() -> None:
    """Time everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=sys.executable)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--processor-time", action="store_true")
    given = parser.parse_args()
    clock = time.process_time if given.processor_time else time.perf_counter

    from sklearn.isotonic import IsotonicRegression

    import calibrant as cal

    warnings.simplefilter("ignore", cal.FitWarning)
    scores, labels = problem(given.rows)
    rows = []
    for name in ("platt", "beta", "quad", "spline", "shape", "hb"):
        rows.append(
            (
                f"{name}, {given.rows:,} rows",
                best_of(lambda name=name: cal.get(name).fit(scores, labels), given.runs, clock),
                None,
            )
        )
    targets = labels.astype(float)
    ours = best_of(lambda: cal.get("iso").fit(scores, labels), given.runs, clock)
    theirs = best_of(lambda: IsotonicRegression(out_of_bounds="clip").fit(scores, targets), given.runs, clock)
    rows.append((f"iso, {given.rows:,} rows (scikit-learn)", ours, theirs))
    n = given.rows // 10
    fit, fresh = problem(n), problem(n, seed=1)[0]
    ours = best_of(lambda: cal.get("va").fit(*fit).predict_interval(fresh), given.runs, clock)
    rows.append(
        (f"va, fit {n:,} and predict {n:,} (venn-abers)", ours, time_venn_abers(given.peers, n, given.runs, clock))
    )
    matrix, truth = many_labels(2000, 1000)
    rows.append(
        (
            "multi-label platt, 2,000 × 1,000",
            best_of(lambda: cal.MultilabelCalibrator("platt").fit(matrix, truth), 2, clock),
            None,
        )
    )
    rows.append(
        (
            "multi-label auto, 2,000 × 1,000",
            best_of(lambda: cal.MultilabelCalibrator().fit(matrix, truth), 1, clock),
            None,
        )
    )
    print("| what | seconds | peer | ratio |\n| --- | ---: | ---: | ---: |")
    for what, seconds, peer in rows:
        tail = "– | –" if peer is None else f"{peer:.3f} | {seconds / peer:.2f}"
        print(f"| {what} | {seconds:.3f} | {tail} |")


if __name__ == "__main__":
    main()
