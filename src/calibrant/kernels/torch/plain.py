"""The kernels in plain torch operations: for CUDA without Triton, and the reference that tests hold to numpy.

They read the rows block by block, so that nothing of the size of the input is allocated, and never wait for the host.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK_ELEMENTS = 1 << 24


def row_slices(n_rows: int, n_classes: int) -> Iterator[slice]:
    """Blocks of rows of about `BLOCK_ELEMENTS` numbers."""
    size = max(1, BLOCK_ELEMENTS // max(1, n_classes))
    for start in range(0, n_rows, size):
        yield slice(start, min(start + size, n_rows))


def vector_sums(
    logits: Tensor, labels: Tensor, weights: Tensor | None, scale: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """Loss () of softmax(s∘z + b), and (5, K): its gradient by s and b, and Σ w·q(1−q)·(z², z, 1), in float64."""
    loss = torch.zeros((), dtype=torch.float64, device=logits.device)
    sums = torch.zeros((5, logits.shape[1]), dtype=torch.float64, device=logits.device)
    for block in row_slices(*logits.shape):
        values = logits[block].double()
        scores = (values * scale.double() + bias.double()).log_softmax(dim=1)
        share, losses = scores.exp(), -scores.gather(1, labels[block, None])[:, 0]
        weight = torch.ones_like(losses) if weights is None else weights[block].double()
        loss += weight @ losses
        curve = share * (1 - share)
        share = share.scatter_add(1, labels[block, None], torch.full_like(losses, -1.0)[:, None])
        sums[0] += weight @ (share * values)
        sums[1] += weight @ share
        sums[4] += weight @ curve
        curve = curve * values
        sums[3] += weight @ curve
        sums[2] += weight @ (curve * values)
    return loss, sums


def vector_product(logits: Tensor, weights: Tensor | None, scale: Tensor, bias: Tensor, direction: Tensor) -> Tensor:
    """The Hessian of `vector_sums` times a direction (2, K), as (2, K) in float64."""
    product = torch.zeros((2, logits.shape[1]), dtype=torch.float64, device=logits.device)
    for block in row_slices(*logits.shape):
        values = logits[block].double()
        share = (values * scale.double() + bias.double()).softmax(dim=1)
        change = values * direction[0].double() + direction[1].double()
        change = share * (change - (share * change).sum(dim=1, keepdim=True))
        if weights is not None:
            change = change * weights[block].double()[:, None]
        product[1] += change.sum(dim=0)
        product[0] += (change * values).sum(dim=0)
    return product


def column_moments(logits: Tensor, weights: Tensor | None) -> Tensor:
    """Σ w·z, Σ w·|z| and Σ w·z² of each class: (3, K) in float64."""
    sums = torch.zeros((3, logits.shape[1]), dtype=torch.float64, device=logits.device)
    for block in row_slices(*logits.shape):
        values = logits[block].double()
        weight = torch.ones(len(values), dtype=torch.float64, device=logits.device)
        weight = weight if weights is None else weights[block].double()
        sums += torch.stack([weight @ values, weight @ values.abs(), weight @ values.square()])
    return sums


def vector_newton(
    logits: Tensor, labels: Tensor, weights: Tensor | None, scale: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, gradient (2, K) and Hessian (2K, 2K) of the mean-free NLL of softmax(s∘z + b), in float64."""
    loss, sums = vector_sums(logits, labels, weights, scale, bias)
    n_classes = logits.shape[1]
    hessian = torch.zeros((2 * n_classes, 2 * n_classes), dtype=torch.float64, device=logits.device)
    for block in row_slices(len(logits), 4 * n_classes):
        values = logits[block].double()
        share = (values * scale.double() + bias.double()).softmax(dim=1)
        both = torch.cat([share * values, share], dim=1)
        heavy = both if weights is None else both * weights[block].double()[:, None]
        weight = torch.ones_like(values[:, 0]) if weights is None else weights[block].double()
        hessian -= both.T @ heavy
        own = torch.stack([weight @ (share * values.square()), weight @ (share * values), weight @ share])
        each = torch.arange(n_classes, device=logits.device)
        hessian[each, each] += own[0]
        hessian[each, n_classes + each] += own[1]
        hessian[n_classes + each, each] += own[1]
        hessian[n_classes + each, n_classes + each] += own[2]
    return loss, sums[:2], hessian


def first_maximum(values: Tensor) -> Tensor:
    """The first class of the highest value of each row; `argmax` promises no order among equals."""
    is_peak = values == values.amax(dim=1, keepdim=True)
    return is_peak.to(torch.int8).argmax(dim=1) if values.device.type == "cpu" else _first_true(is_peak)


def _first_true(flags: Tensor) -> Tensor:
    places = torch.arange(flags.shape[1], device=flags.device)
    return torch.where(flags, places, flags.shape[1] - 1).amin(dim=1)
