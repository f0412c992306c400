"""Torch twins of the calibrators that bend, confuse and keep: shape, confusion and kept-prediction scaling."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.calibrators import confusion as confusion_module
from calibrant.calibrators import shape as shape_module
from calibrant.neural import top_label_twins as top
from calibrant.neural.twin import Twin


class ConfusionTwin(Twin):
    """a∘z̄/T + C·log(1 + p/0.01) + b, p = softmax(z/T)."""

    def forward(self, logits: Tensor) -> Tensor:
        """Mixed logits."""
        scaled = logits.double() * self.inverse
        centred = scaled - scaled.mean(dim=1, keepdim=True)
        evidence = torch.log1p(scaled.softmax(dim=1) / confusion_module.FLOOR)
        mixed = centred * self.scale + evidence @ self.matrix.T + self.bias
        return mixed.to(logits.dtype)


class ShapeTwin(Twin):
    """Log-probabilities of an inner calibrator, bent by four numbers."""

    def __init__(self, inner: nn.Module, parameters: Any) -> None:
        super().__init__(weights=parameters)
        self.inner = inner

    def forward(self, logits: Tensor) -> Tensor:
        """Log-probabilities."""
        calibrated = self.inner(logits)
        log_p = calibrated.double().log_softmax(dim=1)
        p = log_p.exp()
        sureness = torch.log1p(-p.amax(dim=1, keepdim=True).clamp_max(shape_module.LARGEST_CONFIDENCE)) / 5
        tilt, gap, tail, turn = self.weights
        bent = tilt * log_p - gap * torch.log1p(-p.clamp_max(shape_module.LARGEST_P))
        bent = bent + tail * (p + shape_module.FLOOR).log() + turn * log_p * sureness
        return top.keep_prediction(bent.log_softmax(dim=1).to(logits.dtype), calibrated.argmax(dim=1))


class KeptPredictionTwin(nn.Module):
    """An inner calibrator, with the class of the largest raw logit kept first."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, logits: Tensor) -> Tensor:
        """Log-probabilities."""
        kept = logits.argmax(dim=1, keepdim=True)
        scores = self.inner(logits).log_softmax(dim=1)
        winner = scores.argmax(dim=1, keepdim=True)
        shared = torch.logaddexp(scores.gather(1, winner), scores.gather(1, kept)) - math.log(2.0)
        carried = scores.scatter(1, winner, shared).scatter(1, kept, shared)
        return top.keep_prediction(torch.where(winner != kept, carried, scores), kept[:, 0])
