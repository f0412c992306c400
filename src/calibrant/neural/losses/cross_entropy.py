"""Cross entropy, to which the other losses are compared."""

from __future__ import annotations

from torch import Tensor

from calibrant.neural.losses.rows import RowLoss, row_batch


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    class_weights: Tensor | None = None,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Mean negative log-likelihood of the labels.

    −(1/n) Σ_i log p_i[y_i]

    Parameters
    ----------
    logits : (n, K) tensor, or dense maps (N, K, H, W)
    labels : (n,) tensor of class indices, or shares of the classes (n, K) in floating point
    class_weights : (K,) tensor, optional; the mean is then weighted, as in torch
    ignore_index : rows with this label are left out
    reduction : "mean", "sum" or "none"

    Examples
    --------
    >>> import torch
    >>> round(cross_entropy(torch.zeros(2, 4), torch.tensor([0, 3])).item(), 4)
    1.3863
    """
    rows = row_batch(logits, labels, class_weights, ignore_index)
    return rows.reduced(-rows.of_target(rows.log_p), reduction)


class CrossEntropyLoss(RowLoss):
    """`cross_entropy` as a module."""

    function = staticmethod(cross_entropy)
