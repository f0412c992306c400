"""The base of the torch twins: learned arrays as buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class Twin(nn.Module):
    """Holds learned arrays as buffers, so that they move, save and load with the module."""

    scale: Tensor
    bias: Tensor
    matrix: Tensor
    weights: Tensor
    inverse: Tensor
    edges: Tensor
    knots: Tensor
    values: Tensor
    mean: Tensor
    spread: Tensor
    map_parameters: Tensor

    def __init__(self, **arrays: Any) -> None:
        super().__init__()
        for name, value in arrays.items():
            self.register_buffer(name, torch.as_tensor(np.array(value, dtype=np.float64)))

    def forward(self, logits: Tensor) -> Tensor:
        """Calibrated logits (n×K) of the input's dtype."""
        raise NotImplementedError

    def _apply(self, fn: Any, recurse: bool = True) -> Twin:
        """Follow the model to its device, not to its dtype: `half()` must not round what was learned."""
        learned = [(name, value) for name, value in self.named_buffers(recurse=False) if not value.is_meta]
        super()._apply(fn, recurse)
        for name, value in learned:
            setattr(self, name, value.to(getattr(self, name).device))
        return self

    def like(self, name: str, logits: Tensor) -> Tensor:
        """A buffer in the dtype of the logits."""
        return getattr(self, name).to(logits.dtype)
