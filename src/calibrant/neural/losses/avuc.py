"""Accuracy versus uncertainty: rows should be certain when right and uncertain when wrong."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.neural.losses.module import loss_module
from calibrant.neural.losses.terms import entropy, log_probabilities, of_label, over_groups


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
    log_p = log_probabilities(logits, labels)
    predicted = log_p.argmax(dim=1)
    correct = predicted == labels
    confidence = of_label(log_p, predicted).exp()
    if stop_confidence:
        confidence = confidence.detach()
    spread = entropy(log_p)
    uncertain = spread > kappa
    surprise = spread.tanh()
    count = torch.where(correct, confidence, 1 - confidence) * torch.where(uncertain, surprise, 1 - surprise)
    return _log_ratio(count, count * (correct != uncertain), None)


def _log_ratio(counted: Tensor, agreeing: Tensor, weights: Tensor | None) -> Tensor:
    """log(1 + clashing/agreeing) = log(counted/agreeing), with small constants that keep it finite for empty sets."""
    small = torch.finfo(agreeing.dtype).eps ** 1.5
    if weights is not None:
        share = weights / weights.sum().clamp_min(1)
        return ((share * counted).sum() + 2 * small).log() - ((share * agreeing).sum() + small).log()
    return (counted.mean() + 2 * small).log() - (agreeing.mean() + small).log()


def soft_uncertainty(share: Tensor, kappa: float, temperature: float) -> Tensor:
    """How uncertain an entropy share h* = h/ln K counts (Karandikar et al. 2021, §4.2).

    t(h*) = logistic((1/T)·log(h*(1 − κ)/((1 − h*)κ)), with h* clipped inside (0, 1).

    Examples
    --------
    >>> import torch
    >>> soft_uncertainty(torch.tensor(0.25), kappa=0.5, temperature=1.0).item()
    0.25
    """
    if not 0 < kappa < 1:
        raise InputError(f"kappa must lie in (0, 1), got {kappa}")
    if not temperature > 0:
        raise InputError(f"temperature must be above 0, got {temperature}")
    margin = 8 * torch.finfo(share.dtype).eps
    return ((share.logit(eps=margin) - math.log(kappa / (1 - kappa))) / temperature).sigmoid()


def soft_avuc(
    logits: Tensor,
    labels: Tensor,
    *,
    kappa: float = 0.5,
    temperature: float = 0.1,
    groups: Tensor | None = None,
    n_groups: int | None = None,
    group_form: str = "mean",
) -> Tensor:
    """Soft AvUC, S-AvUC (Karandikar et al. 2021, eqs. 15–16).

    log(1 + (n_AU + n_IC)/(n_AC + n_IU)) with t = soft_uncertainty(h/ln K): a right row counts t·tanh h as uncertain
    and (1 − t)(1 − tanh h) as certain, a wrong row (1 − t)(1 − tanh h) as certain and t·tanh h as uncertain.

    Parameters
    ----------
    logits : (n, K) tensor
    labels : (n,) tensor of class indices
    kappa : κ in (0, 1), the share of ln K where uncertainty begins
    temperature : T, how soft the threshold is
    groups, n_groups, group_form : as in `soft_ece`

    Examples
    --------
    >>> import torch
    >>> soft_avuc(torch.tensor([[9.0, 0.0]]), torch.tensor([0])).item() < 1e-6  # right and certain
    True
    """
    log_p = log_probabilities(logits, labels)
    correct = log_p.argmax(dim=1) == labels
    spread = entropy(log_p)
    uncertainty = soft_uncertainty(spread / math.log(log_p.shape[1]), kappa, temperature)
    surprise = spread.tanh()
    uncertain = uncertainty * surprise
    certain = (1 - uncertainty) * (1 - surprise)
    counted, agreeing = uncertain + certain, torch.where(correct, certain, uncertain)
    return over_groups(partial(_log_ratio, counted, agreeing), counted, groups, n_groups, group_form)


AvUCLoss = loss_module("AvUCLoss", avuc)
AvUCGSLoss = loss_module("AvUCGSLoss", avuc_gs)
SoftAvUCLoss = loss_module("SoftAvUCLoss", soft_avuc)
