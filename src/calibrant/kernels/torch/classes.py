"""The passes of the class temperature search over logits on a device, in plain torch and float64."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from calibrant.kernels.class_search import DOUBT
from calibrant.kernels.torch.tensors import BLOCK_ELEMENTS, first_maximum, row_slices


def scaled_top(
    logits: Tensor, temperatures: Tensor, rows: Tensor | None = None, without: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Peak, first winner and Σ exp(s − peak) of each (chosen) row of s = z/T; one class may be left out."""
    n_rows = len(logits) if rows is None else len(rows)
    peaks = torch.empty(n_rows, dtype=torch.float64, device=logits.device)
    masses, winners = torch.empty_like(peaks), torch.empty(n_rows, dtype=torch.int32, device=logits.device)
    for block in row_slices(n_rows, logits.shape[1]):
        scores = logits[block if rows is None else rows[block]].double() / temperatures
        if without is not None:
            scores[:, without] = -torch.inf
        winner = first_maximum(scores)
        peak = scores.gather(1, winner[:, None])
        peaks[block], winners[block] = peak[:, 0], winner.to(torch.int32)
        masses[block] = scores.sub_(peak).exp_().sum(dim=1)
    return peaks, winners, masses


def start_sums(
    logits: Tensor, labels: Tensor, weights: Tensor, grid: np.ndarray, n_bins: int
) -> tuple[np.ndarray, np.ndarray]:
    """Bin gaps Σ w·(correct − confidence) (bins × grid) of z/t, and the doubtful (row, grid) pairs they leave out."""
    gaps = torch.zeros((n_bins, len(grid)), dtype=torch.float64, device=logits.device)
    doubtful = [torch.empty((0, 2), dtype=torch.int64, device=logits.device)]
    bins = torch.arange(n_bins, device=logits.device)[:, None]
    size = min(max(1, BLOCK_ELEMENTS // logits.shape[1]), 1 << 18)
    for start in range(0, len(logits), size):
        block = slice(start, min(start + size, len(logits)))
        shifted = logits[block].double()
        winner = first_maximum(shifted)
        shifted -= shifted.gather(1, winner[:, None])
        weight, hit = weights[block], weights[block] * (winner == labels[block])
        scaled = torch.empty_like(shifted)
        for position, temperature in enumerate(grid.tolist()):
            confidence = 1.0 / torch.mul(shifted, 1.0 / temperature, out=scaled).exp_().sum(dim=1)
            place = confidence * n_bins
            nearest = place.round()
            doubt = ((place - nearest).abs() < DOUBT) & (nearest > 0) & (nearest < n_bins)
            index = (place.ceil() - 1).clamp(0, n_bins - 1)
            credit = torch.where(doubt, 0.0, hit - weight * confidence)
            gaps[:, position] += torch.where(bins == index, credit, 0.0).sum(dim=1)
            row = doubt.nonzero()
            doubtful.append(torch.cat([row + start, torch.full_like(row, position)], dim=1))
    return gaps.cpu().numpy(), torch.cat(doubtful).cpu().numpy()
