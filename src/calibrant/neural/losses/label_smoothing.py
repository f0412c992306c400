"""Cross entropy to a softened label."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.neural.losses.rows import RowLoss, row_batch


def label_smoothing(
    logits: Tensor,
    labels: Tensor,
    *,
    smoothing: float = 0.05,
    spread: str = "all",
    class_weights: Tensor | None = None,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Cross entropy to a label that gives the share α away.

    spread="all": target (1 − α)·1{k = y} + α/K (Szegedy et al. 2016);
    spread="others": 1 − α for the label and α/(K − 1) for every other class (Frenkel & Goldberger 2021; the code of
    Jung et al. 2023 has α/K).

    Parameters
    ----------
    logits : (n, K) tensor, or dense maps (N, K, H, W)
    labels : (n,) tensor of class indices, or shares of the classes (n, K) in floating point
    smoothing : α in [0, 1]
    spread : "all" or "others"
    class_weights, ignore_index, reduction : as in `cross_entropy`

    Examples
    --------
    >>> import torch
    >>> round(label_smoothing(torch.zeros(1, 4), torch.tensor([2])).item(), 4)
    1.3863
    """
    if not 0 <= smoothing <= 1:
        raise InputError(f"smoothing must lie in [0, 1], got {smoothing}")
    rows = row_batch(logits, labels, class_weights, ignore_index)
    log_p = rows.log_p
    n_classes = log_p.shape[1]
    if spread == "all":
        share = smoothing / n_classes
    elif spread == "others":
        share = smoothing / (n_classes - 1)
    else:
        raise InputError(f"spread must be 'all' or 'others', got {spread!r}")
    kept = 1 - smoothing if spread == "all" else 1 - smoothing - share
    return rows.reduced(-(kept * rows.of_target(log_p) + share * log_p.sum(dim=1)), reduction)


class LabelSmoothingLoss(RowLoss):
    """`label_smoothing` as a module."""

    function = staticmethod(label_smoothing)

    def __init__(self, smoothing: float = 0.05, spread: str = "all", **shared: Any) -> None:
        super().__init__(**shared)
        self.smoothing = smoothing
        self.spread = spread
