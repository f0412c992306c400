"""The network of parameterized temperature scaling: forward, loss and gradient as sums over rows.

A hundred weights over ten features need no framework: written out in numpy the fit reads its data block by block,
in memory or out of it, and gives the same bits for the same seed.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from calibrant.core.statistic import statistic

LOWEST_TEMPERATURE = 1e-3
"""|MLP| may pass through 0; a temperature may not."""


class Problem(NamedTuple):
    """What stays the same while the weights change."""

    sizes: tuple[int, ...]
    feature_mean: np.ndarray
    feature_scale: np.ndarray
    loss: str
    hash_vector: np.ndarray
    held_out_share: float


def top_logits(logits: np.ndarray, k: int) -> np.ndarray:
    """The k largest logits of each row, largest first, in float64 (n×k)."""
    n_classes = logits.shape[1]
    top = logits if k == n_classes else np.partition(logits, n_classes - k, axis=1)[:, n_classes - k :]
    return np.sort(top, axis=1)[:, ::-1].astype(np.float64)


@statistic
def feature_moments(
    logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, k: int
) -> tuple[float, np.ndarray, np.ndarray]:
    """Total weight, and the weighted sums of the features and of their squares."""
    features = top_logits(logits, k)
    mass = np.ones(len(features)) if weights is None else weights
    return float(mass.sum()), mass @ features, mass @ features**2


def unpack(flat: np.ndarray, sizes: tuple[int, ...]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Matrices and vectors of the layers from one flat vector."""
    weights, biases, at = [], [], 0
    for before, after in pairwise(sizes):
        weights.append(flat[at : at + before * after].reshape(before, after).copy())
        at += before * after
        biases.append(flat[at : at + after].copy())
        at += after
    return weights, biases


def pack(weights: list[np.ndarray], biases: list[np.ndarray]) -> np.ndarray:
    """One flat vector of the layers' matrices and vectors."""
    return np.concatenate([part.ravel() for layer in zip(weights, biases, strict=True) for part in layer])


def start(sizes: tuple[int, ...], temperature: float, generator: np.random.Generator) -> np.ndarray:
    """Random hidden layers under a last layer that answers about `temperature` for every row."""
    parts = []
    for place, (before, after) in enumerate(pairwise(sizes)):
        last = place == len(sizes) - 2
        size = 0.01 * temperature if last else 1 / np.sqrt(before)
        parts += [generator.normal(scale=size, size=before * after), np.full(after, temperature if last else 0.0)]
    return np.concatenate(parts)


@statistic
def evaluate(
    logits: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None,
    *parameters: Any,
) -> tuple[float, np.ndarray, float, float, float]:
    """Loss, gradient and weight of the rows that train, loss and weight of the rows held out.

    `parameters` are the flat weights and the `Problem` they are weights of.
    """
    flat, problem = parameters
    features = top_logits(logits, problem.sizes[0])
    mass = np.ones(len(labels)) if weights is None else weights
    held_out = _hash(features @ problem.hash_vector) < problem.held_out_share
    layer_weights, layer_biases = unpack(flat, problem.sizes)
    activations = [(features - problem.feature_mean) / problem.feature_scale]
    for weight, bias in zip(layer_weights[:-1], layer_biases[:-1], strict=True):
        activations.append(np.tanh(activations[-1] @ weight + bias))
    output = (activations[-1] @ layer_weights[-1] + layer_biases[-1])[:, 0]
    temperature = np.maximum(np.abs(output), LOWEST_TEMPERATURE)
    losses, slopes = _loss_and_slope(logits, labels, temperature, problem.loss)
    # dL/dT·dT/d(output); rows at the floor or held out pull nothing
    pull = mass * slopes * np.where(np.abs(output) > LOWEST_TEMPERATURE, np.sign(output), 0.0) * ~held_out
    gradient = _backward(pull[:, None], activations, layer_weights)
    kept = mass * ~held_out
    return float(kept @ losses), gradient, float(kept.sum()), float((mass - kept) @ losses), float((mass - kept).sum())


def _loss_and_slope(
    logits: np.ndarray, labels: np.ndarray, temperature: np.ndarray, loss: str
) -> tuple[np.ndarray, np.ndarray]:
    """Each row's loss and its derivative in T."""
    place = np.arange(len(labels))
    shifted = logits - logits.max(axis=1, keepdims=True).astype(np.float64)
    p = np.exp(shifted / temperature[:, None])
    total = p.sum(axis=1)
    p /= total[:, None]
    mean = (p * shifted).sum(axis=1)
    own = shifted[place, labels]
    if loss == "nll":
        return np.log(total) - own / temperature, (own - mean) / temperature**2
    own_p = p[place, labels]
    losses = (p**2).sum(axis=1) - 2 * own_p + 1
    in_scale = 2 * ((p**2 * (shifted - mean[:, None])).sum(axis=1) - own_p * (own - mean))
    return losses, -in_scale / temperature**2


def _backward(pull: np.ndarray, activations: list[np.ndarray], weights: list[np.ndarray]) -> np.ndarray:
    parts: list[np.ndarray] = []
    for place in range(len(weights) - 1, -1, -1):
        parts = [(activations[place].T @ pull).ravel(), pull.sum(axis=0), *parts]
        if place:
            pull = (pull @ weights[place].T) * (1 - activations[place] ** 2)
    return np.concatenate(parts)


def _hash(values: np.ndarray) -> np.ndarray:
    """A number in [0, 1) that equal rows share, wherever they stand, and similar rows do not."""
    return np.modf(np.abs(np.sin(values) * 43758.5453))[0]
