"""Is a value a torch tensor, and where? Asked without importing torch."""

from __future__ import annotations

from typing import Any


def is_tensor(value: Any) -> bool:
    """A torch tensor of any kind."""
    return hasattr(value, "detach") and hasattr(value, "is_cuda")


def on_device(value: Any) -> bool:
    """A torch tensor that lies on a CUDA device."""
    return is_tensor(value) and bool(value.is_cuda)
