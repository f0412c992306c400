"""Probabilities of 0 in maps that run in torch and ONNX; `core.zeros` states the rule."""

from __future__ import annotations

from typing import Any

from calibrant.core.zeros import floor_score


def raise_zeros(xp: Any, logits: Any, log_floor: float, *, scores: bool) -> Any:
    """Logits (n×K), or `scores` of any shape that are each a log-odds, in which infinite ones have a value."""
    if scores:
        level = xp.full_like(logits, floor_score(log_floor))
        return xp.where(xp.isinf(logits), xp.where(logits < 0, -level, level), logits)
    peak = xp.max(logits, axis=1, keepdims=True)
    log_mass = peak + xp.log(xp.sum(xp.exp(logits - peak), axis=1, keepdims=True))
    return xp.where(xp.isinf(logits), log_mass + log_floor, logits)
