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


def class_noise(
    probabilities: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None,
    *,
    draws: Resamples,
    n_bins: int,
    binning: str,
) -> np.ndarray:
    """Deviations (R, K·M) of the classes' residuals over "width" or "mass" bins; rows (m, K) as `draws` resamples them.

    Only entries beyond the first bin are summed one by one, class by class: of equal width, it holds nearly all of a
    row's probabilities. The first bin is what remains of the class's total, which is one small matrix product.
    """
    m, n_classes = probabilities.shape
    mass = np.ones(m) if weights is None else weights
    gaps = probabilities.astype(np.float32)
    gaps[np.arange(m), labels] -= 1.0
    gaps *= mass[:, None].astype(np.float32)
    if binning == "width":
        classes, rows = np.nonzero((probabilities > width_edges(n_bins, probabilities.dtype)[1]).T)
        index = width_index(probabilities[rows, classes], n_bins)
    else:
        places = _mass_indices(probabilities, weights, n_bins)
        classes, rows = np.nonzero(places)
        index = places[classes, rows]
    entries, counts = gaps[rows, classes], draws.by_row
    sums = np.zeros((n_classes, n_bins, counts.shape[1]), dtype=np.float32)
    starts = np.searchsorted(classes, np.arange(n_classes + 1))
    for j in np.flatnonzero(np.diff(starts)):  # of many classes few have an entry beyond the first bin
        mine = slice(starts[j], starts[j + 1])
        own, of_own = rows[mine], counts
        if 2 * len(own) < m:
            own, of_own = np.arange(len(own)), counts[own]
        table = np.zeros((n_bins, len(of_own)), dtype=np.float32)
        table[index[mine], own] = entries[mine]
        np.matmul(table, of_own, out=sums[j])
    observed = np.bincount(classes * n_bins + index, entries, n_classes * n_bins).reshape(n_classes, n_bins)
    observed[:, 0] = gaps.sum(axis=0, dtype=np.float64) - observed.sum(axis=1)
    sums[:, 0] = gaps.T @ counts - sums.sum(axis=1)
    sums /= np.maximum(draws.sums(mass[:, None])[:, 0], 1e-300).astype(np.float32)
    sums -= (observed / mass.sum()).astype(np.float32)[:, :, None]
    sums *= np.float32(draws.shrink)
    return np.ascontiguousarray(sums.reshape(n_classes * n_bins, -1).T)


def _mass_indices(probabilities: np.ndarray, weights: np.ndarray | None, n_bins: int) -> np.ndarray:
    """Equal-mass bin of every probability within its class, (K, m)."""
    columns = np.ascontiguousarray(probabilities.T)

    def part(block: slice) -> np.ndarray:
        return np.stack([mass_index(column, n_bins, weights) for column in columns[block]])

    return np.concatenate(map_blocks(part, row_blocks(*columns.shape)))
