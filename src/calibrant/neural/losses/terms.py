"""What the losses share: checked inputs, confidence, correctness, entropy, and a root that is safe at zero.

Everything here is a few torch operations that read no value on the host, so that no loss waits for the device.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from calibrant.core.errors import InputError


class LossModule(nn.Module):
    """A loss function as a module: the attributes of the module are the keywords of the function."""

    function: ClassVar[Callable[..., Tensor]]
    keywords: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls) -> None:
        if "function" in vars(cls):
            options = inspect.getfullargspec(cls.function).kwonlyargs
            cls.keywords = tuple(name for name in options if name != "groups")

    def forward(self, logits: Tensor, labels: Tensor, **named: Any) -> Tensor:
        """The loss of a batch."""
        return type(self).function(logits, labels, **{name: getattr(self, name) for name in self.keywords}, **named)


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


def wide(logits: Tensor) -> Tensor:
    """The logits in float32 or wider, whatever autocast gave."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def log_probabilities(logits: Tensor, labels: Tensor) -> Tensor:
    """log softmax(z) of a checked batch."""
    check_batch(logits, labels)
    return wide(logits).log_softmax(dim=1)


def of_label(values: Tensor, labels: Tensor) -> Tensor:
    """values[i, labels[i]] of each row i."""
    return values.gather(1, labels.long().unsqueeze(1)).squeeze(1)


def top_label(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Confidence c = max p, and correctness a ∈ {0, 1} without gradient, of a checked batch (n,)."""
    check_batch(logits, labels)
    confidence, predicted = wide(logits).softmax(dim=1).max(dim=1)
    return confidence, (predicted == labels).to(confidence.dtype)


def entropy(log_p: Tensor) -> Tensor:
    """−Σ_k p_k log p_k in nats of each row; a class of probability 0 adds 0."""
    return -(log_p.exp() * log_p).sum(dim=1)


def memberships(scores: Tensor, n_bins: int, temperature: float) -> Tensor:
    """Soft bins softmax_j(−(c − ξ_j)²/T) over the centres ξ_j of M equal bins; one more axis of size M."""
    half = 0.5 / n_bins
    centres = torch.linspace(half, 1 - half, n_bins, dtype=scores.dtype, device=scores.device)
    return ((scores.unsqueeze(-1) - centres).square() * (-1 / temperature)).softmax(dim=-1)


def power(gap: Tensor, norm: float) -> Tensor:
    """|gap|^p."""
    return gap.square() if norm == 2 else gap.abs().pow(norm)


def root(power_sum: Tensor, norm: float) -> Tensor:
    """x^(1/p) with x no smaller than rounding, below which the slope is 0: at zero it would be infinite."""
    if norm == 1:
        return power_sum
    floored = power_sum.clamp_min(torch.finfo(power_sum.dtype).eps ** 2)
    return floored.sqrt() if norm == 2 else floored.pow(1.0 / norm)


def check_norm(norm: float) -> None:
    """Raise unless 1 ≤ p < ∞."""
    if not 1 <= norm < math.inf:
        raise InputError(f"norm must be at least 1 and finite, got {norm}")
