"""The launches of `triton_losses`: rows, then a loss, then in the backward pass the gradient."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from calibrant.kernels.torch.triton_losses import (
    avuc_kernel,
    gradient_kernel,
    mmce_kernel,
    rows_kernel,
    soft_ece_kernel,
)

SLOTS = 8
"""Numbers kept per row between the launches."""

EPSILON = torch.finfo(torch.float32).eps
HAIR = EPSILON**1.5
"""What keeps the ratio of `avuc` finite where a set is empty; that of the plain form in float32."""


def _tiles(n_classes: int) -> tuple[int, int]:
    """BLOCK_N and BLOCK_K of the kernels that read the logits."""
    block_k = max(16, triton.next_power_of_2(n_classes))
    return max(1, 1024 // block_k), block_k


def rows(logits: Tensor, labels: Tensor) -> Tensor:
    """What is kept of each row: (SLOTS, n) in float32, the last two slots still empty."""
    n_rows, n_classes = logits.shape
    block_n, block_k = _tiles(n_classes)
    kept = torch.empty((SLOTS, n_rows), dtype=torch.float32, device=logits.device)
    rows_kernel[(triton.cdiv(n_rows, block_n),)](
        logits, labels, kept, n_rows, CLASSES=n_classes, STRIDE=logits.stride(0), BLOCK_N=block_n, BLOCK_K=block_k
    )
    return kept


def gradient(logits: Tensor, kept: Tensor, scale: Tensor, *, by_entropy: bool) -> Tensor:
    """The gradient by the logits (n, K), in their dtype, times `scale` ()."""
    n_rows, n_classes = logits.shape
    block_n, block_k = _tiles(n_classes)
    found = torch.empty((n_rows, n_classes), dtype=logits.dtype, device=logits.device)
    gradient_kernel[(triton.cdiv(n_rows, block_n),)](
        logits,
        kept,
        scale,
        found,
        n_rows,
        CLASSES=n_classes,
        STRIDE=logits.stride(0),
        BY_H=by_entropy,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
    )
    return found


def soft_ece(kept: Tensor, *, n_bins: int, softness: float, norm: float, by_label: bool) -> Tensor:
    """The loss () of rows; its derivatives go into the last slots of `kept`."""
    loss = torch.empty((), dtype=torch.float32, device=kept.device)
    bins = max(16, triton.next_power_of_2(n_bins))
    soft_ece_kernel[(1,)](
        kept,
        loss,
        kept.shape[1],
        float(softness),
        EPSILON**2,
        NORM=float(norm),
        BY_LABEL=by_label,
        N_BINS=n_bins,
        BLOCK=4096 // bins,
        BINS=bins,
        num_warps=8,
    )
    return loss


def avuc(
    kept: Tensor, *, kappa: float, temperature: float, log_classes: float, soft: bool, stop_confidence: bool
) -> Tensor:
    """The loss () of rows; its derivatives go into the last slots of `kept`."""
    loss = torch.empty((), dtype=torch.float32, device=kept.device)
    avuc_kernel[(1,)](
        kept,
        loss,
        kept.shape[1],
        float(kappa),
        float(temperature),
        float(log_classes),
        8 * EPSILON,
        HAIR,
        SOFT=soft,
        STOP=stop_confidence,
        BLOCK=512,
        num_warps=4,
    )
    return loss


def mmce(kept: Tensor, *, width: float, weighted: bool) -> Tensor:
    """The loss () of rows; its derivatives go into the last slots of `kept`."""
    loss = torch.empty((), dtype=torch.float32, device=kept.device)
    n_rows = kept.shape[1]
    others = max(16, triton.next_power_of_2(n_rows))
    mmce_kernel[(1,)](
        kept,
        loss,
        n_rows,
        float(width),
        EPSILON**2,
        WEIGHTED=weighted,
        BLOCK=max(1, 8192 // others),
        OTHERS=others,
        num_warps=8,
    )
    return loss
