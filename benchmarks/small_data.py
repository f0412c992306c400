"""Log loss after fits on few rows: the default compared with no calibration, temperature scaling and other libraries.

    OMP_NUM_THREADS=1 PYTHONPATH=src python benchmarks/small_data.py --data ../shared/data --cache small.jsonl \
        [--old ../before] [--redo auto ts-bayes]

Fit rows are drawn at random from the calibration part of each file, and at most 5,000 test rows at random from its test
part. For each number of fit rows the first table prints the mean log loss, the share of fits that harm, and the worst
ratio to the uncalibrated log loss. A fit harms if its log loss is more than 1% and more than 0.002 nats above the
uncalibrated one; the worst ratio ignores differences below 0.01 nats. The second table repeats this for the draws of 10
to 100 rows in which the model is right on each fit row; there a fit is within bounds if its log loss is at most 1.2
times the uncalibrated one or at most 0.01 nats above it. A failed fit counts as no calibration.

`--cache` appends one JSON line per fit; a later run computes only missing fits and those of the methods in `--redo`.
`--old` runs `auto` of another checkout in a subprocess; its results are cached next to the others. Peers that are not
installed are left out.

`--multilabel` fits `MultilabelCalibrator` to random rows of the ECG file instead, and prints the mean log loss over
labels and the share of labels whose log loss is more than 1% above the uncalibrated one.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from arena import SMALLEST, answer, row_losses
from arena_cases import FAMILIES, Case, cases, few_rows
from arena_methods import Fit, ours, probmetrics, scikit_learn

SIZES = (20, 30, 50, 100, 300, 1000, 0)
"""Numbers of fit rows; 0 means all rows."""

METHODS = ("none", "ts", "ts-bayes", "auto", "probmetrics sms", "probmetrics ts-mix", "scikit-learn temperature")
PEER_MODULES = {"probmetrics": "probmetrics", "scikit-learn": "sklearn"}
OLD = "auto (old)"

MAX_TEST_ROWS = 5000
HARM_RATIO, HARM_NATS = 1.01, 0.002
"""A fit harms if its log loss exceeds the uncalibrated one by both."""

IGNORED_NATS = 0.01
"""Differences below this do not count in the worst ratio."""

BOUND_RATIO, BOUND_NATS = 1.2, 0.01
"""Where all fit rows are right, the log loss stays within one of these bounds in 95% of draws."""

ALL_RIGHT_SIZES = range(10, 101)
MULTILABEL_FILE, MULTILABEL_SIZES = "external/multilabel_ptbxl_xresnet.npz", (50, 100, 300, 1000)
LIMIT_SECONDS = 60

Key = tuple[str, int, int, str]
"""Case, number of fit rows, draw and method of one fit."""


def find_fit(method: str) -> Fit:
    library, _, name = method.partition(" ")
    if library == "probmetrics":
        return probmetrics(name)
    return scikit_learn(name) if library == "scikit-learn" else ours(method)


def is_installed(method: str) -> bool:
    library = method.partition(" ")[0]
    return library not in PEER_MODULES or importlib.util.find_spec(PEER_MODULES[library]) is not None


def draw_rows(case: Case, n_rows: int, draw: int) -> Case:
    """Return the case with random fit rows and random test rows."""
    small = few_rows(case, n_rows or len(case.fit_labels), draw)
    test = np.random.default_rng([draw, 19]).permutation(len(case.test_labels))[:MAX_TEST_ROWS]
    return replace(small, test=case.test[test], test_labels=case.test_labels[test])


def measure_fit(method: str, small: Case) -> dict[str, Any]:
    """Return the mean log loss of a method on the test rows, or the error of its fit."""
    try:
        probabilities, seconds = answer(find_fit(method), small, LIMIT_SECONDS)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"}
    return {"loss": float(row_losses(probabilities, small.test_labels).mean()), "seconds": round(seconds, 4)}


def iterate_draws(options: argparse.Namespace) -> Iterator[tuple[Case, int, int]]:
    for case in cases(options.data, options.families):
        for n_rows in options.sizes:
            if n_rows <= len(case.fit_labels):
                yield from ((case, n_rows, draw) for draw in range(options.draws))


def read_cache(path: Path) -> dict[Key, dict[str, Any]]:
    """Return the results by fit; of several lines of one fit the last counts."""
    lines = path.read_text().splitlines() if path.exists() else []
    results = [json.loads(line) for line in lines]
    return {(one["case"], one["n"], one["draw"], one["method"]): one for one in results}


def run_fits(options: argparse.Namespace) -> dict[Key, dict[str, Any]]:
    """Compute the missing fits, and return the results of all fits that the options select."""
    known = {key: one for key, one in read_cache(options.cache).items() if key[3] not in options.redo}
    results = {}
    with options.cache.open("a") as cache:
        for case, n_rows, draw in iterate_draws(options):
            missing = [name for name in options.methods if (case.name, n_rows, draw, name) not in known]
            small = draw_rows(case, n_rows, draw) if missing else case
            for name in missing:
                described = {"case": case.name, "n": n_rows, "draw": draw, "method": name, "binary": case.binary}
                right = bool((small.fit.argmax(axis=1) == small.fit_labels).all())
                one = {**described, "all_right": right, **measure_fit(name, small)}
                known[case.name, n_rows, draw, name] = one
                cache.write(json.dumps(one) + "\n")
                cache.flush()
            selected = ((case.name, n_rows, draw, name) for name in options.methods)
            results.update((key, known[key]) for key in selected)
    return results


def run_old(options: argparse.Namespace) -> dict[Key, dict[str, Any]]:
    """Run `auto` of the other checkout in a subprocess, and return its results under another name."""
    cache = options.cache.with_suffix(".old" + options.cache.suffix)
    command = [sys.executable, __file__, "--data", options.data, "--cache", cache, "--methods", "none", "auto"]
    command += ["--families", *options.families, "--draws", options.draws, "--sizes", *options.sizes]
    if OLD in options.redo:
        command += ["--redo", "auto"]
    paths = [options.old / "src", Path(__file__).parent, *filter(None, os.environ.get("PYTHONPATH", "").split(":"))]
    environment = {**os.environ, "PYTHONPATH": ":".join(map(str, paths))}
    subprocess.run([*map(str, command)], env=environment, check=True, stdout=subprocess.DEVNULL)
    return {(*key[:3], OLD): one for key, one in read_cache(cache).items() if key[3] == "auto"}


def pair_losses(results: dict[Key, dict[str, Any]], method: str, trials: list[Key]) -> np.ndarray:
    """Log loss of a method and uncalibrated log loss of each trial (n×2)."""
    pairs = []
    for case, n_rows, draw, _ in trials:
        base = results[case, n_rows, draw, "none"]["loss"]
        pairs.append((results[case, n_rows, draw, method].get("loss", base), base))
    return np.array(pairs)


def share_harmed(losses: np.ndarray) -> float:
    after, before = losses.T
    return float(np.mean((after > HARM_RATIO * before) & (after > before + HARM_NATS)))


def worst_ratio(losses: np.ndarray) -> float:
    after, before = losses.T
    return float(np.where(after > before + IGNORED_NATS, after / before, 1.0).max())


def format_table(results: dict[Key, dict[str, Any]], methods: list[str]) -> list[str]:
    """One row per number of fit rows and kind of task: mean log loss, share harmed, worst ratio."""
    lines = [
        "| n, K | " + " | ".join(f"`{name}`" for name in methods) + " | fits |",
        "| --- |" + " ---: |" * (len(methods) + 1),
    ]
    for n_rows in dict.fromkeys(key[1] for key in results):
        for binary in (True, False):
            trials = [key for key, one in results.items() if key[1] == n_rows and key[3] == "none"]
            trials = [key for key in trials if results[key]["binary"] == binary]
            if not trials:
                continue
            cells = []
            for name in methods:
                losses = pair_losses(results, name, trials)
                harm = "" if name == "none" else f", {100 * share_harmed(losses):.1f}%, {worst_ratio(losses):.2f}"
                cells.append(f"{losses[:, 0].mean():.4f}{harm}")
            size = f"{n_rows:,}" if n_rows else "all"
            lines.append(f"| {size}, {'2' if binary else '> 2'} | {' | '.join(cells)} | {len(trials)} |")
    return lines


def format_all_right_table(results: dict[Key, dict[str, Any]], methods: list[str]) -> list[str]:
    """One row per method: the draws of few rows in which the model is right on each fit row."""
    trials = [key for key, one in results.items() if key[3] == "none" and one["all_right"]]
    trials = [key for key in trials if key[1] in ALL_RIGHT_SIZES]
    if not trials:
        return ["No draws in which all fit rows are right."]
    lines = [
        f"| {len(trials)} draws | within bounds | 95% quantile of the ratio | geometric mean | worst |",
        "| --- |" + " ---: |" * 4,
    ]
    for name in methods:
        losses = pair_losses(results, name, trials)
        after, before = losses.T
        within = (after <= BOUND_RATIO * before) | (after <= before + BOUND_NATS)
        ratio = after / np.maximum(before, 1e-12)
        lines.append(
            f"| `{name}` | {100 * within.mean():.1f}% | {np.quantile(ratio, 0.95):.2f} "
            f"| {np.exp(np.log(ratio).mean()):.2f} | {ratio.max():.2f} |"
        )
    return lines


def format_failures(results: dict[Key, dict[str, Any]], methods: list[str]) -> list[str]:
    lines = []
    for name in methods:
        errors = [one["error"] for key, one in results.items() if key[3] == name and "error" in one]
        if errors:
            lines.append(f"- `{name}`: {len(errors)} failed fits, for example {errors[0]}")
    return lines


def label_losses(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Mean log loss of each label (L,)."""
    own = np.where(labels == 1, probabilities, 1.0 - probabilities)
    return -np.log(np.clip(own, SMALLEST, 1.0)).mean(axis=0)


def format_multilabel_table(options: argparse.Namespace) -> list[str]:
    """One row per number of fit rows: `MultilabelCalibrator` on the ECG file."""
    from scipy.special import logit

    from calibrant import MultilabelCalibrator

    with np.load(options.data / MULTILABEL_FILE) as data:
        fit, test = (data[f"{part}_probabilities"].astype(np.float64) for part in ("val", "test"))
        fit_labels, test_labels = data["val_labels"], data["test_labels"]
    before = label_losses(test, test_labels)
    lines = ["| n | `none` | `MultilabelCalibrator` | labels harmed |", "| --- | ---: | ---: | ---: |"]
    for n_rows in MULTILABEL_SIZES:
        after = []
        for draw in range(options.draws):
            chosen = np.random.default_rng([draw, 23]).permutation(len(fit))[:n_rows]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                fitted = MultilabelCalibrator().fit(logit(fit[chosen]), fit_labels[chosen])
            after.append(label_losses(fitted.predict_proba(logit(test)), test_labels))
        harmed = np.mean(np.array(after) > HARM_RATIO * before)
        lines.append(f"| {n_rows:,} | {before.mean():.5f} | {np.mean(after):.5f} | {100 * harmed:.1f}% |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    families = [name for name in FAMILIES if name != "ptbxl"]
    parser.add_argument("--data", type=Path, required=True, help="folder with zoo, external, tabular, chestxray14")
    parser.add_argument("--cache", type=Path, help="JSON lines, one per fit; read and appended")
    parser.add_argument("--families", nargs="+", default=families, choices=list(FAMILIES))
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES), help="numbers of fit rows; 0: all rows")
    parser.add_argument("--draws", type=int, default=2, help="random draws of each size")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), help="short names, and peers as in the tables")
    parser.add_argument("--redo", nargs="+", default=[], metavar="METHOD", help="methods to compute again")
    parser.add_argument("--old", type=Path, help="another checkout; its auto is added to the tables")
    parser.add_argument("--multilabel", action="store_true", help="measure MultilabelCalibrator on the ECG file")
    options = parser.parse_args()
    if options.multilabel:
        print("\n".join(format_multilabel_table(options)))
        return
    if options.cache is None:
        parser.error("--cache is required without --multilabel")
    options.methods = [name for name in dict.fromkeys(["none", *options.methods]) if is_installed(name)]
    results = run_fits(options)
    methods = list(options.methods)
    if options.old:
        old = run_old(options)
        results |= {(*key[:3], OLD): old[*key[:3], OLD] for key in results if key[3] == "none"}
        methods.append(OLD)
    print("Mean log loss, share of fits harmed, worst ratio\n")
    print("\n".join(format_table(results, methods)))
    print("\nDraws of 10 to 100 rows that are all right\n")
    print("\n".join([*format_all_right_table(results, methods), "", *format_failures(results, methods)]))


if __name__ == "__main__":
    main()
