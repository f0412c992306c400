"""Rows of equal confidence as one group.

The metrics that need the order of the confidences are functions of these groups. Since ties are summed before
anything is compared, no answer depends on the order of the rows, and a weight of 2 is the row twice by construction.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Groups(NamedTuple):
    """Distinct confidences, ascending, with the weight and the weight of right predictions at each."""

    confidence: np.ndarray
    weight: np.ndarray
    correct: np.ndarray

    @property
    def excess(self) -> np.ndarray:
        """Σ w·(c − a) of each group."""
        return self.weight * self.confidence - self.correct


def confidence_groups(confidence: np.ndarray, correct: np.ndarray, weights: np.ndarray | None) -> Groups:
    """Group rows by confidence; rows of weight 0 are left out."""
    if weights is not None and not weights.all():
        kept = weights > 0
        confidence, correct, weights = confidence[kept], correct[kept], weights[kept]
    order = np.argsort(confidence)
    ordered = confidence[order]
    opens = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    hits = correct[order].astype(np.float64)
    if weights is None:
        weight = np.diff(opens, append=len(ordered)).astype(np.float64)
    else:
        mass = weights[order]
        hits *= mass
        weight = np.add.reduceat(mass, opens)
    return Groups(ordered[opens].astype(np.float64), weight, np.add.reduceat(hits, opens))
