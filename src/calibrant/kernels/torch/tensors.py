"""What the kernels on tensors share: which form runs, blocks of rows, the way to the host and back."""

import importlib.util
import os
from functools import cache

import torch
from torch import Tensor

from calibrant.core.arrays import Array
from calibrant.core.threads import row_blocks

BLOCK_ELEMENTS = 1 << 24
"""Numbers of a block: a plain pass over it holds a few float64 copies, and nothing of the size of the input."""


@cache
def triton_available() -> bool:
    """Is Triton installed? Asked without importing it."""
    return importlib.util.find_spec("triton") is not None


def use_triton(values: Tensor) -> bool:
    """Triton or plain torch? float64 and CALIBRANT_KERNELS=numpy ask for plain torch."""
    asked = os.environ.get("CALIBRANT_KERNELS") != "numpy"
    return values.is_cuda and values.dtype != torch.float64 and triton_available() and asked


def row_slices(n_rows: int, n_classes: int, elements: int = 0) -> list[slice]:
    """Blocks of rows of about so many numbers, or of `BLOCK_ELEMENTS`."""
    return row_blocks(n_rows, n_classes, elements or BLOCK_ELEMENTS)


def first_maximum(values: Tensor) -> Tensor:
    """The first class of the highest value of each row; `argmax` promises no order among equals."""
    places = torch.arange(values.shape[1], dtype=torch.int32, device=values.device)
    return torch.where(values == values.amax(dim=1, keepdim=True), places, values.shape[1] - 1).amin(dim=1).long()


def of_label(values: Tensor, labels: Tensor) -> Tensor:
    """values[i, labels[i]] of each row i."""
    return values.gather(1, labels.long()[:, None])[:, 0]


def host(values: Tensor) -> Array:
    """The values as an array on the host."""
    return values.detach().cpu().numpy()


def widened(values: Tensor) -> Tensor:
    """float16 and bfloat16 as float32: what the host knows, and what losses work in."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def rows_of_maps(maps: Tensor) -> Tensor:
    """Dense maps (N, K, …) with one row (K,) per position; rows (n, K) as they are."""
    return maps.movedim(1, -1).reshape(-1, maps.shape[1])
