"""Dense predictions: maps of logits (N, K, H, W) as rows, one per position."""

from __future__ import annotations

from torch import Tensor

from calibrant.neural.metrics import as_rows


def dense_rows(logits: Tensor, labels: Tensor, *, ignore_index: int | None = None) -> tuple[Tensor, Tensor]:
    """Rows (n, K) and labels (n,) of the positions that count, on the device of the maps: what `fit` takes.

    Parameters
    ----------
    logits : (N, K, H, W) tensor, or (N, K, …)
    labels : (N, H, W) tensor of class indices
    ignore_index : positions with this label are left out

    Examples
    --------
    >>> import torch
    >>> rows, labels = dense_rows(torch.zeros(2, 3, 4, 4), torch.full((2, 4, 4), 255), ignore_index=255)
    >>> tuple(rows.shape), tuple(labels.shape)
    ((0, 3), (0,))
    """
    rows, target = as_rows(logits.detach(), labels)
    if ignore_index is None:
        return rows, target
    counted = target != ignore_index
    return rows[counted], target[counted]
