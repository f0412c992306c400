"""Boosting over groups of rows: additive patches of log-odds, piecewise linear over a few knots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

RATE = 0.5
"""Part of a Newton step that a round takes."""
PRIOR_ROWS = 30.0
"""Rows of ordinary variance that each value of a patch is pulled to 0 by."""


@dataclass(frozen=True)
class Patched:
    """Rows as patches see them: hat functions (n×M), log-odds, outcome, weight and finest group of each."""

    basis: np.ndarray
    log_odds: np.ndarray
    correct: np.ndarray
    weights: np.ndarray
    groups: np.ndarray

    def take(self, index: np.ndarray) -> Patched:
        """The rows at these places."""
        return Patched(*(column[index] for column in vars(self).values()))


def hats(log_odds: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """Weights (n×M) with which the values at the knots (M,) make up a piecewise linear function, constant outside."""
    basis = np.zeros((len(log_odds), len(knots)))
    if len(knots) == 1:
        basis[:, 0] = 1.0
        return basis
    inside = np.clip(np.nan_to_num(log_odds, posinf=knots[-1], neginf=knots[0]), knots[0], knots[-1])
    left = np.clip(np.searchsorted(knots, inside, side="right") - 1, 0, len(knots) - 2)
    share = (inside - knots[left]) / (knots[left + 1] - knots[left])
    every = np.arange(len(log_odds))
    basis[every, left], basis[every, left + 1] = 1 - share, share
    return basis


class Patches:
    """Patches of groups that are unions of finest groups, members (P, G)."""

    def __init__(self, members: np.ndarray, knots: np.ndarray) -> None:
        self.members, self.knots = members, knots

    def fit(self, data: Patched, rounds: int) -> tuple[np.ndarray, np.ndarray]:
        """Values (G×M) after so many rounds, and the mean log loss at the end (1,)."""
        *_, values = self.path(data, rounds)
        score = data.log_odds + (data.basis * values[data.groups]).sum(axis=1)
        losses = np.logaddexp(0.0, np.where(data.correct, -score, score))
        return values, np.array([float(np.average(losses, weights=data.weights))])

    def path(self, data: Patched, rounds: int) -> Iterator[np.ndarray]:
        """Values (G×M) after 0, 1, …, `rounds` rounds."""
        n_groups, size = self.members.shape[1], len(self.knots)
        values, score = np.zeros((n_groups, size)), data.log_odds.copy()
        yield values.copy()
        for _ in range(rounds):
            chance = np.exp(-np.logaddexp(0.0, -score))
            slopes, curves = self._sums(data, chance, n_groups)
            variance = float(np.average(chance * (1 - chance), weights=data.weights))
            curves = curves + PRIOR_ROWS * max(variance, 1e-6) * np.eye(size)
            steps = np.linalg.solve(curves, slopes[:, :, None])[:, :, 0]
            best = int(np.argmax((slopes * steps).sum(axis=1)))
            inside = self.members[best]
            values[inside] += RATE * steps[best]
            mine = np.flatnonzero(inside[data.groups])
            score[mine] += RATE * (data.basis[mine] @ steps[best])
            yield values.copy()

    def _sums(self, data: Patched, chance: np.ndarray, n_groups: int) -> tuple[np.ndarray, np.ndarray]:
        """Gradient (P, M) and curvature (P, M, M) of each group's patch."""
        size = len(self.knots)
        residual = data.weights * (data.correct - chance)
        curve = data.weights * chance * (1 - chance)
        slopes = np.stack([np.bincount(data.groups, residual * h, n_groups) for h in data.basis.T], axis=1)
        curves = np.zeros((n_groups, size, size))
        for i in range(size):
            # hats overlap with their neighbours only
            for j in range(i, min(i + 2, size)):
                product = data.basis[:, i] * data.basis[:, j]
                curves[:, i, j] = curves[:, j, i] = np.bincount(data.groups, curve * product, n_groups)
        members = self.members.astype(np.float64)
        return members @ slopes, np.einsum("pg,gij->pij", members, curves)
