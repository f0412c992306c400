"""The exponential sums of each row at an inverse temperature of its own: confidence, NLL and all their derivatives."""

from __future__ import annotations

import numpy as np

from calibrant.core.statistic import kernel
from calibrant.core.threads import row_blocks

CACHE_ELEMENTS = 1 << 15
"""Elements handled at a time: the temporaries of a pass stay in the second-level cache."""


@kernel(compiled_in="calibrant.kernels.compiled.row_moments")
def row_moments(logits: np.ndarray, inverse_temperature: np.ndarray) -> np.ndarray:
    """Σ_j exp(β·x_j)·x_j^k for k = 0 … 4 with x = z − max z, of each row, as (n, 5) in float64.

    With S_k these sums: the confidence at temperature 1/β is 1/S₀, its derivative by β −S₁/S₀²; log S₀ is the
    log-partition, S₁/S₀ its first derivative, S₂/S₀ − (S₁/S₀)² its second.
    """
    moments = np.empty((len(logits), 5))
    for block in row_blocks(len(logits), logits.shape[1], CACHE_ELEMENTS):
        shifted = logits[block].astype(np.float64)
        shifted -= shifted.max(axis=1, keepdims=True)
        weighted = np.exp(inverse_temperature[block, None] * shifted)
        moments[block, 0] = weighted.sum(axis=1)
        for power in (1, 2, 3, 4):
            weighted *= shifted
            moments[block, power] = weighted.sum(axis=1)
    return moments
