"""A search for x = g(x) where plain repetition would swing past it (Anderson acceleration)."""

from __future__ import annotations

import numpy as np

MEMORY = 5
SHORTEST = 1 / 64


class FixedPoint:
    """Proposes the next x from all pairs (x, g(x)) seen so far; `change` is the last |g(x) − x|."""

    def __init__(self) -> None:
        self.change = np.inf
        self.mixing = 1.0
        self.points: list[np.ndarray] = []
        self.residuals: list[np.ndarray] = []

    def following(self, point: np.ndarray, image: np.ndarray) -> np.ndarray:
        """The next point to try, given g(point)."""
        residual = image - point
        change = float(np.abs(residual).max())
        if change > 0.9 * self.change:
            # no progress: take a shorter step, and forget all points but the last
            self.mixing = max(self.mixing / 2, SHORTEST)
            self.points, self.residuals = self.points[-1:], self.residuals[-1:]
        self.change = change
        self.points = [*self.points[-MEMORY:], point]
        self.residuals = [*self.residuals[-MEMORY:], residual]
        if len(self.points) < 2:
            return point + self.mixing * residual
        steps = np.diff(self.points, axis=0).T
        turns = np.diff(self.residuals, axis=0).T
        shares = np.linalg.lstsq(turns, residual, rcond=1e-8)[0]
        return point + self.mixing * residual - (steps + self.mixing * turns) @ shares
