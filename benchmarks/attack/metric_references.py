"""Every multi-class metric written down literally: loops over samples, bins and pairs, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np

Columns = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Confidence, correctness and weight of each row."""


def softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def columns(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> Columns:
    p = softmax(logits)
    first = np.array([int(np.flatnonzero(row == row.max())[0]) for row in logits])
    return p[np.arange(len(p)), first], (first == labels).astype(float), weights


def width_bins(values: np.ndarray, n_bins: int = 15) -> list[np.ndarray]:
    edges = np.arange(n_bins + 1) / n_bins
    index = np.array([0 if v == 0 else int(np.searchsorted(edges[1:-1], v, side="left")) for v in values])
    return [np.flatnonzero(index == b) for b in range(n_bins)]


def mass_bins(values: np.ndarray, weights: np.ndarray, n_bins: int = 15) -> list[np.ndarray]:
    total = math.fsum(weights)
    rank = np.array([math.fsum(weights[values < v]) for v in values])
    index = np.minimum(np.floor(n_bins * rank / total + 1e-9), n_bins - 1).astype(int)
    return [np.flatnonzero(index == b) for b in range(n_bins)]


def gaps(values: np.ndarray, hits: np.ndarray, weights: np.ndarray, bins: list[np.ndarray]) -> np.ndarray:
    """(share, gap) of each bin that holds weight."""
    total, found = weights.sum(), []
    for inside in bins:
        mass = weights[inside].sum()
        if mass > 0:
            found.append((mass / total, (weights[inside] @ (values[inside] - hits[inside])) / mass))
    return np.array(found)


def norm(found: np.ndarray, p: float) -> float:
    if math.isinf(p):
        return float(np.abs(found[:, 1]).max())
    return float((found[:, 0] @ np.abs(found[:, 1]) ** p) ** (1 / p))


def debiased(c: np.ndarray, a: np.ndarray, w: np.ndarray) -> float:
    square = 0.0
    for inside in width_bins(c):
        mass = w[inside].sum()
        if mass >= 2:
            accuracy = (w[inside] @ a[inside]) / mass
            gap = (w[inside] @ (c[inside] - a[inside])) / mass
            square += mass / w.sum() * (gap**2 - accuracy * (1 - accuracy) / (mass - 1))
    return math.sqrt(max(square, 0.0))


def ks(c: np.ndarray, a: np.ndarray, w: np.ndarray) -> float:
    return max(abs((w * (c - a))[c <= level].sum()) for level in np.unique(c)) / w.sum()


def kuiper(c: np.ndarray, a: np.ndarray, w: np.ndarray) -> float:
    path = [0.0] + [float((w * (a - c))[c <= level].sum()) for level in np.unique(c)]
    return (max(path) - min(path)) / w.sum()


def mmce(c: np.ndarray, a: np.ndarray, w: np.ndarray) -> float:
    r = w * (c - a)
    kernel = np.exp(-np.abs(c[:, None] - c[None, :]) / 0.4)
    return math.sqrt(max(float(r @ kernel @ r), 0.0)) / w.sum()


def auroc(c: np.ndarray, a: np.ndarray, w: np.ndarray) -> float:
    right, wrong = w * a, w * (1 - a)
    pairs = right.sum() * wrong.sum()
    if pairs <= 0:
        return 0.5
    ahead = (c[:, None] > c[None, :]) + 0.5 * (c[:, None] == c[None, :])
    return float(right @ ahead @ wrong / pairs)


def aurc(c: np.ndarray, a: np.ndarray, w: np.ndarray) -> float:
    """The copies of each row one after another; tied ones share the mean error rate of their group at each place."""
    copies = w.astype(int)
    c, wrong = np.repeat(c, copies), np.repeat(1 - a, copies)
    total, before, place = 0.0, 0.0, 0
    for level in np.unique(c)[::-1]:
        inside = wrong[c == level]
        for k in range(1, len(inside) + 1):
            total += (before + k * inside.mean()) / (place + k)
        before, place = before + inside.sum(), place + len(inside)
    return total / len(c)


def soft_ece(c: np.ndarray, a: np.ndarray, w: np.ndarray, n_bins: int = 15, temperature: float = 0.01) -> float:
    centres = (np.arange(n_bins) + 0.5) / n_bins
    scores = -((c[:, None] - centres) ** 2) / temperature
    member = softmax(scores) * w[:, None]
    size = member.sum(axis=0)
    gap = np.divide(member.T @ (c - a), size, out=np.zeros(n_bins), where=size > 0)
    return math.sqrt(float(size @ gap**2) / w.sum())


def over_under(found: np.ndarray) -> np.ndarray:
    """Σ of the gaps above 0 and below 0."""
    share, gap = found.T
    return np.array([share @ np.maximum(gap, 0), share @ np.maximum(-gap, 0)])


def sweep(c: np.ndarray, a: np.ndarray, w: np.ndarray) -> float:
    """The equal-mass ECE of the largest count up to which the accuracies of the bins never fall."""
    c, a, w = c[w > 0], a[w > 0], w[w > 0]
    last = gaps(c, a, w, mass_bins(c, w, 1))
    for count in range(2, int(w.sum() / w.min()) + 3):
        bins = [inside for inside in mass_bins(c, w, count) if len(inside)]
        accuracy = [w[inside] @ a[inside] / w[inside].sum() for inside in bins]
        if any(later < earlier - 1e-9 for earlier, later in pairwise(accuracy)):
            break
        last = gaps(c, a, w, bins)
    return norm(last, 1)


def smooth(c: np.ndarray, a: np.ndarray, w: np.ndarray, n_points: int = 2000) -> float:
    """σ = smECE_σ by bisection, the reflected Gaussian kernel as a sum over mirror images."""
    t = (np.arange(n_points) + 0.5) / n_points
    residual = w * (a - c) / w.sum()

    def error(sigma: float) -> float:
        density = np.zeros(n_points)
        for shift in (-6.0, -4.0, -2.0, 0.0, 2.0, 4.0, 6.0):
            for sign in (-1.0, 1.0):
                density += np.exp(-((t[:, None] - shift - sign * c) ** 2) / (2 * sigma**2)) @ residual
        return float(np.abs(density).sum() / n_points / (sigma * math.sqrt(2 * math.pi)))

    low, high = 1e-3, 1.0
    if error(low) <= low:
        return 0.0
    for _ in range(20):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if error(middle) > middle else (low, middle)
    return middle


def class_losses(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray, cap: float) -> np.ndarray:
    """Mean NLL of each class that has weight."""
    loss = row_losses(logits, labels)
    loss = np.where(np.isinf(loss), cap, loss)
    return np.array(
        [
            weights[labels == j] @ loss[labels == j] / weights[labels == j].sum()
            for j in range(logits.shape[1])
            if weights[labels == j].sum() > 0
        ]
    )


def row_losses(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    peak = logits.max(axis=1)
    return np.log(np.exp(logits - peak[:, None]).sum(axis=1)) + peak - logits[np.arange(len(labels)), labels]


def proper(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray, cap: float) -> dict[str, float]:
    """`cap`: what a probability of exactly 0 costs the label that has it."""
    p = softmax(logits)
    loss = row_losses(logits, labels)
    loss = np.where(np.isinf(loss), cap, loss)
    one_hot = np.eye(p.shape[1])[labels]
    entropy = -np.where(p > 0, p * np.log(np.where(p > 0, p, 1.0)), 0.0).sum(axis=1)
    mean: Callable[[np.ndarray], float] = lambda column: float(weights @ column / weights.sum())  # noqa: E731
    return {"nll": mean(loss), "brier": mean(((p - one_hot) ** 2).sum(axis=1)), "entropy": mean(entropy)}


def everything(
    logits: np.ndarray, labels: np.ndarray, weights: np.ndarray, dtype: np.dtype
) -> dict[str, float | np.ndarray]:
    """Every metric by its literal definition; a label of probability 0 costs −log of the dtype's eps."""
    cap = -math.log(np.finfo(dtype).eps)
    c, a, w = columns(logits, labels, weights)
    p, n_classes = softmax(logits), logits.shape[1]
    top_width, top_mass = gaps(c, a, w, width_bins(c)), gaps(c, a, w, mass_bins(c, w))
    by_class, by_mass, ranges = [], [], []
    for j in range(n_classes):
        hit = (labels == j).astype(float)
        by_class.append(norm(gaps(p[:, j], hit, w, width_bins(p[:, j])), 1))
        found = gaps(p[:, j], hit, w, mass_bins(p[:, j], w))
        by_mass.append(norm(found, 2))
        ranges.append(np.abs(found[:, 1]).sum() / 15)
    answer: dict[str, float | np.ndarray] = {
        "accuracy": float(w @ a / w.sum()),
        "confidence": float(w @ c / w.sum()),
        "ece": norm(top_width, 1),
        "mce": norm(top_width, math.inf),
        "adaptive_ece": norm(top_mass, 1),
        "classwise_ece": np.array(by_class),
        "sce": float(np.mean(by_class)),
        "ace": float(np.mean(ranges)),
        "marginal_ece": math.sqrt(float(np.mean(np.square(by_mass)))),
        "debiased_ece": debiased(c, a, w),
        "ks_error": ks(c, a, w),
        "mmce": mmce(c, a, w),
        "confidence_auroc": auroc(c, a, w),
        "soft_ece": soft_ece(c, a, w),
        "over_under_confidence": over_under(top_width),
        "kuiper_error": kuiper(c, a, w),
        "sweep_ece": sweep(c, a, w),
        "smooth_ece": smooth(c, a, w),
        "classwise_losses": class_losses(logits, labels, weights, cap),
        **proper(logits, labels, weights, cap),
    }
    if (w == np.rint(w)).all():
        answer["aurc"] = aurc(c, a, w)
    return answer
