"""Random calibration problems at the edges of what is allowed: ties, zeros, extreme sizes, weights, absent classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Problem:
    """Logits (n×K), labels (n,) and weights (n,) or None, with a line that describes them."""

    seed: int
    logits: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None
    words: str

    @property
    def wide(self) -> np.ndarray:
        """The same logits in float64."""
        return self.logits.astype(np.float64)

    @property
    def mass(self) -> np.ndarray:
        """Weights, of one where there are none."""
        return np.ones(len(self.labels)) if self.weights is None else self.weights


def draw(seed: int) -> Problem:
    """Problem number `seed`."""
    rng = np.random.default_rng(seed)
    n_classes, n = int(rng.integers(2, 6)), int(rng.choice([6, 20, 40, 80]))
    labels = rng.integers(0, n_classes, n)
    if rng.random() < 0.15:
        labels = np.minimum(labels, max(1, n_classes - 2))  # the last class is absent
    logits = rng.normal(size=(n, n_classes)) + rng.choice([0.0, 1.0, 3.0]) * np.eye(n_classes)[labels]
    kind = rng.choice(["plain", "opposed", "tied", "offset", "large", "small", "columns", "signed zeros", "zeros"])
    if kind == "opposed":
        logits += 2 * rng.choice([-1, 1], n_classes) * np.eye(n_classes)[labels]
    elif kind == "tied":
        logits = np.round(logits)
    elif kind == "offset":
        logits += 100 * rng.normal(size=(n, 1))
    elif kind == "large":
        logits *= 10 ** rng.uniform(1, 4)
    elif kind == "small":
        logits *= 10 ** rng.uniform(-3, -1)  # smaller ones lose their digits in float32 log-probabilities
    elif kind == "columns":
        logits *= 10 ** rng.uniform(-2, 2, n_classes)
    elif kind == "signed zeros":
        logits = np.round(logits / 2) * rng.choice([-1.0, 1.0], logits.shape) * 0.0 + np.round(logits / 2)
    elif kind == "zeros":
        peak = logits.max(axis=1, keepdims=True)
        logits = np.where((rng.random(logits.shape) < 0.3) & (logits < peak), -np.inf, logits)
    dtype = rng.choice(["float32", "float64"])
    weighting = rng.choice(["none", "counts", "fractions", "some zero"])
    weights = {
        "none": None,
        "counts": rng.integers(1, 4, n).astype(float),
        "fractions": rng.uniform(0.3, 3, n),
        "some zero": np.where(np.arange(n) % 3 == 0, 0.0, rng.integers(1, 3, n)).astype(float),
    }[weighting]
    return Problem(seed, logits.astype(dtype), labels, weights, f"n={n} K={n_classes} {kind} {dtype} {weighting}")
