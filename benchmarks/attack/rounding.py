"""Probabilities written with few decimals: the same methods on `%.4f` and `%.3f` copies of real prediction files.

python benchmarks/attack/rounding.py FILE.npz ...      # files with val_logits, val_labels, test_logits, test_labels

Both halves are rounded, zeros included; test ECE and log loss of each method are set beside those of the unrounded
file. It fails where the log loss of 4 decimals moves by more than 3%, or the ECE by more than one point.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np

import calibrant as cal
from calibrant import metrics
from calibrant.core.softmax import softmax

METHODS = ("none", "ts", "vs", "shape", "dir")
MOST_CLASSES = {"dir": 20}
"""A matrix for more classes takes minutes, and its rows are those of `vs`."""


def halves(path: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """Probabilities and labels of the fit half and of the test half."""
    found = []
    for split in ("val", "test"):
        opened = cal.open_predictions(f"{path}#{split}")
        p = softmax(opened.logits.astype(np.float64)) if opened.kind == "logits" else opened.probabilities
        found.append((p, opened.labels))
    return found


def reread(p: np.ndarray, labels: np.ndarray, decimals: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits of what a table with so many decimals holds; rows that rounding leaves off one are normalised."""
    rounded = np.round(p, decimals)
    with np.errstate(divide="ignore"):
        return np.log(rounded / rounded.sum(axis=1, keepdims=True)), labels


def scored(name: str, fit: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray]) -> tuple[float, float]:
    """Test ECE and log loss of a method."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        q = cal.get(name).fit(*fit).predict_proba(test[0])
    return metrics.ece(q, test[1]), metrics.nll(q, test[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--methods", nargs="*", default=METHODS)
    given = parser.parse_args()
    failed = compared = 0
    for path in given.files:
        (p, y), (q, z) = halves(path)
        with np.errstate(divide="ignore"):
            exact = (np.log(p), y), (np.log(q), z)
        methods = [one for one in given.methods if p.shape[1] <= MOST_CLASSES.get(one, 10_000)]
        arrays = {d: [reread(*half, d) for half in ((p, y), (q, z))] for d in (4, 3)}
        for name in methods:
            ece, loss = scored(name, *exact)
            cells = [f"{path.stem[:28]:<29}{name:<7}ECE {100 * ece:5.2f}%  NLL {loss:.4f}"]
            for decimals, (fit, test) in arrays.items():
                ece_now, loss_now = scored(name, fit, test)
                compared += 1
                bad = (
                    decimals == 4 and name != "none" and (abs(loss_now / loss - 1) > 0.03 or abs(ece_now - ece) > 0.01)
                )
                failed += bad
                cells.append(f"{decimals} decimals {100 * ece_now:5.2f}%  {loss_now:.4f}{' BAD' if bad else ''}")
            print(" | ".join(cells), flush=True)
    print(f"{compared} comparisons, {failed} bad")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
