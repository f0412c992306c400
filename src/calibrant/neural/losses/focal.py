"""Focal loss: cross entropy with less weight on rows that are already right."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.neural.losses.rows import RowLoss, row_batch

FLSD_53 = "flsd-53"
"""The sample-dependent exponent of Mukhoti et al. 2020: 5 where p[y] < 0.2, otherwise 3."""


def focal(
    logits: Tensor,
    labels: Tensor,
    *,
    gamma: float | str = 3.0,
    detach_factor: bool = False,
    class_weights: Tensor | None = None,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Mean focal loss (Lin et al. 2018, eq. 4).

    −(1/n) Σ_i (1 − p_i[y_i])^γ log p_i[y_i]

    Parameters
    ----------
    logits : (n, K) tensor, or dense maps (N, K, H, W)
    labels : (n,) tensor of class indices, or shares of the classes (n, K) in floating point
    gamma : γ ≥ 0, or "flsd-53" for 5 where p[y] < 0.2 and 3 elsewhere
    detach_factor : treat (1 − p[y])^γ as a weight without gradient
    class_weights, ignore_index, reduction : as in `cross_entropy`

    Examples
    --------
    >>> import torch
    >>> z, y = torch.zeros(1, 4), torch.tensor([2])
    >>> round(focal(z, y, gamma=2.0).item(), 4)  # (3/4)² log 4
    0.7798
    """
    rows = row_batch(logits, labels, class_weights, ignore_index)
    log_p = rows.log_p if rows.shares is not None else rows.of_target(rows.log_p)
    # below one ulp the factor counts as constant: x^(γ−1) would be infinite there for γ < 1
    remainder = (-torch.expm1(log_p)).clamp_min(torch.finfo(log_p.dtype).eps)
    factor = remainder.pow(_exponent(gamma, log_p))
    if detach_factor:
        factor = factor.detach()
    losses = -factor * log_p
    return rows.reduced(losses if rows.shares is None else rows.of_target(losses), reduction)


def _exponent(gamma: float | str, log_p: Tensor) -> Tensor | float:
    if isinstance(gamma, str):
        if gamma != FLSD_53:
            raise InputError(f"gamma must be a number or {FLSD_53!r}, got {gamma!r}")
        return 3.0 + 2.0 * (log_p.detach().exp() < 0.2).to(log_p.dtype)
    if not gamma >= 0:
        raise InputError(f"gamma must be 0 or more, got {gamma}")
    return float(gamma)


class FocalLoss(RowLoss):
    """`focal` as a module."""

    function = staticmethod(focal)

    def __init__(self, gamma: float | str = 3.0, detach_factor: bool = False, **shared: Any) -> None:
        super().__init__(**shared)
        self.gamma = gamma
        self.detach_factor = detach_factor
