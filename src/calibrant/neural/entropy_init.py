"""The data-driven start of Neural Clamping: the feasible input step that raises entropy most, to first order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from calibrant.core.errors import InputError
from calibrant.neural.losses.terms import entropy


def entropy_gradient(model: nn.Module, inputs: Tensor, temperature: float, batch_size: int = 512) -> Tensor:
    """Mean over the rows of dH(softmax(f(x)/T))/dx, of one input's shape.

    In the logits the gradient is −p(log p + H)/T; the rest is the model's own back-propagation.

    Examples
    --------
    >>> g = entropy_gradient(nn.Identity(), torch.tensor([[2.0, 0.0]]), 1.0)
    >>> bool(g[0] < 0 < g[1])  # less of the sure class, more of the other
    True
    """
    total = torch.zeros_like(inputs[0])
    for part in inputs.split(batch_size):
        watched = part.detach().requires_grad_()
        spread = entropy((model(watched) / temperature).float().log_softmax(dim=1)).sum()
        total += torch.autograd.grad(spread, watched)[0].sum(dim=0)
    return total / len(inputs)


def feasible_box(inputs: Tensor, bounds: tuple[Any, Any] | None) -> tuple[Tensor, Tensor]:
    """The limits [α, β] an input may reach, of one input's shape: given, or the data's range.

    The data's range is one per channel of (n, C, …) and one per feature of (n, m), as features may differ in scale.
    """
    shape = inputs.shape[1:]
    if bounds is None:
        axes = other_axes(inputs)
        low, high = inputs.amin(dim=axes, keepdim=True)[0], inputs.amax(dim=axes, keepdim=True)[0]
    else:
        low, high = (torch.as_tensor(side, dtype=inputs.dtype, device=inputs.device) for side in bounds)
        if bool((low > inputs).any()) or bool((high < inputs).any()):
            reach = f"{float(inputs.min()):.4g} to {float(inputs.max()):.4g}"
            raise InputError(f"inputs reach from {reach}, outside the bounds given: widen bounds to hold every input")
    return low.expand(shape), high.expand(shape)


def other_axes(inputs: Tensor) -> list[int]:
    """The axes to reduce so that one number per channel (n, C, …) or per feature (n, m) is left."""
    return [0, *range(2, inputs.ndim)]


def input_units(inputs: Tensor) -> Tensor:
    """Standard deviation of each channel or feature, of one input's shape; 0 where the inputs are constant.

    Examples
    --------
    >>> input_units(torch.tensor([[1.0, 100.0], [3.0, 100.0]]))
    tensor([1., 0.])
    """
    spread = inputs.double().std(dim=other_axes(inputs), correction=0, keepdim=True)[0].to(inputs.dtype)
    return spread.expand(inputs.shape[1:]).clone()


def greatest_feasible_step(gradient: Tensor, inputs: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """δ = sign(g)∘η, the largest g·δ for which every row stays inside [α, β] (Tang, Chen, Ho 2022, Theorem 1).

    η_j = ℓ_j − α_j where g_j < 0 and β_j − μ_j where g_j > 0, [ℓ, μ] being the data's own range at j.

    Examples
    --------
    >>> x = torch.tensor([[0.2, 0.5], [0.6, 0.9]])
    >>> greatest_feasible_step(torch.tensor([-1.0, 2.0]), x, torch.zeros(2), torch.ones(2))
    tensor([-0.2000,  0.1000])
    """
    below = (inputs.amin(dim=0) - low).clamp_min(0)
    above = (high - inputs.amax(dim=0)).clamp_min(0)
    return torch.where(gradient < 0, -below, above) * gradient.sign().abs()
