"""Maximum likelihood for maps of one score, from arrays or pass by pass, and where the likelihood has no maximum."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from calibrant.calibrators.maps import numpy_space
from calibrant.core.errors import FitWarning, InputError
from calibrant.core.rows import Rows, score_range
from calibrant.core.statistic import add, statistic
from calibrant.core.threads import map_blocks, row_blocks
from calibrant.kernels.logistic import LogisticFit, Pull, Units, descend, fit_logistic, logistic_sums
from calibrant.metrics.clinical import weighted_quantile

Columns = Callable[[np.ndarray], np.ndarray]
"""Scores (n,) → features (d, n), each non-decreasing in the score; it must be possible to send it to a process."""

FEW = 10.0
"""Fewer rows of a class than this leave the slope of a fit uncertain, and are mentioned."""

WEAK_PULL = 1.0
"""Strength of the pull to the identity where the likelihood has no maximum: about as much as one more row."""

SAMPLE_ROWS = 20_000
"""Rows of the fit that the passes over all rows start from."""

BLOCK_ROWS = 1 << 16

OUTER_SHARES = (0.025, 0.975)
"""Where the outer knots stand; beyond them the map is straight."""

PULL_TO_LINE = 2.0
"""Strength of the pull of a spline to Platt scaling: about as much as two more rows."""


def check_strength(penalty: object) -> float:
    """A penalty of 0 or more."""
    if isinstance(penalty, bool) or not isinstance(penalty, (int, float, np.integer, np.floating)) or not penalty >= 0:
        raise InputError(f"penalty must be a number of at least 0, got {penalty!r}")
    return float(penalty)


def fit_scores(
    name: str, rows: Rows, make: Columns, identity: np.ndarray, penalty: float = 0.0, *, non_negative: bool = True
) -> LogisticFit:
    """Slopes and intercept of sigmoid(slopes · columns + intercept) by maximum likelihood.

    With a penalty λ, ½·λ·(Σ_j var(column_j)·(slope_j − identity_j)² + (intercept − identity)²) is added to the summed
    log loss. A threshold that separates the classes, or a single class, leaves no maximum: then λ = 1 and a FitWarning.
    Since the pull ends at the identity, the log loss of these rows is never above that of the scores as they are.

    Parameters
    ----------
    name : of the method, for warnings
    rows : one score per row
    make : columns of scores
    identity : array (d + 1,), the parameters that leave the scores as they are
    non_negative : hold every slope at or above 0
    """
    found_range, positives = score_range(rows), float(rows.mass() @ rows.labels)
    ends, low, high, negatives = found_range.ends, found_range.low, found_range.high, rows.total_weight - positives
    fewest = min(positives, negatives)
    if fewest > 0 and low == high:
        _warn(f"{name}: all scores are equal, so that only the base rate can be learned")
        point = identity.copy()
        point[-1] += math.log(positives / negatives) - float(identity[:-1] @ make(np.array([low]))[:, 0] + identity[-1])
        return LogisticFit(point, np.empty(0), True)
    apart = fewest == 0 or ends[0, 1] <= ends[1, 0] or (not non_negative and ends[1, 1] <= ends[0, 0])
    strength = strength_of(name, penalty, bool(apart), fewest)
    if rows.in_memory:
        columns = make(rows.logits)
        pull = pull_to(identity, Units.of(columns, rows.weights).spread ** 2, strength) if strength else None
        found = fit_logistic(columns, rows.labels, rows.weights, non_negative=non_negative, pull=pull)
    else:
        found = _streamed(rows, make, identity, strength, (low, high), non_negative)
    if not found.converged:
        _warn(f"{name} did not converge in {len(found.trace)} Newton steps")
    return found


def _streamed(  # noqa: PLR0917
    rows: Rows,
    make: Columns,
    identity: np.ndarray,
    strength: float,
    ends: tuple[float, float],
    non_negative: bool,
) -> LogisticFit:
    """The same over scores on disk: a first pass finds the units of the columns, and each Newton step is one."""
    middle, *outer = make(np.array([sum(ends) / 2, *ends])).T
    mass, first, second = rows.total(column_sums, make, middle)
    variances = np.maximum(second / mass - (first / mass) ** 2, 0.0)
    units = Units.made(middle + first / mass, np.sqrt(variances), np.abs(outer).max(axis=0))
    pull = pull_to(identity, variances, strength)
    start, sample = identity, rows.sample(SAMPLE_ROWS)
    if sample.total_weight > 0:
        # with as little of a pull as makes the fit of a sample finite
        weak, columns = pull_to(identity, variances, 1e-3), make(sample.logits)
        start = fit_logistic(columns, sample.labels, sample.weights, non_negative=non_negative, pull=weak).point
    found = descend(
        lambda point: rows.total(score_sums, make, units.mean, units.spread, point),
        rows.total_weight,
        units.inward(start),
        np.append(np.full(len(middle), 0.0 if non_negative else -np.inf), -np.inf),
        None if pull is None else units.pull(pull),
    )
    return LogisticFit(units.outward(found.point), found.trace, found.converged)


def strength_of(name: str, penalty: float, apart: bool, fewest: float) -> float:
    """The penalty, or a weak one where a threshold sets the classes apart; `fewest` is the weight of the rarer one."""
    if penalty == 0 and apart:
        why = "all labels are equal" if fewest == 0 else "a threshold of the score separates the classes"
        _warn(f"{name}: {why}, so the likelihood has no maximum; a weak pull to the identity was added")
        return WEAK_PULL
    if fewest < FEW:
        _warn(f"{name}: the fit data hold only {fewest:g} rows of one class, so the map is uncertain")
    return penalty


def pull_to(identity: np.ndarray, variances: np.ndarray, strength: float) -> Pull | None:
    """The pull of this strength; None at 0."""
    if strength == 0:
        return None
    # a column that hardly varies is held at the identity as firmly as the intercept
    firm = np.where(variances > 1e-12, variances, 1.0)
    return Pull(identity, strength * np.diag(np.append(firm, 1.0)))


def _warn(message: str) -> None:
    warnings.warn(message, FitWarning, stacklevel=7)


@statistic
def column_sums(
    scores: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, make: Columns, middle: np.ndarray
) -> tuple[Any, ...]:
    """Σw, Σw·(x − middle) and Σw·(x − middle)² of the columns."""
    weight = np.ones(len(scores)) if weights is None else weights

    def part(block: slice) -> tuple[Any, ...]:
        away = make(scores[block]) - middle[:, None]
        return weight[block].sum(), away @ weight[block], (away * away) @ weight[block]

    return reduce(add, map_blocks(part, row_blocks(len(scores), 1, BLOCK_ROWS)))


@statistic
def score_sums(  # noqa: PLR0917 (a statistic takes its parameters by position)
    scores: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None,
    make: Columns,
    mean: np.ndarray,
    spread: np.ndarray,
    point: np.ndarray,
) -> tuple[Any, ...]:
    """Summed log loss, gradient and Hessian at a point, in units of the columns."""

    def part(block: slice) -> tuple[Any, ...]:
        columns = (make(scores[block]) - mean[:, None]) / spread[:, None]
        return logistic_sums(columns, labels[block], None if weights is None else weights[block], point)

    return reduce(add, map_blocks(part, row_blocks(len(scores), 1, BLOCK_ROWS)))


def stacked(features: Callable[..., Sequence[Any]], scores: np.ndarray, **options: Any) -> np.ndarray:
    """The features (d, n) of scores (n,) in float64, as a method's map reads them, on all cores."""
    blocks = row_blocks(len(scores), 1, BLOCK_ROWS) or [slice(0)]
    parts = map_blocks(
        lambda block: np.stack(features(numpy_space, scores[block].astype(np.float64), **options)), blocks
    )
    return np.concatenate(parts, axis=1)


def line_columns(scores: np.ndarray) -> np.ndarray:
    """The score itself (1, n)."""
    return scores.astype(np.float64)[None]


def slope_features(xp: Any, scores: Any, knots: Any) -> list[Any]:
    """∫ hat_j from the first knot to each score (n,), for each of k ≥ 2 knots; hat_j is the tent function of knot j.

    The map u(s) = value + Σ_j slope_j·∫ hat_j has a broken line as slope: between knots it is a parabola, beyond them
    straight. It increases where all slopes are 0 or more, and slopes of 1 are the identity up to the value.
    """
    count, zero = knots.shape[0], xp.zeros_like(scores)
    columns = [xp.minimum(scores - knots[0], zero), *[zero] * (count - 2), xp.maximum(scores - knots[count - 1], zero)]
    for j in range(count - 1):
        width = knots[j + 1] - knots[j]
        along = xp.minimum(xp.maximum(scores - knots[j], zero), zero + width)
        rising = along * along / (2 * width)
        columns[j] = columns[j] + along - rising
        columns[j + 1] = columns[j + 1] + rising
    return columns


slope_columns = partial(stacked, slope_features)
"""The features of scores as a fit reads them, (k, n); takes `knots=`."""


def bent_map(xp: Any, scores: Any, knots: Any, slopes: Any, value: Any) -> Any:
    """u(s) (n,) of scores (n,), over the array API: knots and slopes (k,), the value at the first knot."""
    result = value + xp.zeros_like(scores)
    for j, column in enumerate(slope_features(xp, scores, knots)):
        result = result + slopes[j] * column
    return result


@dataclass(frozen=True)
class BentFit:
    """A fitted map: knots and slopes (k,), the value at the first knot, and the losses step by step."""

    knots: np.ndarray
    slopes: np.ndarray
    start: float
    trace: np.ndarray


def fit_bent(rows: Rows, n_knots: int) -> BentFit:
    """The increasing map of highest likelihood with knots at percentiles, pulled weakly to Platt scaling."""
    scores = rows.logits.astype(np.float64)
    shares = np.linspace(*OUTER_SHARES, n_knots)
    knots = np.unique(weighted_quantile(scores, shares, rows.weights))
    if len(knots) < 2 or knots[-1] - knots[0] < 1e-9 * (1 + abs(knots[0])):
        knots = np.array([knots[0], knots[0] + 1.0])
    straight = fit_scores("SplineCalibration", rows, line_columns, np.array([1.0, 0.0]))
    slope, intercept = straight.point
    centre = np.append(np.full(len(knots), slope), intercept + slope * knots[0])
    columns = slope_columns(scores, knots=knots)
    spread = np.maximum(np.average(columns**2, axis=1, weights=rows.weights), 1e-6)
    pull = Pull(centre, PULL_TO_LINE * np.diag(np.append(spread, 1.0)))
    found = fit_logistic(columns, rows.labels, rows.weights, start=centre, non_negative=True, pull=pull)
    return BentFit(knots, found.point[:-1], float(found.point[-1]), found.trace)
