"""Passes over rows on a device that leave a few numbers per row, or sums, on the host; plain torch in float64.

`change` is a map from logits to logits, row by row, such as a fitted calibrator; None leaves them as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.kernels.torch.rows import DeviceBlocks
from calibrant.kernels.torch.tensors import first_maximum, host

Change = Callable[[Tensor], Tensor] | None

BLOCK_ELEMENTS = 1 << 22
"""Numbers of a block: a pass holds a few float64 copies of it."""


def blocks(rows: DeviceBlocks, change: Change = None) -> Iterator[tuple[slice, Tensor]]:
    """Places and float64 logits (m, K) of blocks of rows."""
    rows.settle()
    size = max(1, BLOCK_ELEMENTS // rows.n_classes)
    for start in range(0, rows.n, size):
        block = slice(start, min(start + size, rows.n))
        values, change = rows.tensor[block], change or rows.change
        if change is None:
            yield block, values.double()
        else:
            narrow = values.dtype in (torch.float16, torch.bfloat16)
            yield block, change(values.float() if narrow else values).double()


def per_row(
    rows: DeviceBlocks, work: Callable[[slice, Tensor], tuple[Tensor, ...]], change: Change = None
) -> list[Any]:
    """Arrays (n, …) on the host, joined from the columns that `work` gives for each block."""
    parts = [work(block, values) for block, values in blocks(rows, change)]
    return [host(torch.cat(columns)) for columns in zip(*parts, strict=True)]


def top_columns(rows: DeviceBlocks) -> list[np.ndarray]:
    """Confidence in float64, prediction and correctness of each row.

    Near 1 neighbouring float32 numbers are 6e-8 apart: methods that rank confidences would see ties.
    """

    def work(block: slice, values: Tensor) -> tuple[Tensor, ...]:
        prediction = first_maximum(values)
        peak = values.gather(1, prediction[:, None].clamp_max(values.shape[1] - 1))
        confidence = 1.0 / (values - peak).exp_().sum(dim=1)
        return confidence, prediction, prediction == rows.target[block]

    return per_row(rows, work)


def label_columns(rows: DeviceBlocks, change: Change = None) -> list[np.ndarray]:
    """NLL of the label, confidence and correctness of each row."""

    def work(block: slice, values: Tensor) -> tuple[Tensor, ...]:
        scores = values.log_softmax(dim=1)
        label = rows.target[block]
        own = scores.gather(1, label[:, None])[:, 0]
        return -own, scores.amax(dim=1).exp(), first_maximum(scores) == label

    return per_row(rows, work, change)


def top_odds(rows: DeviceBlocks, change: Change = None) -> list[np.ndarray]:
    """Prediction of each row, and the peak minus the log-sum-exp of all other logits."""

    def work(_: slice, values: Tensor) -> tuple[Tensor, ...]:
        prediction = first_maximum(values)[:, None]
        peak = values.gather(1, prediction)[:, 0]
        others = values.scatter(1, prediction, -torch.inf).logsumexp(dim=1)
        return prediction[:, 0], peak - others

    return per_row(rows, work, change)


def label_shares(rows: DeviceBlocks, beta: float) -> np.ndarray:
    """The probability of the label of each row under softmax(β·z)."""

    def work(block: slice, values: Tensor) -> tuple[Tensor, ...]:
        return ((values * beta).softmax(dim=1).gather(1, rows.target[block][:, None])[:, 0],)

    return per_row(rows, work)[0]


def label_gaps(rows: DeviceBlocks) -> np.ndarray:
    """The logit of the label minus the highest one of each row."""

    def work(block: slice, values: Tensor) -> tuple[Tensor, ...]:
        return (values.gather(1, rows.target[block][:, None])[:, 0] - values.amax(dim=1),)

    return per_row(rows, work)[0]


def row_moments(rows: DeviceBlocks, inverse_temperature: np.ndarray) -> np.ndarray:
    """`kernels.scaling.row_moments` of the rows: (n, 5)."""
    betas = torch.as_tensor(inverse_temperature, device=rows.tensor.device)

    def work(block: slice, values: Tensor) -> tuple[Tensor, ...]:
        values -= values.amax(dim=1, keepdim=True)
        weighted = (values * betas[block, None]).exp()
        moments = [weighted.sum(dim=1)]
        for _ in range(4):
            weighted = weighted * values.clamp_min(-1e100)
            moments.append(weighted.sum(dim=1))
        return (torch.stack(moments, dim=1),)

    return per_row(rows, work)[0]


def mixture_products(rows: DeviceBlocks, beta: float) -> np.ndarray:
    """Σ w·⟨p, p⟩ of softmax(β·z), of softmax(z), and of both, Σ w·p(y) of each, and Σ w: six sums."""
    total = torch.zeros(6, dtype=torch.float64, device=rows.tensor.device)
    for block, values in blocks(rows):
        sharp, usual = (values * beta).softmax(dim=1), values.softmax(dim=1)
        label = rows.target[block][:, None]
        one = torch.ones(len(values), dtype=torch.float64, device=values.device)
        weight = one if rows.mass is None else rows.mass[block].double()
        found = [(sharp * sharp).sum(dim=1), (usual * usual).sum(dim=1), (sharp * usual).sum(dim=1)]
        found += [sharp.gather(1, label)[:, 0], usual.gather(1, label)[:, 0], one]
        total += torch.stack(found) @ weight
    return host(total)


def bent_sums(
    rows: DeviceBlocks, features: Callable[[Tensor], tuple[Tensor, ...]], shape: np.ndarray, change: Change = None
) -> tuple[float, np.ndarray, np.ndarray]:
    """Σ w·NLL of softmax(Σ_m θ_m·φ_m(log softmax z)), its gradient by θ (M,) and Hessian (M×M)."""
    theta = torch.as_tensor(shape, device=rows.tensor.device)
    size = len(shape)
    loss = torch.zeros((), dtype=torch.float64, device=theta.device)
    gradient, hessian = torch.zeros_like(theta), torch.zeros((size, size), dtype=torch.float64, device=theta.device)
    for block, values in blocks(rows, change):
        inputs = torch.stack(features(values.log_softmax(dim=1)))
        scores = torch.tensordot(theta, inputs, 1).log_softmax(dim=1)
        label = rows.target[block][:, None]
        one = torch.ones(len(values), dtype=torch.float64, device=values.device)
        weight = one if rows.mass is None else rows.mass[block].double()
        loss -= weight @ scores.gather(1, label)[:, 0]
        share = scores.exp()
        mean = (inputs * share).sum(dim=2)
        own = inputs.gather(2, label.expand(size, -1, -1))[:, :, 0]
        gradient += (mean - own) @ weight
        weighted = (inputs * (share * weight[:, None])).reshape(size, -1)
        hessian += weighted @ inputs.reshape(size, -1).T - (mean * weight) @ mean.T
    return float(loss), host(gradient), host(hessian)


def fold_columns(rows: DeviceBlocks, salt: int, odd: int) -> list[np.ndarray]:
    """A hash of each row that the order of its columns does not change, its prediction, and its label's logit.

    The integers wrap around at 64 bits as the unsigned ones of the host do.
    """

    def mix(bits: Tensor) -> Tensor:
        for shift in (32, 29):
            # a shift of unsigned numbers brings in zeros from the left
            bits = (bits ^ ((bits >> shift) & ((1 << (64 - shift)) - 1))) * odd
        return bits

    def work(block: slice, values: Tensor) -> tuple[Tensor, ...]:
        hashes = mix(mix((values.float().double() + 0.0).view(torch.int64) ^ salt).sum(dim=1))
        return hashes, first_maximum(values), values.gather(1, rows.target[block][:, None])[:, 0]

    return per_row(rows, work)
