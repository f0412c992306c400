"""Sums over next-token logits that add up chunk by chunk: what a temperature fit and the metrics by group need."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators.temperature import fit_inverse_temperature
from calibrant.core.bins import check_n_bins, width_edges
from calibrant.core.errors import InputError
from calibrant.core.rows import SolvedTemperature
from calibrant.kernels.torch import plain
from calibrant.kernels.torch.dispatch import use_triton
from calibrant.kernels.torch.rows import TensorRows, columns

SPACING, N_NODES = 0.2, 5
"""The sums of the fit are taken at this many temperatures, this far apart in log T, around a first estimate."""

FARTHEST = 1.5
"""How far, in log T, the nodes move where the optimum lies outside them."""

MEANS = ("nll", "brier", "accuracy", "confidence", "entropy")
SCALARS = ("tokens", *MEANS)
"""The sums beside those of the bins, in their order."""


class TemperatureNodes:
    """Σ NLL of z/T and its derivatives at a few temperatures, from which the T of the lowest NLL follows.

    Between two nodes the slope by log T is the polynomial of degree five that has its value and two derivatives at
    both. At a spacing of 0.2 the root is good to about 1e-7 of T.
    """

    def __init__(self, around: float, device: Any) -> None:
        steps = SPACING * (np.arange(N_NODES) - N_NODES // 2)
        # the fused pass takes exponentials in float32: it must see the number that the fit is about
        self.betas = (np.exp(steps) / around).astype(np.float32).astype(np.float64)
        self.sums = torch.zeros((N_NODES, 4), dtype=torch.float64, device=device)
        self.total = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, logits: Tensor, labels: Tensor, weights: Tensor) -> None:
        """Add rows; the host does not wait."""
        total = weights.sum()
        for node, beta in enumerate(self.betas.tolist()):
            if use_triton(logits) and logits.dtype != torch.float64:
                from calibrant.kernels.torch import triton_temperature

                means = triton_temperature.run(logits, labels, weights, beta)[1:5]
                self.sums[node] += torch.where(total > 0, means * total, 0.0)
            else:
                self.sums[node] += plain.temperature_sums(logits, labels, weights, beta)[:4]
        self.total += total

    def solve(self) -> SolvedTemperature | float:
        """β of the lowest mean NLL; where that lies outside the nodes, the temperature to look around next."""
        means = (self.sums / self.total).cpu().numpy()
        if not np.isfinite(means).all():
            raise InputError("the logits of some tokens, or of padding, are NaN or infinite")
        loss, first, second, third = means.T
        # derivatives by log β of the loss
        slope, curvature, bend = first, second + first, third + 3 * second + first
        crossing = np.flatnonzero((slope[:-1] <= 0) & (slope[1:] > 0))
        if not len(crossing):
            end = 0 if slope[0] > 0 else -1
            step = abs(slope[end] / curvature[end]) if curvature[end] > 0 else FARTHEST
            step = min(max(step, 2 * SPACING), FARTHEST)
            return float(math.exp(step if end == 0 else -step) / self.betas[end])
        left = int(crossing[0])
        from scipy.interpolate import BPoly
        from scipy.optimize import brentq

        places = np.log(self.betas[left : left + 2])
        ends = [[slope[at], curvature[at], bend[at]] for at in (left, left + 1)]
        curve = BPoly.from_derivatives(places, ends)
        found = float(brentq(curve, *places, xtol=1e-14))
        lowest = loss[left] + float(curve.integrate(places[0], found))
        return SolvedTemperature(math.exp(found), lowest, N_NODES)


def first_estimate(logits: Tensor, labels: Tensor, weights: Tensor) -> float:
    """The temperature of the first rows; 1 where they have none."""
    if not bool(weights.sum() > 0):
        return 1.0
    found = fit_inverse_temperature(TensorRows(logits, labels, weights))  # type: ignore[arg-type]
    return 1.0 if found.limit or not 1e-3 < found.value < 1e3 else 1.0 / found.value


class TokenRows:
    """The source of rows that a temperature fit takes; the temperature is known already."""

    in_memory = False

    def __init__(self, n: int, n_classes: int, solved: SolvedTemperature) -> None:
        self.n, self.n_classes, self.total_weight, self.solved = n, n_classes, float(n), solved

    def solved_temperature(self) -> SolvedTemperature:
        """What the sums at the nodes say."""
        return self.solved


class GroupSums:
    """Bin sums and the `SCALARS` of each group of rows: (groups, 3·bins + scalars) in float64, on the device."""

    def __init__(self, n_groups: int, n_bins: int, device: Any) -> None:
        self.n_bins = check_n_bins(n_bins)
        self.state = torch.zeros((n_groups, 3 * n_bins + len(SCALARS)), dtype=torch.float64, device=device)
        self.edges = torch.as_tensor(width_edges(n_bins, np.float32)[1:-1].copy(), device=device)

    def add(self, found: tuple[Tensor, ...], group: Tensor, counted: Tensor) -> None:
        """Add rows: the columns of `kernels.torch.rows.columns`, their groups, and which of them count."""
        confidence, _, correct, nll, brier, entropy = found
        one = counted.double()
        place = torch.bucketize(confidence.float(), self.edges)
        flat = self.state.view(-1)
        base = group * self.state.shape[1]
        parts = [one, torch.where(counted, confidence, 0.0), torch.where(counted, correct, False)]
        for part, values in enumerate(parts):
            flat.index_add_(0, base + part * self.n_bins + place, values.double())
        for slot, values in enumerate((torch.ones_like(nll), nll, brier, correct, confidence, entropy)):
            flat.index_add_(0, base + 3 * self.n_bins + slot, torch.where(counted, values.double(), 0.0))

    def table(self) -> list[dict[str, float]]:
        """The metrics of each group, on the host; NaN where a group has no row."""
        state = self.state.cpu().numpy()
        rows = []
        for line in state:
            _, sure, right = line[: 3 * self.n_bins].reshape(3, self.n_bins)
            tokens = line[3 * self.n_bins]
            means = line[3 * self.n_bins + 1 :] / tokens if tokens else np.full(len(SCALARS) - 1, np.nan)
            row = {"tokens": tokens, **dict(zip(MEANS, means, strict=True))}
            row["ece"] = float(np.abs(sure - right).sum() / tokens) if tokens else float("nan")
            rows.append({name: float(value) for name, value in row.items()})
        return rows


def row_columns(logits: Tensor, labels: Tensor, temperature: float) -> tuple[Tensor, ...]:
    """Confidence, prediction, correct, NLL, Brier and entropy of softmax(z/T) of each row."""
    if temperature == 1.0:
        return columns(logits, labels, from_logits=True)[:-1]
    parts = []
    for block in plain.row_slices(*logits.shape):
        wide = logits[block] if logits.dtype == torch.float64 else logits[block].float()
        parts.append(columns(wide / temperature, labels[block], from_logits=True)[:-1])
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))
