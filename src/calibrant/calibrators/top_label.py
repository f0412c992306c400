"""The predicted class and the log-odds of its confidence, exact also where the confidence rounds to 1."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

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


def _others(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The prediction, the logits in float64 with −inf in its place, and the log-sum-exp of what is left."""
    prediction = logits.argmax(axis=1)
    others = logits.astype(np.float64)
    others[np.arange(len(others)), prediction] = -np.inf
    return prediction, others, logsumexp(others)


def _peaks(logits: np.ndarray, prediction: np.ndarray) -> np.ndarray:
    return logits[np.arange(len(logits)), prediction].astype(np.float64)
