"""Losses that are means over rows: cross entropy, focal loss, Brier score, label smoothing.

Labels are class indices (n,), or shares of the classes (n, K) in floating point. Dense maps (N, K, H, W) with labels
(N, H, W) count every position as a row. Nothing waits for the device: rows that are left out weigh zero.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.kernels.torch.tensors import of_label, rows_of_maps
from calibrant.neural.losses.module import loss_module
from calibrant.neural.losses.terms import check_tensors, log_probabilities

REDUCTIONS = ("mean", "sum", "none")

FLSD_53 = "flsd-53"
"""The sample-dependent exponent of Mukhoti et al. 2020: 5 where p[y] < 0.2, otherwise 3."""


class RowBatch(NamedTuple):
    """A checked batch as rows: log-probabilities and target shares (n, K), labels and row weights (n,)."""

    log_p: Tensor
    labels: Tensor
    shares: Tensor | None
    weights: Tensor | None
    shape: tuple[int, ...]

    def of_target(self, values: Tensor) -> Tensor:
        """Σ_k target_k · values_k of each row (n,); the value at the label where labels are indices."""
        return of_label(values, self.labels) if self.shares is None else (self.shares * values).sum(dim=1)

    def reduced(self, losses: Tensor, reduction: str) -> Tensor:
        """Losses (n,) as their weighted mean, their weighted sum, or one by one in the shape of the labels."""
        if reduction not in REDUCTIONS:
            raise InputError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}")
        weighted = losses if self.weights is None else losses * self.weights
        if reduction == "none":
            return weighted.reshape(self.shape)
        if reduction == "sum":
            return weighted.sum()
        if self.weights is None:
            return weighted.mean()
        # a batch in which every row is left out has loss 0, not NaN
        return weighted.sum() / self.weights.sum().clamp_min(torch.finfo(weighted.dtype).tiny)


def row_batch(logits: Tensor, labels: Tensor, class_weights: Tensor | None, ignore_index: int | None) -> RowBatch:
    """Check a batch and lay it out as rows."""
    check_tensors(logits, labels)
    is_shares = labels.is_floating_point() and labels.ndim == logits.ndim and labels.ndim > 1
    shape = (*logits.shape[:1], *logits.shape[2:])
    expected = logits.shape if is_shares else shape
    if (is_shares or logits.ndim > 2) and labels.shape != expected:
        word = "target shares" if is_shares else "labels"
        raise InputError(
            f"{word} have shape {tuple(labels.shape)}, but {tuple(expected)} goes with logits of {tuple(logits.shape)}"
        )
    if logits.ndim > 2:
        logits, labels = rows_of_maps(logits), rows_of_maps(labels) if is_shares else labels.reshape(-1)
    shares = kept = None
    if is_shares:
        if ignore_index is not None:
            raise InputError("ignore_index goes with class indices, but the labels are shares of the classes")
        shares, labels = labels, labels.argmax(dim=1)
    elif ignore_index is not None:
        kept = labels != ignore_index
        labels = torch.where(kept, labels, 0)
    log_p, labels = log_probabilities(logits, labels), labels.long()
    shares = None if shares is None else shares.to(log_p.dtype)
    weights = None
    if class_weights is not None:
        by_class = torch.as_tensor(class_weights, dtype=log_p.dtype, device=log_p.device)
        if by_class.shape != (log_p.shape[1],):
            raise InputError(
                f"class_weights have shape {tuple(by_class.shape)}, but there are {log_p.shape[1]} classes"
            )
        weights = by_class[labels] if shares is None else shares @ by_class
    if kept is not None:
        weights = kept.to(log_p.dtype) if weights is None else weights * kept
    return RowBatch(log_p, labels, shares, weights, shape)


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


def focal(
    logits: Tensor,
    labels: Tensor,
    *,
    gamma: float | str = 3.0,
    detach_factor: bool = False,
    class_weights: Tensor | None = None,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Mean focal loss (Lin et al. 2018, eq. 4): cross entropy with less weight on rows that are already right.

    −(1/n) Σ_i (1 − p_i[y_i])^γ log p_i[y_i]

    Parameters
    ----------
    logits : (n, K) tensor, or dense maps (N, K, H, W)
    labels : (n,) tensor of class indices, or shares of the classes (n, K) in floating point
    gamma : γ ≥ 0, or "flsd-53" for 5 where p[y] < 0.2 and 3 elsewhere
    detach_factor : treat (1 − p[y])^γ as a weight without gradient
    class_weights, ignore_index, reduction : as in `cross_entropy`

    Examples
    --------
    >>> import torch
    >>> z, y = torch.zeros(1, 4), torch.tensor([2])
    >>> round(focal(z, y, gamma=2.0).item(), 4)  # (3/4)² log 4
    0.7798
    """
    rows = row_batch(logits, labels, class_weights, ignore_index)
    log_p = rows.log_p if rows.shares is not None else rows.of_target(rows.log_p)
    # below one ulp the factor counts as constant: x^(γ−1) would be infinite there for γ < 1
    remainder = (-torch.expm1(log_p)).clamp_min(torch.finfo(log_p.dtype).eps)
    factor = remainder.pow(_exponent(gamma, log_p))
    if detach_factor:
        factor = factor.detach()
    losses = -factor * log_p
    return rows.reduced(losses if rows.shares is None else rows.of_target(losses), reduction)


def _exponent(gamma: float | str, log_p: Tensor) -> Tensor | float:
    if isinstance(gamma, str):
        if gamma != FLSD_53:
            raise InputError(f"gamma must be a number or {FLSD_53!r}, got {gamma!r}")
        return 3.0 + 2.0 * (log_p.detach().exp() < 0.2).to(log_p.dtype)
    if not gamma >= 0:
        raise InputError(f"gamma must be 0 or more, got {gamma}")
    return float(gamma)


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
    if spread not in ("all", "others"):
        raise InputError(f"spread must be 'all' or 'others', got {spread!r}")
    rows = row_batch(logits, labels, class_weights, ignore_index)
    others = spread == "others"
    share = smoothing / (rows.log_p.shape[1] - others)
    kept = 1 - smoothing - share * others
    return rows.reduced(-(kept * rows.of_target(rows.log_p) + share * rows.log_p.sum(dim=1)), reduction)


CrossEntropyLoss = loss_module("CrossEntropyLoss", cross_entropy)
FocalLoss = loss_module("FocalLoss", focal)
BrierLoss = loss_module("BrierLoss", brier)
LabelSmoothingLoss = loss_module("LabelSmoothingLoss", label_smoothing)
