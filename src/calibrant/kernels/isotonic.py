"""Distinct scores with their counts, and the non-decreasing fit to them: pool adjacent violators."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from calibrant.core.arrays import Array
from calibrant.core.statistic import kernel
from calibrant.core.threads import map_blocks

_ELEMENTS_PER_ROW = 4
"""A sorted row costs about as much as this many elements of a matrix: from half a million rows on, compile."""


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
    positive = np.asarray(labels, dtype=bool)
    if weights is None:
        # counts need no places, and sorting values is faster than sorting places; the two classes sort side by side
        with_label, without = map_blocks(np.sort, [scores[positive], scores[~positive]])
        return merge_groups.form(_ELEMENTS_PER_ROW * len(scores))(with_label, without)
    kept = weights > 0
    if not kept.all():
        scores, positive, weights = scores[kept], positive[kept], weights[kept]
    order = np.argsort(scores)
    ordered, mass = scores[order], weights[order].astype(np.float64)
    opens = _opens(ordered)
    hits = np.where(positive[order], mass, 0.0)
    return ScoreGroups(ordered[opens], np.add.reduceat(mass, opens), np.add.reduceat(hits, opens))


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
