"""Rows that are calibrated by construction: how often each test rejects them at 5%, beside its power on 5 points.

    python benchmarks/null.py [--runs 1000] [--power 1000] [--only rare,ties] [--rows 1000]

Tests are called directly. `verdict`: the consistency test, unless there are too few errors to tell. `loss`: a map takes
more off the log loss than noise. `groups differ`: the test that three groups share one map; for its power the first
group alone is off. `a group is off`: the gap of any group with errors enough to tell lies outside its interval; `gaps
cover`: the intervals of all groups hold the truth. `monitor`: an alarm at a false alarm rate of 5%.

Of several classes, in a second table: the ECE's test and that of all classes at their shares of 5%, the loss, and the
verdict of `measure`, which each of the three can deny. For the power the predicted class is 5 points less likely.

A test fails where more runs reject than 5% explain: binom.ppf(.999, 1000, .05) is 73, and one less is allowed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr
from scipy.stats import binom

from calibrant.data import Predictions
from calibrant.evaluation.bootstrap import draw, sampled
from calibrant.evaluation.calibration_loss import mendable
from calibrant.evaluation.consistency import CLASS_SHARE, consistency_test
from calibrant.evaluation.evidence import count_evidence
from calibrant.evaluation.groups import group_analysis, make_grouping
from calibrant.evaluation.scoring import classwise_test, scan_predictions
from calibrant.monitor import Monitor

LEVEL, POINTS = 0.05, 0.05
TESTS = ("verdict", "loss", "groups differ", "a group is off", "monitor")
CLASS_TESTS = ("ECE", "classes", "loss", "verdict")


@dataclass
class Rows:
    """Stated probabilities, group, weights and clusters of some rows, and how correlated a cluster is."""

    stated: np.ndarray
    group: np.ndarray
    weights: np.ndarray | None = None
    clusters: np.ndarray | None = None
    correlation: float = 0.5
    counts: np.ndarray | None = None

    def latent(self, generator: np.random.Generator, n: int) -> np.ndarray:
        """Uniform numbers, of one cluster alike."""
        latent = generator.standard_normal(n)
        if self.clusters is not None:
            shared = generator.standard_normal(self.clusters.max() + 1)[self.clusters]
            latent = np.sqrt(self.correlation) * shared + np.sqrt(1 - self.correlation) * latent
        return ndtr(latent)

    def outcomes(self, generator: np.random.Generator, chance: np.ndarray) -> np.ndarray:
        """Outcomes with these chances."""
        return self.latent(generator, len(chance)) < chance


Make = Callable[[np.random.Generator, int], Rows]


def _unequal(generator: np.random.Generator, n: int) -> np.ndarray:
    """Three groups, of which the first has a fifth of the rows."""
    return generator.choice(3, n, p=[0.2, 0.4, 0.4])


def rare(generator: np.random.Generator, n: int) -> Rows:
    """Events of 0.4% on the mean, 4% in the first group."""
    group = _unequal(generator, n)
    return Rows(np.minimum(np.where(group == 0, 0.04, 0.004) * generator.gamma(1, 1, n), 0.5), group)


def sure(generator: np.random.Generator, n: int) -> Rows:
    """Confidences near 1, of the first group less so."""
    rows = rare(generator, n)
    return Rows(1 - rows.stated, rows.group)


def ties(generator: np.random.Generator, n: int) -> Rows:
    """Four stated values."""
    return Rows(generator.choice([0.6, 0.7, 0.8, 0.9], n), _unequal(generator, n))


def clusters(generator: np.random.Generator, n: int) -> Rows:
    """Ten rows per cluster."""
    code = np.arange(n) // 10
    return Rows(generator.beta(4, 2, n), _unequal(generator, n), clusters=code)


def few_clusters(generator: np.random.Generator, n: int) -> Rows:
    """Twenty clusters."""
    return Rows(generator.beta(4, 2, n), _unequal(generator, n), clusters=np.arange(n) * 20 // n, correlation=0.2)


def sure_clusters(generator: np.random.Generator, n: int) -> Rows:
    """Ten rows per cluster, confidences near 1."""
    stated = 1 - np.minimum(0.03 * generator.gamma(1, 1, n), 0.5)
    return Rows(stated, _unequal(generator, n), clusters=np.arange(n) // 10, correlation=0.7)


def counts(generator: np.random.Generator, n: int) -> Rows:
    """A table of counts: n / 4 lines of 1 to 7 copies, each with an outcome of its own."""
    lines = n // 4
    return Rows(
        np.round(generator.beta(4, 1.2, lines), 2), _unequal(generator, lines), counts=generator.integers(1, 8, lines)
    )


def importance(generator: np.random.Generator, n: int) -> Rows:
    """Weights whose logarithm has a standard deviation of 1."""
    return Rows(generator.beta(4, 1.2, n), _unequal(generator, n), np.exp(generator.standard_normal(n)))


def difficulty(generator: np.random.Generator, n: int) -> Rows:
    """Groups of easy and of hard rows."""
    group = _unequal(generator, n)
    return Rows(np.where(group == 0, generator.beta(20, 1, n), generator.beta(2, 2, n)), group)


def small(generator: np.random.Generator, n: int) -> Rows:
    """Sixty rows."""
    return Rows(generator.beta(4, 1.2, 60), _unequal(generator, 60))


CASES: dict[str, tuple[str, Make]] = {
    "rare": ("rare events", rare),
    "sure": ("confidence near 1", sure),
    "ties": ("ties", ties),
    "clusters": ("clusters of 10", clusters),
    "few-clusters": ("20 clusters", few_clusters),
    "sure-clusters": ("clusters, confidence near 1", sure_clusters),
    "counts": ("counts", counts),
    "importance": ("importance weights", importance),
    "difficulty": ("groups of unequal difficulty", difficulty),
    "small": ("60 rows", small),
}


def copied(rows: Rows, generator: np.random.Generator, chance: np.ndarray) -> tuple[Rows, np.ndarray]:
    """The rows and outcomes that tests see: of a table of counts the copies that weights_are="counts" makes."""
    if rows.counts is None:
        return rows, rows.outcomes(generator, chance)
    right = generator.binomial(rows.counts, chance)
    table = Predictions(
        probabilities=np.tile(rows.stated, 2),
        labels=np.repeat([1, 0], len(right)),
        weights=np.concatenate([right, rows.counts - right]).astype(float),
        groups={"group": np.tile(rows.group, 2)},
        task="binary",
    )
    copies, *_ = sampled(table, None, None, "counts")
    order = generator.permutation(copies.n)  # a monitor sees a stream
    return Rows(copies.values[order], copies.groups["group"][order]), copies.labels[order]


@dataclass
class Classes:
    """A problem of several classes: their number, the spread of their log-odds, rows and rows of one cluster."""

    count: int
    spread: float = 2.0
    rows: int = 600
    cluster: int = 1

    def run(self, seed: int, error: float) -> dict[str, bool]:
        """What each test says of one data set."""
        generator, n = np.random.default_rng([seed, 31]), self.rows
        scores = np.exp(self.spread * generator.standard_normal((n, self.count)))
        stated = scores / scores.sum(axis=1, keepdims=True)
        top = np.eye(self.count, dtype=bool)[stated.argmax(axis=1)]
        sure = stated.max(axis=1, keepdims=True)
        less = np.minimum(error, sure)
        chance = np.where(top, stated - less, stated * (1 - sure + less) / (1 - sure))
        clusters = np.arange(n) // self.cluster
        rows = Rows(sure[:, 0], clusters, clusters=clusters if self.cluster > 1 else None)
        labels = (chance.cumsum(axis=1) < rows.latent(generator, n)[:, None]).sum(axis=1).clip(max=self.count - 1)
        given = Predictions(probabilities=stated, labels=labels)
        seen = scan_predictions(given, draw(n, 1, 0, rows.clusters), n_bins=15)
        columns, loss = seen.columns(), mendable(given, rows.clusters, seed, None)
        test = consistency_test(columns.confidence, columns.correct, draws=400, clusters=rows.clusters, seed=seed)
        said = {
            "ECE": test.p_value < (1 - CLASS_SHARE) * LEVEL,
            "classes": classwise_test(seen, 15, seed, CLASS_SHARE).significant,
            "loss": loss is not None and loss.beyond_noise,
        }
        return said | {"verdict": any(said.values())}


CLASS_CASES = {
    "two-columns": ("two columns", Classes(2)),
    "five-classes": ("five classes", Classes(5)),
    "few-rows": ("five classes, 150 rows", Classes(5, rows=150)),
    "sure-classes": ("ten classes, confidence near 1", Classes(10, spread=6.0)),
    "many-classes": ("forty classes", Classes(40, spread=3.0)),
    "class-clusters": ("five classes, clusters of 10", Classes(5, rows=1000, cluster=10)),
}


def run(make: Make, n: int, seed: int, error: float) -> dict[str, bool]:
    """What each test says of one data set."""
    generator = np.random.default_rng([seed, 29])
    given = make(generator, n)
    off = np.where(given.stated > 0.5, -error, error)
    rows, right = copied(given, generator, np.clip(given.stated + off, 0, 1))
    options = {"weights": rows.weights, "clusters": rows.clusters, "seed": seed}
    test = consistency_test(rows.stated, right, draws=400, **options)
    task = "binary" if rows.stated.mean() < 0.5 else "multiclass"
    few = count_evidence(right, rows.weights, rows.clusters, task=task, stated=rows.stated).shortage
    seen = Predictions(probabilities=rows.stated, labels=right, weights=rows.weights, task="binary")
    loss = None if few else mendable(sampled(seen, None, None, "rows")[0], rows.clusters, seed, None)
    said = {"verdict": test.p_value < LEVEL and not few, "loss": loss is not None and loss.beyond_noise}
    if rows.weights is None:
        # the batches of a monitor are what is independent
        monitor = Monitor(
            false_alarm_rate=LEVEL, batch=None if rows.clusters is None else len(right) // (rows.clusters.max() + 1)
        )
        monitor.update_answers(rows.stated, right)
        said["monitor"] = monitor.report().alarm
    rows, right = copied(given, generator, np.clip(given.stated + off * (given.group == 0), 0, 1))
    found = group_analysis(rows.stated, right, make_grouping({"g": rows.group}, len(right)), resamples=200, **options)
    gaps = [one.metrics["gap"] for one in found.groups]
    said["groups differ"] = found.differ.p_value < LEVEL
    said["a group is off"] = found.worst is not None
    said["gaps cover"] = all(not gap.low > 0 and not gap.high < 0 for gap in gaps)
    return said


def cells(tests: tuple[str, ...], null: list[dict[str, bool]], power: list[dict[str, bool]], limit: int) -> list[str]:
    """Rejections of calibrated rows by each test, marked where they are too many, with its power."""
    found = []
    for test in tests:
        rejected, seen = (sum(one.get(test, False) for one in runs) for runs in (null, power))
        mark = "!" * (rejected > limit)
        found.append(f"{rejected}{mark} ({100 * seen / len(power):.0f}%)" if test in null[0] else "–")
    return found


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--power", type=int, default=1000, help="runs from which the power is estimated")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--only", default=",".join((*CASES, *CLASS_CASES)))
    given = parser.parse_args()
    kinds = (given.runs, 0.0), (given.power, POINTS)
    limit, names = int(binom.ppf(0.999, given.runs, LEVEL)) - 1, given.only.split(",")
    print(f"rejections in {given.runs} runs, at most {limit} at 5% (power on {100 * POINTS:.0f} points)\n")
    print(f"| case | {' | '.join(TESTS)} | gaps cover |\n| --- |{' ---: |' * (len(TESTS) + 1)}")
    for name, make in (CASES[key] for key in names if key in CASES):
        null, power = ([run(make, given.rows, seed, error) for seed in range(count)] for count, error in kinds)
        cover = sum(one["gaps cover"] for one in null) / given.runs
        print(f"| {name} | {' | '.join(cells(TESTS, null, power, limit))} | {100 * cover:.1f}% |", flush=True)
    print(f"\n| case | {' | '.join(CLASS_TESTS)} |\n| --- |{' ---: |' * len(CLASS_TESTS)}")
    for name, problem in (CLASS_CASES[key] for key in names if key in CLASS_CASES):
        null, power = ([problem.run(seed, error) for seed in range(count)] for count, error in kinds)
        print(f"| {name} | {' | '.join(cells(CLASS_TESTS, null, power, limit))} |", flush=True)


if __name__ == "__main__":
    main()
