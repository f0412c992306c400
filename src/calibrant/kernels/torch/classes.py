"""The passes of the class temperature search over logits on a device, in plain torch and float64."""

import torch
from torch import Tensor

from calibrant.kernels.torch.tensors import first_maximum, row_slices


def scaled_top(
    logits: Tensor, temperatures: Tensor, rows: Tensor | None = None, without: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Peak, first winner and Σ exp(s − peak) of each (chosen) row of s = z/T; one class may be left out."""
    n_rows = len(logits) if rows is None else len(rows)
    peaks = logits.new_empty(n_rows, dtype=torch.float64)
    masses, winners = torch.empty_like(peaks), logits.new_empty(n_rows, dtype=torch.int32)
    for block in row_slices(n_rows, logits.shape[1]):
        scores = logits[block if rows is None else rows[block]].double() / temperatures
        if without is not None:
            scores[:, without] = -torch.inf
        winner = first_maximum(scores)
        peak = scores.gather(1, winner[:, None])
        peaks[block], winners[block] = peak[:, 0], winner.to(torch.int32)
        masses[block] = scores.sub_(peak).exp_().sum(dim=1)
    return peaks, winners, masses
