"""Distinct scores with their counts, and the non-decreasing fit to them: pool adjacent violators.

Also the isotonic value of one more point, for every place where it could fall (Vovk, Petej & Fedorova 2015, alg. 1-4):
`slopes_with_one_more` is plain Python over lists, and `kernels.compiled.isotonic` compiles the same function.
"""

from typing import Any, NamedTuple

import numpy as np

from calibrant.core.arrays import Array
from calibrant.core.statistic import kernel, use_compiled
from calibrant.core.threads import map_blocks

_ELEMENTS_PER_ROW = 4
"""A sorted row costs about as much as this many elements of a matrix: from half a million rows on, compile."""

_ELEMENTS_PER_GROUP = 64
"""A group costs the plain loop of Venn-Abers about as much as this many elements of a matrix."""


SORTED_AT_ONCE = 1 << 16
"""Fewer scores are sorted sooner than another thread is woken."""

ROUNDING = 2.0**-21
"""Scores closer than this share of themselves, a few rounding steps of float32, may be one value computed twice."""


class ScoreGroups(NamedTuple):
    """Distinct scores, ascending, with the weight and the weight of positive labels at each."""

    scores: Array
    weight: Array
    positive: Array

    @property
    def excess(self) -> Array:
        """Σ w·(score − label) of each group, where scores are probabilities."""
        return self.weight * self.scores - self.positive


def score_groups(scores: Array, labels: Array, weights: Array | None = None) -> ScoreGroups:
    """Rows of equal score as one group; rows of weight 0 are left out.

    Parameters
    ----------
    scores : array (n,), finite
    labels : array (n,) of 0/1 or bool
    weights : array (n,) or None
    """
    positive = np.asarray(labels, bool)
    if weights is None:
        # counts need no places, and sorting values is faster than sorting places; the two classes sort side by side
        each: Any = map if len(scores) < SORTED_AT_ONCE else map_blocks
        with_label, without = each(np.sort, [scores[positive], scores[~positive]])
        return merge_groups.form(_ELEMENTS_PER_ROW * len(scores))(with_label, without)
    kept = weights > 0
    if not kept.all():
        scores, positive, weights = scores[kept], positive[kept], weights[kept]
    order = np.argsort(scores)
    ordered, mass = scores[order], weights[order].astype(np.float64)
    opens = _opens(ordered)
    hits = np.where(positive[order], mass, 0.0)
    return ScoreGroups(ordered[opens], np.add.reduceat(mass, opens), np.add.reduceat(hits, opens))


def distinct_scores(scores: Array, labels: Array, weights: Array | None = None) -> ScoreGroups:
    """`score_groups` with scores that differ by rounding alone as one, for maps whose steps lie between scores.

    A chain of near scores that is longer than rounding, as dense data have, is left as it is.
    """
    values, *sums = score_groups(scores, labels, weights)
    room = ROUNDING * np.abs(values)
    # scores that are near the next one are few: chains of them are looked at, not all scores
    near = np.flatnonzero(np.diff(values) <= room[1:])
    begins, ends = np.diff(near, prepend=-2) > 1, np.diff(near, append=len(values)) > 1
    first, last = near[begins], near[ends] + 1
    short = values[last] - values[first] <= room[last]
    opens = np.ones(len(values), bool)
    opens[near + 1] = ~short[np.cumsum(begins) - 1]
    values[first] = np.where(short, 0.5 * (values[first] + values[last]), values[first])
    groups = np.flatnonzero(opens)
    return ScoreGroups(values[groups], *(np.add.reduceat(one, groups) for one in sums))


@kernel(compiled_in="calibrant.kernels.compiled.isotonic")
def merge_groups(positive: Array, negative: Array) -> ScoreGroups:
    """Groups of the sorted scores of positive and of negative rows."""
    ordered = np.sort(np.concatenate([positive, negative]), kind="stable")  # two runs: one merge
    opens = _opens(ordered)
    distinct = ordered[opens]
    counts = np.diff(np.append(opens, len(ordered))).astype(np.float64)
    upto = np.searchsorted(positive, distinct, side="right")
    return ScoreGroups(distinct, counts, np.diff(upto, prepend=0).astype(np.float64))


def _opens(ordered: Array) -> Array:
    return np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))


def isotonic_values(groups: ScoreGroups) -> Array:
    """Share of positives at each distinct score, non-decreasing, of least squares and of highest likelihood alike."""
    from scipy.optimize import isotonic_regression

    return np.clip(isotonic_regression(groups.positive / groups.weight, weights=groups.weight).x, 0.0, 1.0)


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
