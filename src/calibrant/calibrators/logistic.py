"""Logistic regressions on one score: Platt, beta and quadratic scaling, and where the likelihood has no maximum."""

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, ClassVar

import numpy as np

from calibrant.calibrators.base import BinaryCalibrator
from calibrant.calibrators.learned import Learned
from calibrant.calibrators.maps import like, numpy_space
from calibrant.calibrators.solvers.likelihood import check_penalty
from calibrant.calibrators.solvers.temperature import warn_no_optimum
from calibrant.core.arrays import Array
from calibrant.core.errors import InputError, warn_user
from calibrant.core.rows import Rows, score_range
from calibrant.core.statistic import add, statistic
from calibrant.core.threads import map_blocks, row_blocks
from calibrant.kernels.logistic import (
    LogisticFit,
    Pull,
    Units,
    descend,
    fit_logistic,
    is_separable,
    logistic_sums,
    smoothed_targets,
)

Columns = Callable[[Array], Array]
"""Scores (n,) → features (d, n), each non-decreasing in the score; it must be possible to send it to a process."""

FEW = 10.0
"""Fewer rows of a class than this leave the slope of a fit uncertain, and are mentioned."""

SAMPLE_ROWS = 20_000
"""Rows of the fit that the passes over all rows start from."""

BLOCK_ROWS = 1 << 16


class LogisticScaling(BinaryCalibrator, is_base=True, few_parameters=True, additive_scores=True):
    """Base of maps sigmoid(slopes · columns + intercept) of highest likelihood.

    A method writes `_columns(ends)`, given the lowest and highest score of each label: the columns of scores, and the
    parameters that leave the scores as they are.
    """

    non_negative: ClassVar[bool] = True
    """Whether every slope is held at or above 0."""
    _columns: Any

    def __init__(self, penalty: float = 0.0) -> None:
        self.penalty = penalty

    def _fit_binary(self, rows: Rows) -> None:
        penalty = check_penalty(self.penalty, "penalty", by_cv=False)
        ends = score_range(rows)
        make, identity = self._columns(ends)
        name = type(self).__name__
        found = fit_scores(name, rows, ends, make, np.array(identity), penalty=penalty, non_negative=self.non_negative)
        self.objective_trace_, self.n_iter_ = found.trace, max(1, len(found.trace))
        self._keep(found.point)

    def _keep(self, point: Array) -> None:
        for name, value in zip(self.learns, point, strict=True):
            setattr(self, name, float(value))


class PlattScaling(LogisticScaling):
    """Logistic regression on the logit of one score: P(y = 1) = sigmoid(a·s + b) (Platt 1999).

    a and b maximise the likelihood. If it has no maximum, because a threshold separates the classes or one is absent,
    they fit Platt's smoothed targets (`smoothed_targets`), and a FitWarning reports it.

    Parameters
    ----------
    penalty : number
        λ of ½·λ·(var(s)·(a − 1)² + b²), added to the summed log loss.

    Attributes
    ----------
    slope_, intercept_ : the learned a and b.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant import PlattScaling
    >>> rng = np.random.default_rng(0)
    >>> scores = 3 * rng.normal(size=2000)
    >>> labels = rng.random(2000) < 1 / (1 + np.exp(-scores / 3))
    >>> fitted = PlattScaling().fit(scores, labels)
    >>> fitted.slope_ < 0.5, fitted.predict_proba(scores).shape
    (True, (2000, 2))
    """

    non_negative = False
    learns = {"slope_": Learned(()), "intercept_": Learned(())}

    def _columns(self, ends: Array) -> tuple[Columns, list[float]]:
        return line_columns, [1.0, 0.0]

    def _map_binary(self, xp, scores, learned):
        return scores * like(xp, learned.slope_, scores) + like(xp, learned.intercept_, scores)


class BetaCalibration(LogisticScaling, keeps_ranking=True):
    """P(y = 1) = sigmoid(a·ln p − b·ln(1 − p) + c) with a, b ≥ 0 (Kull, Silva Filho & Flach 2017).

    Low and high probabilities are stretched apart or together each by its own factor; a = b is Platt scaling. The map
    never reverses the order of two scores. a, b, c maximise the likelihood. If it has no maximum, because a threshold
    separates the classes or one is absent, they fit Platt's smoothed targets, and a FitWarning reports it.

    Parameters
    ----------
    penalty : number
        λ of ½·λ·(var(ln p)·(a − 1)² + var(ln(1 − p))·(b − 1)² + c²), added to the summed log loss.

    Attributes
    ----------
    a_, b_, intercept_ : the learned a, b and c.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant import BetaCalibration
    >>> rng = np.random.default_rng(0)
    >>> scores = 3 * rng.normal(size=2000)
    >>> labels = rng.random(2000) < 1 / (1 + np.exp(-scores / 3))
    >>> fitted = BetaCalibration().fit(scores, labels)
    >>> fitted.a_ < 0.5, fitted.b_ < 0.5
    (True, True)
    """

    learns = {"a_": Learned((), 0.0), "b_": Learned((), 0.0), "intercept_": Learned(())}

    def _columns(self, ends: Array) -> tuple[Columns, list[float]]:
        return beta_columns, [1.0, 1.0, 0.0]

    def _map_binary(self, xp, scores, learned):
        a, b, c = (like(xp, one, scores) for one in (learned.a_, learned.b_, learned.intercept_))
        low, high = beta_features(xp, scores)
        return a * low + b * high + c


class QuadraticScaling(LogisticScaling, keeps_ranking=True):
    """P(y = 1) = sigmoid(c₀ + c₁·s + c₂·s²), increasing on the range of the fit data and linear outside it.

    The derivative c₁ + 2·c₂·s is linear, so it is at least 0 on the range where it is at both ends: the fit is a
    logistic regression with two slopes that are held at or above 0. If the likelihood has no maximum, because a
    threshold separates the classes or one is absent, they fit Platt's smoothed targets, and a FitWarning reports it.

    Parameters
    ----------
    penalty : number
        λ of a pull to the identity, in the parameters slope at the lowest score, slope at the highest score (each
        times the variance of its column) and value at the lowest score; added to the summed log loss.

    Attributes
    ----------
    coef_ : array (3,)
        c₀, c₁, c₂.
    range_ : array (2,)
        Lowest and highest score of the fit data; beyond them the map is a straight line up to the floor of zeros.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant import QuadraticScaling
    >>> rng = np.random.default_rng(0)
    >>> scores = 3 * rng.normal(size=2000)
    >>> labels = rng.random(2000) < 1 / (1 + np.exp(-scores / 3))
    >>> QuadraticScaling().fit(scores, labels).coef_.shape
    (3,)
    """

    learns = {"coef_": Learned((3,)), "range_": Learned((2,), increasing=True, free=False)}

    def _columns(self, ends: Array) -> tuple[Columns, list[float]]:
        self.range_ = np.array([ends[:, 0].min(), ends[:, 1].max()])
        return partial(slope_columns, knots=self._knots()), [1.0, 1.0, self.range_[0]]

    def _knots(self) -> Array:
        low, high = self.range_
        return np.array([low, high if high > low else low + 1.0])

    def _keep(self, point: Array) -> None:
        (first, last, value), (low, high) = point, self._knots()
        bend = (last - first) / (2 * (high - low))
        slope = first - 2 * bend * low
        self.coef_ = np.array([value - low * (slope + bend * low), slope, bend])

    def _check_learned(self) -> None:
        ends = self.coef_[1] + 2 * self.coef_[2] * np.asarray(self.range_)
        if ends.min() < -1e-6 * (1 + np.abs(self.coef_).max()):
            raise InputError("QuadraticScaling.coef_ falls within range_: the map must increase there")

    def _map_binary(self, xp, scores, learned):
        coef, ends = like(xp, learned.coef_, scores), like(xp, learned.range_, scores)
        inside = xp.minimum(xp.maximum(scores, ends[0]), ends[1])
        # the slope at the ends is 0 or more up to rounding
        slope = xp.at_least(coef[1] + 2 * coef[2] * inside, 0.0)
        return coef[0] + inside * (coef[1] + coef[2] * inside) + slope * (scores - inside)


def fit_scores(
    name: str,
    rows: Rows,
    ends: Array,
    make: Columns,
    identity: Array,
    *,
    penalty: float = 0.0,
    non_negative: bool = True,
) -> LogisticFit:
    """Slopes and intercept of sigmoid(slopes · columns + intercept) by maximum likelihood.

    With a penalty λ, ½·λ·(Σ_j var(column_j)·(slope_j − identity_j)² + (intercept − identity)²) is added to the summed
    log loss. Without one the targets are smoothed if the likelihood has no maximum.

    Parameters
    ----------
    name : of the method, for warnings
    rows : one score per row
    ends : their `score_range`
    make : columns of scores
    identity : array (d + 1,), the parameters that leave the scores as they are
    non_negative : hold every slope at or above 0
    """
    positives = float(rows.mass() @ rows.labels)
    low, high, negatives = float(ends[:, 0].min()), float(ends[:, 1].max()), rows.total_weight - positives
    fewest = min(positives, negatives)
    if fewest > 0 and low == high:
        warn_user(f"{name}: all scores are equal, so that only the base rate can be learned")
        point = identity.copy()
        point[-1] += math.log(positives / negatives) - float(identity[:-1] @ make(np.array([low]))[:, 0] + identity[-1])
        return LogisticFit(point, np.empty(0), True)
    targets = np.array([0.0, 1.0])
    if penalty == 0 and is_separable(ends, non_negative=non_negative):
        why = (
            "all labels are equal (were the rows selected by label?)"
            if fewest == 0
            else "a threshold of the score separates the classes"
        )
        warn_no_optimum(f"{name}: {why}", "Platt's smoothed targets were fitted")
        targets = smoothed_targets(negatives, positives)
    elif fewest < FEW:
        warn_user(f"{name}: the fit data hold only {fewest:g} rows of one class, so the map is uncertain")
    if rows.in_memory:
        columns = make(rows.logits)
        pull = pull_to(identity, Units.of(columns, rows.weights).spread ** 2, penalty) if penalty else None
        found = fit_logistic(columns, targets.take(rows.labels), rows.weights, non_negative=non_negative, pull=pull)
    else:
        # scores on disk: a first pass finds the units of the columns, and each Newton step is one
        middle, *outer = make(np.array([(low + high) / 2, low, high])).T
        mass, first, second = rows.total(column_sums, make, middle)
        variances = np.maximum(second / mass - (first / mass) ** 2, 0.0)
        units = Units.made(middle + first / mass, np.sqrt(variances), np.abs(outer).max(axis=0))
        start, sample = identity, rows.sample(SAMPLE_ROWS)
        if sample.total_weight > 0:
            # with as little of a pull as makes the fit of a sample finite
            weak, columns = pull_to(identity, variances, 1e-3), make(sample.logits)
            start = fit_logistic(columns, sample.labels, sample.weights, non_negative=non_negative, pull=weak).point
        found = descend(
            lambda point: rows.total(score_sums, make, units, targets, point),
            rows.total_weight,
            units.inward(start),
            np.append(np.full(len(middle), 0.0 if non_negative else -np.inf), -np.inf),
            units.pull(pull_to(identity, variances, penalty)) if penalty else None,
        )
        found = found._replace(point=units.outward(found.point))
    if not found.converged:
        warn_user(f"{name} did not converge in {len(found.trace)} Newton steps")
    return found


def pull_to(identity: Array, variances: Array, strength: float) -> Pull:
    """The pull of this strength; a column that hardly varies is held as firmly as the intercept."""
    firm = np.where(variances > 1e-12, variances, 1.0)
    return Pull(identity, strength * np.diag(np.append(firm, 1.0)))


@statistic
def column_sums(scores: Array, labels: Array, weights: Array | None, make: Columns, middle: Array) -> tuple[Any, ...]:
    """Σw, Σw·(x − middle) and Σw·(x − middle)² of the columns."""
    weight = np.ones(len(scores)) if weights is None else weights

    def part(block):
        away = make(scores[block]) - middle[:, None]
        return weight[block].sum(), away @ weight[block], (away * away) @ weight[block]

    return reduce(add, map_blocks(part, _blocks(scores)))


@statistic
def score_sums(  # noqa: PLR0917 (a statistic takes its parameters by position)
    scores: Array,
    labels: Array,
    weights: Array | None,
    make: Columns,
    units: Units,
    targets: Array,
    point: Array,
) -> tuple[Any, ...]:
    """Summed log loss, gradient and Hessian at a point, in units of the columns."""

    def part(block):
        columns = units.scale(make(scores[block]))
        return logistic_sums(columns, targets.take(labels[block]), None if weights is None else weights[block], point)

    return reduce(add, map_blocks(part, _blocks(scores)))


def _blocks(scores: Array) -> list[slice]:
    return row_blocks(len(scores), 1, BLOCK_ROWS) or [slice(0)]


def stacked(features: Callable[..., Sequence[Any]], scores: Array, **options: Any) -> Array:
    """The features (d, n) of scores (n,) in float64, as a method's map reads them, on all cores."""

    def part(block):
        return np.stack(features(numpy_space, scores[block].astype(np.float64), **options))

    return np.concatenate(map_blocks(part, _blocks(scores)), axis=1)


def line_columns(scores: Array) -> Array:
    """The score itself (1, n)."""
    return scores.astype(np.float64)[None]


def beta_features(xp: Any, scores: Any) -> tuple[Any, Any]:
    """ln p and −ln(1 − p) of log-odds (n,); both increase with the score."""
    rest, zero = xp.log1p(xp.exp(-xp.abs(scores))), xp.zeros_like(scores)
    return xp.minimum(scores, zero) - rest, xp.maximum(scores, zero) + rest


beta_columns = partial(stacked, beta_features)
"""The features of a score as the fit reads them, (2, n)."""


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
