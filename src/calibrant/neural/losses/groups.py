"""A calibration loss by group of rows: the mean over the groups of a batch, or the worst of them.

A loss of group g is the loss with row weights 1{group = g}, so nothing waits for the device to say which groups a batch
holds; a group without a row counts nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.neural.losses.terms import LossModule

FORMS = ("mean", "worst")

Combine = Callable[[Callable[[Tensor | None], Tensor], Tensor], Tensor]
"""`over_groups` with its groups given: a function of the loss and of a tensor of the batch."""


def over_groups(
    loss: Callable[[Tensor | None], Tensor], like: Tensor, groups: Tensor | None, n_groups: int | None, form: str
) -> Tensor:
    """loss(None) without groups; else the mean or the largest of loss(1{group = g}) over the groups of the batch.

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
    if not isinstance(groups, Tensor) or groups.is_floating_point() or groups.dtype == torch.bool:
        raise InputError(
            f"groups must be a tensor of whole numbers, got {getattr(groups, 'dtype', type(groups).__name__)}"
        )
    if groups.shape != like.shape[:1]:
        raise InputError(f"groups have shape {tuple(groups.shape)}, but there are {like.shape[0]} rows of logits")
    if n_groups is None:
        n_groups = int(groups.max()) + 1
    masks = [(groups == group).to(like.dtype) for group in range(n_groups)]
    values = torch.stack([loss(mask) for mask in masks])
    present = torch.stack([mask.sum() > 0 for mask in masks])
    if form == "worst":
        return torch.where(present, values, torch.zeros_like(values)).max()
    return torch.where(present, values, torch.zeros_like(values)).sum() / present.sum().clamp_min(1)


class GroupLoss(LossModule):
    """A loss that is taken by group of rows where the batch comes with groups."""

    def forward(self, logits: Tensor, labels: Tensor, groups: Tensor | None = None, **named: Any) -> Tensor:
        """The loss of a batch; `groups` (n,) where it is taken by group."""
        return super().forward(logits, labels, groups=groups, **named)
