"""Temperature scaling by plain gradient descent, epoch by epoch, under each loss of the class-loss study."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrant.calibrators.class_loss import FOCUS, SMOOTHING, choose_shape, class_weights
from calibrant.core.softmax import log_softmax
from calibrant.metrics.top_label import ece

LOSSES = ("CE", "LS", "FL", "Ours", "Top 3")
RATE, EPOCHS = 0.4, 300
"""Steps small enough that the way is seen, and enough of them to arrive."""


@dataclass(frozen=True)
class Descent:
    """Per epoch, the start included: temperature, mean class loss, std of the class losses, ECE, class losses."""

    temperature: np.ndarray
    total: np.ndarray
    spread: np.ndarray
    ece: np.ndarray
    class_losses: np.ndarray


def descend(logits: np.ndarray, labels: np.ndarray, loss: str, *, epochs: int = EPOCHS, rate: float = RATE) -> Descent:
    """T ← T − rate·∂loss/∂T from T = 1, with ∂NLL/∂T = (z_y − Σ_j p_j z_j)/T² of each row.

    Parameters
    ----------
    logits, labels : (n, K) and (n,)
    loss : "CE" mean NLL; "LS" with smoothed labels; "FL" focal; "Ours" Σ_i (1 + w_i)·L_i / K (Jung et al. 2023, eq. 8);
        "Top 3" the mean NLL of the rows of the three classes of highest loss at the start (eq. 2)
    """
    values, rows = logits.astype(np.float64), np.arange(len(labels))
    count = np.bincount(labels, minlength=values.shape[1])
    own_value = values[rows, labels]
    target = (1 - SMOOTHING) * own_value + SMOOTHING * values.mean(axis=1) if loss == "LS" else own_value
    temperature, trace, class_losses = 1.0, [], []
    shape = (1.0, 1.5)
    for epoch in range(epochs + 1):
        logs = log_softmax(values / temperature)
        p, own = np.exp(logs), logs[rows, labels]
        losses = np.bincount(labels, -own, minlength=len(count))[count > 0] / count[count > 0]
        error = ece(p, labels, n_bins=15)
        trace.append((temperature, losses.mean(), losses.std(ddof=1), error))
        class_losses.append(losses)
        if epoch == 1 and loss == "Ours":
            shape = choose_shape(class_losses[0], losses, "normal", len(count))
        pull = (target - (p * values).sum(axis=1)) / temperature**2
        if loss == "FL":
            pull *= (1 - np.exp(own)) ** FOCUS - FOCUS * np.exp(own) * (1 - np.exp(own)) ** (FOCUS - 1) * own
        elif loss in ("Ours", "Top 3"):
            pull *= _row_weights(loss, class_losses, labels, count, shape)
        temperature = max(0.05, temperature - rate * float(pull.mean()))
    temperatures, total, spread, errors = np.array(trace).T
    return Descent(temperatures, total, spread, errors, np.array(class_losses))


def share_of_worst(trace: Descent, count: int = 3) -> np.ndarray:
    """What the classes of the highest losses at the start have of the sum of class losses, epoch by epoch."""
    worst = np.argsort(-trace.class_losses[0], kind="stable")[:count]
    return trace.class_losses[:, worst].sum(axis=1) / trace.class_losses.sum(axis=1)


def _row_weights(
    loss: str, class_losses: list[np.ndarray], labels: np.ndarray, count: np.ndarray, shape: tuple[float, float]
) -> np.ndarray:
    """What each row counts (n,), 1 on average for plain class means."""
    weight, present = np.zeros(len(count)), count > 0
    if loss == "Ours":
        weight[present] = (1 + class_weights(class_losses[-1], "normal", *shape)) / count[present] / present.sum()
    else:
        worst = np.flatnonzero(present)[np.argsort(-class_losses[0], kind="stable")[:3]]
        weight[worst] = 1 / count[worst].sum()
    return weight[labels] * len(labels)
