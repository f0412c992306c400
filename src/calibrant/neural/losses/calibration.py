"""Losses of calibration over a batch: accuracy versus uncertainty, soft-binned calibration error, and kernel error.

AvUC wants rows certain when right and uncertain when wrong. SB-ECE is the gap between confidence and accuracy in soft
bins, of the predicted class or of every class. MMCE measures the same gap by a kernel.
"""

import math
from functools import partial

import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.kernels.torch.tensors import of_label, widened
from calibrant.metrics.top_label import bin_temperature
from calibrant.neural.losses.module import loss_module
from calibrant.neural.losses.terms import (
    check_batch,
    check_norm,
    entropy,
    log_probabilities,
    memberships,
    over_groups,
    power,
    root,
    top_label,
)


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
    share = 1 / len(counted) if weights is None else weights / weights.sum().clamp_min(1)
    return ((share * counted).sum() + 2 * small).log() - ((share * agreeing).sum() + small).log()


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
    probabilities = widened(logits).softmax(dim=1)
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


def mmce(logits: Tensor, labels: Tensor, *, width: float = 0.4, weighted: bool = False) -> Tensor:
    """Root of the kernel quadratic form in the calibration residuals (Kumar et al. 2018).

    √(Σ_ij r_i r_j exp(−|c_i − c_j|/width)), where r_i = (c_i − a_i)/n, or, weighted, c_i/(number wrong)
    for the wrong and −(1 − c_i)/(number right) for the right rows (their reweighted form, in which both sides
    count the same).

    Parameters
    ----------
    logits : (n, K) tensor
    labels : (n,) tensor of class indices
    width : of the Laplacian kernel
    weighted : the second form

    Examples
    --------
    >>> import torch
    >>> round(mmce(torch.zeros(2, 4), torch.tensor([0, 1])).item(), 4)  # accuracy 1/2 at confidence 1/4
    0.25
    """
    if not width > 0:
        raise InputError(f"width must be above 0, got {width}")
    confidence, correct = top_label(logits, labels)
    counted: Tensor | int = correct.numel()
    if weighted:
        n_correct = correct.sum()
        counted = torch.where(correct > 0, n_correct, correct.numel() - n_correct)
    residual = (confidence - correct) / counted
    kernel = ((confidence.unsqueeze(0) - confidence.unsqueeze(1)).abs() * (-1 / width)).exp()
    # no matrix product: autocast would take it to bfloat16
    return root((residual.unsqueeze(0) * residual.unsqueeze(1) * kernel).sum(), 2)


AvUCLoss = loss_module("AvUCLoss", avuc)
AvUCGSLoss = loss_module("AvUCGSLoss", avuc_gs)
SoftAvUCLoss = loss_module("SoftAvUCLoss", soft_avuc)
SoftECELoss = loss_module("SoftECELoss", soft_ece)
SoftMarginalECELoss = loss_module("SoftMarginalECELoss", soft_marginal_ece)
MMCELoss = loss_module("MMCELoss", mmce)
