"""`CalibratedClassifier` compared with scikit-learn's `CalibratedClassifierCV`: log loss, Brier score and fit time.

    OMP_NUM_THREADS=1 PYTHONPATH=src python benchmarks/scikit_learn.py run --out results-1.jsonl --part 1/16
    PYTHONPATH=src python benchmarks/scikit_learn.py table results-*.jsonl

Ten bundled and generated data sets × five base models × 50 to 5,000 fit rows × 20 random splits. Each method is trained
and calibrated on the same fit rows with the same number of folds: five, or the number of rows of the rarest class.
`run` computes each n-th split of a cell, starting with the i-th, and appends one JSON line per fit; fits that the file
contains are skipped. With one thread each, n parts can run at the same time. `--data` and `--splits` restrict it.

`table` prints the mean over all cells, and lists each cell in which the default of calibrant has a mean log loss above
that of a method of scikit-learn by more than two standard errors of the paired difference over splits.

The file is not called sklearn.py: the other benchmarks in this folder would then import it instead of scikit-learn.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import datasets
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from calibrant.sklearn import CalibratedClassifier

SIZES, N_SPLITS, N_FOLDS, MAX_TEST_ROWS, MIN_TEST_ROWS = (50, 200, 1000, 5000), 20, 5, 2000, 50
NOISE = 2.0
"""Standard errors of a paired difference within which two methods are equal."""

DEFAULT = "calibrant auto"
METHODS = {
    DEFAULT: (CalibratedClassifier, "auto"),
    **{f"calibrant {name}": (CalibratedClassifier, name) for name in ("sigmoid", "isotonic", "temperature")},
    **{f"scikit-learn {name}": (CalibratedClassifierCV, name) for name in ("sigmoid", "isotonic", "temperature")},
}

BASES = {
    "logistic": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
    "naive Bayes": GaussianNB(),
    "balanced forest": RandomForestClassifier(100, class_weight="balanced", random_state=0),
    "SVC": make_pipeline(StandardScaler(), SVC()),
    "boosting": HistGradientBoostingClassifier(max_iter=50, early_stopping=False, random_state=0),
}


def make_classes(n_features: int = 20, **options: Any) -> Any:
    """Return a loader of 8,000 generated rows."""
    return lambda: datasets.make_classification(8000, n_features, random_state=7, **options)


DATA = {
    "cancer": lambda: datasets.load_breast_cancer(return_X_y=True),
    "digits": lambda: datasets.load_digits(return_X_y=True),
    "wine": lambda: datasets.load_wine(return_X_y=True),
    "iris": lambda: datasets.load_iris(return_X_y=True),
    "rare": make_classes(n_informative=5, weights=[0.97], flip_y=0.01),
    "noisy": make_classes(n_informative=5, flip_y=0.3),
    "correlated": make_classes(30, n_informative=5, n_redundant=25),
    "hastie": lambda: datasets.make_hastie_10_2(8000, random_state=7),
    "three": lambda: datasets.make_gaussian_quantiles(n_samples=8000, n_features=5, n_classes=3, random_state=7),
    "ten": make_classes(n_informative=10, n_classes=10, n_clusters_per_class=1),
}

Case = tuple[str, str, int, int]
"""Data set, base model, number of fit rows and split."""


def list_cases(names: list[str], n_splits: int) -> Iterator[Case]:
    """Yield all cases in which enough test rows remain."""
    n_rows = {name: len(DATA[name]()[1]) for name in names}
    for name, base, n_fit, split in itertools.product(names, BASES, SIZES, range(n_splits)):
        if n_fit + MIN_TEST_ROWS <= n_rows[name]:
            yield name, base, n_fit, split


def measure_case(case: Case, methods: list[str]) -> Iterator[dict[str, Any]]:
    """Fit the methods to one split and yield their log loss, Brier score and CPU seconds."""
    name, base, n_fit, split = case
    X, y = DATA[name]()
    n_test = min(MAX_TEST_ROWS, len(y) - n_fit)
    X, X_test, y, y_test = train_test_split(X, y, train_size=n_fit, test_size=n_test, stratify=y, random_state=split)
    classes, counts = np.unique(y, return_counts=True)
    n_folds = min(N_FOLDS, counts.min())
    if n_folds < 2:
        return
    truth = (y_test[:, None] == classes).astype(float)
    columns = slice(1, None) if len(classes) == 2 else slice(None)  # as brier_score_loss
    for method in methods:
        wrapper, word = METHODS[method]
        record: dict[str, Any] = {"data": name, "base": base, "n": n_fit, "split": split, "method": method}
        started = time.process_time()
        try:
            model = wrapper(clone(BASES[base]), method=word, cv=int(n_folds)).fit(X, y)
            record["seconds"] = time.process_time() - started
            p = model.predict_proba(X_test)
            record["nll"] = log_loss(y_test, p, labels=classes)
            record["brier"] = float(((p - truth)[:, columns] ** 2).sum(axis=1).mean())
        except Exception as error:  # an older scikit-learn without temperature scaling
            record["error"] = " ".join(str(error).split())
        yield record


def run_part(out: Path, names: list[str], n_splits: int, part: int, n_parts: int) -> None:
    """Append the missing results of one part to a file."""
    known = {(r["data"], r["base"], r["n"], r["split"], r["method"]) for r in read_results([out])}
    cases = itertools.islice(list_cases(names, n_splits), part - 1, None, n_parts)
    with out.open("a", encoding="utf-8") as file:
        for case in cases:
            missing = [method for method in METHODS if (*case, method) not in known]
            for record in measure_case(case, missing):
                file.write(json.dumps(record) + "\n")
                file.flush()


def read_results(paths: list[Path]) -> list[dict[str, Any]]:
    return [json.loads(line) for path in paths if path.exists() for line in path.read_text("utf-8").splitlines()]


def print_table(records: list[dict[str, Any]]) -> None:
    """Print means over cells, and the cells in which the default is worse than a method of scikit-learn."""
    values: dict[str, dict[tuple[Any, ...], dict[int, dict[str, Any]]]] = defaultdict(lambda: defaultdict(dict))
    for record in records:
        if "nll" in record:
            cell = record["data"], record["base"], record["n"]
            values[record["method"]][cell][record["split"]] = record
        else:
            print(f"failed: {record}")
    cells = sorted(set.intersection(*(set(one) for one in values.values())))
    print(f"{len(cells)} cells, {len(records)} fits\n")
    print(f"{'method':<26}{'log loss':>10}{'Brier':>10}{'seconds':>10}")
    for method, found in values.items():
        means = [
            np.mean([np.mean([r[key] for r in found[cell].values()]) for cell in cells])
            for key in ("nll", "brier", "seconds")
        ]
        print(f"{method:<26}{means[0]:>10.4f}{means[1]:>10.4f}{means[2]:>10.3f}")
    for method in (name for name in values if name.startswith("scikit-learn")):
        print(f"\n{DEFAULT} has a larger log loss than {method} beyond noise:")
        n_better = 0
        for cell in cells:
            ours, theirs = values[DEFAULT][cell], values[method][cell]
            both = sorted(set(ours) & set(theirs))
            a, b = (np.array([one[split]["nll"] for split in both]) for one in (ours, theirs))
            if len(both) < 2:
                continue
            error = NOISE * np.std(a - b, ddof=1) / np.sqrt(len(both))
            n_better += bool(np.mean(a - b) < -error)
            if np.mean(a - b) > error:
                print(f"  {' · '.join(map(str, cell)):<36}{a.mean():.4f} against {b.mean():.4f} (noise {error:.4f})")
        print(f"  better beyond noise in {n_better} of {len(cells)} cells")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run")
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--data", nargs="+", choices=list(DATA), default=list(DATA))
    run.add_argument("--splits", type=int, default=N_SPLITS)
    run.add_argument("--part", default="1/1", help="i/n: the i-th of n parts")
    verbs.add_parser("table").add_argument("results", nargs="+", type=Path)
    options = parser.parse_args()
    if options.verb == "table":
        print_table(read_results(options.results))
        return
    warnings.simplefilter("ignore")
    part, n_parts = map(int, options.part.split("/"))
    run_part(options.out, options.data, options.splits, part, n_parts)


if __name__ == "__main__":
    main()
