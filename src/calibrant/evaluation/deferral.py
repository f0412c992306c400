"""Defer the least sure cases to a person: risk against coverage, and thresholds that come with a guarantee."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.core.arrays import Array
from calibrant.core.errors import InputError
from calibrant.core.few_clusters import count_clusters, mean_error, needs_t_interval, t_quantile
from calibrant.core.schema import cluster_codes
from calibrant.evaluation.bootstrap import clopper_pearson
from calibrant.evaluation.consistency import design_effect, row_mass
from calibrant.evaluation.results import Comparison
from calibrant.metrics.inputs import check_binary
from calibrant.metrics.selective import RiskCoverage, risk_coverage

CANDIDATES = 100
"""Coverages at which a threshold is tried."""


@dataclass(frozen=True)
class Deferral:
    """What happens when every row below `threshold` goes to a person.

    kept, deferred : numbers of rows. coverage : share of the weight that is kept. error : share of errors among the
    kept, with its two-sided 95% Clopper–Pearson interval. deferred_error : share the model alone would have got wrong
    among the deferred.
    """

    threshold: float
    coverage: float
    kept: int
    deferred: int
    error: float
    error_low: float
    error_high: float
    deferred_error: float


@dataclass(frozen=True)
class GuaranteedThreshold:
    """The lowest threshold whose kept rows err at most `target`, with the stated confidence.

    `threshold` is infinite and `coverage` 0 when no threshold could be certified. `error_bound` is the one-sided
    Clopper–Pearson upper bound at the threshold.
    """

    target: float
    level: float
    threshold: float
    coverage: float
    kept: int
    error: float
    error_bound: float


def risk_coverage_curve(confidence: Any, correct: Any, weights: Any = None) -> RiskCoverage:
    """Risk–coverage curve of the rows (n,), ties in confidence kept or deferred together.

    Examples
    --------
    >>> curve = risk_coverage_curve([0.9, 0.8, 0.7, 0.6], [1, 1, 0, 1])
    >>> curve.coverage.tolist(), [round(risk, 3) for risk in curve.risk.tolist()]
    ([0.25, 0.5, 0.75, 1.0], [0.0, 0.0, 0.333, 0.25])
    """
    rows: Any = check_binary(confidence, correct, weights, from_logits=False)
    return risk_coverage(rows, ())


def kept_worth(confidence: Any, correct: Any, weights: Any, clusters: Any) -> tuple[RiskCoverage, Array]:
    """The curve, and how many independent rows of equal weight those kept at each of its places are worth.

    Rows are the sampling units, whatever they weigh (Kish); those of a cluster are worth fewer, by how much more its
    errors vary than those of single rows. Where there is no error to tell, they count as one row.
    """
    mass = row_mass(weights, len(confidence))
    curve, squares = (risk_coverage_curve(confidence, correct, one) for one in (mass, mass**2))
    if clusters is not None:
        clusters, _ = cluster_codes(clusters, len(mass))
    apart = mass * (1.0 - np.asarray(correct) - curve.risk[-1] - 1e-9)
    total = (mass.sum() * curve.coverage) ** 2 / (mass @ mass * squares.coverage)
    if needs_t_interval(count_clusters(clusters, mass)):
        # the spread of few clusters is uncertain itself (Korn & Graubard 1998)
        total *= (t_quantile(np.inf) / t_quantile(mean_error(apart, mass, clusters)[1])) ** 2
    return curve, total / design_effect(apart, clusters)


def defer(confidence: Any, correct: Any, share: float, *, weights: Any = None, clusters: Any = None) -> Deferral:
    """Defer the least sure `share` of the rows to a person.

    The threshold is the confidence of the last row kept, and rows tied with it are kept, so that a new row can be
    treated alike: at most `share` of the rows, or of their weight, are deferred.

    Examples
    --------
    >>> decision = defer([0.9, 0.8, 0.7, 0.6], [1, 1, 0, 1], share=0.5)
    >>> decision.threshold, decision.error, decision.deferred_error
    (0.8, 0.0, 0.5)
    """
    if not 0 <= share < 1:
        raise InputError(f"share must lie in [0, 1), got {share}: it is the part of the rows that is deferred")
    curve, worth = kept_worth(confidence, correct, weights, clusters)
    place = np.searchsorted(curve.coverage, 1 - share - 1e-12)
    threshold, coverage, error = (float(one[place]) for one in (curve.threshold, curve.coverage, curve.risk))
    kept = int((np.asarray(confidence) >= threshold).sum())
    rest = (curve.risk[-1] - coverage * error) / (1 - coverage) if coverage < 1 else np.nan
    ends = clopper_pearson(error * worth[place], worth[place])
    return Deferral(threshold, coverage, kept, len(confidence) - kept, error, *ends, float(rest))


def threshold_for_error(
    confidence: Any, correct: Any, target: float, *, level: float = 0.95, weights: Any = None, clusters: Any = None
) -> GuaranteedThreshold:
    """The threshold that keeps the most rows while their error is at most `target`, with probability ≥ `level`.

    Many thresholds are tried, so the bound is protected against picking a lucky one by fixed-sequence testing: the
    candidates (coverages 1%, 2%, …, 100%, known from the confidences alone) are tested from the strictest
    on, each with the one-sided Clopper–Pearson bound at the full level 1−δ, and the first failure ends the walk.
    Because the order does not depend on what was right, the chance of ever accepting a threshold whose true error
    exceeds the target is at most δ. The walk begins where at least 3·log(1/δ)/target rows are kept: with
    fewer, even a good threshold would fail by a single unlucky row. With weights and clusters, rows count for what they
    are worth (`kept_worth`).

    Examples
    --------
    >>> generator = np.random.default_rng(0)
    >>> confidence = generator.uniform(0.5, 1, 5000)
    >>> correct = generator.random(5000) < confidence
    >>> found = threshold_for_error(confidence, correct, target=0.1)
    >>> found.error_bound <= 0.1, 0.7 < found.threshold < 0.9
    (True, True)
    """
    if not 0 < target < 1:
        raise InputError(f"target must lie in (0, 1), got {target}: it is the error rate to stay below")
    if not 0 < level < 1:
        raise InputError(f"level must lie in (0, 1), got {level}")
    curve, worth = kept_worth(confidence, correct, weights, clusters)
    fewest = 3 * np.log(1 / (1 - level)) / target
    best = GuaranteedThreshold(target, level, np.inf, 0.0, 0, np.nan, np.nan)
    for place in np.unique(np.searchsorted(curve.coverage, np.arange(1, CANDIDATES + 1) / CANDIDATES - 1e-12)):
        threshold, coverage, error = (float(one[place]) for one in (curve.threshold, curve.coverage, curve.risk))
        # a sample too small for 3·log(1/δ)/target rows still gets one try, with everything kept
        if worth[place] < fewest and coverage < 1:
            continue
        bound = clopper_pearson(error * worth[place], worth[place], 2 * level - 1)[1] if level > 0.5 else 1.0
        if bound > target:
            break
        kept = int((np.asarray(confidence) >= threshold).sum())
        best = GuaranteedThreshold(target, level, threshold, coverage, kept, error, bound)
    return best


def defer_by_method(comparison: Comparison, share: float) -> dict[str, Deferral]:
    """`defer` for every method of a comparison, the uncalibrated "none" among them: before and after.

    A method that keeps the order of confidences defers the same rows, so only the threshold moves; what calibration
    adds is that the threshold then means what it says.
    """
    return _by_method(comparison, defer, share=share)


def thresholds_by_method(
    comparison: Comparison, target: float, *, level: float = 0.95
) -> dict[str, GuaranteedThreshold]:
    """`threshold_for_error` for every method of a comparison, the uncalibrated "none" among them."""
    return _by_method(comparison, threshold_for_error, target=target, level=level)


def _by_method(comparison: Comparison, found: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """What a function says of the test rows under every method that worked."""
    return {
        row.method: found(
            row.columns.confidence,
            row.columns.correct,
            weights=comparison.weights,
            clusters=comparison.clusters,
            **options,
        )
        for row in comparison.rows
        if row.columns is not None
    }
