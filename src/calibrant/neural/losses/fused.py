"""Batch losses by a few Triton launches, where the logits are on a CUDA device; the plain form elsewhere.

Value and gradient are those of the plain form, which is also used for second derivatives and under `torch.compile`,
whose own fusion is as fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from calibrant.kernels.torch.dispatch import use_triton

Plain = Callable[[Tensor], Tensor]
"""The plain form as a function of the logits alone."""

LARGEST = {"soft_ece": 1 << 13, "avuc": 1 << 14, "mmce": 1 << 10}
"""Rows of a batch up to which one program that sums over it is faster than the plain form, which uses the device."""

WIDEST, MOST_BINS = 8192, 64
"""Classes and bins that one tile holds."""


def fused_loss(logits: Tensor, labels: Tensor, plain: Plain, kind: str, **options: Any) -> Tensor:
    """The loss `kind` ("soft_ece", "avuc", "mmce") of a checked batch; see `kernels.torch.triton_losses`."""
    if not _fits(logits, kind, options):
        return plain(logits)
    rows = logits if logits.stride(1) == 1 else logits.contiguous()
    return cast(Tensor, _Fused.apply(rows, labels, plain, kind, options))


def _fits(logits: Tensor, kind: str, options: dict[str, Any]) -> bool:
    return (
        not torch.compiler.is_compiling()
        and use_triton(logits)
        and logits.dtype != torch.float64
        and logits.shape[0] <= LARGEST[kind]
        and logits.shape[1] <= WIDEST
        and options.get("n_bins", 1) <= MOST_BINS
    )


class _Fused(torch.autograd.Function):
    """Forward: two launches; backward: one."""

    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any, logits: Tensor, labels: Tensor, plain: Plain, kind: str, options: dict[str, Any]
    ) -> Tensor:
        from calibrant.kernels.torch import loss_launches

        kept = loss_launches.rows(logits, labels)
        if kind == "avuc":
            loss = loss_launches.avuc(kept, log_classes=math.log(logits.shape[1]), **options)
        else:
            loss = getattr(loss_launches, kind)(kept, **options)
        ctx.save_for_backward(logits, kept)
        ctx.plain, ctx.by_entropy = plain, kind == "avuc"
        return loss

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor) -> tuple[Tensor | None, ...]:
        logits, kept = ctx.saved_tensors
        if torch.is_grad_enabled():
            # a gradient that is itself differentiated (create_graph=True)
            (found,) = torch.autograd.grad(ctx.plain(logits), logits, arriving[0], create_graph=True)
        else:
            from calibrant.kernels.torch import loss_launches

            found = loss_launches.gradient(logits, kept, arriving[0], by_entropy=ctx.by_entropy)
        return found, None, None, None, None
