"""Sums over rows for a mixture of softmax(β·z), softmax(z) and the uniform distribution."""

from typing import Any

import numpy as np
from array_api_compat import array_namespace

from calibrant.core.arrays import Array
from calibrant.core.statistic import statistic_with
from calibrant.kernels.affine import every, mass_of, softmax_and_losses

BLOCK_ELEMENTS = 1 << 16


@statistic_with(array_elements=BLOCK_ELEMENTS)
def mixture_nll(
    logits: Any, labels: Any, weights: Any, inverse_temperature: float, shares: Array
) -> tuple[float, Array, Array]:
    """Σ w·(−log m) with m = shares·(p_β(y), p_1(y), 1/K), its gradient (3,) and Hessian (3×3) by the shares."""
    columns = [np.exp(-softmax_and_losses(beta * logits, labels)[1]) for beta in (inverse_temperature, 1.0)]
    return mixed_sums(np.stack([*columns, np.full(len(logits), 1 / logits.shape[1])]), weights, shares)


@mixture_nll.on_device
def _(rows: Any, beta: float, shares: Array) -> tuple[float, Array, Array]:
    # the probabilities of the labels are the same at every point of the search
    columns = [*map(rows.label_shares, (beta, 1.0)), np.full(rows.n, 1 / rows.n_classes)]
    return mixed_sums(np.stack(columns), rows.weights, shares)


def mixed_sums(columns: Array, weights: Array | None, shares: Array) -> tuple[float, Array, Array]:
    """`mixture_nll` from the three components' probabilities of the label (3×n)."""
    mixed = np.maximum(shares @ columns, np.finfo(np.float64).tiny)
    weight = np.ones(len(mixed)) if weights is None else weights
    ratios = columns / mixed
    return -float(weight @ np.log(mixed)), -(ratios @ weight), (ratios * weight) @ ratios.T


@statistic_with(array_elements=BLOCK_ELEMENTS)
def mixture_squares(logits: Any, labels: Any, weights: Any, inverse_temperature: float) -> tuple[Any, Any]:
    """Σ w·⟨p_k, p_l⟩ (3×3) and Σ w·p_k(y) (3,) of the three components: all that the squared error needs."""
    xp, weight = array_namespace(logits), mass_of(logits, weights)
    sharp, plain = (softmax_and_losses(beta * logits, labels)[0] for beta in (inverse_temperature, 1.0))
    pairs = [weight @ xp.sum(one * other, axis=1) for one, other in ((sharp, sharp), (sharp, plain), (plain, plain))]
    flat, each = xp.sum(weight) / logits.shape[1], every(labels)
    gram = xp.stack([*pairs[:2], flat, *pairs[1:], flat, flat, flat, flat])
    return xp.reshape(gram, (3, 3)), xp.stack([weight @ sharp[each, labels], weight @ plain[each, labels], flat])
