"""Proper scores and plain means, each a mean of one per-row column.

Of one probability per row (n,) they ask about the positive class: the log loss and the entropy of p, mean (p − y)²,
the share of rows where p ≥ ½ says the label, and mean p.
"""

from __future__ import annotations

from calibrant.metrics.inputs import ClassIndices, Probabilities, RowWeights, check, mean
from calibrant.metrics.record import Mean, metric


@metric("NLL", "NLL", "log loss: surprise at the true class, in nats", Mean("nll"), compared=4)
def nll(
    probabilities: Probabilities, labels: ClassIndices, *, sample_weight: RowWeights = None, from_logits: bool = False
) -> float:
    """Negative log-likelihood, the log loss, in nats (Good 1952).

    ``−1/n Σ_i log p_i[y_i]``. From logits it is exact; a stated probability of 0 for the true class counts as the
    eps of its dtype (2.2e-16, of float32 1.2e-7), as in scikit-learn, so that one such row does not make the mean
    infinite.

    Examples
    --------
    >>> from calibrant.metrics import nll
    >>> round(nll([[0.5, 0.5], [0.25, 0.75]], [0, 1]), 4)
    0.4904
    """
    return mean(check(probabilities, labels, sample_weight, from_logits), "nll")


@metric("Brier", "Brier", "squared error of all probabilities", Mean("brier"), compared=5)
def brier(
    probabilities: Probabilities, labels: ClassIndices, *, sample_weight: RowWeights = None, from_logits: bool = False
) -> float:
    """Brier score summed over classes, between 0 and 2 (Brier 1950).

    ``1/n Σ_i Σ_j (p_ij − 1{y_i=j})²``; for two classes it is twice the one-column form ``1/n Σ_i (p_i − y_i)²``, which
    is the answer for one probability per row.

    Examples
    --------
    >>> from calibrant.metrics import brier
    >>> brier([[0.5, 0.5], [0.25, 0.75]], [0, 1])
    0.3125
    """
    return mean(check(probabilities, labels, sample_weight, from_logits), "brier")


@metric("accuracy", "acc", "share of right predictions", Mean("hit", share=True), percent=True, better=1, compared=6)
def accuracy(
    probabilities: Probabilities, labels: ClassIndices, *, sample_weight: RowWeights = None, from_logits: bool = False
) -> float:
    """Share of rows whose highest probability is the label's; of equal ones the first class is predicted.

    Examples
    --------
    >>> from calibrant.metrics import accuracy
    >>> accuracy([[0.5, 0.5], [0.25, 0.75]], [0, 0])
    0.5
    """
    return mean(check(probabilities, labels, sample_weight, from_logits), "hit")


@metric(
    "mean confidence",
    "confidence",
    "mean probability of the predicted class",
    Mean("confidence"),
    percent=True,
    better=0,
)
def confidence(
    probabilities: Probabilities, labels: ClassIndices, *, sample_weight: RowWeights = None, from_logits: bool = False
) -> float:
    """Mean of each row's highest probability, ``1/n Σ_i max_j p_ij``.

    Examples
    --------
    >>> from calibrant.metrics import confidence
    >>> confidence([[0.5, 0.5], [0.25, 0.75]], [0, 1])
    0.625
    """
    return mean(check(probabilities, labels, sample_weight, from_logits), "confidence")


@metric("mean entropy", "entropy", "mean spread of the probabilities, in nats", Mean("entropy"), better=0)
def entropy(
    probabilities: Probabilities, labels: ClassIndices, *, sample_weight: RowWeights = None, from_logits: bool = False
) -> float:
    """Mean entropy of the predictions in nats, ``−1/n Σ_i Σ_j p_ij log p_ij`` (Shannon 1948).

    Examples
    --------
    >>> from calibrant.metrics import entropy
    >>> round(entropy([[0.5, 0.5], [0.0, 1.0]], [0, 1]), 4)
    0.3466
    """
    return mean(check(probabilities, labels, sample_weight, from_logits), "entropy")
