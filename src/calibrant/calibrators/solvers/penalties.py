"""Choose penalties by cross-validation: one walk from strong to weak, each fit starting where the last one ended."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from calibrant.calibrators.solvers.folds import content_folds
from calibrant.calibrators.solvers.shapes import IDENTITY, bent_losses
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

SMALLEST_WEIGHT = 1e-3
"""Steps of less weight are left out of an average."""

Fit = Callable[[Rows, Any, np.ndarray | None], np.ndarray]
Loss = Callable[[Rows, np.ndarray], float]

Policy = Callable[[list[Any]], tuple[np.ndarray, bool]]
"""Held-out losses of the steps so far → the weights of these steps, and whether to go on."""


def check_penalty(value: Any, name: str) -> float | str:
    """A number of at least 0, or "cv"."""
    if isinstance(value, str):
        if value != "cv":
            raise InputError(f"{name} must be a number of at least 0 or 'cv', got {value!r}")
        return value
    if isinstance(value, bool) or not np.isreal(value) or not np.isfinite(value) or value < 0:
        raise InputError(f"{name} must be a number of at least 0 or 'cv', got {value!r}")
    return float(value)


def walk(steps: Sequence[Any], score: Callable[[Any], Any], policy: Policy) -> np.ndarray:
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


def lowest(tie: float, patience: int) -> Policy:
    """The first step that no other undercuts by more than a tie; ends after so many steps that are not better."""

    def policy(losses: list[float]) -> tuple[np.ndarray, bool]:
        best = 0
        for index, loss in enumerate(losses):
            best = index if loss < losses[best] - tie else best
        return np.eye(len(losses))[best], len(losses) - 1 - best < patience

    return policy


def near(weights: np.ndarray | None, errors: float) -> Policy:
    """All steps within so many standard errors of the best alike; ends at the first beyond."""

    def policy(losses: list[np.ndarray]) -> tuple[np.ndarray, bool]:
        weight = np.ones(len(losses[0])) if weights is None else weights
        means = [float(np.average(loss, weights=weight)) for loss in losses]
        best = int(np.argmin(means))
        inside = np.zeros(len(losses))
        for index, loss in enumerate(losses):
            excess = loss - losses[best]
            spread = excess - np.average(excess, weights=weight)
            # a weight of 2 is the row twice, so its square counts twice
            inside[index] = means[index] - means[best] <= errors * np.sqrt(weight @ spread**2) / weight.sum()
        return inside / inside.sum(), bool(inside[-1])

    return policy


def tempered(weights: np.ndarray | None, temper: float, patience: int) -> Policy:
    """exp(−temper·excess of the summed loss) of each step; ends after so many steps that are worse than the best."""

    def policy(losses: list[np.ndarray]) -> tuple[np.ndarray, bool]:
        sums = np.array([float(loss.sum() if weights is None else weights @ loss) for loss in losses])
        share = np.exp(-temper * (sums - sums.min()))
        share[share < SMALLEST_WEIGHT * share.sum()] = 0.0
        return share / share.sum(), len(sums) - 1 - int(np.argmin(sums)) < patience

    return policy


def choose(
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
    if not rows.on_device:  # rows on a GPU stay there
        rows = rows.whole()  # folds pick rows: a map of the file or of a scratch copy
        rows.settle()
    large = rows.n * rows.n_classes > LARGE
    shares = int(np.ceil(rows.n * rows.n_classes / most_logits))
    if shares > 1:
        rows = rows.take(np.flatnonzero(content_folds(rows, shares, seed) == 0))
    if rows.total_weight < 2 * n_folds:
        return candidates[0]
    fold = content_folds(rows, n_folds, seed)
    parts: list[dict[str, Any]] = [
        {"inside": rows.take(np.flatnonzero(fold != k)), "outside": rows.take(np.flatnonzero(fold == k)), "point": None}
        for k in range(1 if large else n_folds)
    ]
    parts = [part for part in parts if min(part["inside"].total_weight, part["outside"].total_weight) > 0]
    if not parts:
        return candidates[0]

    def one(part: dict[str, Any], candidate: Any) -> float:
        part["point"] = fit(part["inside"], candidate, part["point"])
        return loss(part["outside"], part["point"])

    def score(candidate: Any) -> float:
        return sum(map_blocks(lambda part: one(part, candidate), parts))

    policy = lowest(NO_GAIN * rows.total_weight, 1 if large else PATIENCE)
    return candidates[int(np.argmax(walk(candidates, score, policy)))]


class Walker(Protocol):
    """A fit to some rows that goes from one penalty to the next."""

    def step(self, penalty: Any) -> Any:
        """Move to the optimum at this penalty."""

    def scores(self, logits: np.ndarray) -> np.ndarray:
        """Scores of other rows at the present point."""


def cross_fit(
    rows: Rows, fold: np.ndarray, path: Sequence[Any], make: Callable[[Rows], Walker], policy: Policy
) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the steps of a path, by the loss of held-out answers after a bend; and the answers so averaged.

    Without the bend a step of the path would be preferred for its sharpness.
    """
    outside = [np.flatnonzero(fold == part) for part in np.unique(fold)]

    def walker_without(out: np.ndarray) -> Walker:
        kept = rows.take(np.setdiff1d(np.arange(rows.n), out, assume_unique=True))
        return make(kept if kept.total_weight > 0 else rows)

    parts = list(zip(outside, map_blocks(walker_without, outside), strict=True))
    answers: list[np.ndarray] = []
    shape = IDENTITY

    def answer(part: tuple[np.ndarray, Walker], penalty: Any) -> np.ndarray:
        out, walker = part
        walker.step(penalty)
        return walker.scores(rows.logits[out])

    def score(penalty: Any) -> np.ndarray:
        nonlocal shape
        found = map_blocks(lambda part: answer(part, penalty), parts)
        answers.append(np.empty(rows.logits.shape, found[0].dtype))
        for (out, _), scores in zip(parts, found, strict=True):
            answers[-1][out] = scores
        shape, losses = bent_losses(answers[-1], rows, shape)
        return losses

    weights = walk(path, score, policy)
    used = np.flatnonzero(weights)
    held_out = np.average([answers[index] for index in used], axis=0, weights=weights[used])
    return weights, held_out.astype(rows.logits.dtype)


def warn_of_folds(method: str, diverging: list[bool]) -> None:
    """Warn that a fit without one fold has no optimum: where it stopped is arbitrary, and so is its held-out loss."""
    if any(diverging):
        warnings.warn(
            f"{method}: the parameters of a fit without one fold grow without bound, so that its held-out loss and the "
            "strength chosen by it are uncertain; give strength a number",
            FitWarning,
            stacklevel=6,
        )
