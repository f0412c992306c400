"""The default beside the peers, by the protocol of the public benchmark CalArena (2026).

    OMP_NUM_THREADS=1 PYTHONPATH=src .venv-peers/bin/python benchmarks/arena.py --data ../shared/data --cache arena.json

Every method gets float32 probabilities, fits the calibration part of each data set and is measured on its test part:
log loss, Brier score, ECE with 15 bins, accuracy, the Kuiper statistic for binary problems, and the processor seconds
of fit and prediction. Printed for each family: means, mean ranks, and the win rate of the default over every other
method with a bootstrap interval over data sets, and every (file, peer) on which the default is worse beyond noise
(paired over rows, one-sided, Holm-adjusted over the files and peers of the family); then the files on which the default
is worse than the better of {uncalibrated, temperature scaling} beyond noise (the same test).

The figures of peers are kept in the cache by data set and read again in later runs; `--rows` keeps the losses of every
row, which the tests against peers need. `--nested SEED` splits the calibration parts and leaves the test parts alone:
everything that is tuned is tuned there. `--resplits 20` shuffles the rows of every file 20 times, for families of few
files: the tests against peers are then over the splits.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import signal
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from arena_cases import FAMILIES, Case, cases, nested, resplit
from arena_methods import Fit, ours, peers
from arena_tests import LEVEL, RowStore, holm, losses

DEFAULT = "calibrant auto"
FIGURES = ("log_loss", "brier", "ece", "accuracy", "kuiper", "seconds")
SMALLEST = float(np.finfo(np.float64).eps)
"""Probabilities below it count as this much in the log loss, as in scikit-learn."""


MOST_SLOW = 2
"""Data sets of a family on which a method may pass its time limit before it is left out of the rest."""


class TooSlowError(Exception):
    """A method passed its time limit."""


def measure(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    from calibrant import metrics

    figures = {
        "log_loss": float(row_losses(probabilities, labels).mean()),
        "brier": float(row_brier(probabilities, labels).mean()),
        "ece": float(metrics.ece(probabilities, labels, n_bins=15)),
        "accuracy": float((probabilities.argmax(axis=1) == labels).mean()),
    }
    if probabilities.shape[1] == 2:
        figures["kuiper"] = kuiper(probabilities[:, 1], labels)
    return figures


def kuiper(positive: np.ndarray, labels: np.ndarray) -> float:
    """Range of the cumulative sum of y − p in the order of p, tied p pooled, divided by n."""
    _, place = np.unique(positive, return_inverse=True)
    walk = np.concatenate([[0.0], np.bincount(place, weights=labels - positive).cumsum()])
    return float(np.ptp(walk) / len(labels))


def row_losses(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return -np.log(np.clip(probabilities[np.arange(len(labels)), labels], SMALLEST, 1.0))


def row_brier(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return ((probabilities - np.eye(probabilities.shape[1])[labels]) ** 2).sum(axis=1)


def answer(fit: Fit, case: Case, limit: int) -> tuple[np.ndarray, float]:
    """Calibrated test probabilities with rows that sum to one, and the seconds they took."""

    def stop(*_: Any) -> None:
        raise TooSlowError(f"more than {limit} s")

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, limit)
    try:
        started = time.process_time()
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            given = np.asarray(fit(case.fit, case.fit_labels)(case.test), dtype=np.float64)
        seconds = time.process_time() - started
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    if given.shape != case.test.shape or not np.isfinite(given).all():
        raise ValueError(f"answers of shape {given.shape}, finite {np.isfinite(given).mean():.4f}")
    given = np.clip(given, 0.0, None)
    given[given.sum(axis=1) <= 0] = 1.0  # a row without any probability says nothing
    return given / given.sum(axis=1, keepdims=True), seconds


def run_case(
    case: Case,
    our_names: list[str],
    known: dict[str, Any],
    limit: int,
    peer_names: list[str] | None,
    slow: Counter[tuple[str, str]],
    rows: dict[str, np.ndarray] | None = None,
) -> dict[str, Any]:
    """Figures of every method on one data set; those of peers that are known are taken over.

    Where `rows` is given, the losses of every row are put there, and figures without them do not count as known.
    """
    found: dict[str, Any] = {}
    contestants = {f"calibrant {name}": ours(name) for name in our_names}
    every = peers(case.binary)
    contestants |= {name: fit for name, fit in every.items() if peer_names is None or name in peer_names}
    by_row: dict[str, np.ndarray] = {}
    for name, fit in contestants.items():
        if not name.startswith("calibrant ") and _known(name, known, rows):
            found[name] = known[name]
            continue
        if slow[case.family, name] >= MOST_SLOW:
            found[name] = {"error": f"TooSlowError: more than {limit} s on {MOST_SLOW} other data sets"}
            continue
        try:
            try:
                probabilities, seconds = answer(fit, case, limit)
            except ReferenceError:  # compiled code that a peer loads from its cache is missing at the first call
                probabilities, seconds = answer(fit, case, limit)
            found[name] = {**measure(probabilities, case.test_labels), "seconds": seconds}
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"}
            slow[case.family, name] += isinstance(error, TooSlowError)
            if rows is not None:
                rows.pop(name, None)
            continue
        by_row[name] = row_losses(probabilities, case.test_labels)
        if rows is not None:
            rows[name] = np.stack([by_row[name], row_brier(probabilities, case.test_labels)]).astype(np.float32)
    simple = [by_row[name] for name in ("calibrant none", "calibrant ts") if name in by_row]
    if DEFAULT in by_row and simple:
        excess = by_row[DEFAULT] - min(simple, key=np.mean)
        found[DEFAULT]["excess"] = float(excess.mean())
        found[DEFAULT]["excess_error"] = float(excess.std() / np.sqrt(len(excess)))
    return found


def _known(name: str, figures: dict[str, Any], rows: dict[str, np.ndarray] | None) -> bool:
    return name in figures and (rows is None or name in rows or "error" in figures[name])


def tables(results: dict[str, dict[str, Any]], families: list[str], store: RowStore) -> str:
    lines: list[str] = []
    for family in families:
        files = {name: one["figures"] for name, one in results.items() if one["family"] == family}
        if files:
            lines += [f"\n## {family}: {len(files)} data sets\n", *_table(files, results)]
            for score, found in losses(results, family, DEFAULT, store).items():
                lines += [f"\nDefault worse than a peer in {score}, one-sided, Holm-adjusted: {found[0]}", *found[1:]]
    return "\n".join([*lines, "\n## Worse than the better of none and ts, Holm-adjusted\n", *_worse(results)])


def _table(files: dict[str, Any], results: dict[str, dict[str, Any]]) -> list[str]:
    from scipy.stats import rankdata

    names = [n for n in next(iter(files.values())) if all("log_loss" in one.get(n, {}) for one in files.values())]
    failed = sorted({n for one in files.values() for n, row in one.items() if "error" in row})
    value = {f: np.array([[one[n].get(f, np.nan) for n in names] for one in files.values()]) for f in FIGURES}
    rank = {f: np.array([rankdata(row) for row in value[f]]).mean(axis=0) for f in ("log_loss", "brier")}
    sources = np.unique([results[name]["source"] for name in files], return_inverse=True)[1]
    lines = [
        "| method | log loss | rank | Brier | rank | ECE-15 % | accuracy % | Kuiper % | seconds | default wins |",
        "| --- |" + " ---: |" * 9,
    ]
    for place in np.argsort(rank["log_loss"]):
        mean = {f: float(np.mean(value[f][:, place])) for f in FIGURES}
        wins = ""
        if DEFAULT in names and names[place] != DEFAULT:
            wins = _win_rate(value["log_loss"][:, names.index(DEFAULT)], value["log_loss"][:, place], sources)
        lines.append(
            f"| {names[place]} | {mean['log_loss']:.4f} | {rank['log_loss'][place]:.2f} | {mean['brier']:.4f} "
            f"| {rank['brier'][place]:.2f} | {100 * mean['ece']:.2f} | {100 * mean['accuracy']:.2f} "
            f"| {100 * mean['kuiper']:.2f} | {mean['seconds']:.2f} | {wins} |"
        )
    if failed:
        lines.append(f"\nNo figure on some data set: {', '.join(failed)}.")
    return lines


def _win_rate(default: np.ndarray, other: np.ndarray, sources: np.ndarray) -> str:
    """Share of data sets with a lower loss of the default (ties count half), and its interval over sources.

    Where all data sets have one source, as the labels of one network, the interval is over data sets.
    """
    sources = sources if len(np.unique(sources)) > 1 else np.arange(len(sources))
    wins = (default < other) + 0.5 * (default == other)
    by_source = np.array([[wins[sources == s].sum(), (sources == s).sum()] for s in np.unique(sources)])
    drawn = np.random.default_rng(0).integers(0, len(by_source), size=(2000, len(by_source)))
    sums = by_source[drawn].sum(axis=1)
    low, high = np.quantile(sums[:, 0] / sums[:, 1], [0.025, 0.975])
    return f"{wins.mean():.2f} [{low:.2f}, {high:.2f}]"


def _worse(results: dict[str, dict[str, Any]]) -> list[str]:
    return worse(
        {n: one["figures"][DEFAULT] for n, one in results.items() if "excess" in one["figures"].get(DEFAULT, {})}
    )


def worse(tested: dict[str, dict[str, float]]) -> list[str]:
    """The names whose `excess` is above 0 by its `excess_error`, Holm-adjusted, one-sided."""
    from scipy.stats import norm

    p_values = {n: float(norm.sf(r["excess"] / max(r["excess_error"], 1e-12))) for n, r in tested.items()}
    adjusted = dict(zip(p_values, holm(p_values.values()), strict=True))
    found = [
        f"- {name}: +{tested[name]['excess']:.5f}, p = {p_values[name]:.2g}"
        for name in sorted(p_values, key=lambda one: p_values[one])
        if adjusted[name] <= LEVEL
    ]
    return found or [f"None of {len(p_values)}."]


def _warm_up(our_names: list[str], peer_names: list[str] | None) -> None:
    """Import and compile everything once, so that no method pays for it and no limit interrupts an import."""
    generator = np.random.default_rng(0)
    for n_classes in (2, 3):
        labels = generator.integers(0, n_classes, 60)
        scores = np.exp(generator.normal(size=(60, n_classes)) + np.eye(n_classes)[labels]).astype(np.float32)
        scores /= scores.sum(axis=1, keepdims=True)
        run_case(Case("", "", scores, labels, scores, labels), our_names, {}, 600, peer_names, Counter())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with zoo, external, tabular, chestxray14")
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--ours", nargs="+", default=["auto", "none", "ts"], help="our methods by short name")
    parser.add_argument("--cache", type=Path, help="JSON file of known figures; read and written")
    parser.add_argument("--rows", type=Path, help="folder of per-row losses; read and written, one npz per data set")
    parser.add_argument("--nested", type=int, metavar="SEED", help="split the calibration parts; no test part is read")
    parser.add_argument("--resplits", type=int, default=0, help="random splits of every file instead of its own")
    parser.add_argument("--limit", type=int, default=60, help="seconds a method may take on one data set")
    parser.add_argument("--peers", nargs="*", help="names of peers to run, as in the tables; none: known figures only")
    options = parser.parse_args()
    _warm_up(options.ours, options.peers)
    store = RowStore(options.rows)
    known = json.loads(options.cache.read_text()) if options.cache and options.cache.exists() else {}
    results: dict[str, Any] = {}
    slow: Counter[tuple[str, str]] = Counter()
    for given in cases(options.data, options.families):
        variants = [resplit(given, seed) for seed in range(options.resplits)] or [given]
        for variant in variants:
            case = variant if options.nested is None else nested(variant, options.nested)
            key = case.name if options.nested is None else f"{case.name}~{options.nested}"
            old = known.get(key, {}).get("figures", {})
            rows = store.read(key) if options.rows and not options.resplits else None
            figures = run_case(case, options.ours, old, options.limit, options.peers, slow, rows)
            if rows is not None:
                store.write(key, rows)
            sizes = {"n_fit": len(case.fit_labels), "n_test": len(case.test_labels)}
            if case.binary:
                sizes["rarest"] = int(np.bincount(case.test_labels, minlength=2).min())
            described = {"family": case.family, "source": case.source, **sizes}
            known[key] = results[key] = {**described, "figures": {**old, **figures}}
            if options.cache:
                options.cache.write_text(json.dumps(known))
    print(tables(results, options.families, store))


if __name__ == "__main__":
    main()
