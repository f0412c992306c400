"""Do nominal 95% intervals cover the truth in 95% of data sets, and is the consistency p-value uniform?

    python benchmarks/interval_coverage.py [--runs 500] [--rows 1000]

Labels are drawn from known probabilities, so the population value of every figure is known.
Prints a line a metric: its true value, its coverage, and how often the interval lay above or below.
"""

from __future__ import annotations

import argparse

import numpy as np

import calibrant as cal
from calibrant.core.bins import mass_index, over, total_gap, under, width_index
from calibrant.core.softmax import softmax
from calibrant.evaluation.consistency import consistency_test
from calibrant.kernels.rows import scan

CLASSES = 10
POPULATION = 2_000_000
NAMES = (
    "nll", "brier", "accuracy", "ece", "adaptive_ece", "over_confidence", "under_confidence", "sce",
)  # fmt: skip


def sample(n: int, sharpness: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Stated probabilities and labels; sharpness 1 is calibrated, above it overconfident, below it underconfident."""
    generator = np.random.default_rng(seed)
    logits = 2.0 * generator.normal(size=(n, CLASSES))
    truth = softmax(logits)
    labels = (generator.random(n)[:, None] > np.cumsum(truth, axis=1)).sum(axis=1).clip(0, CLASSES - 1)
    return softmax(sharpness * logits), labels


def population(sharpness: float) -> dict[str, float]:
    """The figures with every label replaced by its probabilities: no noise of labels is left."""
    logits = 2.0 * np.random.default_rng(10**6).normal(size=(POPULATION, CLASSES))
    truth, stated = softmax(logits), softmax(sharpness * logits)
    top = stated.argmax(axis=1)
    confidence, right = stated.max(axis=1), truth[np.arange(POPULATION), top]
    index, index_mass = width_index(confidence, 15), mass_index(confidence, 15)
    excess, mass_excess = (
        np.bincount(one, confidence - right, minlength=15) / POPULATION for one in (index, index_mass)
    )
    gaps = np.zeros((CLASSES, 15))
    for j in range(CLASSES):
        gaps[j] = np.bincount(width_index(stated[:, j], 15), stated[:, j] - truth[:, j], minlength=15)
    return {
        "nll": float(-(truth * np.log(stated)).sum(axis=1).mean()),
        "brier": float(((stated**2).sum(axis=1) - 2 * (truth * stated).sum(axis=1) + 1).mean()),
        "accuracy": float(right.mean()),
        "ece": float(total_gap(excess)),
        "adaptive_ece": float(total_gap(mass_excess)),
        "over_confidence": float(over(excess)),
        "under_confidence": float(under(excess)),
        "sce": float(np.abs(gaps).sum(axis=1).mean() / POPULATION),
    }


def intervals(probabilities: np.ndarray, labels: np.ndarray, resamples: int, seed: int) -> dict[str, tuple]:
    given = cal.Predictions.from_arrays(probabilities=probabilities, labels=labels)
    found = cal.measure(given, metrics=NAMES, resamples=resamples, seed=seed, decompose=False).metrics
    return {name: (one.low, one.high) for name, one in found.items()}


def coverage(sharpness: float, runs: int, rows: int, resamples: int) -> dict[str, float]:
    truth = population(sharpness)
    hits = {name: [0, 0] for name in NAMES}
    for run in range(runs):
        found = intervals(*sample(rows, sharpness, seed=run), resamples, seed=run)
        for name, (low, high) in found.items():
            hits[name][0] += truth[name] < low - 1e-12
            hits[name][1] += truth[name] > high + 1e-12
    print(f"\nsharpness {sharpness}: {runs} data sets of {rows} rows, {resamples} resamples")
    for name, (above, below) in hits.items():
        covered = 1 - (above + below) / runs
        print(
            f"  {name:18s} truth {truth[name]:.4f}  coverage {100 * covered:5.1f}%"
            f"  above {100 * above / runs:4.1f}%  below {100 * below / runs:4.1f}%"
        )
    return {name: 1 - sum(missed) / runs for name, missed in hits.items()}


def binary_coverage(rows: int, shift: float, runs: int, resamples: int) -> dict[str, float]:
    """Coverage of the ECE and of O:E of one probability per row whose intercept is off by `shift`."""

    def draw(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        generator = np.random.default_rng(seed)
        score = 1.5 * generator.normal(size=n) - 1
        return 1 / (1 + np.exp(-score)), 1 / (1 + np.exp(-score - shift))

    stated, true = draw(POPULATION, 10**6)
    excess = np.bincount(width_index(stated, 15), stated - true, minlength=15) / POPULATION
    truth = {"ece": float(total_gap(excess)), "observed_expected": float(true.mean() / stated.mean())}
    covered = dict.fromkeys(truth, 0)
    for run in range(runs):
        p, chance = draw(rows, run)
        labels = (np.random.default_rng([run, 1]).random(rows) < chance).astype(int)
        given = {"probability": p, "labels": labels}
        found = cal.measure(given, metrics=list(truth), resamples=resamples, seed=run, decompose=False).metrics
        for name, value in truth.items():
            covered[name] += found[name].low <= value <= found[name].high
    shares = {name: count / runs for name, count in covered.items()}
    print(f"binary, intercept off by {shift}, {rows} rows:", {name: f"{one:.3f}" for name, one in shares.items()})
    return shares


def share_coverage(rows: int, chance: float, runs: int, resamples: int) -> float:
    """Coverage of the accuracy where errors are few."""
    covered = 0
    for run in range(runs):
        right = np.random.default_rng([run, 2]).random(rows) < chance
        given = {"confidence": np.full(rows, chance), "correct": right}
        found = cal.measure(given, metrics=["accuracy"], resamples=resamples, seed=run, decompose=False)
        covered += found.metrics["accuracy"].low <= chance <= found.metrics["accuracy"].high
    print(f"accuracy of {chance}, {rows} rows: {covered / runs:.3f}")
    return covered / runs


def uniformity(runs: int, rows: int) -> float:
    """p-values of calibrated data: their Kolmogorov–Smirnov distance from uniform and its p-value."""
    from scipy.stats import kstest

    values = []
    for run in range(runs):
        probabilities, labels = sample(rows, 1.0, seed=10**7 + run)
        columns = scan(probabilities, labels, from_logits=False, columns="top")
        values.append(consistency_test(columns.confidence, columns.correct, draws=999, seed=run).p_value)
    test = kstest(values, "uniform")
    share = float((np.array(values) < 0.05).mean())
    print(f"\nconsistency p-value of calibrated data, {runs} data sets of {rows} rows:")
    print(f"  distance from uniform {test.statistic:.4f} (p = {test.pvalue:.2f}); below 0.05 in {100 * share:.1f}%")
    return float(test.pvalue)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--resamples", type=int, default=1000)
    options = parser.parse_args()
    fine = True
    for sharpness in (1.0, 1.6, 0.6):
        covered = coverage(sharpness, options.runs, options.rows, options.resamples)
        fine &= all(0.93 <= covered[name] <= 0.97 for name in ("nll", "brier"))
    for rows in (400, 1000):
        shares = [binary_coverage(rows, shift, options.runs, options.resamples) for shift in (0.3, 0.6, -0.5)]
        fine &= all(0.93 <= one <= 0.97 for each in shares for one in each.values())
    for rows, chance in ((50, 0.98), (200, 0.99), (500, 0.99)):
        fine &= share_coverage(rows, chance, options.runs, options.resamples) >= 0.92
    fine &= uniformity(options.runs, options.rows) > 0.001
    print(
        "\nNLL, Brier, binary ECE and O:E within 93–97%, accuracy at least 92%, p-value uniform:",
        "yes" if fine else "NO",
    )


if __name__ == "__main__":
    main()
