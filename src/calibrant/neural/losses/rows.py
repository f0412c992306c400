"""Losses that are means over rows: what they take beside logits and labels, stated once.

Labels are class indices (n,), or shares of the classes (n, K) in floating point. Dense maps (N, K, H, W) with labels
(N, H, W) count every position as a row. Nothing waits for the device: rows that are left out weigh zero.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.neural.losses.terms import LossModule, check_batch, wide

REDUCTIONS = ("mean", "sum", "none")


class RowBatch(NamedTuple):
    """A checked batch as rows: log-probabilities and target shares (n, K), labels and row weights (n,)."""

    log_p: Tensor
    labels: Tensor
    shares: Tensor | None
    weights: Tensor | None
    shape: tuple[int, ...]

    def of_target(self, values: Tensor) -> Tensor:
        """Σ_k target_k · values_k of each row (n,); the value at the label where labels are indices."""
        if self.shares is not None:
            return (self.shares * values).sum(dim=1)
        return values.gather(1, self.labels.unsqueeze(1)).squeeze(1)

    def reduced(self, losses: Tensor, reduction: str) -> Tensor:
        """Losses (n,) as their weighted mean, their weighted sum, or one by one in the shape of the labels."""
        if reduction not in REDUCTIONS:
            raise InputError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}")
        if self.weights is None:
            return losses.mean() if reduction == "mean" else _one_or_sum(losses, reduction, self.shape)
        weighted = losses * self.weights
        if reduction == "mean":
            # a batch in which every row is left out has loss 0, not NaN
            return weighted.sum() / self.weights.sum().clamp_min(torch.finfo(weighted.dtype).tiny)
        return _one_or_sum(weighted, reduction, self.shape)


def row_batch(
    logits: Tensor, labels: Tensor, class_weights: Tensor | None = None, ignore_index: int | None = None
) -> RowBatch:
    """Check a batch and lay it out as rows."""
    if not isinstance(logits, Tensor) or not isinstance(labels, Tensor):
        raise InputError(f"a loss takes torch tensors, got {type(logits).__name__} and {type(labels).__name__}")
    is_shares = labels.is_floating_point() and labels.ndim == logits.ndim and labels.ndim > 1
    shape = (logits.shape[0], *logits.shape[2:]) if logits.ndim > 2 else tuple(labels.shape[:1])
    if logits.ndim > 2:
        expected = tuple(logits.shape) if is_shares else shape
        if tuple(labels.shape) != expected:
            raise InputError(f"labels have shape {tuple(labels.shape)}, but {expected} goes with {tuple(logits.shape)}")
        labels = _as_rows(labels) if is_shares else labels.reshape(-1)
        logits = _as_rows(logits)
    if is_shares:
        if labels.shape != logits.shape:
            raise InputError(
                f"target shares have shape {tuple(labels.shape)}, but the logits have {tuple(logits.shape)}"
            )
        return _of_shares(logits, labels, class_weights, ignore_index, shape)
    kept = None if ignore_index is None else labels != ignore_index
    indices = labels if kept is None else torch.where(kept, labels, 0)
    check_batch(logits, indices)
    log_p, indices = wide(logits).log_softmax(dim=1), indices.long()
    weights = None if class_weights is None else _checked_weights(class_weights, log_p)[indices]
    if kept is not None:
        weights = kept.to(log_p.dtype) if weights is None else weights * kept
    return RowBatch(log_p, indices, None, weights, shape)


def _of_shares(
    logits: Tensor, shares: Tensor, class_weights: Tensor | None, ignore_index: int | None, shape: tuple[int, ...]
) -> RowBatch:
    if ignore_index is not None:
        raise InputError("ignore_index goes with class indices, but the labels are shares of the classes")
    labels = shares.argmax(dim=1)
    check_batch(logits, labels)
    log_p = wide(logits).log_softmax(dim=1)
    shares = shares.to(log_p.dtype)
    weights = None if class_weights is None else shares @ _checked_weights(class_weights, log_p)
    return RowBatch(log_p, labels, shares, weights, shape)


def _checked_weights(class_weights: Tensor, log_p: Tensor) -> Tensor:
    weights = torch.as_tensor(class_weights, dtype=log_p.dtype, device=log_p.device)
    if weights.shape != (log_p.shape[1],):
        raise InputError(f"class_weights have shape {tuple(weights.shape)}, but there are {log_p.shape[1]} classes")
    return weights


def _as_rows(values: Tensor) -> Tensor:
    return values.movedim(1, -1).reshape(-1, values.shape[1])


def _one_or_sum(losses: Tensor, reduction: str, shape: tuple[int, ...]) -> Tensor:
    return losses.sum() if reduction == "sum" else losses.reshape(shape)


class RowLoss(LossModule):
    """The parameters that modules of such losses share."""

    class_weights: Tensor | None

    def __init__(
        self, class_weights: Tensor | None = None, ignore_index: int | None = None, reduction: str = "mean"
    ) -> None:
        super().__init__()
        self.register_buffer("class_weights", None if class_weights is None else torch.as_tensor(class_weights))
        self.ignore_index = ignore_index
        self.reduction = reduction

    def extra_repr(self) -> str:
        """The parameters, as `print(module)` shows them."""
        shown = {name: value for name, value in vars(self).items() if name[0] != "_" and name != "training"}
        return ", ".join(f"{name}={value!r}" for name, value in shown.items() if value is not None)
