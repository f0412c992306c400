"""Is a value a torch tensor, and where? Asked without importing torch."""

from __future__ import annotations

import sys
from typing import Any


def is_tensor(value: Any) -> bool:
    """A torch tensor of any kind."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def on_device(value: Any) -> bool:
    """A torch tensor that lies on a CUDA device."""
    return is_tensor(value) and bool(value.is_cuda)
