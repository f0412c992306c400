"""What the losses share: checked inputs, confidence, correctness, entropy, and a root that is safe at zero.

Everything here is a handful of torch operations without a look at a value, so no loss ever waits for the device.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from calibrant.core.errors import InputError


class Prediction(NamedTuple):
    """What a calibration loss knows of a batch; `log_probabilities` is n×K, the rest (n,)."""

    log_probabilities: Tensor
    confidence: Tensor
    correct: Tensor


def check_batch(logits: Tensor, labels: Tensor) -> None:
    """Raise unless logits are an n×K float tensor and labels n class indices on the same device."""
    if not isinstance(logits, Tensor) or not isinstance(labels, Tensor):
        raise InputError(f"a loss takes torch tensors, got {type(logits).__name__} and {type(labels).__name__}")
    if logits.ndim != 2 or logits.shape[0] < 1 or logits.shape[1] < 2:
        raise InputError(f"logits must have shape (n ≥ 1, K ≥ 2), got {tuple(logits.shape)}")
    if not logits.is_floating_point():
        raise InputError(f"logits must be floating point, got {logits.dtype}")
    if labels.ndim != 1 or labels.shape[0] != logits.shape[0]:
        raise InputError(f"labels have shape {tuple(labels.shape)}, but there are {logits.shape[0]} rows of logits")
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise InputError(f"labels must be class indices, got {labels.dtype}")
    if labels.device != logits.device:
        raise InputError(f"labels are on {labels.device}, but the logits are on {logits.device}: move one of them")


def log_probabilities(logits: Tensor, labels: Tensor) -> Tensor:
    """log softmax(z) in float32 or wider, whatever autocast gave the logits."""
    check_batch(logits, labels)
    wide = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    return wide.log_softmax(dim=1)


def of_label(values: Tensor, labels: Tensor) -> Tensor:
    """values[i, labels[i]] of each row i."""
    return values.gather(1, labels.long().unsqueeze(1)).squeeze(1)


def predict(logits: Tensor, labels: Tensor) -> Prediction:
    """log p, confidence c = max p, and correctness a ∈ {0, 1} without gradient."""
    log_p = log_probabilities(logits, labels)
    predicted = log_p.detach().argmax(dim=1)
    confidence = of_label(log_p, predicted).exp()
    return Prediction(log_p, confidence, (predicted == labels).to(log_p.dtype))


def entropy(log_p: Tensor) -> Tensor:
    """−Σ_k p_k log p_k in nats of each row; a class of probability 0 adds 0."""
    return -(log_p.exp() * log_p).sum(dim=1)


def memberships(scores: Tensor, n_bins: int, temperature: float) -> Tensor:
    """Soft bins softmax_j(−(c − ξ_j)²/T) over the centres ξ_j of M equal bins; one more axis of size M."""
    centres = (torch.arange(n_bins, dtype=scores.dtype, device=scores.device) + 0.5) / n_bins
    return (-(scores.unsqueeze(-1) - centres).square() / temperature).softmax(dim=-1)


def bin_temperature(n_bins: int, temperature: float, decay: float | None) -> float:
    """T, or 1/(M² ln d) where a decay d is given: at a centre the neighbour's membership is then 1/d of its own."""
    if isinstance(n_bins, bool) or not isinstance(n_bins, int) or n_bins < 1:
        raise InputError(f"n_bins must be a whole number of at least 1, got {n_bins!r}")
    if decay is not None:
        if not decay > 1:
            raise InputError(f"decay must be above 1, got {decay}")
        return 1.0 / (n_bins**2 * math.log(decay))
    if not temperature > 0:
        raise InputError(f"temperature must be above 0, got {temperature}")
    return temperature


def root(power_sum: Tensor, norm: float) -> Tensor:
    """x^(1/p) with value and gradient 0 where x is 0 to rounding, so that the slope at zero stays finite."""
    if norm == 1:
        return power_sum
    floor = torch.finfo(power_sum.dtype).eps ** 2
    return power_sum.clamp_min(floor).pow(1.0 / norm).masked_fill(power_sum <= floor, 0.0)


def check_norm(norm: float) -> None:
    """Raise unless 1 ≤ p < ∞."""
    if not 1 <= norm < math.inf:
        raise InputError(f"norm must be at least 1 and finite, got {norm}")
