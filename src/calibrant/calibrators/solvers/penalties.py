"""Choose a penalty by cross-validation: a walk from strong to weak, each fit starting where the last one ended."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from calibrant.calibrators.solvers.folds import content_folds
from calibrant.core.errors import FitWarning, InputError
from calibrant.core.progress import step
from calibrant.core.rows import Rows
from calibrant.core.threads import map_blocks

NO_GAIN = 1e-6
"""Differences in nats per row below this are ties, in which the stronger penalty stays."""

PATIENCE = 3
"""Candidates in a row that may be worse than the best before the walk ends."""

LARGE = 1 << 23
"""Above this many logits one split decides, and the walk ends at the first candidate that is worse than the best."""

Fit = Callable[[Rows, Any, np.ndarray | None], np.ndarray]
Loss = Callable[[Rows, np.ndarray], float]


def check_penalty(value: Any, name: str) -> float | str:
    """A number of at least 0, or "cv"."""
    if isinstance(value, str):
        if value != "cv":
            raise InputError(f"{name} must be a number of at least 0 or 'cv', got {value!r}")
        return value
    if isinstance(value, bool) or not np.isreal(value) or not np.isfinite(value) or value < 0:
        raise InputError(f"{name} must be a number of at least 0 or 'cv', got {value!r}")
    return float(value)


def walk(
    rows: Rows,
    candidates: Sequence[Any],
    fit: Fit,
    loss: Loss,
    *,
    seed: int,
    n_folds: int = 3,
    most_logits: float = np.inf,
) -> Any:
    """The candidate of the lowest held-out loss; candidates go from the strongest penalty to the weakest.

    Parameters
    ----------
    fit : (rows, candidate, start or None) → the fitted point.
    loss : (held-out rows, point) → their summed loss.
    most_logits : where there are more, a part of the rows decides; for penalties that do not depend on their number.
    """
    if not hasattr(rows, "fold_columns"):  # rows on a GPU stay there
        rows = rows.whole()  # folds pick rows: a map of the file or of a scratch copy
    large = rows.n * rows.n_classes > LARGE
    shares = int(np.ceil(rows.n * rows.n_classes / most_logits))
    if shares > 1:
        rows = rows.take(np.flatnonzero(content_folds(rows, shares, seed) == 0))
    if rows.total_weight < 2 * n_folds:
        return candidates[0]
    fold = content_folds(rows, n_folds, seed)
    parts = [(rows.take(np.flatnonzero(fold != k)), rows.take(np.flatnonzero(fold == k))) for k in range(n_folds)]
    parts = parts[:1] if large else parts
    parts = [(inside, outside) for inside, outside in parts if min(inside.total_weight, outside.total_weight) > 0]
    if not parts:
        return candidates[0]
    starts: list[Any] = [None] * len(parts)
    best, best_loss, worse = candidates[0], np.inf, 0
    for index, candidate in enumerate(candidates):
        found = map_blocks(partial(_one_fold, fit, loss, candidate), list(zip(parts, starts, strict=True)))
        starts = [point for point, _ in found]
        total = sum(held_out for _, held_out in found)
        step("cross-validation", index + 1, len(candidates), f"loss {total / rows.total_weight:.5f}")
        if total < best_loss - NO_GAIN * rows.total_weight:
            best, best_loss, worse = candidate, total, 0
        else:
            worse += 1
            if worse >= (1 if large else PATIENCE):
                break
    return best


def warn_of_folds(method: str, diverging: list[bool]) -> None:
    """Warn that a fit without one fold has no optimum: where it stopped is arbitrary, and so is its held-out loss."""
    if any(diverging):
        warnings.warn(
            f"{method}: the parameters of a fit without one fold grow without bound, so that its held-out loss and the "
            "strength chosen by it are uncertain; give strength a number",
            FitWarning,
            stacklevel=6,
        )


def _one_fold(fit: Fit, loss: Loss, candidate: Any, fold: Any) -> tuple[np.ndarray, float]:
    (inside, outside), start = fold
    point = fit(inside, candidate, start)
    return point, loss(outside, point)
