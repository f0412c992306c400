"""A model with a constant added to its input and a temperature that divides its logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ClampedModule(nn.Module):
    """f(x + δ)/T with the model f untouched (Tang, Chen, Ho 2022, eq. 9).

    Parameters
    ----------
    model : module from inputs to logits (n, K)
    delta : δ of one input's shape
    temperature : T > 0
    use_input, use_output : leave out a side for an ablation

    Examples
    --------
    >>> clamped = ClampedModule(nn.Identity(), torch.tensor([1.0, 0.0]), temperature=2.0)
    >>> clamped(torch.tensor([[3.0, 4.0]]))
    tensor([[2., 2.]])
    """

    delta: Tensor
    temperature: Tensor

    def __init__(
        self,
        model: nn.Module,
        delta: Tensor,
        temperature: float,
        *,
        use_input: bool = True,
        use_output: bool = True,
    ) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("delta", delta.detach().clone())
        self.register_buffer("temperature", torch.tensor(float(temperature), device=delta.device, dtype=delta.dtype))
        self.use_input = use_input
        self.use_output = use_output
        self.training = model.training

    def forward(self, inputs: Tensor) -> Tensor:
        """Calibrated logits (n, K)."""
        logits = self.model(inputs + self.delta if self.use_input else inputs)
        return logits / self.temperature if self.use_output else logits

    def input_only(self) -> ClampedModule:
        """The same model with δ and without T."""
        return ClampedModule(self.model, self.delta, float(self.temperature), use_output=False)

    def output_only(self) -> ClampedModule:
        """The same model with T and without δ."""
        return ClampedModule(self.model, self.delta, float(self.temperature), use_input=False)
