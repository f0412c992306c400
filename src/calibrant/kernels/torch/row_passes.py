"""Passes over rows on a device that leave a few numbers per row, or sums, on the host; plain torch in float64.

`change` is a map from logits to logits, row by row, such as a fitted calibrator; None leaves them as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from calibrant.core.arrays import Array
from calibrant.kernels.scaling import block_moments
from calibrant.kernels.torch.rows import DeviceBlocks
from calibrant.kernels.torch.tensors import first_maximum, host

Change = Callable[[Tensor], Tensor] | None


def per_row(
    rows: DeviceBlocks, work: Callable[[slice, Tensor], tuple[Tensor, ...]], change: Change = None
) -> list[Any]:
    """Arrays (n, …) on the host, joined from the columns that `work` gives for each block."""
    parts = [work(block, values) for block, values in rows.wide_blocks(change)]
    return [host(torch.cat(columns)) for columns in zip(*parts, strict=True)]


def top_columns(rows: DeviceBlocks) -> list[Array]:
    """Confidence in float64, prediction and correctness of each row.

    Near 1 neighbouring float32 numbers are 6e-8 apart: methods that rank confidences would see ties.
    """

    def work(block: slice, values: Tensor) -> tuple[Tensor, ...]:
        prediction = first_maximum(values)
        peak = values.gather(1, prediction[:, None].clamp_max(values.shape[1] - 1))
        confidence = 1.0 / (values - peak).exp_().sum(dim=1)
        return confidence, prediction, prediction == rows.target[block]

    return per_row(rows, work)


def label_columns(rows: DeviceBlocks, change: Change = None) -> list[Array]:
    """NLL of the label, confidence and correctness of each row."""

    def work(block: slice, values: Tensor) -> tuple[Tensor, ...]:
        scores = values.log_softmax(dim=1)
        label = rows.target[block]
        own = scores.gather(1, label[:, None])[:, 0]
        return -own, scores.amax(dim=1).exp(), first_maximum(scores) == label

    return per_row(rows, work, change)


def top_odds(rows: DeviceBlocks, change: Change = None) -> list[Array]:
    """Prediction of each row, and the peak minus the log-sum-exp of all other logits."""

    def work(_: slice, values: Tensor) -> tuple[Tensor, ...]:
        prediction = first_maximum(values)[:, None]
        peak = values.gather(1, prediction)[:, 0]
        others = values.scatter(1, prediction, -torch.inf).logsumexp(dim=1)
        return prediction[:, 0], peak - others

    return per_row(rows, work, change)


def label_shares(rows: DeviceBlocks, beta: float) -> Array:
    """The probability of the label of each row under softmax(β·z)."""

    def work(block: slice, values: Tensor) -> tuple[Tensor, ...]:
        return ((values * beta).softmax(dim=1).gather(1, rows.target[block][:, None])[:, 0],)

    return per_row(rows, work)[0]


def label_gaps(rows: DeviceBlocks) -> Array:
    """The logit of the label minus the highest one of each row."""

    def work(block: slice, values: Tensor) -> tuple[Tensor, ...]:
        return (values.gather(1, rows.target[block][:, None])[:, 0] - values.amax(dim=1),)

    return per_row(rows, work)[0]


def row_moments(rows: DeviceBlocks, inverse_temperature: Array) -> Array:
    """`kernels.scaling.row_moments` of the rows: (n, 5)."""
    betas = torch.as_tensor(inverse_temperature, device=rows.tensor.device)

    def work(block: slice, values: Tensor) -> tuple[Tensor, ...]:
        return (block_moments(values, betas[block]),)

    return per_row(rows, work)[0]


def fold_columns(rows: DeviceBlocks, salt: int, odd: int) -> list[Array]:
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
