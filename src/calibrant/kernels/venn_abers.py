"""The isotonic value of one more point, for every place where it could fall (Vovk, Petej & Fedorova 2015, alg. 1-4).

`slopes_with_one_more` is plain Python over lists; `kernels.compiled.isotonic` compiles the same function.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.core.arrays import Array
from calibrant.core.statistic import use_compiled
from calibrant.kernels.isotonic import ScoreGroups

_ELEMENTS_PER_GROUP = 64
"""A group costs the plain loop about as much as this many elements of a matrix."""


def venn_abers_tables(groups: ScoreGroups) -> tuple[Array, Array]:
    """Isotonic values of a new point labelled 0 and of one labelled 1, each (k + 1,), for k distinct scores.

    Entry i of the first belongs to a new score that i of the distinct scores do not exceed (≤), entry i of the second
    to one that exceeds i of them (<).
    """
    high = _high(groups.weight, groups.positive)
    # labels exchanged and scores turned around, a point labelled 0 is one labelled 1
    low = 1.0 - _high(groups.weight[::-1], (groups.weight - groups.positive)[::-1])[::-1]
    return low, high


def _high(weight: Array, positive: Array) -> Array:
    size = len(weight)
    columns = np.cumsum(weight), np.cumsum(positive), np.zeros(size + 2), np.zeros(size + 2), np.zeros(size + 1)
    if use_compiled(_ELEMENTS_PER_GROUP * size):
        from calibrant.kernels.compiled.isotonic import slopes_with_one_more as compiled

        return compiled(*columns)
    return np.array(slopes_with_one_more(*(column.tolist() for column in columns)))


def slopes_with_one_more(x: Any, y: Any, corner_x: Any, corner_y: Any, slopes: Any) -> Any:
    """Fill `slopes` (k + 1,) with the isotonic value of a point of weight 1 and label 1 placed before each group.

    x and y (k,) are cumulative weights and positives. The slopes of the greatest convex minorant of these points are
    the isotonic fit; the new point is a step (1, 1), and in place of shifting all later points by it, the earlier ones
    are shifted by (−1, −1). The stack of corners lies in `corner_x` and `corner_y` (k + 2,).
    """
    k = len(x)
    corner_x[0], corner_y[0] = -1.0, -1.0
    corner_x[1], corner_y[1] = 0.0, 0.0
    size = 2
    for i in range(k):
        while size > 1:
            before, top = size - 2, size - 1
            turn = (corner_x[top] - corner_x[before]) * (y[i] - corner_y[top]) - (corner_y[top] - corner_y[before]) * (
                x[i] - corner_x[top]
            )
            if turn > 0.0:
                break
            size -= 1
        corner_x[size], corner_y[size] = x[i], y[i]
        size += 1
    # the corners once more as a stack whose top is the leftmost
    for j in range(size // 2):
        other = size - 1 - j
        corner_x[j], corner_x[other] = corner_x[other], corner_x[j]
        corner_y[j], corner_y[other] = corner_y[other], corner_y[j]
    for i in range(k):
        top, after = size - 1, size - 2
        width, height = corner_x[after] - corner_x[top], corner_y[after] - corner_y[top]
        slopes[i] = height / width
        new_x, new_y = x[i] - 1.0, y[i] - 1.0
        if (new_y - corner_y[top]) * width >= height * (new_x - corner_x[top]):
            continue
        size -= 1
        while size > 1:
            top, after = size - 1, size - 2
            turn = (corner_x[top] - new_x) * (corner_y[after] - corner_y[top]) - (corner_y[top] - new_y) * (
                corner_x[after] - corner_x[top]
            )
            if turn > 0.0:
                break
            size -= 1
        corner_x[size], corner_y[size] = new_x, new_y
        size += 1
    slopes[k] = 1.0
    return slopes
