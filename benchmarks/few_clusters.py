"""Do intervals and verdicts hold over few clusters?

    python benchmarks/few_clusters.py [--runs 1000]

Calibrated probabilities of 40 rows per cluster on average; outcomes of one cluster share a latent normal variable with
the correlation given. Prints, per number of clusters: the coverage of 95% intervals of the mean log loss, Brier score
and accuracy by Student's t as the library reports them, and by percentiles of resampled clusters; then the share of
data sets that the test of calibration rejects, and the same with stated probabilities that are 20 points too high.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy.special import ndtr

import calibrant as cal
from calibrant.evaluation.bootstrap import draw, percentile_interval
from calibrant.evaluation.consistency import consistency_test

NUMBERS = (3, 6, 8, 15)
ROWS = 40
CASES = {"equal, 0.1": (False, 0.1), "equal, 0.3": (False, 0.3), "unequal, 0.1": (True, 0.1)}
"""Whether clusters differ in size (1 to 79 rows), and the correlation within clusters."""
METRICS = ("nll", "brier", "accuracy")


def sample(n_clusters: int, unequal: bool, correlation: float, seed: int) -> tuple[np.ndarray, ...]:
    """Draw probabilities of the answers given, uniforms that are right below them, and clusters."""
    generator = np.random.default_rng([seed, n_clusters])
    sizes = generator.integers(1, 2 * ROWS, n_clusters) if unequal else np.full(n_clusters, ROWS)
    clusters = np.repeat(np.arange(n_clusters), sizes)
    stated, n = generator.beta(6, 2, sizes.sum()), sizes.sum()
    latent = np.sqrt(correlation) * generator.normal(size=n_clusters)[clusters]
    return stated, ndtr(latent + np.sqrt(1 - correlation) * generator.normal(size=n)), clusters


def population() -> dict[str, float]:
    """Expected values of the metrics."""
    p = np.random.default_rng(0).beta(6, 2, 4_000_000)
    return {
        "nll": float(-(p * np.log(p) + (1 - p) * np.log1p(-p)).mean()),
        "brier": float((p * (1 - p)).mean()),
        "accuracy": float(p.mean()),
    }


def run(n_clusters: int, unequal: bool, correlation: float, runs: int) -> list[float]:
    """Return coverage by t and by percentiles of each metric, then the rejection rates with and without an error."""
    truth, covered, rejected = population(), np.zeros((len(METRICS), 2)), np.zeros(2)
    for seed in range(runs):
        stated, uniform, clusters = sample(n_clusters, unequal, correlation, seed)
        right = uniform < stated
        rows = cal.Predictions(probabilities=stated, labels=right.astype(int), task="pairs", clusters=clusters)
        found = cal.measure(rows, resamples=1, metrics=["nll", "brier", "accuracy"], decompose=False).metrics
        drawn, ones = draw(len(right), 400, seed, clusters), np.ones(len(right))
        losses = -np.log(np.where(right, stated, 1 - stated)), (stated - right) ** 2, right.astype(float)
        means = drawn.mean_draws(np.stack(losses, axis=1), ones)
        for place, name in enumerate(METRICS):
            one = found[name]
            low, high = percentile_interval(one.value + means[:, place], one.value)
            covered[place] += one.low <= truth[name] <= one.high, low <= truth[name] <= high
        for place, error in enumerate((0.0, 0.2)):
            test = consistency_test(stated, uniform < stated - error, clusters=clusters, draws=400, seed=seed)
            rejected[place] += test.significant
    return [*(covered / runs).ravel(), *(rejected / runs)]


def main() -> None:
    """Print one line per case and number of clusters."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args().runs
    heads = [f"{name} {way}" for name in METRICS for way in ("t", "perc.")]
    print(f"{'clusters':<26}", *(f"{head:>15}" for head in (*heads, "level", "power")))
    for case, (unequal, correlation) in CASES.items():
        for n_clusters in NUMBERS:
            shares = run(n_clusters, unequal, correlation, runs)
            print(f"{n_clusters:>2} {case:<23}", *(f"{share:>15.1%}" for share in shares), flush=True)


if __name__ == "__main__":
    main()
