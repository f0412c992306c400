"""Soft-binned marginal calibration error: SB-ECE of every class, not only of the predicted one."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.metrics.soft import bin_temperature
from calibrant.neural.losses.groups import GroupLoss, over_groups
from calibrant.neural.losses.terms import check_batch, check_norm, memberships, power, root, wide


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


class SoftMarginalECELoss(GroupLoss):
    """`soft_marginal_ece` as a module."""

    function = staticmethod(soft_marginal_ece)

    def __init__(
        self,
        n_bins: int = 15,
        temperature: float = 0.01,
        norm: float = 2,
        decay: float | None = None,
        *,
        n_groups: int | None = None,
        group_form: str = "mean",
    ) -> None:
        super().__init__()
        self.n_bins = n_bins
        self.temperature = temperature
        self.norm = norm
        self.decay = decay
        self.n_groups = n_groups
        self.group_form = group_form
