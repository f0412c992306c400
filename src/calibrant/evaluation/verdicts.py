"""The verdict of a measurement in one line, and when there are too few rows for one."""

from __future__ import annotations

import numpy as np

from calibrant.evaluation.consistency import NoiseFloor
from calibrant.evaluation.results import about

SIGNIFICANCE = 0.05

TOO_FEW = "too few rows to tell"
FEWEST_ROWS, FEWEST_ERRORS = 30, 5
"""Below these no verdict is given."""


def too_few_to_tell(
    confidence: np.ndarray, correct: np.ndarray, weights: np.ndarray | None, task: str = "multiclass"
) -> bool:
    """Fewer than 30 rows, or fewer than 5 errors both expected and observed; of a binary task, also events."""
    mass = np.ones(len(correct)) if weights is None else weights
    stated, seen = confidence.astype(np.float64), correct.astype(np.float64)
    most = max(float(mass @ (1 - stated)), float(mass @ (1 - seen)))
    if task == "binary":
        most = min(most, max(float(mass @ stated), float(mass @ seen)))
    return len(correct) < FEWEST_ROWS or most < FEWEST_ERRORS


def verdict(over: float, under: float, floor: NoiseFloor, task: str = "multiclass") -> str:
    """One line: which way and by how much confidence departs from accuracy, if by more than chance.

    over, under : the parts of the ECE where confidence is too high and too low. Points are percentage points of mean
    confidence minus accuracy. Where bins err in both directions, so that the
    mean hides more than half of the error, both directions are named.
    """
    if floor.p_value >= SIGNIFICANCE:
        return "indistinguishable from calibrated"
    ece, gap = over + under, over - under
    if about(task) == "positive class":
        if abs(gap) < ece / 2:
            return (
                f"miscalibrated by {100 * ece:.1f} points: probabilities of the positive class are too high by "
                f"{100 * over:.1f} in some ranges, too low by {100 * under:.1f} in others"
            )
        return f"probabilities of the positive class are {100 * abs(gap):.1f} points too {'high' if gap > 0 else 'low'}"
    if abs(gap) < ece / 2:
        return (
            f"miscalibrated by {100 * ece:.1f} points: overconfident by {100 * over:.1f} in some ranges of "
            f"confidence, underconfident by {100 * under:.1f} in others"
        )
    return f"{'overconfident' if gap > 0 else 'underconfident'} by {100 * abs(gap):.1f} points"
