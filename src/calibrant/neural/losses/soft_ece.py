"""Soft-binned expected calibration error (SB-ECE)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.metrics.soft import bin_temperature
from calibrant.neural.losses.fused import fused_loss
from calibrant.neural.losses.groups import Combine, GroupLoss, over_groups
from calibrant.neural.losses.terms import check_batch, check_norm, memberships, power, root, top_label


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
    check_batch(logits, labels)
    by_label = weighting == "label"
    combine = partial(over_groups, groups=groups, n_groups=n_groups, form=group_form)

    def plain(values: Tensor) -> Tensor:
        return _plain(values, labels, n_bins, softness, norm, by_label, combine)

    if groups is not None:
        return plain(logits)
    return fused_loss(logits, labels, plain, "soft_ece", n_bins=n_bins, softness=softness, norm=norm, by_label=by_label)


def _plain(  # noqa: PLR0917
    logits: Tensor, labels: Tensor, n_bins: int, softness: float, norm: float, by_label: bool, combine: Combine
) -> Tensor:
    confidence, correct = top_label(logits, labels)
    every = memberships(confidence, n_bins, softness)

    def loss(weights: Tensor | None) -> Tensor:
        membership = every if weights is None else every * weights.unsqueeze(1)
        size = membership.sum(dim=0)
        divisor = size.clamp_min(torch.finfo(size.dtype).tiny)
        if not by_label:
            bin_gap = (membership * (correct - confidence).unsqueeze(1)).sum(dim=0) / divisor  # A_j − C_j
            power_sum = (size * power(bin_gap, norm)).sum()
        else:
            bin_accuracy = (membership * correct.unsqueeze(1)).sum(dim=0) / divisor
            power_sum = (membership * power(bin_accuracy - confidence.unsqueeze(1), norm)).sum()
        return root(power_sum / (correct.numel() if weights is None else weights.sum().clamp_min(1)), norm)

    return combine(loss, confidence)


class SoftECELoss(GroupLoss):
    """`soft_ece` as a module."""

    function = staticmethod(soft_ece)

    def __init__(
        self,
        n_bins: int = 15,
        temperature: float = 0.01,
        norm: float = 2,
        weighting: str = "label",
        decay: float | None = None,
        *,
        n_groups: int | None = None,
        group_form: str = "mean",
    ) -> None:
        super().__init__()
        self.n_bins = n_bins
        self.temperature = temperature
        self.norm = norm
        self.weighting = weighting
        self.decay = decay
        self.n_groups = n_groups
        self.group_form = group_form
