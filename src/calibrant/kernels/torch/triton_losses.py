"""Batch losses of the top confidence and the entropy in three Triton launches: rows, loss, gradient.

A loss of a batch depends on the logits only through the confidence c, the correctness a and the entropy h of each row.
The first kernel computes these, the second, one program, the loss and its derivatives by c and h in float64, and the
third, in the backward pass, the gradient by the logits. Eager torch takes about sixty launches for the same.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)

CONFIDENCE, CORRECT, ENTROPY, PEAK, MASS, PREDICTION, BY_CONFIDENCE, BY_ENTROPY = (tl.constexpr(i) for i in range(8))
"""Places of the numbers kept per row between the launches."""


@triton.jit(do_not_specialize=["n_rows"])
def rows_kernel(
    logits,
    labels,
    kept,
    n_rows,
    CLASSES: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Confidence, correctness, entropy, peak, mass and prediction of each row."""
    place = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = tl.arange(0, BLOCK_K)
    inside, in_row = place < n_rows, columns < CLASSES
    row = place.to(tl.int64)
    values = tl.load(
        logits + row[:, None] * STRIDE + columns[None, :],
        mask=inside[:, None] & in_row[None, :],
        other=-float("inf"),
    ).to(tl.float32)
    peak = tl.max(values, axis=1)
    prediction = tl.min(tl.where(values == peak[:, None], columns[None, :], CLASSES), axis=1)
    peak = tl.where(inside, peak, 0.0)
    shifted = tl.where(in_row[None, :], values - peak[:, None], -1e30)
    weight = tl.exp2(shifted * LOG2_E)
    mass = tl.sum(weight, axis=1)
    mass = tl.where(inside, mass, 1.0)
    entropy = tl.log(mass) - tl.sum(weight * tl.maximum(shifted, -200.0), axis=1) / mass
    correct = prediction == tl.load(labels + row, mask=inside, other=-1)
    tl.store(kept + CONFIDENCE * n_rows + row, 1.0 / mass, mask=inside)
    tl.store(kept + CORRECT * n_rows + row, correct.to(tl.float32), mask=inside)
    tl.store(kept + ENTROPY * n_rows + row, tl.maximum(entropy, 0.0), mask=inside)
    tl.store(kept + PEAK * n_rows + row, peak, mask=inside)
    tl.store(kept + MASS * n_rows + row, mass, mask=inside)
    tl.store(kept + PREDICTION * n_rows + row, prediction.to(tl.float32), mask=inside)


@triton.jit(do_not_specialize=["n_rows"])
def gradient_kernel(
    logits,
    kept,
    scale,
    gradient,
    n_rows,
    CLASSES: tl.constexpr,
    STRIDE: tl.constexpr,
    BY_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """∂L/∂z_k = L_c·c·(1{k = prediction} − p_k) − L_h·p_k·(log p_k + h), times the gradient that arrives."""
    place = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = tl.arange(0, BLOCK_K)
    inside, in_row = place < n_rows, columns < CLASSES
    row = place.to(tl.int64)
    both = inside[:, None] & in_row[None, :]
    values = tl.load(logits + row[:, None] * STRIDE + columns[None, :], mask=both, other=0.0).to(tl.float32)
    factor = tl.load(scale).to(tl.float32)
    confidence = tl.load(kept + CONFIDENCE * n_rows + row, mask=inside, other=1.0)
    peak = tl.load(kept + PEAK * n_rows + row, mask=inside, other=0.0)
    prediction = tl.load(kept + PREDICTION * n_rows + row, mask=inside, other=0.0).to(tl.int32)
    shifted = values - peak[:, None]
    share = tl.exp2(shifted * LOG2_E) * confidence[:, None]
    by_confidence = factor * tl.load(kept + BY_CONFIDENCE * n_rows + row, mask=inside, other=0.0)
    found = (by_confidence * confidence)[:, None] * (
        tl.where(columns[None, :] == prediction[:, None], 1.0, 0.0) - share
    )
    if BY_H:
        mass = tl.load(kept + MASS * n_rows + row, mask=inside, other=1.0)
        spread = tl.load(kept + ENTROPY * n_rows + row, mask=inside, other=0.0)
        by_entropy = factor * tl.load(kept + BY_ENTROPY * n_rows + row, mask=inside, other=0.0)
        log_share = tl.maximum(shifted, -1e30) - tl.log(mass)[:, None]
        found -= by_entropy[:, None] * share * (log_share + spread[:, None])
    tl.store(gradient + row[:, None] * CLASSES + columns[None, :], found, mask=both)


@triton.jit
def _power(gap, NORM: tl.constexpr):
    """|gap|^p and its derivative."""
    size = tl.abs(gap)
    sign = tl.where(gap > 0, 1.0, tl.where(gap < 0, -1.0, 0.0)).to(tl.float64)
    if NORM == 1:
        value, slope = size, sign
    elif NORM == 2:
        value, slope = gap * gap, 2.0 * gap
    else:
        logarithm = tl.log(tl.where(size > 0, size, 1.0))
        value = tl.where(size > 0, tl.exp(NORM * logarithm), 0.0)
        slope = tl.where(size > 0, NORM * tl.exp((NORM - 1.0) * logarithm), 0.0) * sign
    return value, slope


@triton.jit
def _memberships(kept, first, n_rows, softness, N_BINS: tl.constexpr, BLOCK: tl.constexpr, BINS: tl.constexpr):
    """c, a, u_ij and the slope of u_ij by c_i of a block of rows; u is 0 outside the batch."""
    place = first + tl.arange(0, BLOCK)
    inside = place < n_rows
    confidence = tl.load(kept + CONFIDENCE * n_rows + place, mask=inside, other=0.0).to(tl.float64)
    correct = tl.load(kept + CORRECT * n_rows + place, mask=inside, other=0.0).to(tl.float64)
    bins = tl.arange(0, BINS)
    real = bins < N_BINS
    distance = confidence[:, None] - ((bins + 0.5).to(tl.float64) / N_BINS)[None, :]
    score = tl.where(real[None, :], distance * distance * (-1.0 / softness), -1e300)
    weight = tl.exp(score - tl.max(score, axis=1)[:, None])
    weight = tl.where(real[None, :], weight, 0.0)
    membership = weight / tl.sum(weight, axis=1)[:, None]
    pull = distance * (-2.0 / softness)
    slope = membership * (pull - tl.sum(membership * pull, axis=1)[:, None])
    there = inside[:, None]
    return place, inside, confidence, correct, tl.where(there, membership, 0.0), tl.where(there, slope, 0.0)


@triton.jit
def _rooted(power_sum, floor, NORM: tl.constexpr):
    """x^(1/p) with x at least `floor`, and its derivative, 0 below the floor."""
    if NORM == 1:
        loss, slope = power_sum, power_sum * 0.0 + 1.0
    else:
        floored = tl.maximum(power_sum, floor)
        loss = tl.exp(tl.log(floored) / NORM)
        slope = tl.where(power_sum >= floor, loss / (NORM * floored), 0.0)
    return loss, slope


@triton.jit(do_not_specialize=["n_rows"])
def soft_ece_kernel(
    kept,
    loss_at,
    n_rows,
    softness,
    floor,
    NORM: tl.constexpr,
    BY_LABEL: tl.constexpr,
    N_BINS: tl.constexpr,
    BLOCK: tl.constexpr,
    BINS: tl.constexpr,
):
    """`losses.soft_ece`: sums per bin, then its value, then its derivative by each confidence."""
    size = tl.zeros([BINS], tl.float64)
    first_sum = tl.zeros([BINS], tl.float64)
    for first in tl.range(0, n_rows, BLOCK):
        _, _, confidence, correct, membership, _ = _memberships(kept, first, n_rows, softness, N_BINS, BLOCK, BINS)
        aim = correct if BY_LABEL else correct - confidence
        size += tl.sum(membership, axis=0)
        first_sum += tl.sum(membership * aim[:, None], axis=0)
    held = size >= 1.1754943508222875e-38
    inverse = tl.where(held, 1.0 / tl.where(held, size, 1.0), 0.0)
    level = first_sum * inverse  # A_j, or A_j − C_j
    bin_power, bin_slope = _power(level, NORM)
    power_sum = tl.sum(size * bin_power, axis=0)
    pulled = bin_slope * size
    if BY_LABEL:
        row_power = tl.zeros([BINS], tl.float64)
        pulled = tl.zeros([BINS], tl.float64)
        for first in tl.range(0, n_rows, BLOCK):
            _, _, confidence, _, membership, _ = _memberships(kept, first, n_rows, softness, N_BINS, BLOCK, BINS)
            value, slope = _power(level[None, :] - confidence[:, None], NORM)
            row_power += tl.sum(membership * value, axis=0)
            pulled += tl.sum(membership * slope, axis=0)
        power_sum = tl.sum(row_power, axis=0)
    loss, outer = _rooted(power_sum / n_rows, floor, NORM)
    tl.store(loss_at, loss.to(tl.float32))
    for first in tl.range(0, n_rows, BLOCK):
        place, inside, confidence, correct, membership, moved = _memberships(
            kept, first, n_rows, softness, N_BINS, BLOCK, BINS
        )
        if BY_LABEL:
            value, slope = _power(level[None, :] - confidence[:, None], NORM)
            by_membership = value + (pulled * inverse)[None, :] * (correct[:, None] - level[None, :])
            direct = tl.sum(membership * slope, axis=1)
        else:
            gap = (correct - confidence)[:, None] - level[None, :]
            by_membership = bin_power[None, :] + bin_slope[None, :] * gap
            direct = tl.sum(membership * bin_slope[None, :], axis=1)
        found = outer * (tl.sum(by_membership * moved, axis=1) - direct) / n_rows
        tl.store(kept + BY_CONFIDENCE * n_rows + place, found.to(tl.float32), mask=inside)


@triton.jit
def _counts(
    kept,
    first,
    n_rows,
    kappa,
    temperature,
    log_classes,
    margin,
    SOFT: tl.constexpr,
    STOP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Counted and agreeing weight of a block of rows, and their derivatives by c and by h."""
    place = first + tl.arange(0, BLOCK)
    inside = place < n_rows
    spread = tl.load(kept + ENTROPY * n_rows + place, mask=inside, other=0.0).to(tl.float64)
    correct = tl.load(kept + CORRECT * n_rows + place, mask=inside, other=0.0) > 0.5
    decay = tl.exp(-2.0 * spread)
    surprise = (1.0 - decay) / (1.0 + decay)
    surprise_slope = 1.0 - surprise * surprise
    if SOFT:
        share = spread / log_classes
        clipped = tl.minimum(tl.maximum(share, margin), 1.0 - margin)
        start = tl.log(kappa / (1.0 - kappa))
        uncertainty = 1.0 / (1.0 + tl.exp((start - tl.log(clipped / (1.0 - clipped))) / temperature))
        open_ = (share >= margin) & (share <= 1.0 - margin)
        slope = uncertainty * (1.0 - uncertainty) / (temperature * clipped * (1.0 - clipped) * log_classes)
        slope = tl.where(open_, slope, 0.0)
        uncertain = uncertainty * surprise
        certain = (1.0 - uncertainty) * (1.0 - surprise)
        uncertain_slope = slope * surprise + uncertainty * surprise_slope
        certain_slope = -slope * (1.0 - surprise) - (1.0 - uncertainty) * surprise_slope
        counted, counted_by_h = uncertain + certain, uncertain_slope + certain_slope
        agreeing = tl.where(correct, certain, uncertain)
        agreeing_by_h = tl.where(correct, certain_slope, uncertain_slope)
        counted_by_c = counted * 0.0
        agreeing_by_c = counted_by_c
    else:
        confidence = tl.load(kept + CONFIDENCE * n_rows + place, mask=inside, other=1.0).to(tl.float64)
        unsure = spread > kappa
        belief = tl.where(correct, confidence, 1.0 - confidence)
        doubt = tl.where(unsure, surprise, 1.0 - surprise)
        counted = belief * doubt
        counted_by_h = belief * tl.where(unsure, surprise_slope, -surprise_slope)
        counted_by_c = counted * 0.0
        if not STOP:
            counted_by_c = tl.where(correct, doubt, -doubt)
        agrees = correct != unsure
        agreeing = tl.where(agrees, counted, 0.0)
        agreeing_by_h = tl.where(agrees, counted_by_h, 0.0)
        agreeing_by_c = tl.where(agrees, counted_by_c, 0.0)
    counted, agreeing = tl.where(inside, counted, 0.0), tl.where(inside, agreeing, 0.0)
    return place, inside, counted, agreeing, counted_by_h, agreeing_by_h, counted_by_c, agreeing_by_c


@triton.jit(do_not_specialize=["n_rows"])
def avuc_kernel(
    kept,
    loss_at,
    n_rows,
    kappa,
    temperature,
    log_classes,
    margin,
    hair,
    SOFT: tl.constexpr,
    STOP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """`losses.soft_avuc` (SOFT), `avuc` and `avuc_gs` (STOP): the value and its derivatives by h and c."""
    counted_sum = tl.zeros([BLOCK], tl.float64)
    agreeing_sum = tl.zeros([BLOCK], tl.float64)
    for first in tl.range(0, n_rows, BLOCK):
        _, _, counted, agreeing, _, _, _, _ = _counts(
            kept, first, n_rows, kappa, temperature, log_classes, margin, SOFT, STOP, BLOCK
        )
        counted_sum += counted
        agreeing_sum += agreeing
    above = tl.sum(counted_sum, axis=0) / n_rows + 2.0 * hair
    below = tl.sum(agreeing_sum, axis=0) / n_rows + hair
    tl.store(loss_at, (tl.log(above) - tl.log(below)).to(tl.float32))
    for first in tl.range(0, n_rows, BLOCK):
        place, inside, _, _, counted_by_h, agreeing_by_h, counted_by_c, agreeing_by_c = _counts(
            kept, first, n_rows, kappa, temperature, log_classes, margin, SOFT, STOP, BLOCK
        )
        by_h = (counted_by_h / above - agreeing_by_h / below) / n_rows
        by_c = (counted_by_c / above - agreeing_by_c / below) / n_rows
        tl.store(kept + BY_ENTROPY * n_rows + place, by_h.to(tl.float32), mask=inside)
        tl.store(kept + BY_CONFIDENCE * n_rows + place, by_c.to(tl.float32), mask=inside)


@triton.jit(do_not_specialize=["n_rows"])
def mmce_kernel(kept, loss_at, n_rows, width, floor, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr, OTHERS: tl.constexpr):
    """`losses.mmce`: the sum over all pairs of rows and its derivative by each confidence."""
    every = tl.arange(0, OTHERS)
    known = every < n_rows
    c = tl.load(kept + CONFIDENCE * n_rows + every, mask=known, other=0.0)
    a = tl.load(kept + CORRECT * n_rows + every, mask=known, other=0.0)
    n_right = tl.sum(a, axis=0)
    residual = c - a
    if WEIGHTED:
        residual = residual / tl.maximum(tl.where(a > 0.5, n_right, n_rows - n_right), 1.0)
    else:
        residual = residual / n_rows
    residual = tl.where(known, residual, 0.0)
    total = tl.zeros([BLOCK], tl.float64)
    for first in tl.range(0, n_rows, BLOCK):
        place = first + tl.arange(0, BLOCK)
        inside = place < n_rows
        confidence = tl.load(kept + CONFIDENCE * n_rows + place, mask=inside, other=0.0)
        correct = tl.load(kept + CORRECT * n_rows + place, mask=inside, other=0.0)
        share = tl.zeros([BLOCK], tl.float32) + 1.0 / n_rows
        if WEIGHTED:
            share = 1.0 / tl.maximum(tl.where(correct > 0.5, n_right, n_rows - n_right), 1.0)
        own = tl.where(inside, (confidence - correct) * share, 0.0)
        gap = confidence[:, None] - c[None, :]
        paired = residual[None, :] * tl.exp2(tl.abs(gap) * (-LOG2_E / width))
        pull = tl.sum(tl.where(gap > 0, paired, tl.where(gap < 0, -paired, 0.0)), axis=1)
        near = tl.sum(paired, axis=1)
        total += own.to(tl.float64) * near.to(tl.float64)
        found = 2.0 * (share * near - own * pull / width)
        tl.store(kept + BY_CONFIDENCE * n_rows + place, found, mask=inside)
    loss, outer = _rooted(tl.sum(total, axis=0), floor, 2)
    tl.store(loss_at, loss.to(tl.float32))
    tl.debug_barrier()
    slopes = tl.load(kept + BY_CONFIDENCE * n_rows + every, mask=known, other=0.0)
    tl.debug_barrier()
    tl.store(kept + BY_CONFIDENCE * n_rows + every, slopes * outer.to(tl.float32), mask=known)
