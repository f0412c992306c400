"""Interleaved training: the primary loss on most of the data, then the calibration loss on the rest, every epoch."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.core.errors import InputError
from calibrant.neural.losses.module import Loss


def split_majority(n: int, held_out_share: float = 0.1, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Sorted indices of the majority and of the held-out part of n training rows.

    Parameters
    ----------
    n : rows in the training set
    held_out_share : share of them kept for the secondary loss, in (0, 1)

    Examples
    --------
    >>> majority, held_out = split_majority(10, 0.2)
    >>> len(majority), len(held_out)
    (8, 2)
    """
    if not 0 < held_out_share < 1:
        raise InputError(f"held_out_share must lie in (0, 1), got {held_out_share}")
    n_held_out = round(n * held_out_share)
    if not 0 < n_held_out < n:
        raise InputError(f"a share of {held_out_share} of {n} rows leaves {n_held_out} held out: give more rows")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return order[n_held_out:].sort().values, order[:n_held_out].sort().values


class InterleavedBatches:
    """A loader that goes through the majority loader, then through the held-out one, each epoch.

    It gives pairs of a batch and whether that is held out, which says which loss it is for.

    Examples
    --------
    >>> loader = InterleavedBatches([1, 2, 3], [4])
    >>> [(batch, held_out) for batch, held_out in loader]
    [(1, False), (2, False), (3, False), (4, True)]
    """

    def __init__(self, majority: Iterable[Any], held_out: Iterable[Any]) -> None:
        self.majority, self.held_out = majority, held_out

    def __iter__(self) -> Iterator[tuple[Any, bool]]:
        yield from ((batch, False) for batch in self.majority)
        yield from ((batch, True) for batch in self.held_out)

    def __len__(self) -> int:
        return len(self.majority) + len(self.held_out)  # type: ignore[arg-type]


class InterleavedObjective(nn.Module):
    """primary(z, y) on a majority batch, β·secondary(z, y) on a held-out one (Karandikar et al. 2021, app. B).

    Examples
    --------
    >>> from calibrant.neural.losses import cross_entropy, soft_ece
    >>> objective = InterleavedObjective(cross_entropy, soft_ece, weight=5.0)
    >>> z, y = torch.zeros(2, 4), torch.tensor([0, 1])
    >>> round(objective(z, y, held_out=True).item(), 4)
    1.25
    """

    def __init__(self, primary: Loss, secondary: Loss, weight: float) -> None:
        super().__init__()
        self.primary, self.secondary, self.weight = primary, secondary, weight

    def forward(self, logits: Tensor, labels: Tensor, held_out: bool) -> Tensor:
        """The loss of a batch of the given part."""
        return self.weight * self.secondary(logits, labels) if held_out else self.primary(logits, labels)


def interleaved_epoch(
    step: Callable[[Any, Loss], Tensor],
    majority: Iterable[Any],
    held_out: Iterable[Any],
    objective: InterleavedObjective,
) -> tuple[float, float]:
    """Run one epoch with your own training step and return the mean loss over each part.

    Parameters
    ----------
    step : `step(batch, loss)` does forward, `loss(logits, labels)`, backward and update, and returns the loss
    majority, held_out : loaders of the two parts
    objective : the two losses and the weight of the second

    Examples
    --------
    >>> from calibrant.neural.losses import cross_entropy, soft_ece
    >>> def step(batch, loss):
    ...     return loss(torch.zeros(len(batch), 2), batch)
    >>> y = torch.tensor([0, 1])
    >>> first, second = interleaved_epoch(step, [y], [y], InterleavedObjective(cross_entropy, soft_ece, 1.0))
    >>> round(first, 4), round(second, 4)
    (0.6931, 0.0)
    """
    means = []
    for loader, is_held_out in ((majority, False), (held_out, True)):
        loss, values = partial(objective, held_out=is_held_out), []
        for batch in loader:
            value = step(batch, loss)
            if not isinstance(value, Tensor):
                raise InputError(f"step returned a {type(value).__name__}: it must return the loss, a tensor")
            values.append(value.detach())
        if not values:
            raise InputError(f"the {'held-out' if is_held_out else 'majority'} loader has 0 batches")
        means.append(float(torch.stack(values).mean()))
    return means[0], means[1]
