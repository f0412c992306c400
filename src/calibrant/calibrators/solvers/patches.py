"""Boosting over groups of rows: additive patches of log-odds, piecewise linear over a few knots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from calibrant.core.arrays import Array

RATE = 0.5
"""Part of a Newton step that a round takes."""
PRIOR_ROWS = 30.0
"""Rows of ordinary variance that each value of a patch is pulled to 0 by."""


class Patched(NamedTuple):
    """Rows as patches see them: hat functions (n×M), log-odds, outcome, weight and finest group of each."""

    basis: Array
    log_odds: Array
    correct: Array
    weights: Array
    groups: Array

    def take(self, index: Array) -> Patched:
        """The rows at these places."""
        return Patched(*(column[index] for column in self))


def hats(log_odds: Array, knots: Array) -> Array:
    """Weights (n×M) with which the values at the knots (M,) make up a piecewise linear function, constant outside."""
    return np.stack([np.interp(log_odds, knots, unit) for unit in np.eye(len(knots))], axis=1)


def fit_patches(data: Patched, members: Array, rounds: int) -> tuple[Array, Array]:
    """Values (G×M) after so many rounds, and the mean log loss at the end (1,)."""
    *_, values = patch_path(data, members, rounds)
    score = data.log_odds + (data.basis * values[data.groups]).sum(axis=1)
    losses = np.logaddexp(0.0, np.where(data.correct, -score, score))
    return values, np.array([float(np.average(losses, weights=data.weights))])


def patch_path(data: Patched, members: Array, rounds: int) -> Iterator[Array]:
    """Values (G×M) after 0, 1, …, `rounds` rounds; a patch is for a union of finest groups, members (P, G)."""
    size = data.basis.shape[1]
    values, score = np.zeros((members.shape[1], size)), data.log_odds.copy()
    yield values.copy()
    for _ in range(rounds):
        chance = np.exp(-np.logaddexp(0.0, -score))
        slopes, curves = _sums(data, members, chance)
        variance = float(np.average(chance * (1 - chance), weights=data.weights))
        curves = curves + PRIOR_ROWS * max(variance, 1e-6) * np.eye(size)
        steps = np.linalg.solve(curves, slopes[:, :, None])[:, :, 0]
        best = int(np.argmax((slopes * steps).sum(axis=1)))
        values[members[best]] += RATE * steps[best]
        mine = np.flatnonzero(members[best][data.groups])
        score[mine] += RATE * (data.basis[mine] @ steps[best])
        yield values.copy()


def _sums(data: Patched, members: Array, chance: Array) -> tuple[Array, Array]:
    """Gradient (P, M) and curvature (P, M, M) of each group's patch."""
    n_groups, size = members.shape[1], data.basis.shape[1]
    residual = data.weights * (data.correct - chance)
    curve = data.weights * chance * (1 - chance)
    slopes = np.stack([np.bincount(data.groups, residual * hat, n_groups) for hat in data.basis.T], axis=1)
    curves = np.zeros((n_groups, size, size))
    for i in range(size):
        # hats overlap with their neighbours only
        for j in range(i, min(i + 2, size)):
            product = data.basis[:, i] * data.basis[:, j]
            curves[:, i, j] = curves[:, j, i] = np.bincount(data.groups, curve * product, n_groups)
    return members @ slopes, np.einsum("pg,gij->pij", members, curves)
