"""A new confidence for the predicted class: how the other probabilities make room, and the prediction stays.

The predicted class gets the confidence g, the others share 1 − g in their old proportions. Where the runner-up would
overtake, its share is capped at g and the excess flows to the rest (water-filling); g itself is at least 1/K.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from calibrant.calibrators.helpers.confidence_bins import keep_prediction
from calibrant.core.softmax import logsumexp
from calibrant.core.threads import map_blocks, row_blocks

BLOCK_ELEMENTS = 1 << 17
"""Elements handled at a time: float64 copies of a block stay in the second-level cache."""


class TopLabel(NamedTuple):
    """The predicted class of each row and u = log(c / (1 − c)), exact also where c rounds to 1 (n,)."""

    prediction: np.ndarray
    log_odds: np.ndarray


def top_label(logits: np.ndarray) -> TopLabel:
    """Prediction and log-odds of its confidence: the peak minus the log-sum-exp of all other logits."""

    def part(block: slice) -> TopLabel:
        prediction, _, total = _others(logits[block])
        return TopLabel(prediction, _peaks(logits[block], prediction) - total)

    parts = map_blocks(part, row_blocks(len(logits), logits.shape[1], BLOCK_ELEMENTS))
    return TopLabel(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def with_confidence(logits: np.ndarray, log_odds: np.ndarray) -> np.ndarray:
    """Log-probabilities (n×K) whose predicted class has confidence 1/(1 + exp(−v)), v the new log-odds (n,)."""
    return _rebuilt(logits, lambda block, _: log_odds[block])


def with_mapped_confidence(logits: np.ndarray, change: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Log-probabilities (n×K) whose predicted class has log-odds change(u), u its present ones."""
    return _rebuilt(logits, lambda _, present: change(present))


def _rebuilt(logits: np.ndarray, new_log_odds: Callable[[slice, np.ndarray], np.ndarray]) -> np.ndarray:
    result = np.empty_like(logits)

    def part(block: slice) -> None:
        prediction, others, total = _others(logits[block])
        log_odds = new_log_odds(block, _peaks(logits[block], prediction) - total)
        _set_top(others, prediction, total, log_odds)
        result[block] = others
        keep_prediction(result[block], prediction)

    map_blocks(part, row_blocks(len(logits), logits.shape[1], BLOCK_ELEMENTS))
    return result


def _set_top(others: np.ndarray, prediction: np.ndarray, total: np.ndarray, log_odds: np.ndarray) -> None:
    """Turn logits without their predicted class into log-probabilities with it, in place."""
    # the least confidence a predicted class can have is 1/K
    log_odds = np.maximum(log_odds, -np.log(others.shape[1] - 1.0))
    top, rest = -np.logaddexp(0.0, -log_odds), -np.logaddexp(0.0, log_odds)
    others += (rest - total)[:, None]
    crowded = np.flatnonzero(others.max(axis=1) > top)
    if len(crowded):
        others[crowded] = _water_fill(others[crowded], top[crowded], rest[crowded])
    others[np.arange(len(others)), prediction] = top


def _water_fill(others: np.ndarray, cap: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Log-shares with none above the cap and the same sum: min(λ·q, cap). The predicted class's −inf stays.

    With the m largest at the cap, λ_m = (sum − m·cap) / (sum of the rest); the answer is the first m at which the
    largest of the rest fits below the cap. In logs, because the rest may be too small for a float.
    """
    descending = -np.sort(-others, axis=1)
    rest = np.logaddexp.accumulate(descending[:, ::-1], axis=1)[:, ::-1]
    left = np.exp(total)[:, None] - np.arange(others.shape[1]) * np.exp(cap)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.log(np.maximum(left, 0.0)) - rest
        fits = ~(factor + descending > cap[:, None] + 1e-12)
    chosen = np.take_along_axis(factor, fits.argmax(axis=1)[:, None], axis=1)
    # where nothing but the predicted class's −inf is left, all others are at the cap
    return np.minimum(others + np.where(np.isfinite(chosen), chosen, 1e300), cap[:, None])


def _others(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The prediction, the logits in float64 with −inf in its place, and the log-sum-exp of what is left."""
    prediction = logits.argmax(axis=1)
    others = logits.astype(np.float64)
    others[np.arange(len(others)), prediction] = -np.inf
    return prediction, others, logsumexp(others)


def _peaks(logits: np.ndarray, prediction: np.ndarray) -> np.ndarray:
    return logits[np.arange(len(logits)), prediction].astype(np.float64)
