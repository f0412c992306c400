"""Sums over rows for the likelihood fits of W·z + b: products of tall matrices, left to BLAS.

Each function is a statistic for `Rows.total`. Products run in the precision of the logits, sums of losses in float64.
With `log_probabilities` the features are log softmax(z) instead of z.
"""

from __future__ import annotations

import numpy as np

from calibrant.core.softmax import log_softmax
from calibrant.core.statistic import statistic
from calibrant.core.threads import row_blocks

BLOCK_ELEMENTS = 1 << 18


@statistic
def affine_sums(
    logits: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None,
    parameters: np.ndarray,
    log_probabilities: bool,
) -> tuple[float, np.ndarray, np.ndarray]:
    """Σ w·NLL of softmax(W·x + b), its gradient by (W | b), K×(K+1), and Σ w·q(1−q) of each class (K,)."""
    loss, gradient, spread = 0.0, np.zeros(parameters.shape), np.zeros(len(parameters))
    for block in row_blocks(len(logits), logits.shape[1], BLOCK_ELEMENTS):
        features, true = _features(logits[block], log_probabilities), labels[block]
        weight = np.ones(len(true)) if weights is None else weights[block]
        probabilities, losses = _softmax_and_losses(features, true, parameters)
        loss += float(weight @ losses)
        if weights is not None:
            spread += np.einsum("i,ij,ij->j", weight, probabilities, 1 - probabilities)
            probabilities[np.arange(len(true)), true] -= 1
            probabilities *= weight[:, None].astype(probabilities.dtype)
        else:
            spread += probabilities.sum(axis=0) - np.einsum("ij,ij->j", probabilities, probabilities)
            probabilities[np.arange(len(true)), true] -= 1
        gradient[:, :-1] += probabilities.T @ features
        gradient[:, -1] += probabilities.sum(axis=0, dtype=np.float64)
    return loss, gradient, spread


def affine_state(
    features: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, parameters: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    """The results of `affine_sums` over one block of features, and its probabilities (n×K)."""
    every = np.arange(len(labels))
    weight = np.ones(len(labels)) if weights is None else weights
    probabilities, losses = _softmax_and_losses(features, labels, parameters)
    share = probabilities if weights is None else probabilities * weight[:, None].astype(probabilities.dtype)
    spread = share.sum(axis=0, dtype=np.float64) - np.einsum("ij,ij->j", share, probabilities, dtype=np.float64)
    residual = share.copy() if share is probabilities else share
    residual[every, labels] -= weight.astype(residual.dtype)
    gradient = np.empty(parameters.shape)
    gradient[:, :-1] = residual.T @ features
    gradient[:, -1] = residual.sum(axis=0, dtype=np.float64)
    return float(weight @ losses), gradient, spread, probabilities


def affine_curvature(
    features: np.ndarray, weights: np.ndarray | None, probabilities: np.ndarray, direction: np.ndarray
) -> np.ndarray:
    """The result of `affine_product` over one block of features whose probabilities are known."""
    change = _scores(features, direction)
    change -= np.einsum("ij,ij->i", probabilities, change)[:, None]
    change *= probabilities
    if weights is not None:
        change *= weights[:, None].astype(change.dtype)
    product = np.empty(direction.shape)
    product[:, :-1] = change.T @ features
    product[:, -1] = change.sum(axis=0)
    return product


@statistic
def affine_product(  # noqa: PLR0917 (a statistic takes its parameters by position)
    logits: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None,
    parameters: np.ndarray,
    log_probabilities: bool,
    direction: np.ndarray,
) -> tuple[np.ndarray]:
    """The Hessian of `affine_sums` times a direction, both K×(K+1)."""
    product = np.zeros(parameters.shape)
    for block in row_blocks(len(logits), logits.shape[1], BLOCK_ELEMENTS):
        features = _features(logits[block], log_probabilities)
        probabilities, _ = _softmax_and_losses(features, labels[block], parameters)
        change = _scores(features, direction)
        change -= np.einsum("ij,ij->i", probabilities, change)[:, None]
        change *= probabilities
        if weights is not None:
            change *= weights[block, None].astype(change.dtype)
        product[:, :-1] += change.T @ features
        product[:, -1] += change.sum(axis=0)
    return (product,)


@statistic
def class_moments(
    logits: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None,
    parameters: np.ndarray,
    log_probabilities: bool,
) -> tuple[np.ndarray]:
    """Σ w·q_j(1−q_j)·x̃·x̃ᵀ for each class j, K×(K+1)×(K+1): the classes' own blocks of the Hessian.

    Rows that are certain about a class count with the average x̃·x̃ᵀ: the blocks only steer a solver.
    """
    n_classes = logits.shape[1]
    blocks = np.zeros((n_classes, n_classes + 1, n_classes + 1))
    for block in row_blocks(len(logits), n_classes, 8 * BLOCK_ELEMENTS):
        features = _features(logits[block], log_probabilities)
        probabilities, _ = _softmax_and_losses(features, labels[block], parameters)
        probabilities *= 1 - probabilities
        if weights is not None:
            probabilities *= weights[block, None].astype(probabilities.dtype)
        features = np.concatenate([features, np.ones((len(features), 1), features.dtype)], axis=1)
        average = features.T @ features / len(features)
        for j in range(n_classes):
            spread = probabilities[:, j]
            matters = np.flatnonzero(spread > 1e-3)
            chosen = features[matters]
            blocks[j] += chosen.T @ (chosen * spread[matters, None])
            blocks[j] += (spread.sum() - spread[matters].sum()) * average
    return (blocks,)


@statistic
def class_means(
    logits: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None,
    parameters: np.ndarray,
    log_probabilities: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Σ w·q_j(1−q_j) (K,), and with it Σ x_k and Σ x_k², both K×K: the classes' own curvature without correlations."""
    features = _features(logits, log_probabilities)
    probabilities, _ = _softmax_and_losses(features, labels, parameters)
    return class_means_of(features, weights, probabilities)


def class_means_of(
    features: np.ndarray, weights: np.ndarray | None, probabilities: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`class_means` of features whose probabilities are known."""
    spread = probabilities * (1 - probabilities)
    if weights is not None:
        spread *= weights[:, None].astype(spread.dtype)
    return spread.sum(axis=0, dtype=np.float64), (spread.T @ features).astype(np.float64), spread.T @ features**2


def _features(logits: np.ndarray, log_probabilities: bool) -> np.ndarray:
    return log_softmax(logits) if log_probabilities else logits


def _scores(features: np.ndarray, parameters: np.ndarray) -> np.ndarray:
    parameters = parameters.astype(features.dtype, copy=False)
    scores = features @ parameters[:, :-1].T
    scores += parameters[:, -1]
    return scores


def _softmax_and_losses(
    features: np.ndarray, labels: np.ndarray, parameters: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    scores = _scores(features, parameters)
    scores -= scores.max(axis=1, keepdims=True)
    true = scores[np.arange(len(labels)), labels]
    np.exp(scores, out=scores)
    mass = scores.sum(axis=1, keepdims=True)
    scores /= mass
    return scores, np.log(mass[:, 0], dtype=np.float64) - true
