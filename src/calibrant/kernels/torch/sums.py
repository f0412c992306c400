"""Sums over equal-width bins and rows that stay on the device: what a metric needs, in O(bins) memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.core.bins import check_n_bins, width_edges
from calibrant.kernels.torch import plain
from calibrant.kernels.torch.dispatch import use_triton

SLOTS = ("weight", "nll", "brier", "correct", "confidence", "entropy", "rows", "bad")
"""The sums beside those of the bins, in their order at the end of the state."""


class DeviceSums:
    """Σw, Σw·confidence, Σw·correct per bin and the `SLOTS`, accumulated on the device of the data.

    Parameters
    ----------
    n_bins : int
        Equal-width bins (lo, hi].
    device : torch device
    entropy : bool
        Whether the mean entropy is wanted too; it costs a third of the pass.
    """

    def __init__(self, n_bins: int, device: Any, entropy: bool = False) -> None:
        self.n_bins = check_n_bins(n_bins)
        self.padded = max(16, 1 << (self.n_bins - 1).bit_length())
        self.state = torch.zeros(3 * self.padded + len(SLOTS), dtype=torch.float64, device=device)
        self.edges = torch.as_tensor(width_edges(self.n_bins, np.float32), device=device)
        self.entropy = entropy
        self._launch: Any = None

    def add(
        self,
        values: Tensor,
        labels: Tensor,
        weights: Tensor | None = None,
        *,
        from_logits: bool = True,
        ignore_index: int | None = None,
    ) -> None:
        """Add rows (n, K); the host does not wait."""
        if use_triton(values):
            from calibrant.kernels.torch.triton_rows import SumsLaunch

            if self._launch is None:
                self._launch = SumsLaunch(self.state, self.edges, self.n_bins, self.entropy)
            rows = values if values.stride(1) == 1 else values.contiguous()
            self._launch.add(rows, labels, weights, from_logits=from_logits, ignore_index=ignore_index)
        else:
            plain.add_sums(self.state, self.edges, values, labels, weights, from_logits, ignore_index)

    def slot(self, name: str) -> Tensor:
        """One of the `SLOTS` as a tensor ()."""
        return self.state[3 * self.padded + SLOTS.index(name)]

    def bins(self) -> Tensor:
        """Σw, Σw·confidence and Σw·correct of each bin: (3, n_bins)."""
        return self.state[: 3 * self.padded].reshape(3, self.padded)[:, : self.n_bins]
