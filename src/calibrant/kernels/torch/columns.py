"""Columns of the rows of a matrix on a device, and their sums over equal-width bins, which stay there.

`columns` is `kernels.rows.scan` on tensors. `BinSums` holds what the metrics of a stream of batches, or of groups of
rows, need, in O(bins) memory; the host never waits.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrant.core.arrays import Array
from calibrant.core.bins import check_n_bins, width_edges
from calibrant.core.errors import InputError
from calibrant.kernels.rows import RowColumns
from calibrant.kernels.torch.tensors import first_maximum, of_label, row_slices, use_triton, widened

SLOTS = ("weight", "confidence", "correct", "nll", "brier", "entropy", "rows", "bad")
"""The sums after those of the bins, in their order; the first six are weighted."""

MEANS = {"nll": "nll", "brier": "brier", "accuracy": "correct", "confidence": "confidence", "entropy": "entropy"}
"""Metrics that are means of a column of `BinSums`."""


class Columns(NamedTuple):
    """Of each row: numbers (4, n) confidence, NLL, Brier, entropy; prediction (n,); flags (2, n) correct, good.

    A logit of −∞ is a probability of 0. A row is not good where a value is NaN or ∞, where all are −∞, where one is not
    a probability, or where the label has no column.
    """

    numbers: Tensor
    prediction: Tensor
    flags: Tensor


def columns(values: Tensor, labels: Tensor, *, from_logits: bool, entropy: bool = True) -> Columns:
    """The columns of logits or probabilities (n, K) on the device; without `entropy` a fused pass leaves it at 0."""
    if use_triton(values):
        from calibrant.kernels.torch import triton_rows

        rows = values if values.stride(1) == 1 else values.contiguous()
        return Columns(*triton_rows.columns(rows, labels.contiguous(), from_logits=from_logits, entropy=entropy))
    parts = [_block_columns(values[block], labels[block], from_logits) for block in row_slices(*values.shape)]
    return Columns(*(torch.cat(part, dim=-1) for part in zip(*parts, strict=True)))


def _block_columns(values: Tensor, labels: Tensor, from_logits: bool) -> Columns:
    wide = widened(values)
    known = (labels >= 0) & (labels < wide.shape[1])
    own = torch.where(known, labels, 0)
    if from_logits:
        log_p = wide.log_softmax(dim=1)
        probabilities, sound = log_p.exp(), torch.isfinite(log_p.amax(dim=1))
    else:
        log_p, probabilities = wide.clamp_min(torch.finfo(wide.dtype).tiny).log(), wide
        sound = ((wide.sum(dim=1) - 1).abs() <= 1e-3) & (wide.amin(dim=1) >= 0)
    prediction, nll, at_zero = first_maximum(wide), -of_label(log_p, own), -math.log(torch.finfo(wide.dtype).eps)
    nll = torch.where(nll.isposinf(), at_zero, nll) if from_logits else nll.clamp_max(at_zero)
    brier = probabilities.square().sum(dim=1) - 2 * of_label(probabilities, own) + 1
    entropy = -(probabilities * log_p.clamp_min(-745.0)).sum(dim=1)
    numbers = [of_label(probabilities, prediction), nll, brier.clamp_min(0.0), entropy.clamp_min(0.0)]
    flags = [prediction == labels, known & torch.isfinite(nll) & sound]
    return Columns(torch.stack(numbers), prediction, torch.stack(flags))


def host_columns(values: Tensor, labels: Array, *, from_logits: bool, name: str) -> RowColumns:
    """The columns of `kernels.rows.scan`, computed on the device and copied to the host."""
    found = columns(values.detach(), torch.as_tensor(labels, device=values.device), from_logits=from_logits)
    numbers, prediction, (correct, good) = (part.cpu().numpy() for part in found)
    n_bad = (~good).sum()
    if n_bad:
        what = "NaN or infinite values" if from_logits else "values that are not probabilities"
        raise InputError(f"{n_bad} of {len(values)} rows of {name or 'the scores'} hold {what}")
    return RowColumns(numbers[0], prediction, correct, *numbers[1:])


class BinSums:
    """Σw, Σw·confidence, Σw·correct per bin and the `SLOTS` of each group of rows: (groups, 3·bins + 8) in float64.

    Parameters
    ----------
    n_bins : int
        Equal-width bins (lo, hi].
    device : torch device
    n_groups : int
    """

    def __init__(self, n_bins: int, device: Any, n_groups: int = 1) -> None:
        self.n_bins = check_n_bins(n_bins)
        self.state = torch.zeros((n_groups, 3 * n_bins + len(SLOTS)), dtype=torch.float64, device=device)
        self.edges = torch.as_tensor(width_edges(n_bins, np.float32), device=device)

    def add(
        self,
        found: Columns,
        labels: Tensor,
        weights: Tensor | None = None,
        *,
        ignore_index: int | None = None,
        groups: Tensor | None = None,
    ) -> None:
        """Add the columns of rows with these labels (n,), weights (n,) and groups (n,)."""
        if groups is None and use_triton(found.numbers):
            from calibrant.kernels.torch import triton_rows

            triton_rows.add_sums(
                self.state, self.edges, found.numbers, found.flags, labels.contiguous(), weights, ignore_index
            )
            return
        (confidence, *_), (correct, good) = found.numbers, found.flags
        inside = torch.ones_like(good) if ignore_index is None else labels != ignore_index
        counted = inside & good
        weight = torch.where(counted, 1.0 if weights is None else weights.double(), 0.0).double()
        columns = torch.stack([torch.ones_like(confidence), confidence, correct, *found.numbers[1:]]).double()
        terms = torch.where(counted, columns, 0.0) * weight
        first = torch.zeros_like(labels) if groups is None else groups * self.state.shape[1]
        place = first + torch.bucketize(confidence, self.edges[1:-1].to(confidence.dtype))
        flat = self.state.view(-1)
        for part in range(3):
            flat.index_add_(0, place + part * self.n_bins, terms[part])
        for slot, values in enumerate([*terms, inside.double(), (inside & ~good).double()]):
            flat.index_add_(0, first + 3 * self.n_bins + slot, values)

    def slot(self, name: str) -> Tensor:
        """One of the `SLOTS` of each group: (groups,)."""
        return self.state[:, 3 * self.n_bins + SLOTS.index(name)]

    def mean(self, name: str) -> Tensor:
        """The weighted mean of a column in each group: (groups,)."""
        return self.slot(name) / self.slot("weight")

    def bins(self) -> Tensor:
        """Σw, Σw·confidence and Σw·correct of each group's bins: (3, groups, n_bins)."""
        return self.state[:, : 3 * self.n_bins].reshape(-1, 3, self.n_bins).movedim(1, 0)

    def ece(self) -> Tensor:
        """The expected calibration error of each group: (groups,)."""
        _, confidence, correct = self.bins()
        return (confidence - correct).abs().sum(dim=1) / self.slot("weight")
