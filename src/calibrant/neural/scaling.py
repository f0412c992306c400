"""The temperature of lowest mean NLL or focal loss, in torch: a start for methods that train on the device."""

from __future__ import annotations

import math

from scipy.optimize import minimize_scalar
from torch import Tensor

from calibrant.calibrators.solvers.newton import solve_inverse_temperature
from calibrant.kernels.torch.temperature import temperature_sums
from calibrant.neural.losses import focal

LIMIT = math.log(1e4)
"""The optimum of separable or worthless logits lies at 0 or infinity; the search stops at this |log T|."""


def best_temperature(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> float:
    """argmin_T of the mean NLL of softmax(z/T).

    Examples
    --------
    >>> import torch
    >>> z = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0]])
    >>> round(2 / best_temperature(z, torch.tensor([0, 0, 1])), 4)  # the log odds of 2:1
    0.6931
    """
    total = len(labels) if weights is None else float(weights.sum())

    def means(beta: float) -> tuple[float, float, float, float, float]:
        loss, slope, curvature, bend, tail = (temperature_sums(logits.detach(), labels, weights, beta) / total).tolist()
        return loss, slope, curvature, bend, tail

    return 1 / min(max(solve_inverse_temperature(means, 1.0).value, math.exp(-LIMIT)), math.exp(LIMIT))


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
