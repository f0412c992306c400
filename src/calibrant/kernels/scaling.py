"""Scaled logits: the sums over rows that their likelihood fits need, and the scaled logits themselves.

The fits are of one temperature, of a scale and bias per class, and of a mixture of softmax(β·z), softmax(z) and the
uniform distribution. Each statistic gives loss, gradient and curvature in one pass over the rows, as sums, never means,
in float64 whatever the dtype of the logits.
"""

from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from calibrant.core.arrays import Array
from calibrant.core.softmax import row_peak
from calibrant.core.statistic import kernel, statistic, statistic_with
from calibrant.core.threads import map_blocks, row_blocks
from calibrant.kernels.affine import below_peak, every, mass_of, softmax_and_losses

CACHE_ELEMENTS = 1 << 15
"""Elements handled at a time: the temporaries of a pass stay in the second-level cache."""

PASS_ELEMENTS = 1 << 18
"""Elements of a temperature pass that are handled at a time: fewer calls are worth more than a nearer cache."""

SHORT_ROW = 64
"""Up to so many classes a copy that lies in memory class by class is worth its time."""

NARROW_ELEMENTS = 1 << 15
"""From here on the rounding of float32 exponentials averages out; fewer are taken in float64."""


@statistic_with(compiled_in="calibrant.kernels.compiled.scaling", shows_bad_values=5)
def temperature_sums(
    logits: Array, labels: Array, weights: Array | None, inverse_temperature: float
) -> tuple[float, ...]:
    """Σ w·NLL of softmax(β·z), and its first four derivatives by β = 1/T, the k-th times β^k.

    Exponentials have the precision of the logits, unless there are so few that their rounding would not average out.
    """
    totals, dtype = np.zeros(5), np.dtype(np.float64) if logits.size < NARROW_ELEMENTS else logits.dtype
    for block in row_blocks(len(logits), logits.shape[1], PASS_ELEMENTS):
        values, true = logits[block].astype(dtype, copy=False), labels[block]
        with np.errstate(over="ignore", invalid="ignore"):
            # a class is a row of `scaled`. Where K is small these are copies, so that numpy's loops run along the
            # samples: along short rows its `max` takes ten times as long
            if logits.shape[1] <= SHORT_ROW:
                columns = np.ascontiguousarray(values.T)
                scaled = columns - columns.max(axis=0)
            else:
                scaled = (values - row_peak(values)).T
            scaled *= dtype.type(inverse_temperature)
            rows = loss_derivatives(scaled, scaled[true, np.arange(len(true))])
            totals += rows.sum(axis=1) if weights is None else rows @ weights[block]
    if logits.dtype == np.float32 and not np.isfinite(totals).all():
        # the gap of two finite logits may exceed float32
        return temperature_sums(logits.astype(np.float64), labels, weights, inverse_temperature)
    return tuple(totals.tolist())


def loss_derivatives(scaled: Any, true: Any) -> Any:
    """What `temperature_sums` adds up of each row (5×n), from x = β·(z − peak), K×n, and that of the label (n,).

    With E the mean under softmax(x): the loss of a row is log Σ exp(x) − x_y, its derivatives are E[x] − x_y and the
    second to fourth cumulant of x. Arrays or tensors.
    """
    xp = array_namespace(scaled)
    sums = xp.astype(_power_sums(xp.exp(scaled), scaled), xp.float64, copy=False)
    found = sums / sums[0, :]
    _, mean, second, third, fourth = found
    square = mean * mean
    skew = third - mean * (3 * second - 2 * square)
    found[4, :] = fourth - 4 * mean * skew - (3 * second * second - 2 * square * square)
    found[3, :], found[2, :] = skew, xp.maximum(second, square) - square
    found[1, :], found[0, :] = mean - true, xp.log(sums[0, :]) - true
    return found


def _power_sums(weighted: Any, factor: Any) -> Any:
    """Σ_j weighted_j·factor_j^k of each column, k = 0 … 4, of K×n as 5×n; `weighted` is overwritten."""
    xp = array_namespace(factor)
    # a product with ones is a sum by BLAS, four times as fast as `sum`
    ones = xp.ones_like(factor[:, 0])
    sums = xp.empty((5, factor.shape[1]), dtype=factor.dtype, device=device(factor))
    sums[0, :] = ones @ weighted
    for k in range(1, 5):
        weighted *= factor
        sums[k, :] = ones @ weighted
    return sums


INVERSE_TEMPERATURES = 2.0 ** np.arange(-9.0, 9.0, 0.5)
"""1/T from 1/512 to 362 in steps of half an octave: every second one is twice as large."""


@statistic_with(array_elements=CACHE_ELEMENTS)
def temperature_losses(logits: Any, labels: Any, weights: Any) -> tuple[Any, Any]:
    """Σ w·log Σ_j exp(β·(z_j − peak)) at each of `INVERSE_TEMPERATURES`, and Σ w·(peak − z_y).

    Squaring exp(β·x) gives exp(2β·x), so that 36 temperatures take two exponentials per logit.
    """
    xp, weight = array_namespace(logits), mass_of(logits, weights)
    shifted = below_peak(logits)
    gaps = -(weight @ shifted[every(labels), labels])
    columns, ones = xp.asarray(shifted.T, copy=True), xp.ones_like(shifted[0, :])
    sums: list[Any] = [None] * len(INVERSE_TEMPERATURES)
    for base in range(2):
        powers = xp.exp(columns * float(INVERSE_TEMPERATURES[base]))
        for place in range(base, len(sums), 2):
            sums[place] = ones @ powers
            powers *= powers
    return xp.log(xp.stack(sums)) @ weight, gaps


@kernel(compiled_in="calibrant.kernels.compiled.scaling")
def row_moments(logits: Array, inverse_temperature: Array) -> Array:
    """Σ_j exp(β·x_j)·x_j^k for k = 0 … 4 with x = z − max z, of each row, as (n, 5) in float64.

    With S_k these sums: the confidence at temperature 1/β is 1/S₀, its derivative by β −S₁/S₀²; log S₀ is the
    log-partition, S₁/S₀ its first derivative, S₂/S₀ − (S₁/S₀)² its second.
    """
    moments = np.empty((len(logits), 5))
    for block in row_blocks(len(logits), logits.shape[1], CACHE_ELEMENTS):
        moments[block] = block_moments(logits[block].astype(np.float64), inverse_temperature[block])
    return moments


def block_moments(values: Any, inverse_temperature: Any) -> Any:
    """`row_moments` of float64 logits: arrays or tensors."""
    xp, shifted = array_namespace(values), below_peak(values).T
    return _power_sums(xp.exp(inverse_temperature * shifted), shifted).T


@kernel(compiled_in="calibrant.kernels.compiled.scaling")
def temperature_confidences(logits: Array, inverse_temperatures: Array) -> Array:
    """The top confidence of softmax(β·z) for every row and β, n×G in float64: 1 / Σ exp(β·(z − peak))."""
    confidences = np.empty((len(logits), len(inverse_temperatures)))
    for block in row_blocks(len(logits), logits.shape[1], CACHE_ELEMENTS):
        confidences[block] = block_confidences(logits[block].astype(np.float64), inverse_temperatures)
    return confidences


def block_confidences(values: Any, inverse_temperatures: Any) -> Any:
    """`temperature_confidences` of float64 logits: arrays or tensors."""
    xp, shifted = array_namespace(values), below_peak(values)
    return xp.stack([1.0 / xp.sum(xp.exp(beta * shifted), axis=1) for beta in inverse_temperatures], axis=1)


@statistic_with(compiled_in="calibrant.kernels.compiled.scaling", array_elements=CACHE_ELEMENTS)
def vector_sums(logits: Any, labels: Any, weights: Any, scale: Any, bias: Any) -> tuple[Any, Any, Any]:
    """Σ w·NLL of softmax(s∘z + b), its gradient (2×K: by s, by b) and the diagonal blocks of its Hessian.

    The blocks (3×K) are Σ w·q(1−q)·(z², z, 1): the curvature of class j's own scale and bias.
    """
    xp, weight = array_namespace(logits), mass_of(logits, weights)
    shares, losses = softmax_and_losses(logits * scale + bias, labels)
    curve = shares * (1 - shares)
    shares[every(labels), labels] -= 1
    bent = curve * logits
    gradient = xp.stack([weight @ (shares * logits), weight @ shares])
    return weight @ losses, gradient, xp.stack([weight @ (bent * logits), weight @ bent, weight @ curve])


@statistic_with(array_elements=CACHE_ELEMENTS)
def column_moments(logits: Any, labels: Any, weights: Any) -> tuple[Any, Any, Any]:
    """Σ w·z, Σ w·|z| and Σ w·z² of each class (K,); the squares may be infinite."""
    weight = mass_of(logits, weights)
    with np.errstate(over="ignore"):
        return weight @ logits, weight @ abs(logits), weight @ (logits * logits)


@statistic
def vector_newton(  # noqa: PLR0917 (a statistic takes its parameters by position)
    logits: Array,
    labels: Array,
    weights: Array | None,
    scale: Array,
    bias: Array,
    with_hessian: bool = True,
) -> tuple[float, Array, Array]:
    """Loss and gradient of `vector_sums` and, if wanted, the whole Hessian (2K×2K, scales first; else 0×0).

    The Hessian is Σ w·D(diag q − q·qᵀ)D' with D the factors z and 1: diagonal blocks less one product of tall
    matrices. Exponentials and that product run in the precision of the logits, sums over rows in float64. Inside, a
    class is a row, so that loops run along the samples: logits that lie in memory class by class are the fastest.
    """
    (n_rows, n_classes), dtype = logits.shape, logits.dtype
    loss, own = 0.0, np.zeros((3, n_classes))
    coupled = np.zeros((2 * n_classes, 2 * n_classes) if with_hessian else (0, 0))
    columns = scale.astype(dtype)[:, None], bias.astype(dtype)[:, None]
    for block in row_blocks(n_rows, n_classes, 4 * CACHE_ELEMENTS):
        values, weight = logits[block].T, None if weights is None else weights[block]
        factors = np.empty((2, n_classes, values.shape[1]), dtype)
        losses = _class_softmax(values, labels[block], *columns, factors[1])
        loss += losses.sum() if weight is None else weight @ losses
        if weight is not None:
            factors[1] *= np.sqrt(weight).astype(dtype)
        np.multiply(factors[1], values, out=factors[0])
        weighted = factors if weight is None else factors * np.sqrt(weight)
        own[1:] += weighted.sum(axis=2, dtype=np.float64)
        if with_hessian:
            own[0] += np.einsum("jm,jm->j", weighted[0], values)
            flat = factors.reshape(2 * n_classes, -1)
            coupled += flat @ flat.T
    of_label = logits[np.arange(n_rows), labels].astype(np.float64)
    counted = of_label if weights is None else weights * of_label, weights
    gradient = own[1:] - np.stack([np.bincount(labels, one, n_classes) for one in counted])
    if not with_hessian:
        return loss, gradient, coupled
    hessian = -coupled.reshape(2, n_classes, 2, n_classes)
    each = np.arange(n_classes)
    for i, j in np.ndindex(2, 2):
        hessian[i, each, j, each] += own[i + j]
    return loss, gradient, hessian.reshape(coupled.shape)


@statistic_with(compiled_in="calibrant.kernels.compiled.scaling", array_elements=CACHE_ELEMENTS)
def vector_product(  # noqa: PLR0917 (a statistic takes its parameters by position)
    logits: Any, labels: Any, weights: Any, scale: Any, bias: Any, direction: Any
) -> tuple[Any]:
    """The Hessian of `vector_sums` times a direction (2×K), as 2×K."""
    xp, weight = array_namespace(logits), mass_of(logits, weights)
    shares, _ = softmax_and_losses(logits * scale + bias, labels)
    change = logits * direction[0] + direction[1]
    change -= xp.sum(shares * change, axis=1, keepdims=True)
    change *= shares
    return (xp.stack([weight @ (change * logits), weight @ change]),)


def _class_softmax(values: Array, labels: Array, scale: Array, bias: Array, probabilities: Array) -> Array:
    """Fill `probabilities` (K×n) with the softmax of s∘z + b; return −log of the label's of each sample."""
    np.multiply(values, scale, out=probabilities)
    probabilities += bias
    probabilities -= probabilities.max(axis=0)
    true = probabilities[labels, np.arange(len(labels))].astype(np.float64)
    np.exp(probabilities, out=probabilities)
    # a product with ones is a sum by BLAS; that of `sum` adds class by class, and rounds twice as much in float32
    mass = np.ones(len(values), values.dtype) @ probabilities
    probabilities *= 1 / mass
    return np.log(mass, dtype=np.float64) - true


MIXTURE_ELEMENTS = 1 << 16
"""Elements of a block of a mixture: smaller ones cost more by their number than they save in the cache."""


@statistic_with(array_elements=MIXTURE_ELEMENTS)
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


@statistic_with(array_elements=MIXTURE_ELEMENTS)
def mixture_squares(logits: Any, labels: Any, weights: Any, inverse_temperature: float) -> tuple[Any, Any]:
    """Σ w·⟨p_k, p_l⟩ (3×3) and Σ w·p_k(y) (3,) of the three components: all that the squared error needs."""
    xp, weight = array_namespace(logits), mass_of(logits, weights)
    sharp, plain = (softmax_and_losses(beta * logits, labels)[0] for beta in (inverse_temperature, 1.0))
    pairs = [weight @ xp.sum(one * other, axis=1) for one, other in ((sharp, sharp), (sharp, plain), (plain, plain))]
    flat, each = xp.sum(weight) / logits.shape[1], every(labels)
    gram = xp.stack([*pairs[:2], flat, *pairs[1:], flat, flat, flat, flat])
    return xp.reshape(gram, (3, 3)), xp.stack([weight @ sharp[each, labels], weight @ plain[each, labels], flat])


def scale_rows(logits: Array, scale: Array, bias: Array | None, *, keep_prediction: bool = False) -> Array:
    """s∘z + b of each row, in the dtype of the logits.

    With `keep_prediction` (for a scale that is the same for all classes) the predicted class stays the predicted
    class even where rounding makes the top two equal.
    """
    dtype = logits.dtype
    scaled = np.empty(logits.shape, dtype)
    kernel = scale_block.form(logits.size)
    columns = scale.astype(dtype), np.zeros(logits.shape[1], dtype) if bias is None else bias.astype(dtype)
    blocks = row_blocks(*logits.shape)
    map_blocks(lambda block: kernel(logits[block], *columns, scaled[block], keep_prediction), blocks)
    return scaled


@kernel(compiled_in="calibrant.kernels.compiled.scaling")
def scale_block(logits: Array, scale: Array, bias: Array, scaled: Array, keep_prediction: bool) -> None:
    """Fill `scaled` with s∘z + b."""
    np.multiply(logits, scale, out=scaled)
    if bias.any():
        scaled += bias
    if keep_prediction:
        restore_prediction(logits, scaled)


def restore_prediction(logits: Array, scaled: Array) -> None:
    """Where rounding moved the first maximum of a row, lift the old one by the smallest step there is."""
    prediction = logits.argmax(axis=1)
    differs = scaled.argmax(axis=1) != prediction
    if np.count_nonzero(differs):
        moved = np.flatnonzero(differs)
        scaled[moved, prediction[moved]] = np.nextafter(scaled[moved].max(axis=1), np.inf, dtype=scaled.dtype)
