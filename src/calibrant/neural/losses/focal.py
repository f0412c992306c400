"""Focal loss: cross entropy that looks away from what is already right."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from calibrant.core.errors import InputError
from calibrant.neural.losses.terms import log_probabilities, of_label

FLSD_53 = "flsd-53"
"""The sample-dependent exponent of Mukhoti et al. 2020: 5 where p[y] < 0.2, otherwise 3."""


def focal(logits: Tensor, labels: Tensor, *, gamma: float | str = 3.0, detach_factor: bool = False) -> Tensor:
    """Mean focal loss (Lin et al. 2018, eq. 4).

    −(1/n) Σ_i (1 − p_i[y_i])^γ log p_i[y_i]

    Parameters
    ----------
    logits : (n, K) tensor
    labels : (n,) tensor of class indices
    gamma : γ ≥ 0, or "flsd-53" for 5 where p[y] < 0.2 and 3 elsewhere
    detach_factor : treat (1 − p[y])^γ as a weight without gradient

    Examples
    --------
    >>> import torch
    >>> z, y = torch.zeros(1, 4), torch.tensor([2])
    >>> round(focal(z, y, gamma=2.0).item(), 4)  # (3/4)² log 4
    0.7798
    """
    log_p = of_label(log_probabilities(logits, labels), labels)
    # below one ulp the factor counts as constant: x^(γ−1) would be infinite there for γ < 1
    remainder = (-torch.expm1(log_p)).clamp_min(torch.finfo(log_p.dtype).eps)
    factor = remainder.pow(_exponent(gamma, log_p))
    if detach_factor:
        factor = factor.detach()
    return -(factor * log_p).mean()


def _exponent(gamma: float | str, log_p: Tensor) -> Tensor | float:
    if isinstance(gamma, str):
        if gamma != FLSD_53:
            raise InputError(f"gamma must be a number or {FLSD_53!r}, got {gamma!r}")
        return 3.0 + 2.0 * (log_p.detach().exp() < 0.2).to(log_p.dtype)
    if not gamma >= 0:
        raise InputError(f"gamma must be 0 or more, got {gamma}")
    return float(gamma)


class FocalLoss(nn.Module):
    """`focal` as a module."""

    def __init__(self, gamma: float | str = 3.0, detach_factor: bool = False) -> None:
        super().__init__()
        self.gamma = gamma
        self.detach_factor = detach_factor

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch."""
        return focal(logits, labels, gamma=self.gamma, detach_factor=self.detach_factor)
