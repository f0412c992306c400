"""Accuracy versus uncertainty: rows should be certain when right and uncertain when wrong."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.neural.losses.fused import fused_loss
from calibrant.neural.losses.terms import LossModule, check_batch, entropy, log_probabilities, of_label


def avuc(logits: Tensor, labels: Tensor, *, kappa: float = 1.0) -> Tensor:
    """AvUC with a hard uncertainty threshold (Krishnan & Tickoo 2020; Karandikar et al. 2021, eqs. 13–14).

    log(1 + (n_AU + n_IC)/(n_AC + n_IU)), where a row is Accurate or Inaccurate, Uncertain if its entropy h is above
    κ nats, and counts c·tanh h (AU), (1−c)(1−tanh h) (IC), c(1−tanh h) (AC), (1−c)·tanh h (IU).

    Parameters
    ----------
    logits : (n, K) tensor
    labels : (n,) tensor of class indices
    kappa : κ, the entropy threshold in nats

    Examples
    --------
    >>> import torch
    >>> avuc(torch.tensor([[9.0, 0.0]]), torch.tensor([0])).item() < 1e-6  # right and certain
    True
    """
    return _avuc(logits, labels, kappa, stop_confidence=False)


def avuc_gs(logits: Tensor, labels: Tensor, *, kappa: float = 1.0) -> Tensor:
    """`avuc` with no gradient through the confidences c (AvUC-GS; Karandikar et al. 2021, app. F).

    The value is that of `avuc`; only the gradient changes: it no longer rewards higher confidence where a row is wrong.

    Examples
    --------
    >>> import torch
    >>> z, y = torch.tensor([[2.0, 0.0], [1.0, 3.0]]), torch.tensor([0, 0])
    >>> (avuc_gs(z, y) == avuc(z, y)).item()
    True
    """
    return _avuc(logits, labels, kappa, stop_confidence=True)


def _avuc(logits: Tensor, labels: Tensor, kappa: float, *, stop_confidence: bool) -> Tensor:
    if not kappa > 0:
        raise InputError(f"kappa must be above 0 nats, got {kappa}")
    check_batch(logits, labels)

    def plain(values: Tensor) -> Tensor:
        log_p = log_probabilities(values, labels)
        predicted = log_p.argmax(dim=1)
        correct = predicted == labels
        confidence = of_label(log_p, predicted).exp()
        if stop_confidence:
            confidence = confidence.detach()
        spread = entropy(log_p)
        uncertain = spread > kappa
        surprise = spread.tanh()
        count = torch.where(correct, confidence, 1 - confidence) * torch.where(uncertain, surprise, 1 - surprise)
        return log_ratio(count, count * (correct != uncertain))

    options = {"kappa": kappa, "temperature": 1.0, "soft": False, "stop_confidence": stop_confidence}
    return fused_loss(logits, labels, plain, "avuc", **options)


def log_ratio(counted: Tensor, agreeing: Tensor, weights: Tensor | None = None) -> Tensor:
    """log(1 + clashing/agreeing) = log(counted/agreeing), with small constants that keep it finite for empty sets."""
    hair = torch.finfo(agreeing.dtype).eps ** 1.5
    if weights is not None:
        share = weights / weights.sum().clamp_min(1)
        return ((share * counted).sum() + 2 * hair).log() - ((share * agreeing).sum() + hair).log()
    return (counted.mean() + 2 * hair).log() - (agreeing.mean() + hair).log()


class AvUCLoss(LossModule):
    """`avuc` as a module."""

    function = staticmethod(avuc)

    def __init__(self, kappa: float = 1.0) -> None:
        super().__init__()
        self.kappa = kappa


class AvUCGSLoss(AvUCLoss):
    """`avuc_gs` as a module."""

    function = staticmethod(avuc_gs)
