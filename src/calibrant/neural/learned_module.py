"""What a calibrator learned, as buffers of a torch module that runs the calibrator's own map."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from array_api_compat import torch as xp
from torch import Tensor, nn

from calibrant.calibrators.maps.zeros import raise_zeros, zero_levels


class LearnedArrays(nn.Module):
    """Learned arrays as float64 buffers, so that they move, save and load with the module they belong to."""

    def __init__(self, learned: SimpleNamespace | list[Any]) -> None:
        super().__init__()
        entries = vars(learned) if isinstance(learned, SimpleNamespace) else dict(enumerate(learned))
        self.names = [str(name) for name in entries]
        for name, value in zip(self.names, entries.values(), strict=True):
            if isinstance(value, (SimpleNamespace, list)):
                self.add_module(name, LearnedArrays(value))
            else:
                self.register_buffer(name, torch.as_tensor(np.array(value, dtype=np.float64)))

    def __iter__(self) -> Iterator[Any]:
        return (getattr(self, name) for name in self.names)

    def _apply(self, fn: Any, recurse: bool = True) -> LearnedArrays:
        """Follow the model to its device, not to its dtype: `half()` must not round what was learned."""
        learned = [(name, value) for name, value in self.named_buffers(recurse=False) if not value.is_meta]
        super()._apply(fn, recurse)
        for name, value in learned:
            setattr(self, name, value.to(getattr(self, name).device))
        return self


class LearnedModule(nn.Module):
    """A fitted calibrator as a module from logits to calibrated logits of the same dtype."""

    def __init__(self, calibrator: Any) -> None:
        super().__init__()
        self.calibrator = calibrator
        self.learned = LearnedArrays(calibrator._learned())
        levels = zero_levels(calibrator)
        self.zeros = None if levels is None else LearnedArrays(SimpleNamespace(levels=levels))

    def forward(self, logits: Tensor, groups: Tensor | None = None) -> Tensor:
        """Calibrated logits (n×K), or (n,) of one score per row; `groups` (n,) where the calibrator takes them."""
        if self.zeros is not None:
            logits = raise_zeros(xp, logits, self.zeros.levels)
        if groups is not None:
            return self.calibrator._map_groups(xp, logits, groups, self.learned)
        if logits.ndim == 1:
            return self.calibrator._map_binary(xp, logits, self.learned)
        return self.calibrator._map(xp, logits, self.learned)
