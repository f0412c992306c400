"""Torch twins of what the confidence methods share: bins, interpolation, a new confidence for the predicted class.

They follow the numpy code step by step, in float64 where it is, without a branch on a value, so that they export.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

EDGE_ROOM = 1e-12
"""A fit row may lie exactly on an edge; the last bit of another exponential must not push it over."""


def confidence(logits: Tensor) -> Tensor:
    """max softmax(z) of each row in float64 (n,)."""
    return logits.double().softmax(dim=1).amax(dim=1)


def place(values: Tensor, edges: Tensor) -> Tensor:
    """Bin (lo, hi] of each value between edges (M + 1,), the outer bins open-ended."""
    inner = edges[1:-1] * (1 + EDGE_ROOM)
    return (values.unsqueeze(-1) > inner).sum(dim=-1)


def interpolate(values: Tensor, knots: Tensor, heights: Tensor) -> Tensor:
    """Piecewise linear map through (knots, heights), constant outside, as numpy.interp."""
    if len(knots) == 1:
        return heights[0].expand_as(values)
    upper = torch.searchsorted(knots, values.contiguous(), right=True).clamp(1, len(knots) - 1)
    left, right = knots[upper - 1], knots[upper]
    low, high = heights[upper - 1], heights[upper]
    slope = (high - low) / (right - left).clamp_min(torch.finfo(knots.dtype).tiny)
    inside = slope * (values - left) + low
    return torch.where(values >= knots[-1], heights[-1], torch.where(values <= knots[0], heights[0], inside))


def keep_prediction(scores: Tensor, prediction: Tensor, tied: Tensor | None = None) -> Tensor:
    """Scores whose argmax is the prediction: where rounding lost it, and in tied rows, it leads by a few ulps."""
    lost = scores.argmax(dim=1) != prediction
    if tied is not None:
        lost = lost | tied
    peak = scores.amax(dim=1)
    lead = peak + 4 * torch.finfo(scores.dtype).eps * peak.abs().clamp_min(1)
    own = scores.gather(1, prediction[:, None])[:, 0]
    return scores.scatter(1, prediction[:, None], torch.where(lost, lead, own)[:, None])


def log_probabilities(probabilities: Tensor) -> Tensor:
    """log p, a zero taken as the smallest normal number."""
    return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()


def mix_with_uniform(logits: Tensor, weights: Tensor) -> Tensor:
    """log(α·softmax(z) + (1 − α)/K), α one a row (n,); the predicted class stays ahead even at α = 0."""
    share = weights.to(logits.dtype)[:, None]
    mixed = logits.softmax(dim=1) * share + (1 - share) / logits.shape[1]
    return keep_prediction(log_probabilities(mixed), logits.argmax(dim=1), tied=weights == 0)


def log_odds_of(values: Tensor) -> Tensor:
    """log(c / (1 − c)) of confidences strictly inside (0, 1)."""
    return values.log() - torch.log1p(-values)


def top_log_odds(logits: Tensor) -> Tensor:
    """log(c / (1 − c)) of the top confidence, exact also where c rounds to 1 (n,)."""
    prediction, _, total = _others(logits)
    return logits.gather(1, prediction[:, None])[:, 0].double() - total


def with_confidence(logits: Tensor, log_odds: Tensor) -> Tensor:
    """Log-probabilities (n×K) whose predicted class has the confidence of these log-odds (n,)."""
    prediction, others, total = _others(logits)
    odds = log_odds.double().clamp_min(-math.log(logits.shape[1] - 1.0))
    zero = torch.zeros_like(odds)
    top, rest = -torch.logaddexp(zero, -odds), -torch.logaddexp(zero, odds)
    others = others + (rest - total)[:, None]
    crowded = others.amax(dim=1) > top
    others = torch.where(crowded[:, None], _water_fill(others, top, rest), others)
    rebuilt = others.scatter(1, prediction[:, None], top[:, None]).to(logits.dtype)
    return keep_prediction(rebuilt, prediction)


def _others(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    prediction = logits.argmax(dim=1)
    others = logits.double().scatter(1, prediction[:, None], -math.inf)
    return prediction, others, others.logsumexp(dim=1)


def _water_fill(others: Tensor, cap: Tensor, total: Tensor) -> Tensor:
    """Log-shares min(λ·q, cap) with the same sum; the predicted class's −inf stays."""
    shares, limit = others.sort(dim=1, descending=True).values.exp(), cap.exp()[:, None]
    n_capped = torch.arange(others.shape[1], device=others.device, dtype=others.dtype)
    tail = shares.flip(1).cumsum(dim=1).flip(1)
    left = total.exp()[:, None] - n_capped * limit
    scale = torch.where(tail > 0, left / tail.clamp_min(torch.finfo(tail.dtype).tiny), 0.0)
    fits = (scale * shares <= limit * (1 + 1e-12)) | (tail <= 0)
    factor = scale.gather(1, fits.to(torch.int8).argmax(dim=1)[:, None]).clamp_min(1.0)
    return torch.minimum(others + factor.log(), cap[:, None])
