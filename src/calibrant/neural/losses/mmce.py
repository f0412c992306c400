"""Maximum mean calibration error: the gap between confidence and correctness, measured by a kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.neural.losses.module import loss_module
from calibrant.neural.losses.terms import root, top_label


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


MMCELoss = loss_module("MMCELoss", mmce)
