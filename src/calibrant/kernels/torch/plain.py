"""The kernels in plain torch operations: for CUDA without Triton, and the reference that tests hold to numpy.

They read the rows block by block, so that nothing of the size of the input is allocated, and never wait for the host.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK_ELEMENTS = 1 << 24


def row_slices(n_rows: int, n_classes: int) -> Iterator[slice]:
    """Blocks of rows of about `BLOCK_ELEMENTS` numbers."""
    size = max(1, BLOCK_ELEMENTS // max(1, n_classes))
    for start in range(0, n_rows, size):
        yield slice(start, min(start + size, n_rows))


def temperature_sums(logits: Tensor, labels: Tensor, weights: Tensor | None, beta: float) -> Tensor:
    """Σ w·NLL of softmax(β·z) and its first four derivatives by β, the k-th times β^k: (5,) in float64."""
    totals = torch.zeros(5, dtype=torch.float64, device=logits.device)
    for block in row_slices(*logits.shape):
        scaled = logits[block].double()
        scaled = (scaled - scaled.amax(dim=1, keepdim=True)) * beta
        true = scaled.gather(1, labels[block, None])[:, 0]
        weighted = scaled.exp()
        mass = weighted.sum(dim=1)
        moments = []
        for _ in range(4):
            weighted = weighted * scaled.clamp_min(-745.0)
            moments.append(weighted.sum(dim=1) / mass)
        mean, second, third, fourth = moments
        square = mean * mean
        skew = third - mean * (3 * second - 2 * square)
        tail = fourth - 4 * mean * skew - 3 * second * second + 2 * square * square
        rows = torch.stack([mass.log() - true, mean - true, (second - square).clamp_min(0.0), skew, tail])
        totals += rows.sum(dim=1) if weights is None else rows @ weights[block].double()
    return totals


def temperature_confidences(logits: Tensor, betas: Tensor) -> Tensor:
    """The top confidence of softmax(β·z) for every row and β: (n, G) in float64."""
    confidences = torch.empty((len(logits), len(betas)), dtype=torch.float64, device=logits.device)
    for block in row_slices(*logits.shape):
        shifted = logits[block].double()
        shifted = shifted - shifted.amax(dim=1, keepdim=True)
        for place, beta in enumerate(betas.tolist()):
            confidences[block, place] = 1.0 / (shifted * beta).exp().sum(dim=1)
    return confidences


def vector_sums(
    logits: Tensor, labels: Tensor, weights: Tensor | None, scale: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """Loss () of softmax(s∘z + b), and (5, K): its gradient by s and b, and Σ w·q(1−q)·(z², z, 1), in float64."""
    loss = torch.zeros((), dtype=torch.float64, device=logits.device)
    sums = torch.zeros((5, logits.shape[1]), dtype=torch.float64, device=logits.device)
    for block in row_slices(*logits.shape):
        values = logits[block].double()
        scores = (values * scale.double() + bias.double()).log_softmax(dim=1)
        share, losses = scores.exp(), -scores.gather(1, labels[block, None])[:, 0]
        weight = torch.ones_like(losses) if weights is None else weights[block].double()
        loss += weight @ losses
        curve = share * (1 - share)
        share = share.scatter_add(1, labels[block, None], torch.full_like(losses, -1.0)[:, None])
        sums[0] += weight @ (share * values)
        sums[1] += weight @ share
        sums[4] += weight @ curve
        curve = curve * values
        sums[3] += weight @ curve
        sums[2] += weight @ (curve * values)
    return loss, sums


def vector_product(logits: Tensor, weights: Tensor | None, scale: Tensor, bias: Tensor, direction: Tensor) -> Tensor:
    """The Hessian of `vector_sums` times a direction (2, K), as (2, K) in float64."""
    product = torch.zeros((2, logits.shape[1]), dtype=torch.float64, device=logits.device)
    for block in row_slices(*logits.shape):
        values = logits[block].double()
        share = (values * scale.double() + bias.double()).softmax(dim=1)
        change = values * direction[0].double() + direction[1].double()
        change = share * (change - (share * change).sum(dim=1, keepdim=True))
        if weights is not None:
            change = change * weights[block].double()[:, None]
        product[1] += change.sum(dim=0)
        product[0] += (change * values).sum(dim=0)
    return product


def column_moments(logits: Tensor, weights: Tensor | None) -> Tensor:
    """Σ w·z, Σ w·|z| and Σ w·z² of each class: (3, K) in float64."""
    sums = torch.zeros((3, logits.shape[1]), dtype=torch.float64, device=logits.device)
    for block in row_slices(*logits.shape):
        values = logits[block].double()
        weight = torch.ones(len(values), dtype=torch.float64, device=logits.device)
        weight = weight if weights is None else weights[block].double()
        sums += torch.stack([weight @ values, weight @ values.abs(), weight @ values.square()])
    return sums


def vector_newton(
    logits: Tensor, labels: Tensor, weights: Tensor | None, scale: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, gradient (2, K) and Hessian (2K, 2K) of the mean-free NLL of softmax(s∘z + b), in float64."""
    loss, sums = vector_sums(logits, labels, weights, scale, bias)
    n_classes = logits.shape[1]
    hessian = torch.zeros((2 * n_classes, 2 * n_classes), dtype=torch.float64, device=logits.device)
    for block in row_slices(len(logits), 4 * n_classes):
        values = logits[block].double()
        share = (values * scale.double() + bias.double()).softmax(dim=1)
        both = torch.cat([share * values, share], dim=1)
        heavy = both if weights is None else both * weights[block].double()[:, None]
        weight = torch.ones_like(values[:, 0]) if weights is None else weights[block].double()
        hessian -= both.T @ heavy
        own = torch.stack([weight @ (share * values.square()), weight @ (share * values), weight @ share])
        each = torch.arange(n_classes, device=logits.device)
        hessian[each, each] += own[0]
        hessian[each, n_classes + each] += own[1]
        hessian[n_classes + each, each] += own[1]
        hessian[n_classes + each, n_classes + each] += own[2]
    return loss, sums[:2], hessian


def columns(values: Tensor, labels: Tensor, *, from_logits: bool) -> tuple[Tensor, ...]:
    """Confidence, prediction, correct, NLL, Brier, entropy of each row, and the number of bad rows (1,)."""
    parts = [_block_columns(values[block], labels[block], from_logits) for block in row_slices(*values.shape)]
    joined = [torch.cat(part) for part in zip(*parts, strict=True)]
    return (*joined[:-1], joined[-1].sum().reshape(1))


def _block_columns(values: Tensor, labels: Tensor, from_logits: bool) -> tuple[Tensor, ...]:
    wide = values.double() if values.dtype == torch.float64 else values.float()
    prediction = first_maximum(wide)
    own = labels[:, None]
    if from_logits:
        log_p = wide.log_softmax(dim=1)
        probabilities = log_p.exp()
        nll = -log_p.gather(1, own)[:, 0]
        entropy = -(probabilities * log_p.clamp_min(-745.0)).sum(dim=1)
        bad = ~torch.isfinite(nll) | ~torch.isfinite(wide.sum(dim=1))
    else:
        probabilities = wide
        tiny = torch.finfo(wide.dtype).tiny
        nll = -wide.gather(1, own)[:, 0].clamp_min(tiny).log()
        entropy = -(wide * wide.clamp_min(tiny).log()).sum(dim=1)
        bad = ~((wide.sum(dim=1) - 1).abs() <= 1e-3) | (wide.amin(dim=1) < 0)
    confidence = probabilities.gather(1, prediction[:, None])[:, 0]
    brier = (probabilities * probabilities).sum(dim=1) - 2 * probabilities.gather(1, own)[:, 0] + 1
    correct = prediction == labels
    return confidence, prediction, correct, nll, brier.clamp_min(0.0), entropy.clamp_min(0.0), bad


def first_maximum(values: Tensor) -> Tensor:
    """The first class of the highest value of each row; `argmax` promises no order among equals."""
    is_peak = values == values.amax(dim=1, keepdim=True)
    return is_peak.to(torch.int8).argmax(dim=1) if values.device.type == "cpu" else _first_true(is_peak)


def _first_true(flags: Tensor) -> Tensor:
    places = torch.arange(flags.shape[1], device=flags.device)
    return torch.where(flags, places, flags.shape[1] - 1).amin(dim=1)


def add_sums(  # noqa: PLR0917
    state: Tensor,
    edges: Tensor,
    values: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    from_logits: bool,
    ignore_index: int | None,
) -> None:
    """Add the rows to a state of 3·B bins and 8 scalars (see `sums.SLOTS`) in place."""
    n_padded = (len(state) - 8) // 3
    for block in row_slices(*values.shape):
        label = labels[block]
        inside = torch.ones_like(label, dtype=torch.bool) if ignore_index is None else label != ignore_index
        label = torch.where(inside, label, 0)
        confidence, _, correct, nll, brier, entropy, bad = _block_columns(values[block], label, from_logits)
        counted = inside & ~bad
        weight = counted.double() if weights is None else torch.where(counted, weights[block].double(), 0.0)
        place = torch.bucketize(confidence, edges[1:-1].to(confidence.dtype))
        terms = [torch.ones_like(nll), nll, brier, correct, confidence, entropy]
        wide = torch.stack([torch.where(counted, term.double(), 0.0) for term in terms])
        weighted = wide * weight
        for part, source in ((0, weighted[0]), (1, weighted[4]), (2, weighted[3])):
            state.narrow(0, part * n_padded, n_padded).index_add_(0, place, source)
        state[3 * n_padded : 3 * n_padded + 6] += weighted.sum(dim=1)
        state[-2] += inside.sum()
        state[-1] += (inside & bad).sum()
