"""The likelihood of a temperature over logits on a device: its sums, its optimum, and the confidences it gives.

The plain torch forms read block by block in float64 and never wait for the host; on CUDA one Triton launch finds the
optimum, or takes the sums, with exponentials in float32.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from calibrant.core.rows import SolvedTemperature
from calibrant.kernels.scaling import loss_derivatives
from calibrant.kernels.torch.tensors import of_label, row_slices, use_triton

CONVERGED = 1.0


def temperature_sums(logits: Tensor, labels: Tensor, weights: Tensor | None, beta: float) -> Tensor:
    """Σ w·NLL of softmax(β·z) and its first four derivatives by β, the k-th times β^k: (5,) in float64."""
    totals = logits.new_zeros(5, dtype=torch.float64)
    for block in row_slices(*logits.shape):
        scaled = logits[block].double()
        scaled = (scaled - scaled.amax(dim=1, keepdim=True)) * beta
        # a class of probability 0 adds nothing, whatever its logit
        rows = loss_derivatives(scaled.clamp_min(-745.0).T, of_label(scaled, labels[block]))
        totals += rows.sum(dim=1) if weights is None else rows @ weights[block].double()
    return totals


def fast_sums(logits: Tensor, labels: Tensor, weights: Tensor, beta: float) -> Tensor:
    """The first four of `temperature_sums`, by one launch where there is one."""
    if not use_triton(logits):
        return temperature_sums(logits, labels, weights, beta)[:4]
    from calibrant.kernels.torch import triton_temperature

    total = weights.sum()
    means = triton_temperature.run(logits, labels, weights, beta, zeros=True)[1:5]
    return torch.where(total > 0, means * total, 0.0)


def fast_fit(
    logits: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    *,
    zeros: bool = False,
    meanwhile: Callable[[], Any] | None = None,
) -> SolvedTemperature | None:
    """β of the lowest mean NLL by one launch; None where there is none, or where it ends at 0 or infinity.

    None also where a logit is −∞, unless `zeros` says that it is a probability of 0. `meanwhile` is called while the
    device works.
    """
    if not use_triton(logits):
        return None
    from calibrant.kernels.torch import triton_temperature

    answer = triton_temperature.run(logits, labels, weights, None, zeros=zeros)
    if meanwhile is not None:
        meanwhile()
    beta, loss, slope, _, _, status, passes, _ = answer.tolist()
    if status == CONVERGED and all(map(math.isfinite, (beta, loss, slope))):
        return SolvedTemperature(beta, loss, int(passes))
    return None
