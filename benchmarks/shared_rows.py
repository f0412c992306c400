"""Level and power of the warning that two files share rows.

    python benchmarks/shared_rows.py [--runs 1000] [--only "4 decimals"]

Level: share of independent pairs of files that raise the warning. Power: the same if a share of the test rows is copied
from the fit rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from calibrant.data import Predictions
from calibrant.data.guards import shared_rows

SIZES = ((100, 100), (100, 1000), (1000, 100), (3000, 3000), (10_000, 1000), (10_000, 10_000))
"""Numbers of fit and test rows."""

Draw = Callable[[np.random.Generator, int], np.ndarray]


def pair(p: np.ndarray) -> np.ndarray:
    return np.stack([1 - p, p], axis=1)


INDEPENDENT: dict[str, Draw] = {
    "risk, 4 decimals": lambda g, n: g.random(n).round(4),
    "risk, 3 decimals": lambda g, n: g.random(n).round(3),
    "risk, 2 decimals": lambda g, n: g.random(n).round(2),
    "rare risk, 4 decimals": lambda g, n: g.beta(0.3, 3, n).round(4),
    "confident risk, 4 decimals": lambda g, n: (1 / (1 + np.exp(-12 * g.normal(size=n)))).round(4),
    "confident risk, float32": lambda g, n: (1 / (1 + np.exp(-9 * g.normal(size=n)))).astype(np.float32),
    "2 classes, 3 decimals": lambda g, n: pair(g.beta(0.5, 0.5, n).round(3)),
    "3 classes, 32 parts": lambda g, n: g.multinomial(32, [0.5, 0.3, 0.2], n) / 32,
    "10 classes, 8 parts": lambda g, n: g.multinomial(8, np.full(10, 0.1), n) / 8,
    "forest of 10 trees": lambda g, n: pair(g.binomial(10, g.beta(0.5, 0.5, n)) / 10),
    "forest of 500 trees": lambda g, n: pair(g.binomial(500, g.beta(0.5, 0.5, n)) / 500),
    "300 values": lambda g, n: g.integers(0, 300, n) / 299,
    "3000 values": lambda g, n: g.integers(0, 3000, n) / 2999,
    "one-hot, 2 classes": lambda g, n: np.eye(2)[g.integers(0, 2, n)],
    "one-hot, 10 classes": lambda g, n: np.eye(10)[g.integers(0, 10, n)],
}

OVERLAPPING: dict[str, tuple[float, Draw]] = {
    "5%, continuous risk": (0.05, lambda g, n: g.random(n)),
    "5%, 2 continuous classes": (0.05, lambda g, n: pair(g.random(n))),
    "5%, 10 continuous classes": (0.05, lambda g, n: g.dirichlet(np.full(10, 0.5), n)),
    "5%, risk, 4 decimals": (0.05, lambda g, n: g.random(n).round(4)),
    "20%, risk, 4 decimals": (0.2, lambda g, n: g.random(n).round(4)),
    "20%, risk, 3 decimals": (0.2, lambda g, n: g.random(n).round(3)),
}


def predictions(values: np.ndarray) -> Predictions:
    task = "binary" if values.ndim == 1 else "multiclass"
    return Predictions(probabilities=values, labels=np.arange(len(values)) % 2, task=task)


def share_of_warnings(draw: Draw, n: int, m: int, runs: int, share: float = 0.0) -> float:
    """Return the share of simulated pairs of files with a warning."""
    count = 0
    for run in range(runs):
        generator = np.random.default_rng([run, n, m])
        fit, test = draw(generator, n), draw(generator, m)
        shared = round(share * min(n, m))
        test[:shared] = fit[:shared]
        count += bool(shared_rows(predictions(fit), predictions(test)))
    return count / runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    header = "".join(f" {n:,} / {m:,} |" for n, m in SIZES)
    for title, cases in (
        ("independent", {name: (0.0, one) for name, one in INDEPENDENT.items()}),
        ("shared", OVERLAPPING),
    ):
        print(f"\n| {title} |{header}\n|{' --- |' * (len(SIZES) + 1)}")
        for name, (share, draw) in cases.items():
            if options.only in name:
                found = (share_of_warnings(draw, n, m, options.runs, share) for n, m in SIZES)
                print(f"| {name} |" + "".join(f" {100 * one:.1f}% |" for one in found), flush=True)


if __name__ == "__main__":
    main()
