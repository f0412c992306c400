"""Class-level errors and their intervals: sce over equal-width bins, ace and marginal_ece over equal mass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from calibrant.core.bin_sums import BinSums, total_gap
from calibrant.core.bins import mass_index, width_edges, width_index
from calibrant.core.threads import map_blocks, row_blocks
from calibrant.evaluation.bootstrap import Norm, Resamples, inverted_interval
from calibrant.evaluation.table import Estimate
from calibrant.metrics.classwise import class_sums
from calibrant.metrics.inputs import Checked

MASS_RESAMPLES = 200
"""Resamples for the equal-mass errors, whose tables have no empty cells to skip."""
CLASS_RESAMPLES = 400
"""Resamples for the interval of a mean over classes, which varies little from one to the next."""
MASS_ELEMENTS = 60_000_000
"""Rows × classes up to which every class's column is sorted."""
ENTRY_ELEMENTS = 4_000_000
"""Numbers held at a time while cells are summed."""


def width_noise(
    probabilities: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, *, draws: Resamples, n_bins: int
) -> np.ndarray:
    """Deviations (R, K·M) of the classes' residuals over equal-width bins; the rows as resampled by `draws` (m, K).

    Nearly all of a row's probabilities lie in the first bin. So only the other bins are summed entry by entry, and the
    first is what remains of the class's total, which is one small matrix product.
    """
    n_classes = probabilities.shape[1]
    mass = _mass(labels, weights)
    gaps = _gaps(probabilities, labels) * mass[:, None].astype(np.float32)
    sums = np.zeros((n_classes, n_bins, len(draws.counts)), dtype=np.float32)
    rows, classes = np.nonzero(probabilities > width_edges(n_bins, probabilities.dtype)[1])
    index, entries = width_index(probabilities[rows, classes], n_bins), gaps[rows, classes]
    _sum_cells(sums, rows, classes, index, entries, draws=draws)
    sums[:, 0] = gaps.T @ draws.by_row - sums[:, 1:].sum(axis=1)
    flat = np.bincount(classes * n_bins + index, entries, minlength=n_classes * n_bins)
    observed = flat.reshape(n_classes, n_bins).astype(np.float64)
    observed[:, 0] = gaps.sum(axis=0, dtype=np.float64) - observed[:, 1:].sum(axis=1)
    total = np.maximum(draws.sums(mass[:, None])[:, 0], 1e-300).astype(np.float32)
    sums /= total
    sums -= (observed / mass.sum()).astype(np.float32)[:, :, None]
    sums *= np.float32(draws.shrink)
    return np.ascontiguousarray(sums.reshape(n_classes * n_bins, -1).T)


def _sum_cells(
    sums: np.ndarray, rows: np.ndarray, classes: np.ndarray, index: np.ndarray, gaps: np.ndarray, *, draws: Resamples
) -> None:
    """Fill sums (K, M, R) with Σ N_ri·gap of entries given by row, class and bin, one class at a time."""
    counts = draws.by_row
    order = np.argsort(classes, kind="stable")
    ends = np.cumsum(np.bincount(classes, minlength=len(sums)))
    for j, (start, stop) in enumerate(zip(np.append(0, ends[:-1]), ends, strict=True)):
        mine = order[start:stop]
        table = np.zeros((sums.shape[1], len(mine)), dtype=np.float32)
        table[index[mine], np.arange(len(mine))] = gaps[mine]
        np.matmul(table, counts[rows[mine]], out=sums[j])


def dense_noise(draws: Resamples, index: np.ndarray, gaps: np.ndarray, mass: np.ndarray, n_bins: int) -> np.ndarray:
    """Deviations (R, K·M) of Σ w(p−1{y=j})/Σw by class and bin, for bins that are all well filled.

    index, gaps : bin and p − 1{y=j} of the resampled rows and each class, (m, K). mass : their weights (m,).
    """
    m, n_classes = gaps.shape
    total = np.maximum(draws.sums(mass[:, None]), 1e-300)
    noise = np.empty((len(draws.counts), n_classes * n_bins), dtype=np.float32)
    block = max(1, ENTRY_ELEMENTS // (m * n_bins))
    for start in range(0, n_classes, block):
        part = slice(start, min(start + block, n_classes))
        size = part.stop - start
        table = np.zeros((m, size * n_bins), dtype=np.float32)
        places = (np.arange(m) * (size * n_bins))[:, None] + index[:, part] + np.arange(size) * n_bins
        table.ravel()[places] = gaps[:, part] * mass[:, None]
        drawn = (draws.row_counts @ table) / total
        noise[:, start * n_bins : part.stop * n_bins] = draws.shrink * (
            drawn - table.sum(axis=0, dtype=np.float64) / mass.sum()
        )
    return noise


def mean_error(n_classes: int) -> Norm:
    """Residuals (…, K·M) to the mean over classes of Σ|g|."""
    return lambda residual: total_gap(residual, n_classes)


def classwise_estimates(
    sums: BinSums,
    probabilities: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None,
    *,
    draws: Resamples,
    n_bins: int,
    whole: Callable[[], Checked],
) -> tuple[dict[str, Estimate], dict[str, str]]:
    """sce, ace and marginal_ece with intervals, and what was left out and why.

    sums : class sums (K, M) of ALL rows. probabilities : (m, K) of the resampled rows. labels, weights : of all rows.
    whole : gives all rows, for equal-mass bins; only called where they fit into memory.
    """
    n, n_classes = len(labels), sums.weight.shape[0]
    mine, mass = draws.take(labels), None if weights is None else draws.take(weights)
    noise = width_noise(probabilities, mine, mass, draws=draws.first(CLASS_RESAMPLES), n_bins=n_bins)
    value = float(sums.norm(1).mean())
    interval = inverted_interval(mean_error(n_classes), sums.excess.ravel(), noise, value=value)
    estimates = {"sce": Estimate(value, *interval)}
    if n * n_classes > MASS_ELEMENTS:
        reason = f"left out, needs every column sorted ({n:,} × {n_classes:,})"
        return estimates, {"ace": reason, "marginal_ece": reason}
    index = _mass_indices(probabilities, mass, n_bins)
    if len(probabilities) == n:
        mass_sums = _sums_by_index(index, probabilities, labels, weights, n_bins)
    else:
        mass_sums = class_sums(whole(), n_bins, "mass")
    mass_noise = dense_noise(draws.first(MASS_RESAMPLES), index, _gaps(probabilities, mine), _mass(mine, mass), n_bins)
    return estimates | _mass_estimates(mass_sums, mass_noise), {}


def _mass_estimates(sums: BinSums, noise: np.ndarray) -> dict[str, Estimate]:
    n_classes, n_bins = sums.weight.shape
    residual = sums.excess.ravel()
    share = (sums.weight / sums.weight.sum(axis=-1, keepdims=True)).ravel()
    safe = np.where(share > 0, share, 1.0).astype(np.float32)

    def ace(g: np.ndarray) -> np.ndarray:
        return (np.abs(g) / safe).sum(axis=-1) / (n_classes * n_bins)

    def marginal(g: np.ndarray) -> np.ndarray:
        return np.sqrt((g * g / safe).sum(axis=-1) / n_classes)

    return {
        name: Estimate(float(norm(residual)), *inverted_interval(norm, residual, noise))
        for name, norm in (("ace", ace), ("marginal_ece", marginal))
    }


def _sums_by_index(
    index: np.ndarray, probabilities: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, n_bins: int
) -> BinSums:
    """Class sums (K, M) over bins given for every entry (n, K)."""
    n, n_classes = probabilities.shape
    mass, cells = _mass(labels, weights), n_classes * n_bins
    cell = (index + np.arange(n_classes) * n_bins).ravel()
    weight = np.bincount(cell, np.repeat(mass, n_classes), minlength=cells)
    stated = np.bincount(cell, (probabilities * mass[:, None]).ravel(), minlength=cells)
    true = np.bincount(index[np.arange(n), labels] + labels * n_bins, mass, minlength=cells)
    return BinSums(*(table.reshape(n_classes, n_bins) for table in (weight, stated, true)))


def _mass_indices(probabilities: np.ndarray, weights: np.ndarray | None, n_bins: int) -> np.ndarray:
    """Equal-mass bin of every probability within its class, (m, K)."""
    columns = np.ascontiguousarray(probabilities.T)

    def part(block: slice) -> np.ndarray:
        return np.stack([mass_index(column, n_bins, weights) for column in columns[block]])

    return np.concatenate(map_blocks(part, row_blocks(*columns.shape))).T


def _gaps(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    gaps = probabilities.astype(np.float32)
    gaps[np.arange(len(labels)), labels] -= 1.0
    return gaps


def _mass(labels: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    return np.ones(len(labels)) if weights is None else weights
