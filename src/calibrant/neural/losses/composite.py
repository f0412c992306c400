"""A primary loss and a weighted secondary one."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor, nn

from calibrant.core.errors import InputError

Loss = Callable[[Tensor, Tensor], Tensor]
"""A function or module `loss(logits, labels)` → scalar tensor."""


class CompositeLoss(nn.Module):
    """primary(z, y) + β·secondary(z, y) (Karandikar et al. 2021, §5.1)."""

    def __init__(self, primary: Loss, secondary: Loss, weight: float) -> None:
        super().__init__()
        if not (math.isfinite(weight) and weight >= 0):
            raise InputError(f"weight must be finite and 0 or more, got {weight}")
        self.primary = primary
        self.secondary = secondary
        self.weight = weight

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch."""
        return self.primary(logits, labels) + self.weight * self.secondary(logits, labels)


def composite(primary: Loss, secondary: Loss, weight: float) -> CompositeLoss:
    """The loss primary + β·secondary as one callable.

    Parameters
    ----------
    primary, secondary : functions or modules of (logits, labels)
    weight : β ≥ 0

    Examples
    --------
    >>> import torch
    >>> from calibrant.neural.losses import FocalLoss, cross_entropy, soft_ece
    >>> z, y = torch.zeros(2, 4), torch.tensor([0, 1])
    >>> round(composite(cross_entropy, soft_ece, weight=2.0)(z, y).item(), 4)  # log 4 + 2/4
    1.8863
    """
    return CompositeLoss(primary, secondary, weight)
