"""Train one setting. On a GPU the whole step (crop, network, loss, update) is one captured graph, replayed."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from images import Split, crop_and_flip, normalise, pad
from network import make_network
from settings import Loss, Setting
from torch import Tensor, nn

from calibrant.neural.interleaved import split_majority

MOMENTUM = 0.9


@dataclass(frozen=True)
class Recipe:
    """What all runs of a study share."""

    network: str = "resnet18"
    epochs: int = 40
    batch: int = 256
    peak_rate: float = 0.1
    warm_up_share: float = 0.05
    compiled: bool = True
    graphs: bool = True


@dataclass
class Trainer:
    """A network whose weights, momenta and counters live at fixed addresses, so captured steps can be replayed."""

    recipe: Recipe
    train: Split
    n_classes: int
    modes: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.device = self.train.labels.device
        self.on_gpu = self.device.type == "cuda"
        self.model = make_network(self.recipe.network, self.n_classes, 0).to(self.device)
        if self.on_gpu:
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.forward: Callable[[Tensor], Tensor] = self.model
        if self.on_gpu and self.recipe.compiled:
            self.forward = torch.compile(self.model)
        self.parameters = list(self.model.parameters())
        self.momenta = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.rate = torch.zeros((), device=self.device)
        self.step = torch.zeros((), dtype=torch.long, device=self.device)

    def run(self, setting: Setting, seed: int) -> nn.Module:
        """The network trained from this seed's start; the same object every time, so use it before the next run."""
        phases = self._phases(setting, seed)
        per_epoch = sum(phase.n_steps for phase in phases)
        self.rates = self._schedule(per_epoch * self.recipe.epochs)
        self.model.train()
        for phase in phases:
            phase.prepare(self)
        self._reset(setting, seed)
        generator = torch.Generator(device=self.device).manual_seed(seed)
        for _ in range(self.recipe.epochs):
            for phase in phases:
                phase.epoch(generator)
        self.model.eval()
        return self.model

    def logits(self, images: Tensor, size: int = 2000) -> Tensor:
        """Logits (n, K) of plain images in evaluation mode."""
        self.model.eval()
        with torch.no_grad(), self._autocast():
            return torch.cat([self.model(normalise(part)).float() for part in images.split(size)])

    def update(self, images: Tensor, labels: Tensor, loss: Loss, weight_decay: float) -> None:
        """One step of SGD with Nesterov momentum; no value of it is looked at."""
        with self._autocast():
            logits = self.forward(normalise(images))
        gradients = torch.autograd.grad(loss(logits, labels), self.parameters)
        with torch.no_grad():
            self.rate.copy_(self.rates.index_select(0, self.step.reshape(1)).squeeze(0))
            self.step += 1
            steps = torch._foreach_add(gradients, self.parameters, alpha=weight_decay)
            torch._foreach_mul_(self.momenta, MOMENTUM)
            torch._foreach_add_(self.momenta, steps)
            torch._foreach_add_(steps, self.momenta, alpha=MOMENTUM)
            torch._foreach_mul_(steps, self.rate)
            torch._foreach_sub_(self.parameters, steps)

    def _phases(self, setting: Setting, seed: int) -> list[Phase]:
        primary, batch = setting.primary_loss(), self.recipe.batch
        if setting.secondary == "none":
            return [Phase(self.train, batch, primary, setting.weight_decay)]
        secondary, weight = setting.secondary_loss(), setting.weight
        if not setting.interleaved:
            both = _sum(primary, secondary, weight)
            return [Phase(self.train, batch, both, setting.weight_decay)]
        majority, held_out = split_majority(len(self.train), setting.held_out_share, seed=seed)
        parts = [self.train.take(index.to(self.device)) for index in (majority, held_out)]
        return [
            Phase(parts[0], batch, primary, setting.weight_decay),
            Phase(parts[1], batch, _scaled(secondary, weight), setting.weight_decay),
        ]

    def _schedule(self, n_steps: int) -> Tensor:
        """Linear warm-up, then half a cosine to zero; a few entries more, for the warm-up of captured steps."""
        place = (torch.arange(n_steps + 64, dtype=torch.float64) / n_steps).clamp(max=1)
        warm = self.recipe.warm_up_share
        rising = place / warm
        falling = 0.5 * (1 + torch.cos(math.pi * (place - warm) / (1 - warm)))
        return (self.recipe.peak_rate * torch.where(place < warm, rising, falling)).float().to(self.device)

    def _reset(self, setting: Setting, seed: int) -> None:
        fresh = make_network(self.recipe.network, self.n_classes, seed).state_dict()
        with torch.no_grad():
            for name, value in self.model.state_dict().items():
                value.copy_(fresh[name])
            torch._foreach_zero_(self.momenta)
            self.step.zero_()
        torch.manual_seed(seed)

    def _autocast(self) -> Any:
        # cached casts would outlive the captured graph that made them
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.on_gpu, cache_enabled=False)


class Phase:
    """One pass per epoch over one part of the training set with one loss."""

    def __init__(self, part: Split, batch: int, loss: Loss, weight_decay: float) -> None:
        self.padded, self.labels = pad(part.images), part.labels
        self.n, self.batch = len(part), min(batch, len(part))
        self.n_steps = self.n // self.batch
        self.loss, self.weight_decay = loss, weight_decay
        device = part.labels.device
        self.order = torch.arange(self.n, device=device)
        self.position = torch.zeros((), dtype=torch.long, device=device)
        self.span = torch.arange(self.batch, device=device)
        self.replay: Callable[[], None] | None = None

    def prepare(self, trainer: Trainer) -> None:
        """Capture the step as a graph where there is a GPU; otherwise run it line by line."""
        self.trainer = trainer
        self.replay = self._step
        if not trainer.on_gpu:
            return
        try:
            self._warm_up()
        except Exception:  # a compiler that is missing there must not cost the study
            traceback.print_exc()
            trainer.forward = trainer.model
            self._warm_up()
        trainer.modes.add("compiled" if trainer.forward is not trainer.model else "eager")
        if not trainer.recipe.graphs:
            return
        try:
            graph = torch.cuda.CUDAGraph()
            self.position.zero_()
            with torch.cuda.graph(graph):
                self._step()
            self.replay = graph.replay
            trainer.modes.add("graph")
        except Exception:
            traceback.print_exc()
            torch.cuda.synchronize()

    def epoch(self, generator: torch.Generator) -> None:
        """Every image of the part once, in a new order; the few that do not fill a batch wait for the next."""
        assert self.replay is not None
        self.order.copy_(torch.randperm(self.n, device=self.order.device, generator=generator))
        self.position.zero_()
        for _ in range(self.n_steps):
            self.replay()

    def _warm_up(self) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.position.zero_()
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        self.trainer.step.zero_()

    def _step(self) -> None:
        index = self.order.index_select(0, self.position + self.span)
        self.position += self.batch
        images, labels = crop_and_flip(self.padded, index), self.labels.index_select(0, index)
        self.trainer.update(images, labels, self.loss, self.weight_decay)


def _sum(primary: Loss, secondary: Loss, weight: float) -> Loss:
    return lambda logits, labels: primary(logits, labels) + weight * secondary(logits, labels)


def _scaled(secondary: Loss, weight: float) -> Loss:
    return lambda logits, labels: weight * secondary(logits, labels)
