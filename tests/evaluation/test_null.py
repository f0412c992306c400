"""Calibrated rows are rejected no more often than the level allows; `benchmarks/null.py` has more cases and runs."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import binom

from calibrant.evaluation.consistency import consistency_test
from calibrant.evaluation.evidence import count_evidence
from calibrant.evaluation.groups import group_analysis, groups_differ, make_grouping

RUNS = 200
LIMIT = binom.ppf(0.999, RUNS, 0.05)


def test_groups_of_rare_events_and_unequal_risk_do_not_differ_by_chance():
    rejected = found = 0
    for seed in range(RUNS):
        generator = np.random.default_rng(seed)
        ward = generator.random(1500) < 0.1
        risk = np.minimum(np.where(ward, 0.04, 0.002) * generator.gamma(1, 1, 1500), 0.5)
        grouping = make_grouping({"ward": ward}, 1500)
        for error in (0.0, 0.05):
            event = generator.random(1500) < risk + error * ~ward
            p_value = groups_differ(risk, event, np.ones(1500), grouping, draws=199, seed=seed).p_value
            rejected += error == 0 and p_value < 0.05
            found += error > 0 and p_value < 0.05
    assert rejected <= LIMIT
    assert found > 0.8 * RUNS


def sure_clusters(generator, n_clusters: int = 60, size: int = 20):
    """Confidences near 1, twenty to a cluster, and latent uniforms that share a normal with correlation 0.7."""
    confidence = 1 - np.minimum(0.02 * generator.gamma(1, 1, n_clusters * size), 0.5)
    shared = np.repeat(generator.normal(size=n_clusters), size)
    latent = ndtr(np.sqrt(0.7) * shared + np.sqrt(0.3) * generator.normal(size=n_clusters * size))
    return confidence, latent, np.repeat(np.arange(n_clusters), size)


def test_verdicts_of_sure_clusters_hold():
    rejected = differ = found = 0
    for seed in range(RUNS):
        generator = np.random.default_rng(seed)
        confidence, latent, clusters = sure_clusters(generator)
        grouping = make_grouping({"ward": generator.integers(0, 3, len(clusters))}, len(clusters))
        for error in (0.0, 0.05):
            correct = latent < confidence - error
            test = consistency_test(confidence, correct, clusters=clusters, draws=199, seed=seed)
            few = count_evidence(correct, None, clusters, stated=confidence).shortage
            said = test.p_value < 0.05 and not few
            rejected, found = rejected + (said and error == 0), found + (said and error > 0)
        mass = np.ones(len(clusters))
        tested = groups_differ(confidence, latent < confidence, mass, grouping, clusters, draws=199, seed=seed)
        differ += tested.p_value < 0.05
    assert rejected <= LIMIT
    assert differ <= LIMIT
    assert found > 0.5 * RUNS


def test_a_few_clusters_that_hold_all_errors_are_too_few_to_tell():
    clusters = np.repeat(np.arange(100), 10)
    confidence = np.full(1000, 0.99)
    correct = clusters >= 2  # 20 errors of 20 rows, in two clusters
    assert not count_evidence(correct, stated=confidence).shortage
    assert count_evidence(correct, None, clusters, stated=confidence).shortage
    assert not count_evidence(np.arange(1000) % 50 > 0, None, clusters, stated=confidence).shortage


def test_intervals_of_groups_in_sure_clusters_are_those_of_three_gaps():
    """Resamples of the few clusters that hold errors vary too little: they gave 1.97 standard errors, as of one gap."""
    reached = []
    for seed in range(20):
        generator = np.random.default_rng(seed)
        confidence, latent, clusters = sure_clusters(generator)
        grouping = make_grouping({"ward": generator.integers(0, 3, len(clusters))}, len(clusters))
        reached.append(
            group_analysis(confidence, latent < confidence, grouping, clusters=clusters, resamples=200).critical
        )
    assert 2.2 < np.median(reached) < 2.6


@pytest.mark.parametrize(
    ("n", "chance", "events"), [(400, 0.004, 0), (400, 0.004, 5), (200, 0.04, 14), (500, 0.6, 310)]
)
def test_intervals_of_groups_are_those_of_a_binomial_at_its_mid_p(n, chance, events):
    """Standard errors to either side held rates below 0, and 98 to 99% of the truths of groups with an error or two."""
    right = np.arange(n) < events
    grouping = make_grouping({"ward": np.zeros(n)}, n)
    found = group_analysis(np.full(n, chance), right, grouping, resamples=200, about="positive class")
    gap, ratio = (found.groups[0].metrics[name] for name in ("gap", "observed_expected"))

    def tail(rate: float, side: int) -> float:
        """Normal number of the mid-p value of so many events, or of more, where this is their rate."""
        seen = binom.cdf(events - 1, n, rate) + binom.pmf(events, n, rate) / 2
        return (seen if side > 0 else 1 - seen) - ndtr(-found.critical)

    high = brentq(tail, max(events, 0.5) / n, 0.99, args=(1,))
    low = brentq(tail, 1e-9, events / n, args=(-1,)) if events else 0.0
    assert (chance - gap.high, chance - gap.low) == pytest.approx((low, high), abs=0.1 * (high - low))
    assert chance - gap.high >= -1e-12
    assert (ratio.low, ratio.high) == pytest.approx((1 - gap.high / chance, 1 - gap.low / chance))
    joined = group_analysis(np.full(n, chance), right, grouping, resamples=200, clusters=np.arange(n) // 2)
    wide = joined.groups[0].metrics["gap"]
    assert wide.low < gap.low < gap.high <= wide.high + 1e-12  # neighbours err together
