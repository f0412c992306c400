"""Cross entropy, the yardstick of every other loss."""

from __future__ import annotations

from torch import Tensor, nn

from calibrant.neural.losses.terms import log_probabilities, of_label


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean negative log-likelihood of the labels.

    −(1/n) Σ_i log p_i[y_i]

    Parameters
    ----------
    logits : (n, K) tensor
    labels : (n,) tensor of class indices

    Examples
    --------
    >>> import torch
    >>> round(cross_entropy(torch.zeros(2, 4), torch.tensor([0, 3])).item(), 4)
    1.3863
    """
    return -of_label(log_probabilities(logits, labels), labels).mean()


class CrossEntropyLoss(nn.Module):
    """`cross_entropy` as a module."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch."""
        return cross_entropy(logits, labels)
