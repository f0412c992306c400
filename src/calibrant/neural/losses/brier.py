"""The Brier score as a loss."""

from __future__ import annotations

from torch import Tensor, nn

from calibrant.neural.losses.terms import log_probabilities, of_label


def brier(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean squared distance of the probabilities to the one-hot label, summed over classes; also called `mse`.

    (1/n) Σ_i Σ_k (p_ik − 1{y_i = k})²

    Parameters
    ----------
    logits : (n, K) tensor
    labels : (n,) tensor of class indices

    Examples
    --------
    >>> import torch
    >>> brier(torch.zeros(1, 4), torch.tensor([2])).item()
    0.75
    """
    probabilities = log_probabilities(logits, labels).exp()
    return (probabilities.square().sum(dim=1) - 2 * of_label(probabilities, labels) + 1).mean()


mse = brier


class BrierLoss(nn.Module):
    """`brier` as a module."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch."""
        return brier(logits, labels)
