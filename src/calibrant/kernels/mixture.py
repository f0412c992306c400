"""Sums over rows for a mixture of softmax(β·z), softmax(z) and the uniform distribution."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.core.softmax import softmax
from calibrant.core.statistic import statistic
from calibrant.core.threads import row_blocks

BLOCK_ELEMENTS = 1 << 16


@statistic
def mixture_nll(
    logits: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None,
    inverse_temperature: float,
    shares: np.ndarray,
) -> tuple[float, np.ndarray, np.ndarray]:
    """Σ w·(−log m) with m = shares·(p_β(y), p_1(y), 1/K), its gradient (3,) and Hessian (3×3) by the shares."""
    loss, gradient, hessian = 0.0, np.zeros(3), np.zeros((3, 3))
    for block in row_blocks(len(logits), logits.shape[1], BLOCK_ELEMENTS):
        sharp, plain = _components(logits[block], inverse_temperature)
        each = np.arange(len(plain))
        columns = np.stack(
            [sharp[each, labels[block]], plain[each, labels[block]], np.full(len(plain), 1 / logits.shape[1])]
        )
        part = mixed_sums(columns, None if weights is None else weights[block], shares)
        loss, gradient, hessian = loss + part[0], gradient + part[1], hessian + part[2]
    return loss, gradient, hessian


@mixture_nll.on_device
def _(rows: Any, beta: float, shares: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    from calibrant.kernels.torch.row_passes import label_shares

    # the probabilities of the labels are the same at every point of the search
    columns = [rows.remembered(("label shares", b), lambda b=b: label_shares(rows, b)) for b in (beta, 1.0)]
    columns.append(np.full(rows.n, 1 / rows.n_classes))
    return mixed_sums(np.stack(columns), rows.weights, shares)


def mixed_sums(
    columns: np.ndarray, weights: np.ndarray | None, shares: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """`mixture_nll` from the three components' probabilities of the label (3×n)."""
    mixed = np.maximum(shares @ columns, np.finfo(np.float64).tiny)
    weight = np.ones(len(mixed)) if weights is None else weights
    ratios = columns / mixed
    return -float(weight @ np.log(mixed)), -(ratios @ weight), (ratios * weight) @ ratios.T


@statistic
def mixture_squares(
    logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, inverse_temperature: float
) -> tuple[np.ndarray, np.ndarray]:
    """Σ w·⟨p_k, p_l⟩ (3×3) and Σ w·p_k(y) (3,) of the three components: all that the squared error needs."""
    n_classes = logits.shape[1]
    gram, hits = np.zeros((3, 3)), np.zeros(3)
    for block in row_blocks(len(logits), n_classes, BLOCK_ELEMENTS):
        sharp, plain = _components(logits[block], inverse_temperature)
        each = np.arange(len(plain))
        weight = np.ones(len(plain)) if weights is None else weights[block]
        total = weight.sum()
        gram[0, 0] += np.einsum("i,ij,ij->", weight, sharp, sharp, optimize=True)
        gram[1, 1] += np.einsum("i,ij,ij->", weight, plain, plain, optimize=True)
        gram[0, 1] += np.einsum("i,ij,ij->", weight, sharp, plain, optimize=True)
        gram[[0, 1, 2], 2] += total / n_classes
        hits += [weight @ sharp[each, labels[block]], weight @ plain[each, labels[block]], total / n_classes]
    gram[1, 0], gram[2, 0], gram[2, 1] = gram[0, 1], gram[0, 2], gram[1, 2]
    return gram, hits


@mixture_squares.on_device
def _(rows: Any, beta: float) -> tuple[np.ndarray, np.ndarray]:
    from calibrant.kernels.torch.row_passes import mixture_products

    sharp, plain, both, own_sharp, own_plain, total = mixture_products(rows, beta)
    flat = total / rows.n_classes
    return np.array([[sharp, both, flat], [both, plain, flat], [flat] * 3]), np.array([own_sharp, own_plain, flat])


def _components(logits: np.ndarray, inverse_temperature: float) -> tuple[np.ndarray, np.ndarray]:
    values = logits.astype(np.float64, copy=False)
    return softmax(inverse_temperature * values), softmax(values)
