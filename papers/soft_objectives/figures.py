"""The figures of one trained network, computed where its logits are.

The library's metrics work on numpy arrays; these are the same definitions in torch, so that a GPU run brings home
numbers instead of logits. A test holds them to the library's.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from calibrant.neural.losses import soft_ece

N_BINS = 15


def top_label(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Confidence and correctness (n,) in float64."""
    confidence, predicted = logits.double().softmax(dim=1).max(dim=1)
    return confidence, (predicted == labels).double()


def width_index(confidence: Tensor) -> Tensor:
    """Equal-width bin (lo, hi] of each confidence."""
    edges = torch.arange(1, N_BINS, device=confidence.device, dtype=confidence.dtype) / N_BINS
    return torch.bucketize(confidence, edges)


def mass_index(confidence: Tensor, n_bins: int) -> Tensor:
    """Equal-mass bin floor(M·rank/n), ties at the lowest rank of their group."""
    rank = torch.searchsorted(confidence.sort().values, confidence)
    return (n_bins * rank) // len(confidence)


def binned_error(confidence: Tensor, correct: Tensor, index: Tensor, n_bins: int, norm: int) -> Tensor:
    """(Σ_b (n_b/n)·|A_b − C_b|^p)^(1/p)."""
    zeros = torch.zeros(n_bins, dtype=confidence.dtype, device=confidence.device)
    count = zeros.index_add(0, index, torch.ones_like(confidence))
    gap = zeros.index_add(0, index, correct - confidence) / count.clamp_min(1)
    return ((count / len(confidence)) * gap.abs().pow(norm)).sum().pow(1 / norm)


def ece(confidence: Tensor, correct: Tensor) -> float:
    """ECE-15, equal width, p = 1."""
    return float(binned_error(confidence, correct, width_index(confidence), N_BINS, 1))


def mass_ece(confidence: Tensor, correct: Tensor, n_bins: int = N_BINS) -> float:
    """ECE₂, equal mass: the figure of the paper's tables."""
    return float(binned_error(confidence, correct, mass_index(confidence, n_bins), n_bins, 2))


def ks_error(confidence: Tensor, correct: Tensor) -> float:
    """Largest |Σ (c − a)|/n over the rows of confidence up to a value; ties are summed first."""
    ordered, order = confidence.sort()
    running = (ordered - correct[order]).cumsum(0).abs()
    last_of_group = torch.ones_like(running, dtype=torch.bool)
    last_of_group[:-1] = ordered[1:] != ordered[:-1]
    return float(running[last_of_group].max() / len(ordered))


def sweep_ece(confidence: Tensor, correct: Tensor) -> float:
    """Equal-mass ECE₂ with as many bins as keep the accuracies non-decreasing (Roelofs et al. 2020)."""
    n_bins = 1
    while n_bins < len(confidence):
        index = mass_index(confidence, n_bins + 1)
        count = torch.bincount(index, minlength=n_bins + 1)
        total = torch.bincount(index, weights=correct, minlength=n_bins + 1)
        accuracy = (total / count)[count > 0]
        if bool((accuracy.diff() < 0).any()):
            break
        n_bins += 1
    return mass_ece(confidence, correct, n_bins)


def marginal_ece(logits: Tensor, labels: Tensor) -> float:
    """(mean_k ECE_k,2²)^½ over classes, equal mass."""
    probabilities = logits.double().softmax(dim=1)
    total = torch.zeros((), dtype=torch.float64, device=logits.device)
    for k in range(probabilities.shape[1]):
        scores = probabilities[:, k].contiguous()
        index = mass_index(scores, N_BINS)
        total += binned_error(scores, (labels == k).double(), index, N_BINS, 2).square()
    return float((total / probabilities.shape[1]).sqrt())


def negative_log_likelihood(logits: Tensor, labels: Tensor) -> float:
    """Mean −log p[y]."""
    return float(torch.nn.functional.cross_entropy(logits.double(), labels))


def fit_temperature(logits: Tensor, labels: Tensor, objective: str) -> float:
    """The temperature of lowest NLL ("nll"), soft ECE ("soft_ece", bin form) or its hard-binned twin ("hard_ece")."""
    wide = logits.double()

    def value(log_temperature: float) -> float:
        scaled = wide / math.exp(log_temperature)
        if objective == "hard_ece":
            confidence, correct = top_label(scaled, labels)
            return float(binned_error(confidence, correct, width_index(confidence), N_BINS, 2))
        if objective == "soft_ece":
            return float(soft_ece(scaled, labels, weighting="bin"))
        return negative_log_likelihood(scaled, labels)

    centre, reach = 0.0, math.log(8.0)
    for _ in range(6):
        grid = [centre + reach * step / 10 for step in range(-10, 11)]
        centre = min(grid, key=value)
        reach /= 7
    return math.exp(centre)


def reliability(confidence: Tensor, correct: Tensor) -> dict[str, list[float]]:
    """Count, mean confidence and accuracy of each equal-width bin: the points of an accuracy-confidence plot."""
    index = width_index(confidence)
    count = torch.bincount(index, minlength=N_BINS).double()
    divisor = count.clamp_min(1)
    return {
        "count": count.tolist(),
        "confidence": (torch.bincount(index, weights=confidence, minlength=N_BINS) / divisor).tolist(),
        "accuracy": (torch.bincount(index, weights=correct, minlength=N_BINS) / divisor).tolist(),
    }


def brief_figures(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy and both ECEs."""
    confidence, correct = top_label(logits, labels)
    return {
        "accuracy": float(correct.mean()),
        "ece": ece(confidence, correct),
        "mass_ece": mass_ece(confidence, correct),
    }


def full_figures(logits: Tensor, labels: Tensor) -> dict[str, Any]:
    """Every figure the paper's tables 1, 2, 4 and 6 and figures 6 and 10 need of the test set."""
    confidence, correct = top_label(logits, labels)
    log_p = logits.double().log_softmax(dim=1)
    p = log_p.exp()
    return {
        **brief_figures(logits, labels),
        "nll": negative_log_likelihood(logits, labels),
        "brier": float((p.square().sum(1) - 2 * p.gather(1, labels[:, None])[:, 0] + 1).mean()),
        "ks_error": ks_error(confidence, correct),
        "sweep_ece": sweep_ece(confidence, correct),
        "marginal_ece": marginal_ece(logits, labels),
        "confidence": float(confidence.mean()),
        "entropy": float(-(p * log_p).sum(1).mean()),
        "reliability": reliability(confidence, correct),
    }
