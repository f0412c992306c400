"""Soft-binned calibration error (SB-ECE): of the predicted class, or of every class."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.metrics.top_label import bin_temperature
from calibrant.neural.losses.module import loss_module
from calibrant.neural.losses.terms import (
    check_batch,
    check_norm,
    memberships,
    over_groups,
    power,
    root,
    top_label,
    wide,
)


def soft_ece(
    logits: Tensor,
    labels: Tensor,
    *,
    n_bins: int = 15,
    temperature: float = 0.01,
    norm: float = 2,
    weighting: str = "label",
    decay: float | None = None,
    groups: Tensor | None = None,
    n_groups: int | None = None,
    group_form: str = "mean",
) -> Tensor:
    """SB-ECE of the top label (Karandikar et al. 2021, eqs. 11 and 12).

    u_ij = softmax_j(−(c_i − ξ_j)²/T), S_j = Σ_i u_ij, C_j = Σ_i u_ij c_i / S_j, A_j = Σ_i u_ij a_i / S_j;
    weighting="bin": (Σ_j (S_j/n)·|A_j − C_j|^p)^(1/p); weighting="label": ((1/n) Σ_ij u_ij·|A_j − c_i|^p)^(1/p).

    Parameters
    ----------
    logits : (n, K) tensor
    labels : (n,) tensor of class indices
    n_bins : M equal bins of [0, 1]; their centres are ξ_j
    temperature : T, how soft the bins are
    norm : p ≥ 1
    weighting : "label", the form that the paper trains, or "bin", the form that the metric `calibrant.metrics.soft_ece`
        reports by default
    decay : d > 1 sets T = 1/(M² ln d) instead: at a centre the neighbour's membership is 1/d of its own
    groups : (n,) tensor of whole numbers, optional
        The loss is then taken in each group of the batch by itself; `group_form` is "mean" or "worst". `n_groups` says
        how many there are, so that the device is not waited for.

    Examples
    --------
    >>> import torch
    >>> round(soft_ece(torch.zeros(2, 4), torch.tensor([0, 1])).item(), 4)  # accuracy 1/2 at confidence 1/4
    0.25
    """
    check_norm(norm)
    if weighting not in ("bin", "label"):
        raise InputError(f"weighting must be 'bin' or 'label', got {weighting!r}")
    softness = bin_temperature(n_bins, temperature, decay)
    confidence, correct = top_label(logits, labels)
    every = memberships(confidence, n_bins, softness)

    def loss(weights: Tensor | None) -> Tensor:
        membership = every if weights is None else every * weights.unsqueeze(1)
        size = membership.sum(dim=0)
        divisor = size.clamp_min(torch.finfo(size.dtype).tiny)
        if weighting == "bin":
            bin_gap = (membership * (correct - confidence).unsqueeze(1)).sum(dim=0) / divisor  # A_j − C_j
            power_sum = (size * power(bin_gap, norm)).sum()
        else:
            bin_accuracy = (membership * correct.unsqueeze(1)).sum(dim=0) / divisor
            power_sum = (membership * power(bin_accuracy - confidence.unsqueeze(1), norm)).sum()
        return root(power_sum / (correct.numel() if weights is None else weights.sum().clamp_min(1)), norm)

    return over_groups(loss, confidence, groups, n_groups, group_form)


def soft_marginal_ece(
    logits: Tensor,
    labels: Tensor,
    *,
    n_bins: int = 15,
    temperature: float = 0.01,
    norm: float = 2,
    decay: float | None = None,
    groups: Tensor | None = None,
    n_groups: int | None = None,
    group_form: str = "mean",
) -> Tensor:
    """Soft-binned marginal ECE, the extension proposed in Karandikar et al. 2021, app. J.

    ((1/K) Σ_k Σ_j (S_jk/n)·|A_jk − C_jk|^p)^(1/p): eq. 11 for every class k, its probability p_k against 1{y = k}.
    A mean over classes; without the 1/K the value is K^(1/p) times as large.

    Parameters
    ----------
    logits : (n, K) tensor
    labels : (n,) tensor of class indices
    n_bins : M equal bins of [0, 1]
    temperature : T, how soft the bins are
    norm : p ≥ 1
    decay : d > 1 sets T = 1/(M² ln d) instead
    groups, n_groups, group_form : as in `soft_ece`

    Examples
    --------
    >>> import torch
    >>> round(soft_marginal_ece(torch.zeros(2, 2), torch.tensor([0, 1])).item(), 4)
    0.0
    """
    check_norm(norm)
    softness = bin_temperature(n_bins, temperature, decay)
    check_batch(logits, labels)
    probabilities = wide(logits).softmax(dim=1)
    every = memberships(probabilities, n_bins, softness)
    own = labels.long().unsqueeze(1)
    misses = probabilities.scatter_add(1, own, torch.full_like(probabilities[:, :1], -1.0))

    def loss(weights: Tensor | None) -> Tensor:
        membership = every if weights is None else every * weights[:, None, None]
        gap = (membership * misses.unsqueeze(-1)).sum(dim=0)
        size = membership.sum(dim=0)
        bin_gap = gap / size.clamp_min(torch.finfo(size.dtype).tiny)
        rows = len(probabilities) if weights is None else weights.sum().clamp_min(1)
        return root((size * power(bin_gap, norm)).sum() / (rows * probabilities.shape[1]), norm)

    return over_groups(loss, probabilities, groups, n_groups, group_form)


SoftECELoss = loss_module("SoftECELoss", soft_ece)
SoftMarginalECELoss = loss_module("SoftMarginalECELoss", soft_marginal_ece)
