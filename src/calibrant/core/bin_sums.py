"""Sums over bins, and the calibration errors that they add up to: written once, for metrics and searches alike.

Everything that is a function of the sums is additive: sums of chunks add up to the sums of the whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


def total_gap(gaps: np.ndarray, total: Any = 1.0, axis: int = -1) -> Any:
    """Σ_b |Σw·confidence − Σw·correct| / Σw: the ECE, from the signed gap sums of the bins along one axis.

    >>> float(total_gap(np.array([3.0, -1.0]), 10.0))
    0.4
    """
    return np.abs(gaps).sum(axis=axis) / total


def over(excess: np.ndarray) -> np.ndarray:
    """Σ_b max(0, g_b): the part of the error where confidence exceeds accuracy."""
    return np.maximum(excess, 0).sum(axis=-1)


def under(excess: np.ndarray) -> np.ndarray:
    """Σ_b max(0, −g_b): the part of the error where accuracy exceeds confidence."""
    return np.maximum(-excess, 0).sum(axis=-1)


@dataclass(frozen=True)
class BinSums:
    """Σw, Σw·confidence and Σw·correct of each bin; any leading axes (classes, resamples) are kept."""

    weight: np.ndarray
    confidence: np.ndarray
    correct: np.ndarray

    def __add__(self, other: BinSums) -> BinSums:
        return BinSums(self.weight + other.weight, self.confidence + other.confidence, self.correct + other.correct)

    @property
    def excess(self) -> np.ndarray:
        """Signed gap of each bin as a share of the whole: (n_b/n)·(C_b − A_b); over-confidence is positive."""
        return (self.confidence - self.correct) / self.weight.sum(axis=-1, keepdims=True)

    @property
    def gap(self) -> np.ndarray:
        """C_b − A_b; 0 in an empty bin."""
        return (self.confidence - self.correct) / np.where(self.weight > 0, self.weight, 1.0)

    @property
    def noise_squared(self) -> np.ndarray:
        """Σ_b (n_b/n)·A_b(1−A_b)/(n_b−1), what noise alone adds to the squared error; bins of fewer than 2 give 0."""
        counted = self.weight >= 2
        accuracy = self.correct / np.where(counted, self.weight, 1.0)
        noise = np.where(counted, accuracy * (1 - accuracy) / np.where(counted, self.weight - 1, 1.0), 0.0)
        return (self.weight * noise).sum(axis=-1) / self.weight.sum(axis=-1)

    def norm(self, p: float) -> np.ndarray:
        """(Σ_b (n_b/n)·|A_b − C_b|^p)^(1/p), over the last axis."""
        if p == 1:
            return total_gap(self.excess)
        gap = np.abs(self.gap)
        if np.isinf(p):
            return np.where(self.weight > 0, gap, 0.0).max(axis=-1)
        share = self.weight / self.weight.sum(axis=-1, keepdims=True)
        return (share * gap**p).sum(axis=-1) ** (1 / p)
