"""How residuals of every class over bins vary from one resample to the next."""

from __future__ import annotations

import numpy as np

from calibrant.core.bins import mass_index, width_edges, width_index
from calibrant.core.threads import map_blocks, row_blocks
from calibrant.evaluation.bootstrap import Resamples

MASS_RESAMPLES = 200
"""Resamples for the equal-mass errors, whose tables have no empty cells to skip."""
CLASS_RESAMPLES = 400
"""Resamples for the interval of a mean over classes, which varies little from one to the next."""
NOISE_ELEMENTS = 1 << 24
"""Classes × bins × resamples that are held: of very many classes fewer resamples are used."""
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
    starts = np.append(0, ends[:-1])
    for j in np.flatnonzero(ends > starts):  # of many classes few have an entry beyond the first bin
        mine = order[starts[j] : ends[j]]
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


def mass_noise(
    probabilities: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, *, draws: Resamples, n_bins: int
) -> np.ndarray:
    """The same over bins of equal mass, all of which are well filled."""
    index = _mass_indices(probabilities, weights, n_bins)
    return dense_noise(draws, index, _gaps(probabilities, labels), _mass(labels, weights), n_bins)


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
