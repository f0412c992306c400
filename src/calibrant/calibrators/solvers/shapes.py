"""The bend of calibrated logits that lowers their NLL most: four numbers for all classes (see `ShapeScaling`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import numpy as np

from calibrant.calibrators.solvers.likelihood import Dense, Solution, minimise
from calibrant.core.rows import Rows
from calibrant.core.statistic import add, use_compiled
from calibrant.core.threads import map_blocks, row_blocks
from calibrant.kernels.shape import BLOCK_ELEMENTS, bent_losses_of, bent_sums, shape_sums, stacked_features

IDENTITY = np.array([1.0, 0.0, 0.0, 0.0])
"""The map that changes nothing."""

PRIOR_ROWS = 2.0
"""Strength of the pull to the identity; n rows have the weight n beside it."""

KEPT_ELEMENTS = 1 << 21
"""Up to this many logits, their features (32 bytes each) are kept from one step to the next."""

TIGHT, LEADING, ROUGH = 1e-14, 1e-8, 1e-6
"""Decrements before the last step: of a fit, of a sample that leads to it, and of a bend that only ranks penalties."""


def fit_shape(rows: Any, *, start: np.ndarray = IDENTITY, gap: float = TIGHT) -> Solution:
    """θ (4,) of the lowest penalised NLL over rows of calibrated logits."""
    size = rows.n * rows.n_classes
    if size > 4 * KEPT_ELEMENTS:
        some = rows.sample(KEPT_ELEMENTS // rows.n_classes)
        if some.total_weight > 0:
            # a sample leads most of the way
            start = fit_shape(some, start=start, gap=max(gap, LEADING)).point
    total: Callable[[np.ndarray], tuple[Any, ...]]
    if not rows.in_memory or size > KEPT_ELEMENTS or use_compiled(size):
        total = partial(rows.total, shape_sums)
    else:
        total = _kept_sums(rows)
    # of two classes −log(1 − p) of one is −log p of the other: the second feature would repeat the first
    moves = np.diag([1.0, 0.0 if rows.n_classes == 2 else 1.0, 1.0, 1.0])

    def sums(point: np.ndarray, last: bool) -> tuple[float, np.ndarray, np.ndarray]:
        loss, gradient, hessian = total(point)
        return loss, moves @ gradient, moves @ hessian @ moves

    pull = PRIOR_ROWS / rows.total_weight * np.eye(4)
    return minimise(Dense(sums, rows.total_weight, pull, IDENTITY, exact=True), start, gap=gap, polish=False)


def bent_losses(answer: np.ndarray, rows: Rows, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The bend that suits held-out answers best, and the NLL of each row after it."""
    held_out = Rows(answer, rows.labels, rows.weights)
    some = held_out.sample(KEPT_ELEMENTS // rows.n_classes)
    # a sample determines the bend well enough, unless it holds no weight
    shape = fit_shape(some if some.total_weight > 0 else held_out, start=start, gap=ROUGH).point
    return shape, held_out.gather(bent_losses_of, shape)[0]


def _kept_sums(rows: Rows) -> Callable[[np.ndarray], tuple[float, np.ndarray, np.ndarray]]:
    """`shape_sums` over these rows as a function of θ alone; the features, half of the work, are computed once."""
    parts = [rows.take(block) for block in row_blocks(rows.n, rows.n_classes, BLOCK_ELEMENTS)]
    inputs = map_blocks(lambda part: stacked_features(part.logits), parts)

    def total(shape: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        def one(place: int) -> tuple[float, np.ndarray, np.ndarray]:
            return bent_sums(inputs[place], parts[place].labels, parts[place].weights, shape)

        return reduce(add, map_blocks(one, range(len(parts))))

    return total
