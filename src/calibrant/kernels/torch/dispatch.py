"""Which kernels a tensor gets: Triton on CUDA where it is installed, plain torch elsewhere; decided once."""

from __future__ import annotations

import importlib.util
import os
from functools import cache

from torch import Tensor


@cache
def triton_available() -> bool:
    """Is Triton installed? Asked without importing it."""
    return importlib.util.find_spec("triton") is not None


def use_triton(values: Tensor) -> bool:
    """Triton or plain torch? CALIBRANT_KERNELS=numpy asks for plain torch."""
    return values.is_cuda and triton_available() and os.environ.get("CALIBRANT_KERNELS") != "numpy"
