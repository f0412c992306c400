"""One Triton pass over a matrix on the device: columns per row, or sums over equal-width bins.

The row statistics are those of `kernels.rows.scan`. For sums, every program adds to a region of its own; the last one
to finish adds all regions to the state, so that one launch suffices.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ONE_TILE = 2048
"""Rows of up to this many classes are held in registers as a whole."""

LOG2_E = tl.constexpr(1.4426950408889634)

SCALARS = 8
"""Sums beside the bins: weight, NLL, Brier, correct, confidence, entropy, rows, bad rows."""


@triton.jit
def _tile(
    values_at,
    labels,
    row,
    inside,
    columns,
    CLASSES: tl.constexpr,
    STRIDE: tl.constexpr,
    FROM_LOGITS: tl.constexpr,
    ENTROPY: tl.constexpr,
):
    """Confidence, prediction, label's NLL, Brier score, entropy and finiteness of whole rows in one tile."""
    in_row = columns < CLASSES
    label = tl.load(labels + row, mask=inside, other=0)
    own = tl.load(values_at + row * STRIDE + label, mask=inside, other=0.0).to(tl.float32)
    values = tl.load(
        values_at + row[:, None] * STRIDE + columns[None, :],
        mask=inside[:, None] & in_row[None, :],
        other=-float("inf"),
    ).to(tl.float32)
    peak = tl.max(values, axis=1)
    prediction = tl.min(tl.where(values == peak[:, None], columns[None, :], CLASSES), axis=1)
    peak = tl.where(inside, peak, 0.0)
    if FROM_LOGITS:
        shifted = tl.where(in_row[None, :], values - peak[:, None], -1e30)
        mass = tl.exp2(shifted * LOG2_E)
        total = tl.sum(mass, axis=1)
        squares = tl.sum(mass * mass, axis=1)
        total = tl.where(inside, total, 1.0)
        log_total = tl.log(total)
        entropy = tl.zeros_like(total)
        if ENTROPY:
            entropy = log_total - tl.sum(mass * tl.maximum(shifted, -200.0), axis=1) / total
        of_label = tl.exp2((own - peak) * LOG2_E) / total
        nll = log_total - (own - peak)
        confidence = 1.0 / total
        brier = squares / (total * total) - 2.0 * of_label + 1.0
        good = (total >= 1.0) & (tl.abs(peak) < float("inf")) & (nll < float("inf"))
    else:
        kept = tl.where(inside[:, None] & in_row[None, :], values, 0.0)
        total = tl.sum(kept, axis=1)
        entropy = tl.zeros_like(total)
        if ENTROPY:
            positive = tl.where(kept > 0.0, kept, 1.0)
            entropy = -tl.sum(positive * tl.log(positive), axis=1)
        brier = tl.sum(kept * kept, axis=1) - 2.0 * own + 1.0
        nll = -tl.log(tl.maximum(own, 1.1754943508222875e-38))
        confidence = peak
        lowest = tl.min(kept, axis=1)
        good = (tl.abs(total - 1.0) <= 1e-3) & (lowest >= 0.0)
    return label, confidence, prediction, nll, tl.maximum(brier, 0.0), tl.maximum(entropy, 0.0), good | (inside == 0)


@triton.jit
def _long_row(
    values_at,
    labels,
    row,
    lanes,
    CLASSES: tl.constexpr,
    STRIDE: tl.constexpr,
    FROM_LOGITS: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """The same of one row that is too long for a tile, in chunks; all answers have shape (1,)."""
    base = values_at + row * STRIDE
    label = tl.load(labels + row)
    own = tl.load(base + label).to(tl.float32)
    peak = tl.full([], -float("inf"), tl.float32)
    prediction = tl.full([], 0, tl.int32)
    total = tl.zeros([BLOCK_K], tl.float32)
    squares = tl.zeros([BLOCK_K], tl.float32)
    mean = tl.zeros([BLOCK_K], tl.float32)
    lowest = tl.full([], float("inf"), tl.float32)
    for begin in tl.range(0, CLASSES, BLOCK_K):
        in_row = begin + lanes < CLASSES
        values = tl.load(base + begin + lanes, mask=in_row, other=-float("inf")).to(tl.float32)
        highest = tl.max(values, axis=0)
        place = tl.min(tl.where(values == highest, lanes, BLOCK_K), axis=0)
        if FROM_LOGITS:
            higher = tl.maximum(highest, peak)
            if highest > peak:
                shift = tl.minimum(higher - peak, 1e30)
                shrink = tl.exp2(-shift * LOG2_E)
                mean = shrink * (mean - tl.minimum(shift, 200.0) * total)
                squares = shrink * shrink * squares
                total = shrink * total
                prediction = begin + place
                peak = higher
            shifted = tl.where(in_row, values - peak, -1e30)
            mass = tl.exp2(shifted * LOG2_E)
            total += mass
            squares += mass * mass
            mean += mass * tl.maximum(shifted, -200.0)
        else:
            if highest > peak:
                prediction = begin + place
                peak = highest
            kept = tl.where(in_row, values, 0.0)
            positive = tl.where(kept > 0.0, kept, 1.0)
            total += kept
            squares += kept * kept
            mean -= positive * tl.log(positive)
            lowest = tl.minimum(lowest, tl.min(kept, axis=0))
    one = tl.zeros([1], tl.float32)
    all_mass = tl.sum(total, axis=0) + one
    if FROM_LOGITS:
        log_total = tl.log(all_mass)
        nll = log_total - (own - peak)
        of_label = tl.exp2((own - peak) * LOG2_E) / all_mass
        confidence = 1.0 / all_mass
        brier = tl.sum(squares, axis=0) / (all_mass * all_mass) - 2.0 * of_label + 1.0
        entropy = log_total - tl.sum(mean, axis=0) / all_mass
        good = (all_mass >= 1.0) & (tl.abs(peak + one) < float("inf")) & (nll < float("inf"))
    else:
        nll = -tl.log(tl.maximum(own + one, 1.1754943508222875e-38))
        confidence = peak + one
        brier = tl.sum(squares, axis=0) - 2.0 * own + 1.0 + one
        entropy = tl.sum(mean, axis=0) + one
        good = (tl.abs(all_mass - 1.0) <= 1e-3) & (lowest + one >= 0.0)
    zero = tl.zeros([1], tl.int32)
    return (
        label + zero,
        confidence,
        prediction + zero,
        nll,
        tl.maximum(brier, 0.0),
        tl.maximum(entropy, 0.0),
        good,
    )


@triton.jit(do_not_specialize=["n_rows"])
def columns_kernel(
    values_at,
    labels,
    confidence_at,
    prediction_at,
    correct_at,
    nll_at,
    brier_at,
    entropy_at,
    bad_at,
    n_rows,
    CLASSES: tl.constexpr,
    STRIDE: tl.constexpr,
    FROM_LOGITS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    LONG: tl.constexpr,
):
    """Per-row columns of `kernels.rows.RowColumns`; `bad_at` counts rows with NaN or infinite values."""
    program = tl.program_id(0)
    lanes = tl.arange(0, BLOCK_K)
    place = program * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = place < n_rows
    row = place.to(tl.int64)
    if LONG:
        label, confidence, prediction, nll, brier, entropy, good = _long_row(
            values_at, labels, tl.full([], 0, tl.int64) + program, lanes, CLASSES, STRIDE, FROM_LOGITS, BLOCK_K
        )
    else:
        label, confidence, prediction, nll, brier, entropy, good = _tile(
            values_at, labels, row, inside, lanes, CLASSES, STRIDE, FROM_LOGITS, True
        )
    tl.store(confidence_at + row, confidence, mask=inside)
    tl.store(prediction_at + row, prediction.to(tl.int64), mask=inside)
    tl.store(correct_at + row, (prediction == label).to(tl.int8), mask=inside)
    tl.store(nll_at + row, nll, mask=inside)
    tl.store(brier_at + row, brier, mask=inside)
    tl.store(entropy_at + row, entropy, mask=inside)
    bad = tl.sum(tl.where(good, 0, 1), axis=0)
    if bad > 0:
        tl.atomic_add(bad_at, bad)


@triton.jit(do_not_specialize=["n_rows", "n_programs", "ignore_index"])
def sums_kernel(
    values_at,
    labels,
    weights,
    edges_at,
    state,
    partials,
    ticket,
    n_rows,
    n_programs,
    ignore_index,
    CLASSES: tl.constexpr,
    STRIDE: tl.constexpr,
    N_BINS: tl.constexpr,
    HAS_WEIGHTS: tl.constexpr,
    HAS_IGNORE: tl.constexpr,
    FROM_LOGITS: tl.constexpr,
    ENTROPY: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BINS: tl.constexpr,
    SLOTS: tl.constexpr,
    LONG: tl.constexpr,
):
    """Add Σw, Σw·confidence, Σw·correct per bin and the `SCALARS` to the state (3·BINS + 8,), float64."""
    program = tl.program_id(0)
    lanes = tl.arange(0, BLOCK_K)
    bins = tl.arange(0, BINS)
    nothing = tl.zeros([BINS], tl.float64)
    own_bins = partials + program * (3 * BINS + 8)
    for part in tl.static_range(3):
        tl.store(own_bins + part * BINS + bins, nothing)
    tl.debug_barrier()
    nll_sum = tl.zeros([BLOCK_N], tl.float64)
    brier_sum = tl.zeros([BLOCK_N], tl.float64)
    entropy_sum = tl.zeros([BLOCK_N], tl.float64)
    weight_sum = tl.zeros([BLOCK_N], tl.float64)
    right_sum = tl.zeros([BLOCK_N], tl.float64)
    sure_sum = tl.zeros([BLOCK_N], tl.float64)
    rows_sum = tl.zeros([BLOCK_N], tl.float64)
    bad_sum = tl.zeros([BLOCK_N], tl.float64)
    for tile in tl.range(program * BLOCK_N, n_rows, n_programs * BLOCK_N):
        place = tile + tl.arange(0, BLOCK_N)
        inside = place < n_rows
        row = place.to(tl.int64)
        if HAS_IGNORE:
            inside = inside & (tl.load(labels + row, mask=inside, other=ignore_index) != ignore_index)
        if LONG:
            label, confidence, prediction, nll, brier, entropy, good = _long_row(
                values_at, labels, tl.full([], 0, tl.int64) + tile, lanes, CLASSES, STRIDE, FROM_LOGITS, BLOCK_K
            )
        else:
            label, confidence, prediction, nll, brier, entropy, good = _tile(
                values_at, labels, row, inside, lanes, CLASSES, STRIDE, FROM_LOGITS, ENTROPY
            )
        weight = tl.where(inside, 1.0, 0.0).to(tl.float64)
        if HAS_WEIGHTS:
            weight = tl.load(weights + row, mask=inside, other=0.0).to(tl.float64)
        right = (prediction == label).to(tl.float64)
        # the bin (lo, hi]: a first guess, then one step where the edge was rounded the other way
        place_in = tl.minimum(tl.maximum(tl.ceil(confidence * N_BINS).to(tl.int32) - 1, 0), N_BINS - 1)
        low_edge = tl.load(edges_at + place_in)
        high_edge = tl.load(edges_at + place_in + 1)
        place_in = tl.where((confidence <= low_edge) & (place_in > 0), place_in - 1, place_in)
        place_in = tl.where((confidence > high_edge) & (place_in < N_BINS - 1), place_in + 1, place_in)
        counted = inside & good
        tl.atomic_add(own_bins + place_in, weight, mask=counted, sem="relaxed", scope="cta")
        tl.atomic_add(
            own_bins + BINS + place_in, weight * confidence.to(tl.float64), mask=counted, sem="relaxed", scope="cta"
        )
        tl.atomic_add(
            own_bins + 2 * BINS + place_in, weight * right, mask=counted & (right > 0), sem="relaxed", scope="cta"
        )
        weight = tl.where(counted, weight, 0.0)
        weight_sum += weight
        right_sum += weight * right
        sure_sum += tl.where(counted, weight * confidence.to(tl.float64), 0.0)
        nll_sum += tl.where(counted, weight * nll.to(tl.float64), 0.0)
        brier_sum += tl.where(counted, weight * brier.to(tl.float64), 0.0)
        entropy_sum += tl.where(counted, weight * entropy.to(tl.float64), 0.0)
        rows_sum += tl.where(inside, 1.0, 0.0)
        bad_sum += tl.where(good | (inside == 0), 0.0, 1.0)
    scalars = own_bins + 3 * BINS
    tl.store(scalars, tl.sum(weight_sum, axis=0))
    tl.store(scalars + 1, tl.sum(nll_sum, axis=0))
    tl.store(scalars + 2, tl.sum(brier_sum, axis=0))
    tl.store(scalars + 3, tl.sum(right_sum, axis=0))
    tl.store(scalars + 4, tl.sum(sure_sum, axis=0))
    tl.store(scalars + 5, tl.sum(entropy_sum, axis=0))
    tl.store(scalars + 6, tl.sum(rows_sum, axis=0))
    tl.store(scalars + 7, tl.sum(bad_sum, axis=0))
    tl.debug_barrier()
    if tl.atomic_add(ticket, 1, sem="acq_rel", scope="gpu") == n_programs - 1:
        tl.debug_barrier()
        slots = tl.arange(0, SLOTS)
        known = slots < 3 * BINS + 8
        total = tl.zeros([SLOTS], tl.float64)
        for first in tl.range(0, n_programs, 32):
            others = first + tl.arange(0, 32)
            regions = tl.load(
                partials + others[:, None] * (3 * BINS + 8) + slots[None, :],
                mask=(others < n_programs)[:, None] & known[None, :],
                other=0.0,
                cache_modifier=".cg",
            )
            total += tl.sum(regions, axis=0)
        tl.store(state + slots, tl.load(state + slots, mask=known, other=0.0) + total, mask=known)
        tl.store(ticket, 0)


def blocks(n_classes: int) -> tuple[int, int, bool, int]:
    """BLOCK_N, BLOCK_K, whether rows are long, and warps."""
    long = n_classes > ONE_TILE
    block_k = 4096 if long else max(16, triton.next_power_of_2(n_classes))
    if long:
        return 1, block_k, True, 8
    return (
        (max(1, 2048 // block_k), block_k, False, 2) if block_k >= 512 else (max(4, 512 // block_k), block_k, False, 4)
    )


class SumsLaunch:
    """`sums_kernel` with its scratch memory, for repeated additions to one state."""

    def __init__(self, state: Tensor, edges: Tensor, n_bins: int, entropy: bool) -> None:
        device = state.device
        self.state, self.edges, self.n_bins, self.entropy = state, edges, n_bins, entropy
        self.programs = 8 * torch.cuda.get_device_properties(device).multi_processor_count
        self.bins = max(16, triton.next_power_of_2(n_bins))
        self.slots = triton.next_power_of_2(3 * self.bins + SCALARS)
        self.partials = torch.empty((3 * self.bins + SCALARS) * self.programs, dtype=torch.float64, device=device)
        self.ticket = torch.zeros(1, dtype=torch.int32, device=device)

    def add(
        self, values: Tensor, labels: Tensor, weights: Tensor | None, *, from_logits: bool, ignore_index: int | None
    ) -> None:
        """Add the rows to the state; nothing waits for the host."""
        n_rows, n_classes = values.shape
        block_n, block_k, long, warps = blocks(n_classes)
        programs = max(1, min(self.programs, triton.cdiv(n_rows, block_n)))
        sums_kernel[(programs,)](
            values,
            labels,
            labels if weights is None else weights,
            self.edges,
            self.state,
            self.partials,
            self.ticket,
            n_rows,
            programs,
            0 if ignore_index is None else ignore_index,
            CLASSES=n_classes,
            STRIDE=values.stride(0),
            N_BINS=self.n_bins,
            HAS_WEIGHTS=weights is not None,
            HAS_IGNORE=ignore_index is not None,
            FROM_LOGITS=from_logits,
            ENTROPY=self.entropy,
            BLOCK_N=block_n,
            BLOCK_K=block_k,
            BINS=self.bins,
            SLOTS=self.slots,
            LONG=long,
            num_warps=warps,
        )


def columns(values: Tensor, labels: Tensor, *, from_logits: bool) -> tuple[Tensor, ...]:
    """Confidence, prediction, correct, NLL, Brier, entropy of each row, and the number of bad rows (1,)."""
    n_rows, n_classes = values.shape
    block_n, block_k, long, warps = blocks(n_classes)
    made = [torch.empty(n_rows, dtype=kind, device=values.device) for kind in COLUMN_TYPES]
    bad = torch.zeros(1, dtype=torch.int32, device=values.device)
    columns_kernel[(triton.cdiv(n_rows, block_n),)](
        values,
        labels,
        *made,
        bad,
        n_rows,
        CLASSES=n_classes,
        STRIDE=values.stride(0),
        FROM_LOGITS=from_logits,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        LONG=long,
        num_warps=warps,
    )
    made[2] = made[2].bool()
    return (*made, bad)


COLUMN_TYPES = (torch.float32, torch.int64, torch.int8, torch.float32, torch.float32, torch.float32)
