"""Whether a change of the logits lowers the accuracy by more than the noise."""

from __future__ import annotations

import math

from torch import Tensor

MAX_ACCURACY_LOSS = 0.005
"""A perturbation that loses more of the calibration rows than this is refused, whatever the noise."""


def accuracy_loss(before: Tensor, after: Tensor, labels: Tensor) -> str:
    """Both accuracies in words where the second is lower by more than the noise or by half a point, else nothing.

    The noise is one standard error of the paired difference, √(rows turned wrong + rows turned right).

    Parameters
    ----------
    before, after : logits (n, K)
    labels : (n,)

    Examples
    --------
    >>> import torch
    >>> labels = torch.tensor([0, 1, 1, 0])
    >>> right = torch.eye(2)[labels]
    >>> accuracy_loss(right, 3 * right, labels), accuracy_loss(right, 0 - right, labels)
    ('', 'accuracy on the 4 calibration rows falls from 100.00% to 0.00%')
    """
    right, still = before.argmax(1) == labels, after.argmax(1) == labels
    lost, won = int((right & ~still).sum()), int((~right & still).sum())
    n = len(labels)
    if lost - won <= min(math.sqrt(lost + won), MAX_ACCURACY_LOSS * n):
        return ""
    shares = (100 * float(one.double().mean()) for one in (right, still))
    return "accuracy on the {} calibration rows falls from {:.2f}% to {:.2f}%".format(n, *shares)
