"""Soft AvUC: accuracy versus uncertainty with a soft threshold."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.neural.losses.avuc import log_ratio
from calibrant.neural.losses.fused import fused_loss
from calibrant.neural.losses.groups import GroupLoss, over_groups
from calibrant.neural.losses.terms import check_batch, entropy, log_probabilities


def soft_uncertainty(share: Tensor, kappa: float, temperature: float) -> Tensor:
    """How uncertain an entropy share h* = h/ln K counts (Karandikar et al. 2021, §4.2).

    t(h*) = logistic((1/T)·log(h*(1 − κ)/((1 − h*)κ)), with h* clipped inside (0, 1).

    Examples
    --------
    >>> import torch
    >>> soft_uncertainty(torch.tensor(0.25), kappa=0.5, temperature=1.0).item()
    0.25
    """
    check_threshold(kappa, temperature)
    margin = 8 * torch.finfo(share.dtype).eps
    return ((share.logit(eps=margin) - math.log(kappa / (1 - kappa))) / temperature).sigmoid()


def check_threshold(kappa: float, temperature: float) -> None:
    """Raise unless 0 < κ < 1 and T > 0."""
    if not 0 < kappa < 1:
        raise InputError(f"kappa must lie in (0, 1), got {kappa}")
    if not temperature > 0:
        raise InputError(f"temperature must be above 0, got {temperature}")


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
    check_batch(logits, labels)
    check_threshold(kappa, temperature)

    def plain(values: Tensor) -> Tensor:
        log_p = log_probabilities(values, labels)
        correct = log_p.argmax(dim=1) == labels
        spread = entropy(log_p)
        uncertainty = soft_uncertainty(spread / math.log(log_p.shape[1]), kappa, temperature)
        surprise = spread.tanh()
        uncertain = uncertainty * surprise
        certain = (1 - uncertainty) * (1 - surprise)
        counted, agreeing = uncertain + certain, torch.where(correct, certain, uncertain)
        return over_groups(partial(log_ratio, counted, agreeing), counted, groups, n_groups, group_form)

    if groups is not None:
        return plain(logits)
    return fused_loss(
        logits, labels, plain, "avuc", kappa=kappa, temperature=temperature, soft=True, stop_confidence=False
    )


class SoftAvUCLoss(GroupLoss):
    """`soft_avuc` as a module."""

    function = staticmethod(soft_avuc)

    def __init__(
        self, kappa: float = 0.5, temperature: float = 0.1, *, n_groups: int | None = None, group_form: str = "mean"
    ) -> None:
        super().__init__()
        self.kappa = kappa
        self.temperature = temperature
        self.n_groups = n_groups
        self.group_form = group_form
