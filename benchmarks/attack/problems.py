"""Random calibration problems at the edges of what is allowed: ties, zeros, extreme sizes, weights, absent classes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Problem:
    """Logits (n×K, or (n,) of one score), labels and weights (n,) or None, with a line that describes them."""

    seed: int
    logits: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None
    words: str
    task: str = "multiclass"
    groups: np.ndarray | None = None

    @property
    def wide(self) -> np.ndarray:
        """The same logits in float64."""
        return self.logits.astype(np.float64)

    @property
    def mass(self) -> np.ndarray:
        """Weights, of one where there are none."""
        return np.ones(len(self.labels)) if self.weights is None else self.weights

    @property
    def tied_tops(self) -> bool:
        """Whether the order of the classes decides a prediction: the first of equal maxima is predicted."""
        if self.task == "binary":
            return False
        given = self.logits if self.task == "multiclass" else np.column_stack([self.logits, self.labels])
        return bool(((given == given.max(axis=1, keepdims=True)).sum(axis=1) > 1).any())

    def rows(self, chosen: np.ndarray) -> Problem:
        """The problem of some rows, in this order."""
        weights = None if self.weights is None else self.weights[chosen]
        groups = None if self.groups is None else self.groups[chosen]
        return replace(self, logits=self.logits[chosen], labels=self.labels[chosen], weights=weights, groups=groups)

    def without_weights(self) -> Problem:
        """Every row once."""
        return replace(self, weights=None)

    def with_logits(self, logits: np.ndarray) -> Problem:
        """Other logits."""
        return replace(self, logits=logits)

    def with_labels(self, labels: np.ndarray) -> Problem:
        """Other labels."""
        return replace(self, labels=labels)


def draw(seed: int) -> Problem:
    """Problem number `seed` of several classes."""
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
    weights, weighting = draw_weights(rng, n)
    return Problem(seed, logits.astype(dtype), labels, weights, f"n={n} K={n_classes} {kind} {dtype} {weighting}")


def draw_weights(rng: np.random.Generator, n: int) -> tuple[np.ndarray | None, str]:
    """Weights (n,) or None, and what they are called."""
    weighting = str(rng.choice(["none", "counts", "fractions", "some zero"]))
    weights = {
        "none": None,
        "counts": rng.integers(1, 4, n).astype(float),
        "fractions": rng.uniform(0.3, 3, n),
        "some zero": np.where(np.arange(n) % 3 == 0, 0.0, rng.integers(1, 3, n)).astype(float),
    }[weighting]
    return weights, weighting


SCORE_KINDS = ("plain", "steep", "opposed", "tied", "constant", "large", "small", "shifted", "zeros", "separable")


def draw_scores(seed: int) -> Problem:
    """Problem number `seed` with one score per row and labels 0 and 1."""
    rng = np.random.default_rng([seed, 1])
    n = int(rng.choice([6, 20, 60, 120]))
    scores = rng.normal(size=n) * rng.choice([0.5, 2.0])
    kind = str(rng.choice(SCORE_KINDS))
    slope = {"opposed": -1.0, "steep": 3.0}.get(kind, 1.0)
    labels = (rng.random(n) < 1 / (1 + np.exp(-slope * scores))).astype(np.int64)
    if kind == "tied":
        scores = np.round(scores)
    elif kind == "constant":
        scores = np.full(n, scores[0])
    elif kind == "large":
        scores *= 10 ** rng.uniform(1, 3)
    elif kind == "small":
        scores *= 10 ** rng.uniform(-3, -1)
    elif kind == "shifted":
        scores += rng.choice([-8.0, 8.0])
    elif kind == "zeros":
        scores = np.where(rng.random(n) < 0.2, rng.choice([-np.inf, np.inf], n), scores)
        scores[0] = 0.3
    elif kind == "separable":
        labels = (scores > np.median(scores)).astype(np.int64)
    dtype = rng.choice(["float32", "float64"])
    weights, weighting = draw_weights(rng, n)
    return Problem(
        seed, scores.astype(dtype), labels, weights, f"one score, n={n} {kind} {dtype} {weighting}", "binary"
    )


def draw_labels(seed: int) -> Problem:
    """Problem number `seed` of several labels, each with a score of its own; one label may have few positives."""
    rng = np.random.default_rng([seed, 2])
    n, n_labels = int(rng.choice([20, 60])), int(rng.integers(1, 5))
    scores = 2 * rng.normal(size=(n, n_labels)) - rng.uniform(0, 2, n_labels)
    labels = (rng.random(scores.shape) < 1 / (1 + np.exp(-scores / 1.5))).astype(np.int64)
    kind = str(rng.choice(["plain", "tied", "zeros", "rare"]))
    if kind == "tied":
        scores = np.round(scores)
    elif kind == "zeros":
        scores = np.where(rng.random(scores.shape) < 0.1, -np.inf, scores)
        scores[0] = 0.3
    elif kind == "rare":
        labels[3:, 0] = 0
    dtype = rng.choice(["float32", "float64"])
    weights, weighting = draw_weights(rng, n)
    words = f"labels, n={n} L={n_labels} {kind} {dtype} {weighting}"
    return Problem(seed, scores.astype(dtype), labels, weights, words, "multilabel")


def with_groups(problem: Problem) -> Problem:
    """The same problem, its rows in up to three groups."""
    groups = np.random.default_rng([problem.seed, 3]).choice(["a", "b", "c"], len(problem.logits))
    return replace(problem, groups=groups, words=f"{problem.words}, groups")
