"""Sums for vector scaling over logits on a device, and the forms there of its statistics.

The plain torch forms read block by block in float64 and never wait for the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from calibrant.kernels import scaling
from calibrant.kernels.torch.tensors import host, row_slices

if TYPE_CHECKING:
    from calibrant.kernels.torch.rows import DeviceBlocks

LONGEST = 4096
"""Classes up to which the Triton kernels hold a row and its sums in registers."""


def vector_sums(logits: Tensor, labels: Tensor, weights: Tensor | None, given: Tensor) -> tuple[Tensor, Tensor]:
    """Loss () of softmax(s∘z + b), and (5, K): its gradient by s and b, and Σ w·q(1−q)·(z², z, 1), in float64."""
    scale, bias = given.double()
    loss = torch.zeros((), dtype=torch.float64, device=logits.device)
    sums = torch.zeros((5, logits.shape[1]), dtype=torch.float64, device=logits.device)
    for block in row_slices(*logits.shape):
        values = logits[block].double()
        scores = (values * scale + bias).log_softmax(dim=1)
        share, losses = scores.exp(), -scores.gather(1, labels[block, None])[:, 0]
        weight = torch.ones_like(losses) if weights is None else weights[block].double()
        loss += weight @ losses
        curve = share * (1 - share)
        share = share.scatter_add(1, labels[block, None], torch.full_like(losses, -1.0)[:, None])
        parts = [share * values, share, curve * values.square(), curve * values, curve]
        sums += torch.stack([weight @ part for part in parts])
    return loss, sums


def vector_product(logits: Tensor, labels: Tensor, weights: Tensor | None, given: Tensor) -> Tensor:
    """The Hessian of `vector_sums` times the direction that follows s and b in `given` (4, K): (2, K) in float64."""
    scale, bias, step_scale, step_bias = given.double()
    product = torch.zeros((2, logits.shape[1]), dtype=torch.float64, device=logits.device)
    for block in row_slices(*logits.shape):
        values = logits[block].double()
        share = (values * scale + bias).softmax(dim=1)
        change = values * step_scale + step_bias
        change = share * (change - (share * change).sum(dim=1, keepdim=True))
        if weights is not None:
            change = change * weights[block].double()[:, None]
        product += torch.stack([(change * values).sum(dim=0), change.sum(dim=0)])
    return product


def column_moments(logits: Tensor, weights: Tensor | None) -> Tensor:
    """Σ w·z, Σ w·|z| and Σ w·z² of each class: (3, K) in float64."""
    sums = torch.zeros((3, logits.shape[1]), dtype=torch.float64, device=logits.device)
    for block in row_slices(*logits.shape):
        values = logits[block].double()
        weight = torch.ones_like(values[:, 0]) if weights is None else weights[block].double()
        sums += torch.stack([weight @ values, weight @ values.abs(), weight @ values.square()])
    return sums


def vector_newton(
    logits: Tensor, labels: Tensor, weights: Tensor | None, given: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, gradient (2, K) and Hessian (2K, 2K) of the mean-free NLL of softmax(s∘z + b), in float64."""
    loss, sums = vector_sums(logits, labels, weights, given)
    scale, bias = given.double()
    n_classes = logits.shape[1]
    hessian = torch.zeros((2 * n_classes, 2 * n_classes), dtype=torch.float64, device=logits.device)
    for block in row_slices(len(logits), 4 * n_classes):
        values = logits[block].double()
        share = (values * scale + bias).softmax(dim=1)
        both = torch.cat([share * values, share], dim=1)
        heavy = both if weights is None else both * weights[block].double()[:, None]
        hessian -= both.T @ heavy
        own = (
            (heavy[:, :n_classes] * values).sum(dim=0),
            heavy[:, :n_classes].sum(dim=0),
            heavy[:, n_classes:].sum(dim=0),
        )
        corners = [[own[0].diag(), own[1].diag()], [own[1].diag(), own[2].diag()]]
        hessian += torch.cat([torch.cat(row, dim=1) for row in corners])
    return loss, sums[:2], hessian


def _given(rows: DeviceBlocks, *parameters: np.ndarray) -> tuple[Any, ...]:
    """The kernels for these rows, and what they take: logits, labels, weights and the parameters on the device."""
    fused = rows.use_fused()
    given = torch.as_tensor(np.vstack(parameters), dtype=torch.float32 if fused else torch.float64)
    call = (rows.tensor, rows.target, rows.mass, given.to(rows.tensor.device))
    if fused and rows.n_classes <= LONGEST:
        from calibrant.kernels.torch import triton_vector

        return triton_vector.vector_sums, triton_vector.vector_product, call
    return vector_sums, vector_product, call


@scaling.vector_sums.on_device
def _vector_sums(rows: DeviceBlocks, scale: np.ndarray, bias: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    sums, _, call = _given(rows, scale, bias)
    loss, found = sums(*call)
    found = host(found)
    return float(loss), found[:2], found[2:]


@scaling.vector_product.on_device
def _vector_product(
    rows: DeviceBlocks, scale: np.ndarray, bias: np.ndarray, direction: np.ndarray
) -> tuple[np.ndarray]:
    _, product, call = _given(rows, scale, bias, direction)
    return (host(product(*call)),)


@scaling.vector_newton.on_device
def _vector_newton(
    rows: DeviceBlocks, scale: np.ndarray, bias: np.ndarray, with_hessian: bool = True
) -> tuple[float, np.ndarray, np.ndarray]:
    if not with_hessian:
        return (*_vector_sums(rows, scale, bias)[:2], np.zeros((0, 0)))
    loss, gradient, hessian = vector_newton(*_given(rows, scale, bias)[-1])
    return float(loss), host(gradient), host(hessian)


@scaling.column_moments.on_device
def _column_moments(rows: DeviceBlocks) -> tuple[np.ndarray, ...]:
    return tuple(host(column_moments(rows.tensor, rows.mass)))
