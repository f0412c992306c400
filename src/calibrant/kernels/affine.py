"""Sums over rows for likelihoods whose scores are linear in a matrix of parameters: tall products, left to BLAS.

A row has features (shared, own): `shared` (n×S) is read by every class with its own weights, each of `own` (n×K) only
by the class of its column. A point is K×M with M = S + len(own) + 1, and class j scores

    u_j = Σ_s shared_s·θ_js + Σ_m own_m(j)·θ_j,S+m + θ_j,−1.

Products run in the precision of the features, sums of losses in float64.
"""

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device

from calibrant.core.arrays import Array
from calibrant.core.statistic import add, statistic
from calibrant.core.threads import row_blocks

BLOCK_ELEMENTS = 1 << 18

MATTERS = 1e-3
"""Rows in which a class has less spread q(1 − q) than this count with the average row in its block."""


class Features(NamedTuple):
    """What the parameters of a row's scores are multiplied with; a 1 for the biases comes last."""

    shared: Any
    own: tuple[Any, ...] = ()

    @property
    def n_columns(self) -> int:
        """M: how many parameters a class has."""
        return self.shared.shape[1] + len(self.own) + 1

    def of_class(self, j: int) -> Array:
        """All that class j reads, n×M."""
        ones = np.ones((len(self.shared), 1), self.shared.dtype)
        return np.concatenate([self.shared, *(column[:, j : j + 1] for column in self.own), ones], axis=1)


MakeFeatures = Callable[[np.ndarray], Features]
"""Logits (n×K) → features; it must be possible to send it to a process."""


def scores_of(x: Features, point: Any) -> Any:
    """Scores (n×K) of features at a point (K×M)."""
    size = x.shared.shape[1]
    point = point.astype(x.shared.dtype, copy=False)
    scores = x.shared @ point[:, :size].T
    for place, column in enumerate(x.own):
        scores += column * point[:, size + place]
    scores += point[:, -1]
    return scores


def contract(x: Features, residual: Array, weights: Array | None) -> Array:
    """The gradient by the parameters (K×M) from that by the scores (n×K) of rows with these weights."""
    if weights is not None:
        residual = residual * weights[:, None].astype(residual.dtype)
    size = x.shared.shape[1]
    result = np.empty((residual.shape[1], x.n_columns))
    result[:, :size] = residual.T @ x.shared
    for place, column in enumerate(x.own):
        result[:, size + place] = np.einsum("ij,ij->j", residual, column)
    result[:, -1] = residual.T @ np.ones(len(residual), residual.dtype)
    return result


def sums_at(x: Features, labels: Array, weights: Array | None, point: Array) -> tuple[float, Array, Array]:
    """Σ w·NLL, its gradient (K×M), and the probabilities (n×K)."""
    probabilities, losses = softmax_and_losses(scores_of(x, point), labels)
    residual = probabilities.copy()
    residual[np.arange(len(labels)), labels] -= 1
    loss = losses.sum() if weights is None else weights @ losses
    return float(loss), contract(x, residual, weights), probabilities


def product_at(x: Features, weights: Array | None, probabilities: Array, direction: Array) -> tuple[Array]:
    """The Hessian of `sums_at` times a direction, both K×M."""
    change = scores_of(x, direction)
    change -= np.einsum("ij,ij->i", probabilities, change)[:, None]
    return (contract(x, change * probabilities, weights),)


def blocks_at(x: Features, weights: Array | None, probabilities: Array) -> tuple[Array]:
    """Σ w·q_j(1−q_j)·x̃·x̃ᵀ of each class j, K×M×M: the Hessian without the coupling of classes.

    Rows that are certain about a class count with the average x̃·x̃ᵀ: the blocks only steer a solver.
    """
    spread = probabilities * (1 - probabilities)
    if weights is not None:
        spread *= weights[:, None].astype(spread.dtype)
    n_classes, size = spread.shape[1], x.n_columns
    blocks = np.empty((n_classes, size, size))
    common = None if x.own else x.of_class(0)
    for j in range(n_classes):
        mine, own = spread[:, j], x.of_class(j) if common is None else common
        matters = np.flatnonzero(mine > MATTERS)
        chosen, rest = own[matters], mine.sum() - mine[matters].sum()
        if j == 0 or common is None:
            average = own.T @ own / len(own)
        blocks[j] = chosen.T @ (chosen * mine[matters, None]) + rest * average
    return (blocks,)


def means_at(x: Features, weights: Array | None, probabilities: Array) -> tuple[Array, ...]:
    """Σ w·q_j(1−q_j)·x̃ and the same of x̃² (K×M): the classes' own curvature without correlations."""
    spread = probabilities * (1 - probabilities)
    squares = Features(x.shared**2, tuple(column**2 for column in x.own))
    return contract(x, spread, weights), contract(squares, spread, weights)


@statistic
def affine_sums(
    logits: Array, labels: Array, weights: Array | None, make: MakeFeatures, point: Array
) -> tuple[float, Array]:
    """Loss and gradient of `sums_at` over blocks: a statistic for `Rows.total`."""
    parts = _blocks(logits, labels, weights, make)
    return reduce(add, (sums_at(*part, point)[:2] for part in parts))


@statistic
def affine_curvature(  # noqa: PLR0917
    logits: Array,
    labels: Array,
    weights: Array | None,
    make: MakeFeatures,
    point: Array,
    curve: Callable[..., tuple[Array, ...]],
    *parameters: Array,
) -> tuple[Array, ...]:
    """`product_at`, `blocks_at` or `means_at` over blocks whose probabilities are computed anew."""
    return reduce(
        add,
        (
            curve(x, weight, softmax_and_losses(scores_of(x, point), true)[0], *parameters)
            for x, true, weight in _blocks(logits, labels, weights, make)
        ),
    )


def _blocks(
    logits: Array, labels: Array, weights: Array | None, make: MakeFeatures
) -> Iterator[tuple[Features, Array, Array | None]]:
    """Features, labels and weights of blocks of rows."""
    for block in row_blocks(len(logits), logits.shape[1], BLOCK_ELEMENTS):
        yield make(logits[block]), labels[block], None if weights is None else weights[block]


def softmax_and_losses(scores: Any, labels: Any) -> tuple[Any, Any]:
    """The softmax of scores (n×K), which are overwritten, and −log of the label's share (n,); arrays or tensors."""
    xp, each = array_namespace(scores), every(labels)
    scores -= scores[each, scores.argmax(-1)][:, None]
    true = scores[each, labels]
    shares = xp.exp(scores)
    mass = xp.sum(shares, axis=1, keepdims=True)
    shares /= mass
    return shares, xp.log(xp.astype(mass[:, 0], xp.float64)) - true


def below_peak(values: Any) -> Any:
    """Values minus the largest of their row, found by its place as in `core.softmax.row_peak`; arrays or tensors."""
    return values - values[every(values), values.argmax(-1)][:, None]


def every(values: Any) -> Any:
    """0, 1, … n − 1, where the n labels or rows are."""
    return array_namespace(values).arange(values.shape[0], device=device(values))


def mass_of(logits: Any, weights: Any) -> Any:
    """The weight of each row (n,): 1 where there are none."""
    return array_namespace(logits).ones_like(logits[:, 0]) if weights is None else weights
