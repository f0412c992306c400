"""Losses as modules: each made from its function, and the weighted sum of two."""

import inspect
import math
from collections.abc import Callable
from typing import Any, ClassVar, Concatenate, ParamSpec, get_type_hints

import torch
from torch import Tensor, nn

from calibrant.core.errors import InputError

Loss = Callable[[Tensor, Tensor], Tensor]
"""A function or module `loss(logits, labels)` → scalar tensor."""

Options = ParamSpec("Options")

PER_BATCH = "groups"
"""The one option of a loss that comes with each batch: the module takes it in its call."""


class LossModule(nn.Module):
    """A loss function with its options held as attributes; those that are tensors are buffers."""

    function: ClassVar[Callable[..., Tensor]]
    options: ClassVar[inspect.Signature]
    tensors: ClassVar[frozenset[str]]

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__()
        given = self.options.bind(*args, **named)
        given.apply_defaults()
        for name, value in given.arguments.items():
            if name in self.tensors:
                self.register_buffer(name, None if value is None else torch.as_tensor(value))
            else:
                setattr(self, name, value)

    def forward(self, logits: Tensor, labels: Tensor, groups: Tensor | None = None) -> Tensor:
        """The loss of a batch; `groups` (n,) where the loss is taken by group."""
        held = {name: getattr(self, name) for name in self.options.parameters}
        return type(self).function(logits, labels, **held, **({} if groups is None else {PER_BATCH: groups}))

    def extra_repr(self) -> str:
        """The options, as `print(module)` shows them."""
        held = {name: getattr(self, name) for name in self.options.parameters if name not in self.tensors}
        return ", ".join(f"{name}={value!r}" for name, value in held.items() if value is not None)


def loss_module(
    name: str, function: Callable[Concatenate[Tensor, Tensor, Options], Tensor]
) -> Callable[Options, LossModule]:
    """The class `name` whose constructor takes the options of a loss function and whose call takes a batch.

    The options and their defaults are those of the function's signature, its docstring is the class's, and an option
    annotated `Tensor | None` becomes a buffer.
    """
    _, _, *options = inspect.signature(function).parameters.values()
    held = [one.replace(kind=one.POSITIONAL_OR_KEYWORD) for one in options if one.name != PER_BATCH]
    hints = get_type_hints(function)
    made: Any = type(
        name,
        (LossModule,),
        {
            "__doc__": function.__doc__,
            "__module__": "calibrant.neural.losses",
            "__signature__": inspect.Signature(held),
            "function": staticmethod(function),
            "options": inspect.Signature(held),
            "tensors": frozenset(one.name for one in held if hints[one.name] == Tensor | None),
        },
    )
    return made


class CompositeLoss(nn.Module):
    """The loss primary(z, y) + β·secondary(z, y) as one callable (Karandikar et al. 2021, §5.1).

    Parameters
    ----------
    primary, secondary : functions or modules of (logits, labels)
    weight : β ≥ 0

    Examples
    --------
    >>> import torch
    >>> from calibrant.neural.losses import FocalLoss, composite, cross_entropy, soft_ece
    >>> z, y = torch.zeros(2, 4), torch.tensor([0, 1])
    >>> round(composite(cross_entropy, soft_ece, weight=2.0)(z, y).item(), 4)  # log 4 + 2/4
    1.8863
    """

    def __init__(self, primary: Loss, secondary: Loss, weight: float) -> None:
        super().__init__()
        if not (math.isfinite(weight) and weight >= 0):
            raise InputError(f"weight must be finite and 0 or more, got {weight}")
        self.primary, self.secondary, self.weight = primary, secondary, weight

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch."""
        return self.primary(logits, labels) + self.weight * self.secondary(logits, labels)


composite = CompositeLoss
