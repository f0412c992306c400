"""Class scales and biases along a path of penalties, for many classes."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from calibrant.calibrators.solvers.diagonal import VectorObjective, common_unit
from calibrant.calibrators.solvers.inverse_temperature import fit_inverse_temperature
from calibrant.calibrators.solvers.newton import Solution, newton_cg
from calibrant.core.rows import Rows
from calibrant.core.threads import map_blocks, row_blocks


class ScalePenalties(Protocol):
    """Of the squares of the scales about their mean and of the biases, summed over the classes."""

    @property
    def scale(self) -> float:
        """Infinite where neither moves."""

    @property
    def bias(self) -> float:
        """Infinite where neither moves."""


class ScaleWalker:
    """Walks a path of penalties over some rows, each fit starting where the last one ended.

    The scores are a∘z̄·unit + b, z̄ the logits minus their mean over the classes. Points are (a | b), K×2.

    Parameters
    ----------
    checked : whether a fit ends with the check of its optimum in float64.
    """

    def __init__(self, rows: Rows, tolerance: float, *, checked: bool) -> None:
        self.tolerance, self.checked = tolerance, checked
        inverse_temperature = fit_inverse_temperature(rows).value
        self.unit = common_unit(rows, inverse_temperature)
        self.rows = Rows(_centred(rows.logits, self.unit), rows.labels, rows.weights)
        self.point = np.zeros((rows.n_classes, 2))
        # the temperature itself, also where the unit of the scales is another
        self.point[:, 0] = inverse_temperature / self.unit

    def step(self, penalties: ScalePenalties) -> Solution | None:
        """Move to the optimum at these penalties; a temperature alone is there already."""
        if np.isinf(penalties.scale):
            return None
        ridge = 2 * np.array([[penalties.scale], [penalties.bias]]) / self.rows.total_weight
        objective = VectorObjective(self.rows, np.ones(self.rows.n_classes), ridge, True, self.tolerance)
        precise = objective.precise() if self.checked else None
        solution = newton_cg(objective, self.point.T.copy(), tolerance=self.tolerance, precise=precise)
        self.point = solution.point.T.copy()
        return solution


def _centred(logits: np.ndarray, unit: float) -> np.ndarray:
    """Logits times a unit minus their mean over the classes, in their own dtype."""
    result = np.empty(logits.shape, logits.dtype)

    def part(block: slice) -> None:
        np.multiply(logits[block], logits.dtype.type(unit), out=result[block])
        result[block] -= result[block].mean(axis=1, keepdims=True)

    map_blocks(part, row_blocks(len(logits), logits.shape[1], 1 << 17))
    return result
