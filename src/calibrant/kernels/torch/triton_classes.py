"""One class of the class temperature search by three Triton launches that do not wait for the host.

The arithmetic is that of `kernels.class_search`, in float64. The first kernel finds, per row, the leading class when
class j is left out; the second the bin gaps and hits of every temperature of the grid; the third picks the
temperature. Where rounding could decide (a confidence within `DOUBT` of a bin edge, or several temperatures of the
lowest ECE) it raises a flag, all later launches return at once, and the host settles that class.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

DOUBT = tl.constexpr(1e-10)
"""As in `kernels.class_search`: a confidence this close to a bin edge (in bins) is computed in full by the host."""

TROUBLE, CHANGED, MOVED = (tl.constexpr(i) for i in range(3))
"""Places of the flags: class number + 1 that the host must settle, did any class move, did the last one."""

CHUNKS = 8
"""Parts of the rows that are summed by themselves."""

MAX_GRID, MAX_BINS = 2048, 64


@triton.jit
def _full_row(logits, temperatures, row, without, CLASSES: tl.constexpr, STRIDE: tl.constexpr, BLOCK_K: tl.constexpr):
    """Peak, first winner and Σ exp(s − peak) of one row of z/T, one class left out."""
    lanes = tl.arange(0, BLOCK_K)
    base = logits + row.to(tl.int64) * STRIDE
    peak = tl.full([], -float("inf"), tl.float64)
    winner = tl.full([], 0, tl.int32)
    for begin in tl.range(0, CLASSES, BLOCK_K):
        column = begin + lanes
        known = (column < CLASSES) & (column != without)
        divisor = tl.load(temperatures + column, mask=known, other=1.0)
        scores = tl.load(base + column, mask=known, other=-float("inf")).to(tl.float64) / divisor
        highest = tl.max(scores, axis=0)
        place = tl.min(tl.where(known & (scores == highest), column, CLASSES), axis=0)
        if highest > peak:
            peak = highest
            winner = place
    total = tl.zeros([BLOCK_K], tl.float64)
    for begin in tl.range(0, CLASSES, BLOCK_K):
        column = begin + lanes
        known = (column < CLASSES) & (column != without)
        divisor = tl.load(temperatures + column, mask=known, other=1.0)
        scores = tl.load(base + column, mask=known, other=-float("inf")).to(tl.float64) / divisor
        total += tl.where(known, tl.exp(scores - peak), 0.0)
    return peak, winner, tl.sum(total, axis=0)


@triton.jit(do_not_specialize=["n_rows", "j", "previous"])
def others_kernel(
    logits,
    temperatures,
    flags,
    peak_at,
    winner_at,
    mass_at,
    values_at,
    other_peak_at,
    other_winner_at,
    other_mass_at,
    n_rows,
    j,
    previous,
    CLASSES: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Give the previous class (−1: none) its new temperature in the rows' state, then leave class j out of it."""
    if tl.load(flags + TROUBLE) != 0:
        return
    program = tl.program_id(0)
    row = program * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = row < n_rows
    peak = tl.load(peak_at + row, mask=inside, other=0.0)
    winner = tl.load(winner_at + row, mask=inside, other=-1)
    mass = tl.load(mass_at + row, mask=inside, other=1.0)
    if (previous >= 0) & (tl.load(flags + MOVED) != 0):
        scores = tl.load(values_at + row, mask=inside, other=0.0) / tl.load(temperatures + previous)
        other_peak = tl.load(other_peak_at + row, mask=inside, other=0.0)
        other_winner = tl.load(other_winner_at + row, mask=inside, other=0)
        other_mass = tl.load(other_mass_at + row, mask=inside, other=1.0)
        wins = (scores > other_peak) | ((scores == other_peak) & (other_winner > previous))
        exponential = tl.exp(-tl.abs(scores - other_peak))
        peak = tl.where(wins, scores, other_peak)
        winner = tl.where(inside, tl.where(wins, previous, other_winner), -1)
        mass = tl.where(wins, 1.0 + other_mass * exponential, other_mass + exponential)
        tl.store(peak_at + row, peak, mask=inside)
        tl.store(winner_at + row, winner, mask=inside)
        tl.store(mass_at + row, mass, mask=inside)
    values = tl.load(logits + row.to(tl.int64) * STRIDE + j, mask=inside, other=0.0).to(tl.float64)
    scores = values / tl.load(temperatures + j)
    leads = winner == j
    # where class j does not lead, the mass of the others is at least 1: nothing cancels
    rest = tl.maximum(mass - tl.exp(tl.minimum(scores - peak, 0.0)), 1.0)
    kept = inside & (leads == 0)
    tl.store(values_at + row, values, mask=inside)
    tl.store(other_peak_at + row, peak, mask=kept)
    tl.store(other_winner_at + row, winner, mask=kept)
    tl.store(other_mass_at + row, rest, mask=kept)
    if tl.max(leads.to(tl.int32), axis=0) > 0:
        for place in tl.range(0, BLOCK_N):
            if tl.sum(tl.where((row == program * BLOCK_N + place) & leads, 1, 0), axis=0) > 0:
                one = program * BLOCK_N + place
                full_peak, full_winner, full_mass = _full_row(logits, temperatures, one, j, CLASSES, STRIDE, BLOCK_K)
                tl.store(other_peak_at + one, full_peak)
                tl.store(other_winner_at + one, full_winner)
                tl.store(other_mass_at + one, full_mass)


@triton.jit(do_not_specialize=["n_rows", "n_grid", "j", "chunk_rows"])
def sums_kernel(
    labels,
    weights,
    grid,
    flags,
    values_at,
    other_peak_at,
    other_winner_at,
    other_mass_at,
    partials,
    n_rows,
    n_grid,
    j,
    chunk_rows,
    N_BINS: tl.constexpr,
    BLOCK: tl.constexpr,
    BINS: tl.constexpr,
):
    """Per chunk of rows and temperature: Σ w·(correct − confidence) of each bin, Σ w·correct, and the rows in doubt."""
    if tl.load(flags + TROUBLE) != 0:
        return
    chunk, position = tl.program_id(0), tl.program_id(1)
    temperature = tl.load(grid + position)
    bins = tl.arange(0, BINS)
    gaps = tl.zeros([BINS, BLOCK], tl.float64)
    hits = tl.zeros([BLOCK], tl.float64)
    unclear = tl.zeros([BLOCK], tl.float64)
    last = tl.minimum((chunk + 1) * chunk_rows, n_rows)
    for first in tl.range(chunk * chunk_rows, last, BLOCK):
        row = first + tl.arange(0, BLOCK)
        inside = row < last
        scores = tl.load(values_at + row, mask=inside, other=0.0) / temperature
        peak = tl.load(other_peak_at + row, mask=inside, other=0.0)
        winner = tl.load(other_winner_at + row, mask=inside, other=0)
        mass = tl.load(other_mass_at + row, mask=inside, other=1.0)
        label = tl.load(labels + row, mask=inside, other=-1)
        weight = tl.load(weights + row, mask=inside, other=0.0)
        wins = (scores > peak) | ((scores == peak) & (winner > j))
        exponential = tl.exp(-tl.abs(scores - peak))
        confidence = 1.0 / (tl.where(wins, 1.0, mass) + tl.where(wins, mass, 1.0) * exponential)
        right = tl.where(wins, label == j, label == winner).to(tl.float64)
        place = confidence * N_BINS
        nearest = tl.floor(place + 0.5)
        doubt = inside & (tl.abs(place - nearest) < DOUBT) & (nearest > 0.5) & (nearest < N_BINS - 0.5)
        index = tl.minimum(tl.maximum(tl.ceil(place).to(tl.int32) - 1, 0), N_BINS - 1)
        credit = weight * (right - confidence)
        hits += weight * right
        unclear += tl.where(doubt, 1.0, 0.0)
        gaps += tl.where(bins[:, None] == index[None, :], credit[None, :], 0.0)
    own = partials + (chunk * n_grid + position).to(tl.int64) * (BINS + 2)
    tl.store(own + bins, tl.sum(gaps, axis=1))
    tl.store(own + BINS, tl.sum(hits, axis=0))
    tl.store(own + BINS + 1, tl.sum(unclear, axis=0))


@triton.jit(do_not_specialize=["n_grid", "j"])
def decide_kernel(
    grid,
    partials,
    flags,
    temperatures,
    positions,
    limits,
    n_grid,
    j,
    PRESERVE: tl.constexpr,
    BINS: tl.constexpr,
    GRID: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Move class j to the feasible temperature of the lowest ECE, or raise the flag for the host."""
    if tl.load(flags + TROUBLE) != 0:
        return
    # by address: numbers given to a launch are rounded to float32
    total, tie, fewest_hits = tl.load(limits), tl.load(limits + 1), tl.load(limits + 2)
    place = tl.arange(0, GRID)
    real = place < n_grid
    bins = tl.arange(0, BINS)
    gaps = tl.zeros([GRID, BINS], tl.float64)
    hits = tl.zeros([GRID], tl.float64)
    unclear = tl.zeros([GRID], tl.float64)
    for chunk in tl.static_range(PARTS):
        own = partials + (chunk * n_grid + place) * (BINS + 2)
        gaps += tl.load(own[:, None] + bins[None, :], mask=real[:, None], other=0.0)
        hits += tl.load(own + BINS, mask=real, other=0.0)
        unclear += tl.load(own + BINS + 1, mask=real, other=0.0)
    ece = tl.sum(tl.abs(gaps), axis=1) / total
    present = tl.load(positions + j)
    at_present = tl.sum(tl.where(place == present, ece, 0.0), axis=0)
    feasible = real
    if PRESERVE:
        held = tl.sum(tl.where(place == present, hits, 0.0), axis=0)
        feasible = real & (hits >= tl.minimum(held, fewest_hits) - tie * total)
    ece = tl.where(feasible, ece, float("inf"))
    lowest = tl.min(ece, axis=0)
    improves = lowest < at_present - tie
    near = feasible & (ece <= lowest + tie)
    n_near = tl.sum(tl.where(near, 1, 0), axis=0)
    in_doubt = tl.sum(tl.where(feasible, unclear, 0.0), axis=0) > 0
    only_one = tl.sum(tl.where(feasible, 1, 0), axis=0) <= 1
    trouble = (only_one == 0) & (in_doubt | (improves & (n_near > 1)))
    if trouble:
        tl.store(flags + TROUBLE, j + 1)
        tl.store(flags + MOVED, 0)
    elif improves & (only_one == 0):
        best = tl.min(tl.where(near, place, GRID), axis=0)
        tl.store(positions + j, best)
        tl.store(temperatures + j, tl.load(grid + best))
        tl.store(flags + CHANGED, 1)
        tl.store(flags + MOVED, 1)
    else:
        tl.store(flags + MOVED, 0)


class ClassLaunches:
    """The state of the rows on the device, and the launches that move one class after the other."""

    def __init__(self, logits: Tensor, labels: Tensor, weights: Tensor, grid: Tensor, n_bins: int) -> None:
        self.logits, self.labels, self.weights, self.grid, self.n_bins = logits, labels, weights, grid, n_bins
        n_rows, n_classes = logits.shape
        device = logits.device
        wide: dict[str, Any] = {"dtype": torch.float64, "device": device}
        self.peak, self.mass, self.values = (torch.empty(n_rows, **wide) for _ in range(3))
        self.winner = torch.empty(n_rows, dtype=torch.int32, device=device)
        self.others = torch.empty(n_rows, **wide), torch.empty_like(self.winner), torch.empty(n_rows, **wide)
        self.flags = torch.zeros(3, dtype=torch.int32, device=device)
        self.temperatures = torch.empty(n_classes, **wide)
        self.positions = torch.empty(n_classes, dtype=torch.int32, device=device)
        self.bins = max(16, triton.next_power_of_2(n_bins))
        self.partials = torch.empty(CHUNKS * len(grid) * (self.bins + 2), **wide)
        self.limits = torch.empty(3, **wide)

    def load(self, temperatures: Tensor, positions: Tensor, top: tuple[Tensor, ...], limits: tuple[float, ...]) -> None:
        """Set the temperatures (K,), their places in the grid (K,), the leading class of each row, and the limits.

        The limits are the total weight, the difference of ECE that counts as none, and the fewest hits.
        """
        self.limits.copy_(torch.tensor(limits, dtype=torch.float64))
        self.temperatures.copy_(temperatures)
        self.positions.copy_(positions)
        for held, given in zip((self.peak, self.winner, self.mass), top, strict=True):
            held.copy_(given)

    def improve(self, j: int, previous: int, preserve_accuracy: bool) -> None:
        """Launch the search over the grid of class j; the previous class's move is entered first."""
        n_rows, n_classes = self.logits.shape
        state = (self.values, *self.others)
        others_kernel[(triton.cdiv(n_rows, 32),)](
            self.logits,
            self.temperatures,
            self.flags,
            self.peak,
            self.winner,
            self.mass,
            *state,
            n_rows,
            j,
            previous,
            CLASSES=n_classes,
            STRIDE=self.logits.stride(0),
            BLOCK_N=32,
            BLOCK_K=min(1024, max(16, triton.next_power_of_2(n_classes))),
            num_warps=4,
        )
        chunk_rows = triton.cdiv(n_rows, CHUNKS)
        sums_kernel[(CHUNKS, len(self.grid))](
            self.labels,
            self.weights,
            self.grid,
            self.flags,
            *state,
            self.partials,
            n_rows,
            len(self.grid),
            j,
            chunk_rows,
            N_BINS=self.n_bins,
            BLOCK=4096 // self.bins,
            BINS=self.bins,
            num_warps=4,
        )
        decide_kernel[(1,)](
            self.grid,
            self.partials,
            self.flags,
            self.temperatures,
            self.positions,
            self.limits,
            len(self.grid),
            j,
            PRESERVE=preserve_accuracy,
            BINS=self.bins,
            GRID=triton.next_power_of_2(len(self.grid)),
            PARTS=CHUNKS,
            num_warps=8,
        )
