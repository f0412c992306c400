"""The loss of each class, and the spread of these losses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrant.metrics.inputs import ClassIndices, Probabilities, RowWeights, check


@dataclass(frozen=True)
class ClasswiseLosses:
    """Mean NLL of each class that occurs, and the spread of these means."""

    classes: np.ndarray
    """Classes of positive weight, ascending."""
    losses: np.ndarray
    """Mean NLL of each of them."""
    variance: float
    """Mean squared distance of the losses from their mean."""
    std: float
    """Square root of the variance."""


def classwise_losses(
    probabilities: Probabilities, labels: ClassIndices, *, sample_weight: RowWeights = None, from_logits: bool = False
) -> ClasswiseLosses:
    """Mean NLL per class with its variance over classes (Jung et al. 2023, eq. 3).

    ``L_j = −1/n_j Σ_{y_i=j} log p_i[j]``. Classes without a sample are left out.

    Examples
    --------
    >>> from calibrant.metrics import classwise_losses
    >>> classwise_losses([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]], [0, 0]).losses.round(4).tolist()
    [0.6931]
    """
    checked = check(probabilities, labels, sample_weight, from_logits)
    nll = checked.columns("scores").nll
    return losses_of_sums(*class_loss_sums(nll, checked.labels, checked.weights, checked.values.shape[1]))


def class_loss_sums(
    nll: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, n_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Σw and Σw·nll of each class (K,); they add up over chunks."""
    weight = np.bincount(labels, weights, minlength=n_classes).astype(np.float64)
    return weight, np.bincount(labels, nll if weights is None else nll * weights, minlength=n_classes)


def losses_of_sums(weight: np.ndarray, loss: np.ndarray) -> ClasswiseLosses:
    """Means and spread of the classes that occur."""
    classes = np.flatnonzero(weight > 0)
    losses = loss[classes] / weight[classes]
    return ClasswiseLosses(classes, losses, float(losses.var()), float(losses.std()))
