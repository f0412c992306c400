"""The Brier score as a loss."""

from __future__ import annotations

from torch import Tensor

from calibrant.neural.losses.rows import RowLoss, row_batch


def brier(
    logits: Tensor,
    labels: Tensor,
    *,
    class_weights: Tensor | None = None,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Mean squared distance of the probabilities to the one-hot label, summed over classes; also called `mse`.

    (1/n) Σ_i Σ_k (p_ik − 1{y_i = k})²

    Parameters
    ----------
    logits : (n, K) tensor, or dense maps (N, K, H, W)
    labels : (n,) tensor of class indices, or shares of the classes (n, K) in floating point
    class_weights, ignore_index, reduction : as in `cross_entropy`

    Examples
    --------
    >>> import torch
    >>> brier(torch.zeros(1, 4), torch.tensor([2])).item()
    0.75
    """
    rows = row_batch(logits, labels, class_weights, ignore_index)
    probabilities = rows.log_p.exp()
    target_square = 1 if rows.shares is None else rows.shares.square().sum(dim=1)
    losses = probabilities.square().sum(dim=1) - 2 * rows.of_target(probabilities) + target_square
    return rows.reduced(losses, reduction)


mse = brier


class BrierLoss(RowLoss):
    """`brier` as a module."""

    function = staticmethod(brier)
