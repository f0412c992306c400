"""Random problems × all metrics and fits, against literal numpy and scipy: no difference without a warning.

python benchmarks/attack/differential.py --problems 1000

Metrics must equal their literal definition to 1e-9 (square roots 1e-7; float32 logits in classwise bins 2e-5).
Likelihood fits must reach a loss within 1e-5 of the best that scipy finds, or warn. Every method must not depend on
the order of the rows, must count a weight of 2 as the row twice, give rows that sum to one, and keep its promises.
"""

from __future__ import annotations

import argparse
import collections
import time
import warnings

import fit_references
import metric_references
import numpy as np
from problems import Problem, draw

import calibrant as cal
from calibrant.core.errors import InputError

METHODS = (
    "ts",
    "ts-ece",
    "ts-adaece",
    "cts",
    "cts-nll",
    "vs",
    "ms",
    "dir",
    "ets",
    "ws",
    "cws",
    "bts",
    "ccts",
    "hb",
    "iso",
    "spline",
    "shape",
    "conf",
    "ts+top",
    "sctl+ts",
    "sctl+vs",
    "sctl+cts-nll",
)
LOOSE = {"sctl+vs": 1e-3, "sctl+cts-nll": 1e-3}
"""Fixed points, found to this difference in probability; all others agree to 1e-4 (float32: 3e-4)."""

ROOTS = {"debiased_ece": 1e-7, "mmce": 1e-7, "soft_ece": 1e-7, "marginal_ece": 1e-7}
"""Square roots of sums that may cancel to rounding noise."""

SLOW = {"sctl+vs": 8, "sctl+cts-nll": 4, "conf": 4}
"""Methods that are tried on every so many problems."""

FOLDED = {"conf"}
"""Methods that split the rows by their values: copies that outweigh a tenth of a fold are dealt over the folds, which
one row of the same weight cannot be."""


class Attack:
    """Counts comparisons and keeps what was wrong."""

    def __init__(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []

    def report(self, problems: int, started: float) -> None:
        """What was compared so far."""
        counts = ", ".join(f"{count:,} {name}" for name, count in self.counts.items())
        print(f"{problems} problems in {time.perf_counter() - started:,.0f} s: {counts}", flush=True)

    def fail(self, problem: Problem, what: str) -> None:
        self.counts["wrong"] += 1
        self.wrong.append(f"seed {problem.seed} ({problem.words}): {what}")
        print(self.wrong[-1], flush=True)

    def metrics(self, problem: Problem) -> None:
        """Every metric against its literal definition."""
        if np.isneginf(problem.wide[np.arange(len(problem.labels)), problem.labels]).any():
            return  # the NLL is infinite: what it counts as is a matter of taste
        expected = metric_references.everything(problem.wide, problem.labels, problem.mass)
        for name, value in expected.items():
            options = {"from_logits": True, "sample_weight": problem.weights}
            found = getattr(cal.metrics, name)(problem.logits, problem.labels, **options)
            narrow = problem.logits.dtype == np.float32 and name in ("classwise_ece", "sce")
            tolerance = 2e-5 if narrow else ROOTS.get(name, 1e-9) * max(1.0, float(np.max(np.abs(value))))
            self.counts["metric comparisons"] += 1
            if not np.allclose(found, value, rtol=0, atol=tolerance):
                self.fail(problem, f"{name} is {found}, literally {value}")

    def method(self, problem: Problem, name: str) -> None:
        """One method: its optimum, its invariances, its promises."""
        try:
            fitted, warned = fit(name, problem.logits, problem.labels, problem.weights)
        except InputError:
            self.counts["refused with an InputError"] += 1
            return
        self.counts["warned"] += warned
        self.counts["fits"] += 1
        p = fitted.predict_proba(problem.logits)
        if not (np.isfinite(p).all() and np.abs(p.sum(axis=1) - 1).max() < 1e-5):
            self.fail(problem, f"{name}: rows of probabilities do not sum to one")
        kept = fitted.keeps_prediction and not (p.argmax(axis=1) == problem.logits.argmax(axis=1)).all()
        if kept:
            self.fail(problem, f"{name}: a kept prediction changed")
        if not np.isneginf(problem.logits).any():
            self.optimum(problem, name, fitted, warned)
        self.invariances(problem, name, p, warned)

    def optimum(self, problem: Problem, name: str, fitted: cal.Calibrator, warned: bool) -> None:
        given = problem.wide, problem.labels, problem.mass, fitted
        if name == "ts":
            reached, best = fit_references.temperature(*given)
        elif name in ("vs", "cts-nll"):
            reached, best = fit_references.vector(*given, with_bias=name == "vs")
        elif name in ("ms", "dir") and len(problem.labels) > problem.logits.shape[1] * 4:
            x = problem.wide
            x = x - np.logaddexp.reduce(x, axis=1)[:, None] if name == "dir" else x
            reached, best = fit_references.matrix(x, *given[1:])
        else:
            return
        self.counts["optima compared"] += 1
        if reached > best + 1e-5 and not warned:
            self.fail(problem, f"{name}: loss {reached:.7f}, but scipy reaches {best:.7f}, without a warning")

    def invariances(self, problem: Problem, name: str, p: np.ndarray, warned: bool) -> None:
        rng = np.random.default_rng(problem.seed)
        order = rng.permutation(len(problem.labels))
        weights = None if problem.weights is None else problem.weights[order]
        again = {"the row order": (problem.logits[order], problem.labels[order], weights)}
        values = np.sort(problem.logits, axis=1)  # folds do not know the order of the columns
        tied = len(np.unique(values, axis=0)) < len(values)
        if problem.weights is not None and not (problem.weights % 1).any() and not (tied and name in FOLDED):
            copies = np.repeat(np.arange(len(order)), problem.weights.astype(int))
            again["copies for weights"] = problem.logits[copies], problem.labels[copies], None
        tolerance = LOOSE.get(name, 1e-4 if problem.logits.dtype == np.float64 else 3e-4)
        for what, given in again.items():
            self.counts["invariances compared"] += 1
            other, also = fit(name, *given)
            # rows of weight 0 may lie where the fit data determine nothing
            seen = problem.mass > 0
            difference = float(np.abs(other.predict_proba(problem.logits[seen]) - p[seen]).max())
            if difference > tolerance and not (warned or also):
                self.fail(problem, f"{name}: {what} changes a probability by {difference:.2g}, without a warning")


def fit(name: str, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> tuple[cal.Calibrator, bool]:
    """A fitted calibrator, and whether it warned of anything but zeros."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted = cal.get(name).fit(logits, labels, sample_weight=weights)
    return fitted, any("probability of 0" not in str(one.message) for one in caught)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--methods", nargs="*", default=METHODS)
    given = parser.parse_args()
    attack, started = Attack(), time.perf_counter()
    for seed in range(given.first, given.first + given.problems):
        problem = draw(seed)
        attack.metrics(problem)
        for name in given.methods:
            if name in SLOW and seed % SLOW[name]:
                continue
            try:
                attack.method(problem, name)
            except Exception as error:  # a crash is a finding
                attack.fail(problem, f"{name}: {type(error).__name__}: {error}")
        if seed % 50 == 49:
            attack.report(seed + 1 - given.first, started)
    attack.report(given.problems, started)
    raise SystemExit(1 if attack.wrong else 0)


if __name__ == "__main__":
    main()
