"""One Triton pass over a matrix on the device that leaves a few columns per row, and one that sums these by bin.

The columns are those of `kernels.rows.scan`. A row is read once, in chunks of BLOCK_K classes, with sums that are moved
to a higher peak when a chunk brings one; up to `ONE_CHUNK` classes a chunk holds whole rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ONE_CHUNK = 2048
LOG2_E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-3.0e38)
"""Below every logit; finite, so that the difference to a chunk of −∞ is defined."""

EPS = tl.constexpr(1.1920928955078125e-07)
COST_OF_ZERO = tl.constexpr(15.942385152878742)
"""−log EPS: the loss of a label of probability 0."""


@triton.jit(do_not_specialize=["n_rows"])
def columns_kernel(
    values_at,
    labels,
    numbers_at,
    prediction_at,
    flags_at,
    n_rows,
    CLASSES: tl.constexpr,
    STRIDE: tl.constexpr,
    FROM_LOGITS: tl.constexpr,
    ENTROPY: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Per row: numbers (4, n) confidence, NLL, Brier, entropy; the prediction; flags (2, n) correct, good.

    A row is not good where a value is NaN or ∞, where all are −∞, where one is not a probability, or where the label
    has no column.
    """
    n_rows = n_rows.to(tl.int64)  # the places of the columns
    row = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = row < n_rows
    label = tl.load(labels + row, mask=inside, other=0)
    known = inside & (label >= 0) & (label < CLASSES)
    own = tl.load(values_at + row * STRIDE + label, mask=known, other=float("nan")).to(tl.float32)
    peak = tl.where(inside, LOWEST, 0.0)
    prediction = tl.zeros([BLOCK_N], tl.int32)
    total = tl.zeros([BLOCK_N], tl.float32)
    squares = tl.zeros([BLOCK_N], tl.float32)
    mean = tl.zeros([BLOCK_N], tl.float32)
    lowest = tl.zeros([BLOCK_N], tl.float32)
    for begin in tl.range(0, CLASSES, BLOCK_K):
        column = begin + tl.arange(0, BLOCK_K)
        held = inside[:, None] & (column < CLASSES)[None, :]
        values = tl.load(
            values_at + row[:, None] * STRIDE + column[None, :], mask=held, other=-float("inf") if FROM_LOGITS else 0.0
        ).to(tl.float32)
        highest = tl.max(values, axis=1)
        first = tl.min(tl.where(values == highest[:, None], column[None, :], CLASSES), axis=1)
        prediction = tl.where(highest > peak, first, prediction)
        higher = tl.maximum(highest, peak)
        if FROM_LOGITS:
            # move the sums to the new peak
            shift = tl.minimum(higher - peak, 1e30)
            shrink = tl.exp2(-shift * LOG2_E)
            shifted = values - higher[:, None]
            mass = tl.exp2(shifted * LOG2_E)
            squares = shrink * shrink * squares + tl.sum(mass * mass, axis=1)
            if ENTROPY:
                # the exponential of −200 is 0: only 0 × infinity must not appear
                mean = shrink * (mean - tl.minimum(shift, 200.0) * total)
                mean += tl.sum(mass * tl.maximum(shifted, -200.0), axis=1)
            total = shrink * total + tl.sum(mass, axis=1)
        else:
            if ENTROPY:
                positive = tl.where(values > 0.0, values, 1.0)
                mean += tl.sum(positive * tl.log(positive), axis=1)
            squares += tl.sum(values * values, axis=1)
            total += tl.sum(values, axis=1)
            lowest = tl.minimum(lowest, tl.min(values, axis=1))
        peak = higher
    if FROM_LOGITS:
        total = tl.where(inside, total, 1.0)
        log_total = tl.log(total)
        nll = tl.where(own == -float("inf"), COST_OF_ZERO, log_total - (own - peak))
        confidence = 1.0 / total
        brier = squares / (total * total) - 2.0 * tl.exp2((own - peak) * LOG2_E) / total + 1.0
        entropy = log_total - mean / total
        good = (total >= 1.0) & (tl.abs(peak) < float("inf")) & (nll < float("inf"))
    else:
        nll = -tl.log(tl.maximum(own, EPS))
        confidence = peak
        brier = squares - 2.0 * own + 1.0
        entropy = -mean
        good = (tl.abs(total - 1.0) <= 1e-3) & (lowest >= 0.0) & known
    tl.store(numbers_at + row, confidence, mask=inside)
    tl.store(numbers_at + n_rows + row, nll, mask=inside)
    tl.store(numbers_at + 2 * n_rows + row, tl.maximum(brier, 0.0), mask=inside)
    tl.store(numbers_at + 3 * n_rows + row, tl.maximum(entropy, 0.0), mask=inside)
    tl.store(prediction_at + row, prediction.to(tl.int64), mask=inside)
    tl.store(flags_at + row, (prediction == label).to(tl.int8), mask=inside)
    tl.store(flags_at + n_rows + row, good.to(tl.int8), mask=inside)


def columns(values: Tensor, labels: Tensor, *, from_logits: bool, entropy: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers (4, n), predictions (n,) and flags (2, n) of each row; see `columns_kernel`."""
    n_rows, n_classes = values.shape
    whole = n_classes <= ONE_CHUNK
    block_k = max(16, triton.next_power_of_2(n_classes)) if whole else 4096
    block_n = max(4, 512 // block_k) if block_k < 512 else max(1, 2048 // block_k)
    numbers = torch.empty((4, n_rows), dtype=torch.float32, device=values.device)
    prediction = torch.empty(n_rows, dtype=torch.int64, device=values.device)
    flags = torch.empty((2, n_rows), dtype=torch.bool, device=values.device)
    columns_kernel[(triton.cdiv(n_rows, block_n),)](
        values,
        labels,
        numbers,
        prediction,
        flags.view(torch.int8),
        n_rows,
        CLASSES=n_classes,
        STRIDE=values.stride(0),
        FROM_LOGITS=from_logits,
        ENTROPY=entropy,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        num_warps=8 if not whole else 4 if block_k < 512 else 2,
    )
    return numbers, prediction, flags


@triton.jit(do_not_specialize=["n_rows", "ignore_index"])
def sums_kernel(
    numbers_at,
    flags_at,
    labels,
    weights,
    edges_at,
    state,
    n_rows,
    ignore_index,
    N_BINS: tl.constexpr,
    HAS_WEIGHTS: tl.constexpr,
    HAS_IGNORE: tl.constexpr,
    BLOCK: tl.constexpr,
    BINS: tl.constexpr,
):
    """Add Σw, Σw·confidence, Σw·correct per bin, then the sums of `columns.SLOTS`, to the state (3·N_BINS + 8,)."""
    n_rows = n_rows.to(tl.int64)
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = row < n_rows
    if HAS_IGNORE:
        inside = inside & (tl.load(labels + row, mask=inside, other=0) != ignore_index)
    good = inside & (tl.load(flags_at + n_rows + row, mask=inside, other=0) != 0)
    weight = tl.where(good, 1.0, 0.0).to(tl.float64)
    if HAS_WEIGHTS:
        weight = tl.load(weights + row, mask=good, other=0.0).to(tl.float64)
    confidence = tl.load(numbers_at + row, mask=good, other=0.0)
    # the bin (lo, hi]: a first guess, then one step where the edge was rounded the other way
    place = tl.minimum(tl.maximum(tl.ceil(confidence * N_BINS).to(tl.int32) - 1, 0), N_BINS - 1)
    below = (confidence <= tl.load(edges_at + place)) & (place > 0)
    above = (confidence > tl.load(edges_at + place + 1)) & (place < N_BINS - 1)
    place = tl.where(below, place - 1, tl.where(above, place + 1, place))
    sure = weight * confidence.to(tl.float64)
    right = weight * tl.load(flags_at + row, mask=good, other=0).to(tl.float64)
    bins = tl.arange(0, BINS)
    own = bins[:, None] == place[None, :]
    real = bins < N_BINS
    tl.atomic_add(state + bins, tl.sum(tl.where(own, weight[None, :], 0.0), axis=1), mask=real)
    tl.atomic_add(state + N_BINS + bins, tl.sum(tl.where(own, sure[None, :], 0.0), axis=1), mask=real)
    tl.atomic_add(state + 2 * N_BINS + bins, tl.sum(tl.where(own, right[None, :], 0.0), axis=1), mask=real)
    slots = state + 3 * N_BINS
    tl.atomic_add(slots, tl.sum(weight, axis=0))
    tl.atomic_add(slots + 1, tl.sum(sure, axis=0))
    tl.atomic_add(slots + 2, tl.sum(right, axis=0))
    for slot in tl.static_range(1, 4):
        number = tl.load(numbers_at + slot * n_rows + row, mask=good, other=0.0).to(tl.float64)
        tl.atomic_add(slots + 2 + slot, tl.sum(weight * number, axis=0))
    tl.atomic_add(slots + 6, tl.sum(inside.to(tl.float64), axis=0))
    tl.atomic_add(slots + 7, tl.sum((inside & (good == 0)).to(tl.float64), axis=0))


def add_sums(
    state: Tensor,
    edges: Tensor,
    numbers: Tensor,
    flags: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    ignore_index: int | None,
) -> None:
    """Add the rows' columns to the state; nothing waits for the host."""
    n_rows, n_bins, block = len(labels), len(edges) - 1, 512
    sums_kernel[(triton.cdiv(n_rows, block),)](
        numbers,
        flags.view(torch.int8),
        labels,
        labels if weights is None else weights,
        edges,
        state,
        n_rows,
        0 if ignore_index is None else ignore_index,
        N_BINS=n_bins,
        HAS_WEIGHTS=weights is not None,
        HAS_IGNORE=ignore_index is not None,
        BLOCK=block,
        BINS=max(16, triton.next_power_of_2(n_bins)),
    )
