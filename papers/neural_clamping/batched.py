"""Many clamping fits of one network at once: each step runs one batch with a part for each fit.

A GPU is idle most of the time during a single fit of a small network. Two procedures descend here: that of
`calibrant.NeuralClamping`, on log T with momentum, and the published one, plain SGD on δ and T for a fixed number of
epochs. A test compares the first with the library and the second with a literal version of the paper's algorithm 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.kernels.torch.tensors import of_label
from calibrant.neural.losses.terms import log_probabilities
from calibrant.neural.neural_clamping import LIMIT, input_units

MOMENTUM = 0.9
IMPROVEMENT = 1e-7


@dataclass(frozen=True)
class Fit:
    """One fit: its loss, its start, its calibration rows, the seed of their order, and the procedure."""

    gamma: float
    penalty: float
    delta: Tensor
    temperature: float
    rows: Tensor
    seed: int
    learning_rate: float = 0.001
    published: bool = False


@dataclass(frozen=True)
class Fitted:
    """δ, T and the epoch losses; δ is NaN where the descent diverged."""

    delta: Tensor
    temperature: float
    trace: list[float]


class Group:
    """Fits of one procedure with equally many rows, side by side."""

    def __init__(self, model: nn.Module, inputs: Tensor, labels: Tensor, fits: list[Fit], *, autocast: bool) -> None:
        self.model, self.inputs, self.labels, self.fits = model, inputs, labels, fits
        device, self.autocast = inputs.device, autocast
        self.rows = torch.stack([fit.rows for fit in fits]).to(device)
        self.published = fits[0].published
        self.units = torch.stack(
            [torch.ones_like(inputs[0]) if self.published else input_units(inputs[rows]) for rows in self.rows]
        )
        start = torch.stack([fit.delta for fit in fits]).to(device)
        tiny = torch.finfo(start.dtype).tiny
        self.fixed = torch.where(self.units == 0, start, torch.zeros_like(start))
        self.scaled = torch.where(self.units == 0, torch.zeros_like(start), start / self.units.clamp_min(tiny))

        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)

        # the variable of the descent that stands for T: T itself or its logarithm
        self.variable = column([fit.temperature if self.published else math.log(fit.temperature) for fit in fits])
        self.gamma, self.penalty = column([fit.gamma for fit in fits]), column([fit.penalty for fit in fits])
        self.rate = column([fit.learning_rate for fit in fits])
        self.momenta = [torch.zeros_like(self.scaled), torch.zeros_like(self.variable)]

    def run(self, epochs: int, batch_size: int, patience: int) -> list[Fitted]:
        """Descend until every fit has stopped."""
        n_fits, n = self.rows.shape
        generators = [torch.Generator().manual_seed(fit.seed) for fit in self.fits]
        best = torch.full((n_fits,), math.inf, device=self.rows.device)
        kept = [self.scaled.clone(), self.variable.clone()]
        ended: list[tuple[Tensor, Tensor] | None] = [None] * n_fits
        stale, traces = [0] * n_fits, [[] for _ in self.fits]  # type: ignore[var-annotated]
        for _ in range(epochs):
            before = [self.scaled.clone(), self.variable.clone()]
            losses = self._epoch(generators, n, batch_size)
            better = losses < best
            kept = [torch.where(_like(better, new), new, old) for new, old in zip(before, kept, strict=True)]
            values = losses.tolist()
            for place, value in enumerate(values):
                if ended[place] is not None:
                    continue
                traces[place].append(value)
                stale[place] = 0 if value < float(best[place]) - IMPROVEMENT else stale[place] + 1
                if not self._finite(place, value):
                    ended[place] = (torch.full_like(self.scaled[place], math.nan), self.variable[place])
                elif stale[place] >= patience and not self.published:
                    ended[place] = (kept[0][place].clone(), kept[1][place].clone())
            best = torch.where(better, losses, best)
            if all(one is not None for one in ended):
                break
        found = []
        for place, end in enumerate(ended):
            last = kept if stale[place] and not self.published else [self.scaled, self.variable]
            scaled, variable = (part[place] for part in last) if end is None else end
            delta = self.fixed[place] + self.units[place] * scaled
            found.append(Fitted(delta.detach(), float(self._temperature(variable)), traces[place]))
        return found

    def _epoch(self, generators: list[torch.Generator], n: int, batch_size: int) -> Tensor:
        orders = torch.stack([torch.randperm(n, generator=one) for one in generators]).to(self.rows.device)
        total = torch.zeros(len(self.fits), device=self.rows.device)
        for index in orders.split(batch_size, dim=1):
            total += self._step(self.rows.gather(1, index), n) * index.shape[1]
        return total / n

    def _step(self, rows: Tensor, n: int) -> Tensor:
        """One update of every fit; the losses (C,) before it."""
        scaled, variable = self.scaled.requires_grad_(), self.variable.requires_grad_()
        delta = self.fixed + self.units * scaled
        images = self.inputs[rows] + delta.unsqueeze(1)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.autocast):
            logits = self.model(images.flatten(0, 1)).float()
        scaling = self._temperature(variable).repeat_interleave(rows.shape[1]).unsqueeze(1)
        labels = self.labels[rows].flatten()
        log_p = of_label(log_probabilities(logits / scaling, labels), labels).view(rows.shape)
        remainder = (-torch.expm1(log_p)).clamp_min(torch.finfo(log_p.dtype).eps)
        losses = -(remainder.pow(self.gamma.unsqueeze(1)) * log_p).mean(dim=1)
        losses = losses + self.penalty / n * scaled.square().flatten(1).sum(dim=1)
        gradients = torch.autograd.grad(losses.sum(), [scaled, variable])
        with torch.no_grad():
            for place, (momentum, gradient) in enumerate(zip(self.momenta, gradients, strict=True)):
                momentum.mul_(0.0 if self.published else MOMENTUM).add_(gradient)
                step = _like(self.rate, momentum) * momentum
                if place == 0:
                    self.scaled = scaled.detach() - step
                else:
                    self.variable = variable.detach() - step
        return losses.detach()

    def _finite(self, place: int, value: float) -> bool:
        reached = float(self._temperature(self.variable[place]))
        in_range = math.exp(-LIMIT) <= reached <= math.exp(LIMIT)
        return math.isfinite(value) and in_range and bool(self.scaled[place].isfinite().all())

    def _temperature(self, variable: Tensor) -> Tensor:
        return variable if self.published else variable.exp()


def fit_many(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    fits: list[Fit],
    *,
    epochs: int = 100,
    batch_size: int = 512,
    patience: int = 10,
    at_once: int = 8,
    autocast: bool = False,
) -> list[Fitted]:
    """All fits, in order; those of one procedure with equally many rows run side by side, at most `at_once`."""
    found: list[Any] = [None] * len(fits)
    sizes: dict[tuple[int, bool], list[int]] = {}
    for place, fit in enumerate(fits):
        sizes.setdefault((len(fit.rows), fit.published), []).append(place)
    for places in sizes.values():
        for first in range(0, len(places), at_once):
            part = places[first : first + at_once]
            group = Group(model, inputs, labels, [fits[place] for place in part], autocast=autocast)
            for place, fitted in zip(part, group.run(epochs, batch_size, patience), strict=True):
                found[place] = fitted
    return found


def _like(column: Tensor, values: Tensor) -> Tensor:
    return column.view(-1, *[1] * (values.ndim - 1))
