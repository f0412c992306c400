"""Choose penalties by cross-validation: one walk from strong to weak, each fit starting where the last one ended."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import numpy as np

from calibrant.calibrators.solvers.folds import content_folds
from calibrant.core.arrays import Array
from calibrant.core.errors import InputError
from calibrant.core.progress import step
from calibrant.core.rows import Rows
from calibrant.core.threads import map_blocks

NO_GAIN = 1e-6
"""Differences in nats per row below this are ties, in which the stronger penalty stays."""

N_SPLITS = 3
"""Folds that choose a penalty."""

PATIENCE = 3
"""Candidates in a row that may be worse than the best before the walk ends."""

LARGE = 1 << 23
"""Above this many logits one split decides, and the walk ends at the first candidate that is worse than the best."""

Fit = Callable[[Rows, Any, Array | None], Array]
Loss = Callable[[Rows, Array], float]

Policy = Callable[[list[Any]], tuple[Array, bool]]
"""Held-out losses of the steps so far → the weights of these steps, and whether to go on."""


def check_penalty(value: Any, name: str, *, by_cv: bool = True, highest: float = sys.float_info.max) -> Any:
    """A number from 0 to `highest`, or "cv" where cross-validation may choose it."""
    if by_cv and isinstance(value, str) and value == "cv":
        return value
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) <= highest:
        raise InputError(f"{name} must be a number of at least 0{' or {!r}'.format('cv') * by_cv}, got {value!r}")
    return float(value)


def walk(steps: Sequence[Any], score: Callable[[Any], Any], policy: Policy) -> Array:
    """Weights of the steps, from the strongest penalty to the weakest, until the policy says that it is enough.

    `score(step)` moves all folds to a step and gives its held-out loss: one number, or one per row.
    """
    losses: list[Any] = []
    weights = np.ones(1)
    for index, one in enumerate(steps):
        losses.append(score(one))
        weights, go_on = policy(losses)
        step("cross-validation", index + 1, len(steps))
        if not go_on:
            break
    return weights


def choose(
    rows: Rows,
    candidates: Sequence[Any],
    fit: Fit,
    loss: Loss,
    *,
    seed: int,
    most_logits: float = np.inf,
) -> Any:
    """The candidate of the lowest held-out loss; candidates go from the strongest penalty to the weakest.

    Parameters
    ----------
    fit : (rows, candidate, start or None) → the fitted point.
    loss : (held-out rows, point) → their summed loss.
    most_logits : where there are more, a part of the rows decides; for penalties that do not depend on their number.
    """
    if not rows.on_device:  # rows on a GPU stay there
        rows = rows.whole()  # folds pick rows: a map of the file or of a scratch copy
        rows.settle()
    large = rows.n * rows.n_classes > LARGE
    shares = int(np.ceil(rows.n * rows.n_classes / most_logits))
    if shares > 1:
        rows = rows.take(np.flatnonzero(content_folds(rows, shares, seed) == 0))
    if rows.total_weight < 2 * N_SPLITS:
        return candidates[0]
    fold, used = content_folds(rows, N_SPLITS, seed), range(1 if large else N_SPLITS)
    splits = [[rows.take(np.flatnonzero(inside)) for inside in (fold != k, fold == k)] for k in used]
    # where no split holds weight on both sides, all candidates are alike and the strongest penalty stays
    splits = [split for split in splits if min(part.total_weight for part in split) > 0]
    points: list[Any] = [None] * len(splits)

    def one(place: int, candidate: Any) -> float:
        inside, outside = splits[place]
        points[place] = fit(inside, candidate, points[place])
        return loss(outside, points[place])

    def score(candidate: Any) -> float:
        return sum(map_blocks(lambda place: one(place, candidate), range(len(splits))))

    tie, patience = NO_GAIN * rows.total_weight, 1 if large else PATIENCE

    def policy(losses: list[float]) -> tuple[Array, bool]:
        """The first step that no other undercuts by more than a tie; enough after so many that are not better."""
        best = 0
        for index, one in enumerate(losses):
            best = index if one < losses[best] - tie else best
        return np.eye(len(losses))[best], len(losses) - 1 - best < patience

    return candidates[int(np.argmax(walk(candidates, score, policy)))]
