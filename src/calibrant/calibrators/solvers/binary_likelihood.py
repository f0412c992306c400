"""Maximum likelihood for maps of one score, and what is done where the likelihood has no maximum."""

from __future__ import annotations

import warnings

import numpy as np

from calibrant.core.errors import FitWarning, InputError
from calibrant.core.rows import Rows
from calibrant.kernels.logistic import LogisticFit, Pull, fit_logistic, separable
from calibrant.metrics.clinical import offset_of

FEW = 10.0
"""Fewer rows of a class than this leave the slope of a fit uncertain, and are mentioned."""

WEAK_PULL = 1.0
"""Strength of the pull to the identity where the likelihood has no maximum: about as much as one more row."""


def check_strength(penalty: object) -> float:
    """A penalty of 0 or more."""
    if isinstance(penalty, bool) or not isinstance(penalty, (int, float, np.integer, np.floating)) or not penalty >= 0:
        raise InputError(f"penalty must be a number of at least 0, got {penalty!r}")
    return float(penalty)


def fit_map(
    name: str,
    rows: Rows,
    columns: np.ndarray,
    identity: np.ndarray,
    penalty: float = 0.0,
    *,
    non_negative: bool = True,
) -> LogisticFit:
    """Slopes and intercept of sigmoid(slopes · columns + intercept) by maximum likelihood.

    With a penalty λ, ½·λ·(Σ_j var(column_j)·(slope_j − identity_j)² + (intercept − identity)²) is added to the summed
    log loss. A threshold that separates the classes, or a single class, leaves no maximum: then λ = 1 and a FitWarning.
    Since the pull ends at the identity, the log loss of these rows is never above that of the scores as they are.

    Parameters
    ----------
    name : of the method, for warnings
    columns : array (d, n), each non-decreasing in the score
    identity : array (d + 1,), the parameters that leave the scores as they are
    non_negative : hold every slope at or above 0
    """
    labels = rows.labels.astype(np.float64)
    counted = rows.logits if rows.weights is None else rows.logits[rows.weights > 0]
    positives = float(labels.sum() if rows.weights is None else rows.weights @ labels)
    fewest = min(positives, rows.total_weight - positives)
    if fewest > 0 and counted.min() == counted.max():
        return _constant(name, rows, columns, identity, positives)
    apart = penalty == 0 and separable(rows.logits, labels, rows.weights, either=not non_negative)
    strength = strength_of(name, penalty, apart, fewest)
    pull = pull_to(identity, _variances(columns, rows.weights), strength) if strength else None
    found = fit_logistic(columns, labels, rows.weights, non_negative=non_negative, pull=pull)
    warn_unless_converged(name, found)
    return found


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


def warn_unless_converged(name: str, found: LogisticFit) -> None:
    """Say that the steps ended before the optimum."""
    if not found.converged:
        _warn(f"{name} did not converge in {len(found.trace)} Newton steps")


def _constant(name: str, rows: Rows, columns: np.ndarray, identity: np.ndarray, positives: float) -> LogisticFit:
    """All scores are equal: the map is moved so that it gives the base rate there."""
    _warn(f"{name}: all scores are equal, so that only the base rate can be learned")
    weight = np.ones(rows.n) if rows.weights is None else rows.weights
    scores = identity[:-1] @ columns + identity[-1]
    point = identity.copy()
    point[-1] += offset_of(scores, weight, positives)
    return LogisticFit(point, np.empty(0), True)


def _variances(columns: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    mean = np.average(columns, axis=1, weights=weights)
    return np.average((columns - mean[:, None]) ** 2, axis=1, weights=weights)


def _warn(message: str) -> None:
    warnings.warn(message, FitWarning, stacklevel=7)
