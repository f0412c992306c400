"""What the losses share: checked inputs, confidence, correctness, entropy, soft bins, groups, a root safe at zero.

Everything here is a few torch operations that read no value on the host, so that no loss waits for the device.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.kernels.torch.tensors import widened

FORMS = ("mean", "worst")
"""How the losses of the groups of a batch become one."""


def check_tensors(logits: Tensor, labels: Tensor) -> None:
    """Raise unless both are torch tensors."""
    if not isinstance(logits, Tensor) or not isinstance(labels, Tensor):
        raise InputError(f"a loss takes torch tensors, got {type(logits).__name__} and {type(labels).__name__}")


def check_batch(logits: Tensor, labels: Tensor) -> None:
    """Raise unless logits are an n×K float tensor and labels n class indices on the same device."""
    check_tensors(logits, labels)
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
    """log softmax(z) of a checked batch."""
    check_batch(logits, labels)
    return widened(logits).log_softmax(dim=1)


def top_label(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Confidence c = max p, and correctness a ∈ {0, 1} without gradient, of a checked batch (n,)."""
    check_batch(logits, labels)
    confidence, predicted = widened(logits).softmax(dim=1).max(dim=1)
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


def over_groups(
    loss: Callable[[Tensor | None], Tensor], like: Tensor, groups: Tensor | None, n_groups: int | None, form: str
) -> Tensor:
    """loss(None) without groups; else the mean or the largest of loss(1{group = g}) over the groups of the batch.

    The loss of group g has row weights 1{group = g}, so that nothing waits for the device to say which groups a batch
    holds; a group without a row counts nothing.

    Parameters
    ----------
    loss : of row weights (n,), or of None for all rows alike
    like : a tensor (n, …) of the batch, which sets dtype and device
    groups : (n,) whole numbers from 0
    n_groups : how many there are; None reads the largest number, for which the device is waited for
    form : "mean" or "worst"
    """
    if groups is None:
        return loss(None)
    if form not in FORMS:
        raise InputError(f"group_form must be 'mean' or 'worst', got {form!r}")
    kind = groups.dtype if isinstance(groups, Tensor) else type(groups)
    if not isinstance(groups, Tensor) or groups.is_floating_point() or groups.dtype == torch.bool:
        raise InputError(f"groups must be a tensor of whole numbers, got {kind}")
    if groups.shape != like.shape[:1]:
        raise InputError(f"groups have shape {tuple(groups.shape)}, but there are {like.shape[0]} rows of logits")
    count = int(groups.max()) + 1 if n_groups is None else n_groups
    masks = [(groups == group).to(like.dtype) for group in range(count)]
    present = torch.stack([mask.sum() > 0 for mask in masks])
    values = torch.stack([loss(mask) for mask in masks])
    values = torch.where(present, values, 0.0)
    return values.max() if form == "worst" else values.sum() / present.sum().clamp_min(1)
