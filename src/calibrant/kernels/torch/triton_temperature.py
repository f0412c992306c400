"""The whole temperature fit as one Triton launch: Newton passes over the logits with a barrier between them.

A persistent grid walks over the rows. After each pass every program writes its partial sums, waits for all others and
adds the sums in the same fixed order, so that all programs take the same step and the answer has the same bits every
time. The host waits once, for the result.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

THREADS_PER_SM = 512
"""Programs × warps × 32 per multiprocessor: at 128 registers per thread all programs are resident at once, which the
barrier needs."""

MAX_REGISTERS = 128
SAMPLE_ROWS = 2048
"""The first estimate comes from about this many evenly spaced rows."""

ONE_TILE = 2048
"""Rows of up to this many classes are held in registers as a whole."""

LOG2_E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-1e30)
"""Stands for the classes beyond the last one."""


@triton.jit
def _powers(values, peak, beta, ZEROS: tl.constexpr):
    """exp(x), x·exp(x), x²·exp(x) and x³·exp(x) of x = β(z − peak); without ZEROS they are NaN at a logit of −∞."""
    scaled = (values - peak[:, None]) * beta
    mass = tl.exp2(scaled * LOG2_E)
    if ZEROS:
        scaled = tl.maximum(scaled, -200.0)  # its exponential is 0: only 0 × infinity must not appear
    first = mass * scaled
    second = first * scaled
    return mass, first, second, second * scaled


@triton.jit
def _pass(
    logits,
    labels,
    weights,
    peaks,
    n_rows,
    row_step,
    beta,
    start,
    step,
    know_peaks,
    CLASSES: tl.constexpr,
    STRIDE: tl.constexpr,
    HAS_WEIGHTS: tl.constexpr,
    ZEROS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    LONG: tl.constexpr,
):
    """Sums over this program's rows: weight, loss, and β^k times its derivatives, k = 1 … 3.

    Rows too long for one tile are read in chunks of BLOCK_K classes; the sums are moved to a higher peak when a chunk
    brings one, and later passes know the peaks.
    """
    columns = tl.arange(0, BLOCK_K)
    weight_sum = tl.zeros([BLOCK_N], tl.float64)
    loss_sum = tl.zeros([BLOCK_N], tl.float64)
    slope_sum = tl.zeros([BLOCK_N], tl.float64)
    curve_sum = tl.zeros([BLOCK_N], tl.float64)
    bend_sum = tl.zeros([BLOCK_N], tl.float64)
    for tile in tl.range(start * BLOCK_N, n_rows, step * BLOCK_N):
        place = tile + tl.arange(0, BLOCK_N)
        inside = place < n_rows
        row = place.to(tl.int64) * row_step
        label = tl.load(labels + row, mask=inside, other=0)
        known = inside & (label >= 0) & (label < CLASSES)
        own = tl.load(logits + row * STRIDE + label, mask=known, other=float("nan")).to(tl.float32)
        base = logits + row[:, None] * STRIDE + columns[None, :]
        held = inside[:, None] & (columns < CLASSES)[None, :]
        if LONG:
            s0 = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
            s1 = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
            s2 = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
            s3 = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
            if know_peaks:
                peak = tl.load(peaks + row, mask=inside, other=0.0)
            else:
                peak = tl.max(tl.load(base, mask=held, other=LOWEST).to(tl.float32), axis=1)
            for begin in tl.range(0, CLASSES, BLOCK_K):
                held = inside[:, None] & (begin + columns < CLASSES)[None, :]
                values = tl.load(base + begin, mask=held, other=LOWEST).to(tl.float32)
                if know_peaks == 0:
                    higher = tl.maximum(tl.max(values, axis=1), peak)
                    if tl.max(higher - peak, axis=0) > 0:
                        # x becomes x − δ under every power
                        shift = ((higher - peak) * beta)[:, None]
                        shrink = tl.exp2(-shift * LOG2_E)
                        s3 = shrink * (s3 - shift * (3.0 * s2 - shift * (3.0 * s1 - shift * s0)))
                        s2 = shrink * (s2 - shift * (2.0 * s1 - shift * s0))
                        s1 = shrink * (s1 - shift * s0)
                        s0 = shrink * s0
                        peak = higher
                p0, p1, p2, p3 = _powers(values, peak, beta, ZEROS)
                s0 += p0
                s1 += p1
                s2 += p2
                s3 += p3
            tl.store(peaks + row, peak, mask=inside)
        else:
            values = tl.load(base, mask=held, other=LOWEST).to(tl.float32)
            peak = tl.where(inside, tl.max(values, axis=1), 0.0)
            s0, s1, s2, s3 = _powers(values, peak, beta, ZEROS)
        weight = tl.where(inside, 1.0, 0.0).to(tl.float64)
        if HAS_WEIGHTS:
            weight = tl.load(weights + row, mask=inside, other=0.0).to(tl.float64)
        # float32 per row: its rounding averages out, and float64 divisions would be most of the code
        true = (tl.where(inside, own, 0.0) - peak) * beta
        share = 1.0 / tl.where(inside, tl.sum(s0, axis=1), 1.0)
        mean = tl.sum(s1, axis=1) * share
        raw2 = tl.sum(s2, axis=1) * share
        raw3 = tl.sum(s3, axis=1) * share
        weight_sum += weight
        loss_sum += weight * (-tl.log(share) - true).to(tl.float64)
        slope_sum += weight * (mean - true).to(tl.float64)
        curve_sum += weight * tl.maximum(raw2 - mean * mean, 0.0).to(tl.float64)
        bend_sum += weight * (raw3 - mean * (3.0 * raw2 - 2.0 * mean * mean)).to(tl.float64)
    return (
        tl.sum(weight_sum, axis=0),
        tl.sum(loss_sum, axis=0),
        tl.sum(slope_sum, axis=0),
        tl.sum(curve_sum, axis=0),
        tl.sum(bend_sum, axis=0),
    )


@triton.jit
def _total(partials, n_programs, PROGRAMS: tl.constexpr):
    """The sum over all programs, in a fixed order; read past the first-level cache."""
    lanes = tl.arange(0, PROGRAMS)
    return tl.sum(tl.load(partials + lanes, mask=lanes < n_programs, other=0.0, cache_modifier=".cg"), axis=0)


@triton.jit(do_not_specialize=["n_rows", "sample_step", "n_programs"])
def temperature_kernel(
    logits,
    labels,
    weights,
    peaks,
    partials,
    arrived,
    answer,
    n_rows,
    sample_step,
    n_programs,
    first_beta,
    CLASSES: tl.constexpr,
    STRIDE: tl.constexpr,
    MAX_PASSES: tl.constexpr,
    ONE_PASS: tl.constexpr,
    HAS_WEIGHTS: tl.constexpr,
    ZEROS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    LONG: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """Find β = 1/T of the lowest mean NLL; `answer` = β, loss, slope, curvature, bend, status, passes, full passes.

    Halley steps on the slope inside the bracket found so far, first on a sample of rows, then on all. status 1:
    converged, 2: NaN. With ONE_PASS the sums of one pass at `first_beta` over all rows are the answer.
    """
    program = tl.program_id(0)
    beta = tl.full([], first_beta, tl.float64)
    low = tl.full([], 0.0, tl.float64)
    high = low + 1e300
    previous = high
    status = 0
    passes = 0
    full_passes = 0
    row_step = sample_step
    loss = low
    slope = low
    curve = low
    bend = low
    while (status == 0) & (passes < MAX_PASSES):
        beta = beta.to(tl.float32).to(tl.float64)  # the number that the float32 exponentials see
        n_part = (n_rows + row_step - 1) // row_step
        w, a, b, c, d = _pass(
            logits,
            labels,
            weights,
            peaks,
            n_part,
            row_step,
            beta.to(tl.float32),
            program,
            n_programs,
            full_passes > 0,
            CLASSES,
            STRIDE,
            HAS_WEIGHTS,
            ZEROS,
            BLOCK_N,
            BLOCK_K,
            LONG,
        )
        sums = partials + passes * 5 * PROGRAMS
        tl.store(sums + program, w)
        tl.store(sums + PROGRAMS + program, a)
        tl.store(sums + 2 * PROGRAMS + program, b)
        tl.store(sums + 3 * PROGRAMS + program, c)
        tl.store(sums + 4 * PROGRAMS + program, d)
        tl.debug_barrier()
        passes += 1
        tl.atomic_add(arrived, 1, sem="acq_rel", scope="gpu")
        while tl.atomic_add(arrived, 0, sem="acquire", scope="gpu") < passes * n_programs:
            pass
        tl.debug_barrier()
        total = _total(sums, n_programs, PROGRAMS)
        loss = _total(sums + PROGRAMS, n_programs, PROGRAMS) / total
        slope = _total(sums + 2 * PROGRAMS, n_programs, PROGRAMS) / total
        curve = _total(sums + 3 * PROGRAMS, n_programs, PROGRAMS) / total
        bend = _total(sums + 4 * PROGRAMS, n_programs, PROGRAMS) / total
        if row_step == 1:
            full_passes += 1
        if ONE_PASS:
            status = 1
        elif loss != loss:  # noqa: PLR0124
            # NaN: a label outside the columns, or a bad logit
            status = 2
        else:
            low = tl.where(slope < 0, beta, low)
            high = tl.where(slope < 0, high, beta)
            bottom = 2.0 * curve * curve - slope * bend
            newton = tl.where(curve > 0, -slope / tl.where(curve > 0, curve, 1.0), tl.where(slope < 0, 1e6, -1e6))
            halley = tl.where(bottom > 0, -2.0 * slope * curve / tl.where(bottom > 0, bottom, 1.0), newton)
            near = (tl.abs(halley) <= 2e-3) & (tl.abs(slope) <= 0.1)
            roughly = (tl.abs(halley) <= 0.1) & (tl.abs(slope) <= 0.1)
            proposed = beta + beta * halley
            if (row_step > 1) & roughly:
                # the sample gives no better estimate: all rows from here on, with a bracket of their own
                beta = proposed
                row_step = 1
                low = low * 0.0
                high = low + 1e300
                previous = high
            elif near:
                beta = proposed
                status = 1
            else:
                following = tl.minimum(tl.maximum(proposed, beta / 8.0), beta * 8.0)
                lost = (following <= low) | (following >= high) | (tl.abs(slope / beta) > previous * 0.5)
                bracketed = (low > 0) & (high < 1e299)
                middle = tl.where(
                    bracketed,
                    tl.sqrt(low) * tl.sqrt(tl.where(bracketed, high, 1.0)),
                    tl.where(slope < 0, beta * 8.0, beta / 8.0),
                )
                previous = tl.abs(slope / beta)
                beta = tl.where(lost, middle, following)
    if program == 0:
        tl.store(answer, beta)
        tl.store(answer + 1, loss)
        tl.store(answer + 2, slope)
        tl.store(answer + 3, curve)
        tl.store(answer + 4, bend)
        tl.store(answer + 5, status)
        tl.store(answer + 6, passes)
        tl.store(answer + 7, full_passes)


MAX_PASSES = 60


def run(logits: Tensor, labels: Tensor, weights: Tensor | None, beta: float | None, *, zeros: bool) -> Tensor:
    """The fit from β = 1 (beta None), or the sums of one pass at β, as the eight numbers of `answer` on the device.

    With `zeros` a logit of −∞ is a probability of 0; without, the answer is NaN.
    """
    n_rows, n_classes = logits.shape
    long = n_classes > ONE_TILE
    block_k = 1024 if long else max(16, triton.next_power_of_2(n_classes))
    block_n = 1 if long else max(1, min(16, 4096 // block_k))
    warps = 2 if block_k >= 512 else 4
    sms = torch.cuda.get_device_properties(logits.device).multi_processor_count
    work = n_rows if long else triton.cdiv(n_rows, block_n)
    programs = max(1, min(sms * (THREADS_PER_SM // (32 * warps)), work))
    slots = triton.next_power_of_2(programs)
    partials = torch.empty(MAX_PASSES * 5 * slots, dtype=torch.float64, device=logits.device)
    arrived = torch.zeros(1, dtype=torch.int32, device=logits.device)
    answer = torch.empty(8, dtype=torch.float64, device=logits.device)
    peaks = torch.empty(n_rows if long else 1, dtype=torch.float32, device=logits.device)
    sample_step = 1 if beta is not None or n_rows * n_classes < 1 << 21 else max(1, n_rows // SAMPLE_ROWS)
    temperature_kernel[(programs,)](
        logits,
        labels,
        labels if weights is None else weights,
        peaks,
        partials,
        arrived,
        answer,
        n_rows,
        sample_step,
        programs,
        1.0 if beta is None else float(beta),
        CLASSES=n_classes,
        STRIDE=logits.stride(0),
        MAX_PASSES=MAX_PASSES,
        ONE_PASS=beta is not None,
        HAS_WEIGHTS=weights is not None,
        ZEROS=zeros,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        LONG=long,
        PROGRAMS=slots,
        num_warps=warps,
        maxnreg=MAX_REGISTERS,
    )
    return answer
