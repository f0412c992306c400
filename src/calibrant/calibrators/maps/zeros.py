"""Probabilities of 0 in maps that run in torch and ONNX; `core.zeros` states the rule."""

from __future__ import annotations

from typing import Any

import numpy as np


def zero_levels(calibrator: Any) -> np.ndarray | None:
    """What −inf becomes: log floors (K,) beside the log-mass of the row, or the scores (2,) of p = 0 and p = 1.

    None for a calibrator that learned no floor.
    """
    floor = getattr(calibrator, "floor_", None)
    if floor is None or np.ndim(floor) != 1:
        return None
    floor = np.asarray(floor, dtype=np.float64)
    if calibrator.task_ == "binary":
        return np.array([np.log(floor[1]) - np.log1p(-floor[1]), np.log1p(-floor[0]) - np.log(floor[0])])
    return np.log(floor)


def raise_zeros(xp: Any, logits: Any, levels: Any) -> Any:
    """Logits (n×K) or scores (n,) in which infinite ones have a value."""
    levels = xp.astype(levels, logits.dtype)
    if logits.ndim == 1:
        return xp.where(xp.isinf(logits), xp.where(logits < 0, levels[0], levels[1]), logits)
    peak = xp.max(logits, axis=1, keepdims=True)
    log_mass = peak + xp.log(xp.sum(xp.exp(logits - peak), axis=1, keepdims=True))
    return xp.where(xp.isinf(logits), log_mass + levels[None, :], logits)
