"""A bent line in the logit of a binary score: the default for binary problems."""

from itertools import product

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.special import expit, ndtri, softmax

from calibrant.calibrators import maps
from calibrant.calibrators.base import BinaryCalibrator
from calibrant.calibrators.learned import Learned
from calibrant.calibrators.logistic import fit_scores, line_columns
from calibrant.calibrators.solvers.folds import content_folds
from calibrant.core.arrays import Array, check_whole
from calibrant.core.rows import Rows, score_range
from calibrant.core.softmax import probability_log_odds
from calibrant.kernels.logistic import is_separable, newton

LINEAR = (1.0, 10.0, 1e3, 1e5)
"""Penalties of the change of the slope."""

BEND = (0.1, 1.0, 10.0, 100.0, 1e3, 1e5)
"""Penalties of the bends."""

INTERCEPT = (1.0, 30.0, 1000.0)
"""Penalties of the intercept; the least keeps the fit finite where all labels are equal."""

BREAKS = (-1.8, -1.2, -0.6, 0.0, 0.6, 1.2, 1.8)
"""Where the map may bend, in standard deviations of the normal score."""

TEMPER = 0.65
"""The weight of a triple of penalties is exp(−TEMPER·excess of its held-out loss), times its prior."""

STRAIGHT = 0.15
"""The prior of a triple grows with this power of the penalty of its bends: few rows rarely pay for bends."""

ENOUGH = 1e-6
"""Summed log loss that a fit may still gain before its last step."""

PRIOR_ROWS = 10.0
"""Each step of the isotonic fit is averaged with this many rows that follow the smooth map.

They are rows of probability ½. Where positives are rare, a row carries less information, and ¼ / (p·(1 − p)) times as
many are taken.
"""

SHARE, SHARE_ROWS = 0.2, 20.0
"""The share of the steps before any row is seen, and how many rows, counted as above, that prior is worth."""

CURVED = 10.0
"""Largest spread of the calibrated logits at the start of a fit."""

LARGEST = 1 - 1e-12

MAX_ROUNDS, SETTLED = 200, 1e-5
"""Of the EM algorithm for the share of the steps: its most rounds, and the change at which it ends."""

OUTER_SHARE = 0.05
"""The slope beyond the last knot is that over this share of the knots, where it is less than that of the last two."""


class BendScaling(BinaryCalibrator, keeps_ranking=True):
    """A monotone, piecewise linear map of the logit, shrunk to the identity as far as the data ask.

    With z the logit of the positive class and t(z) its normal score (Φ⁻¹ of its rank in the fit data),

        logit q = z + c₀ + c₁·z + Σ_k d_k·max(t(z) − t_k, 0),

    seven bends at t_k = −1.8 … 1.8. The coefficients minimise Σ w·log loss + ½·(κ·c₀² + λ·c₁² + μ·Σ d²) for each of
    72 triples (κ, λ, μ), from nearly free to nearly the identity; the triples are averaged with weights
    μ^0.15·exp(−0.65·excess of the cross-validated log loss), which varies less than the best one alone. The normal
    score lets the map bend where the rows are, also where scores are saturated. The values at the knots are made
    non-decreasing, so that the order of probabilities is never reversed. Last, the probability is pooled with that of
    an isotonic regression whose steps are shrunk to it; the share of the steps, 0.2 before any row, maximises the
    held-out likelihood. Beyond the fit data the map continues linearly up to the floor of zeros. Scores that a
    threshold other than 0 separates are no log-odds: their map is that of `PlattScaling`.

    Parameters
    ----------
    n_knots : int
        Most knots at which the map is stored; between them it is linear.
    seed : int
        Of the folds of the cross-validation.

    Attributes
    ----------
    knots_ : (B,) logits.
    values_ : (B,) calibrated logits at the knots, non-decreasing.
    slopes_ : (2,) slopes below the first and above the last knot.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant import BendScaling
    >>> rng = np.random.default_rng(0)
    >>> scores = 2 * rng.normal(size=2000)
    >>> labels = (rng.random(2000) < 1 / (1 + np.exp(1 - scores / 2))).astype(int)
    >>> fitted = BendScaling().fit(scores, labels)
    >>> bool(abs(fitted.predict_proba(scores)[:, 1].mean() - labels.mean()) < 0.01)
    True
    """

    learns = {
        "knots_": Learned(("B",), increasing=True),
        "values_": Learned(("B",), increasing=True),
        "slopes_": Learned((2,), 0.0),
    }
    n_parameters_ = 2 + len(BREAKS)
    """Intercept, slope and bends."""

    def __init__(self, n_knots=128, *, seed=0):
        self.n_knots = n_knots
        self.seed = seed

    def _fit_binary(self, rows: Rows) -> None:
        n_knots, n_folds = check_whole(self.n_knots, "n_knots", 2), int(min(5, max(2, rows.total_weight)))
        ends = score_range(rows)
        if is_separable(ends) and (ends[0, 1] > 0 or ends[1, 0] < 0):
            # rows without an error show no bend, and scores that a threshold other than 0 separates are no log-odds
            found = fit_scores("BendScaling", rows, ends, line_columns, np.array([1.0, 0.0]))
            self.knots_ = ends[:, 0].min() + np.array([0.0, 1.0])
            self.values_, self.slopes_ = np.polyval(found.point, self.knots_), np.full(2, found.point[0])
            return
        knots, values = fit_bend(rows, content_folds(rows.matrix(), n_folds, self.seed), n_knots)
        if len(knots) == 1:
            knots, values = knots + np.array([0.0, 1.0]), values + np.array([0.0, 1.0])
        self.knots_, self.values_ = knots, values
        # one steep step between the last two knots is not continued
        reaches = 1, max(1, int(OUTER_SHARE * len(knots)))
        low = min((values[j] - values[0]) / (knots[j] - knots[0]) for j in reaches)
        high = min((values[-1] - values[-1 - j]) / (knots[-1] - knots[-1 - j]) for j in reaches)
        self.slopes_ = np.array([low, high])

    def _map_binary(self, xp, scores, learned):
        given, knots, zero = maps.wide(xp, scores), learned.knots_, xp.zeros_like(scores)
        calibrated = maps.interpolate(xp, given, knots, learned.values_)
        calibrated = calibrated + learned.slopes_[0] * xp.minimum(given - knots[0], zero)
        calibrated = calibrated + learned.slopes_[1] * xp.maximum(given - knots[-1], zero)
        return maps.like(xp, calibrated, scores)


def fit_bend(rows: Rows, fold: Array, n_knots: int) -> tuple[Array, Array]:
    """Knots and non-decreasing values: fits of all penalties, averaged by held-out log loss, pooled with steps."""
    knots, place, scores, masses, spread, features, knot_features = group_rows(rows, n_knots)
    # weight of the labels 0 and 1 in each cell and fold
    shape = int(fold.max()) + 1, 2, len(knots)
    code = np.ravel_multi_index((fold, rows.labels, place), shape)
    by_fold = np.bincount(code, rows.weights, int(np.prod(shape))).reshape(shape).astype(np.float64)
    total = by_fold.sum(axis=0)
    counts = np.concatenate([total - by_fold, total[None]])
    ridge = np.array(
        [[first, second, *[bend] * len(BREAKS)] for first, second, bend in product(INTERCEPT, LINEAR, BEND)]
    )
    problems = np.repeat(np.arange(len(counts)), len(ridge))
    # the slope per unit of spread; 1 + c₁ is its share of the identity's
    identity = np.zeros(ridge.shape[1])
    identity[1] = spread
    penalties = ridge / np.array([1.0, max(spread, 1.0) ** 2, *[1.0] * len(BREAKS)])
    points = solve(features, counts[problems], np.tile(penalties, (len(counts), 1)), identity)
    points = points.reshape(len(counts), len(ridge), -1)
    losses = np.zeros(len(ridge))
    for held_out, (negative, positive) in zip(points[:-1] @ features.T, by_fold, strict=True):
        softplus = np.maximum(held_out, 0.0) + np.log1p(np.exp(-np.abs(held_out)))
        losses += softplus @ (negative + positive) - held_out @ positive
    # the weight of each triple of penalties (m,), from its held-out loss and its prior
    averages = np.tensordot(softmax(STRAIGHT * np.log(ridge[:, -1]) - TEMPER * losses), points, axes=(0, 1))
    smooth = averages @ features.T
    smooth = np.stack([isotonic(one, given.sum(axis=0) + 1e-9) for one, given in zip(smooth, counts, strict=True)])
    # steps are constant between knots: what they add to the smooth map is interpolated between the cells' means
    added = np.interp(knots, scores, pooled(smooth, counts, by_fold) - smooth[-1])
    values = isotonic(knot_features @ averages[-1], masses + 1e-9)
    return knots, isotonic(values + added, masses + 1e-9)


def group_rows(rows: Rows, n_knots: int) -> tuple[Array, Array, Array, Array, float, Array, Array]:
    """Knots at evenly spaced quantiles of the weight, and the rows between two of them as one cell.

    Return the knots, the cell of each row, the score and weight of each cell, the spread of the scores, the features of
    each cell, and the features of the knots: all fitted maps are linear between two knots.
    """
    scores, weights = rows.logits.astype(np.float64), rows.mass()
    values, which = np.unique(scores, return_inverse=True)
    mass = np.bincount(which, weights=weights)
    values, mass = values[mass > 0], mass[mass > 0]
    below = np.cumsum(mass)
    chosen = np.arange(len(values))
    if len(values) > n_knots:
        wanted = np.linspace(0.0, below[-1], n_knots)
        chosen = np.unique(np.append(np.minimum(np.searchsorted(below, wanted), len(values) - 1), [0, len(values) - 1]))
    knots = values[chosen]
    # the normal score is that of the middle of the rows tied at a knot
    normal = ndtri(((below - mass / 2)[chosen] + 0.5) / (below[-1] + 1.0))
    spread = np.sqrt(max(np.average((values - np.average(values, weights=mass)) ** 2, weights=mass), 1e-24))
    hinges = np.maximum(normal[:, None] - np.array(BREAKS), 0.0)
    knot_features = np.column_stack([np.ones(len(knots)), knots / spread, hinges])
    place = np.clip(np.searchsorted(knots, scores, side="right") - 1, 0, len(knots) - 1)
    masses = np.bincount(place, weights=weights, minlength=len(knots))
    means = np.bincount(place, weights=weights * scores, minlength=len(knots))
    means = np.where(masses > 0, means / np.where(masses > 0, masses, 1.0), knots)
    features = np.column_stack([np.interp(means, knots, column) for column in knot_features.T])
    return knots, place, means, masses, float(spread), features, knot_features


def solve(features: Array, counts: Array, ridge: Array, centre: Array) -> Array:
    """Points (P×m) that minimise Σ n₁·log(1 + e^−u) + n₀·log(1 + e^u) + ½·Σ ridge·(θ − centre)² with u = X·θ.

    P problems share the features X (c×m) and differ in their counts (P×2×c) of labels 0 and 1 and in their ridge (P×m).
    """
    weights, n_features = counts.sum(axis=1), features.shape[1]
    products = (features[:, :, None] * features[:, None, :]).reshape(len(features), -1)

    def evaluate(points: Array, which: Array) -> tuple[Array, Array, Array]:
        scores = points @ features.T
        small = np.exp(-np.abs(scores))
        share = 1.0 / (1.0 + small)
        weight, positive = weights[which], counts[which, 1]
        # all problems share the features, so that matrix products sum over the cells
        losses = (weight * (np.maximum(scores, 0.0) - np.log(share)) - positive * scores).sum(axis=1)
        gradient = (weight * np.where(scores >= 0, share, small * share) - positive) @ features
        hessian = (weight * (small * share * share) @ products).reshape(-1, n_features, n_features)
        np.einsum("pii->pi", hessian)[:] += ridge[which]
        away = points - centre
        return losses + 0.5 * (ridge[which] * away**2).sum(axis=1), gradient + ridge[which] * away, hessian

    # saturated rows have no curvature
    start = np.tile(np.minimum(centre, CURVED), (len(ridge), 1))
    return newton(evaluate, start, np.full(ridge.shape[1], -np.inf), gap=ENOUGH)[0]


def isotonic(values: Array, weights: Array) -> Array:
    """The non-decreasing sequence nearest to the values (c,) in weighted squares."""
    return np.asarray(isotonic_regression(values, weights=weights).x, dtype=np.float64)


def pooled(scores: Array, counts: Array, held_out: Array) -> Array:
    """Logits (c,) of the smooth map pooled with steps: q = (1 − s)·p + s·isotonic.

    The isotonic fit reads the counts of both labels per cell; its blocks are shrunk to the smooth map. The share s has
    the largest likelihood over the held-out cells, found by the EM algorithm of a mixture with a beta prior.

    Parameters
    ----------
    scores : array (F + 1, c)
        Non-decreasing logits of the smooth map without each of F folds, and of the fit to all rows.
    counts : array (F + 1, 2, c)
        Labels 0 and 1 per cell that each of them was fitted to.
    held_out : array (F, 2, c)
        Labels per cell in each fold.
    """
    smooth = np.clip(expit(scores), 1 - LARGEST, LARGEST)
    stepped = np.stack([steps(one, given) for one, given in zip(smooth, counts, strict=True)])
    negative, positive = held_out[:, 0], held_out[:, 1]
    total, share = held_out.sum(), SHARE
    prior = SHARE_ROWS * float(_rows_per_even_row(positive.sum() / total))
    for _ in range(MAX_ROUNDS):
        mixed = (1 - share) * smooth[:-1] + share * stepped[:-1]
        owed = positive * stepped[:-1] / mixed + negative * (1 - stepped[:-1]) / (1 - mixed)
        following = (share * float(owed.sum()) + SHARE * prior) / (total + prior)
        if abs(following - share) < SETTLED:
            break
        share = following
    return probability_log_odds((1 - share) * smooth[-1] + share * stepped[-1])


def steps(smooth: Array, counts: Array) -> Array:
    """Isotonic probabilities (c,) of counts (2×c); cells without rows lie between their neighbours."""
    mass = counts.sum(axis=0)
    seen = np.flatnonzero(mass > 0)
    if not len(seen):
        return smooth
    rates = isotonic(counts[1, seen] / mass[seen], mass[seen])
    _, block = np.unique(rates, return_inverse=True)
    rows = np.bincount(block, weights=mass[seen])
    positive = np.bincount(block, weights=counts[1, seen])
    expected = np.bincount(block, weights=mass[seen] * smooth[seen]) / rows
    prior = PRIOR_ROWS * _rows_per_even_row(expected)
    shrunk = isotonic((positive + prior * expected) / (rows + prior), rows)
    found = np.interp(np.arange(len(smooth)), seen, shrunk[block])
    return np.clip(found, 1 - LARGEST, LARGEST)


def _rows_per_even_row(probability: Array | float) -> Array:
    """Rows of a probability that carry as much information on their log-odds as one row of probability ½."""
    return np.asarray(0.25 / np.maximum(probability * (1 - probability), 1e-9))
