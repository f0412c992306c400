"""The temperature of lowest mean NLL or focal loss, in torch: a start for methods that train on the device."""

from __future__ import annotations

import math

from scipy.optimize import minimize_scalar
from torch import Tensor

from calibrant.neural.losses import focal

LIMIT = math.log(1e4)
"""The optimum of separable or worthless logits lies at 0 or infinity; the search stops at this |log T|."""


def best_temperature(logits: Tensor, labels: Tensor) -> float:
    """argmin_T of the mean NLL of softmax(z/T), by Newton steps on the concave side of 1/T.

    The mean NLL is convex in s = 1/T, with slope E[Σ_k p_k z_k − z_y] and curvature E[Var_p(z)].

    Examples
    --------
    >>> import torch
    >>> z = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0]])
    >>> round(2 / best_temperature(z, torch.tensor([0, 0, 1])), 4)  # the log odds of 2:1
    0.6931
    """
    wide = logits.detach().double()
    rows = wide - wide.gather(1, labels[:, None])

    def slope_and_curvature(scale: float) -> tuple[float, float]:
        p = (rows * scale).softmax(dim=1)
        mean = (p * rows).sum(dim=1)
        spread = (p * rows.square()).sum(dim=1) - mean.square()
        return float(mean.mean()), float(spread.mean())

    low, high = math.exp(-LIMIT), math.exp(LIMIT)
    scale = 1.0
    for _ in range(100):
        slope, curvature = slope_and_curvature(scale)
        low, high = (scale, high) if slope < 0 else (low, scale)
        step = scale - slope / curvature if curvature > 0 else math.nan
        # outside the bracket a step would diverge: halve it in the logarithm instead
        proposal = step if low < step < high else math.sqrt(low * high)
        if abs(proposal / scale - 1) < 1e-12:
            break
        scale = proposal
    return 1 / scale


def best_focal_temperature(logits: Tensor, labels: Tensor, gamma: float) -> float:
    """argmin_T of the mean focal_γ(z/T, y); a bounded search in log T around the optimum of γ = 0.

    Examples
    --------
    >>> import torch
    >>> z = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0]])
    >>> y = torch.tensor([0, 0, 1])
    >>> best_focal_temperature(z, y, 0.0) < best_focal_temperature(z, y, 1.0)  # focal prefers less confidence
    True
    """
    plain = best_temperature(logits, labels)
    if gamma == 0:
        return plain
    wide = logits.detach().double()

    def loss(log_temperature: float) -> float:
        return float(focal(wide / math.exp(log_temperature), labels, gamma=gamma))

    bounds = [max(-LIMIT, min(LIMIT, math.log(plain) + side)) for side in (-3.0, 3.0)]
    return math.exp(minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-7}).x)
