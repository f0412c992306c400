"""Equal-mass bins of every class's probability."""

from __future__ import annotations

import numpy as np

from calibrant.core.bins import mass_index
from calibrant.core.threads import map_blocks, row_blocks
from calibrant.kernels.bins import index_sums


def class_mass_sums(
    probabilities: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, n_bins: int
) -> np.ndarray:
    """Σw, Σw·p_j and Σw·1{y=j} of each class and equal-mass bin, as a (3, K, n_bins) array."""
    by_label = np.argsort(labels, kind="stable")
    of_class = np.searchsorted(labels[by_label], np.arange(probabilities.shape[1] + 1))

    def part(block: slice) -> np.ndarray:
        columns = np.ascontiguousarray(probabilities[:, block].T)
        sums = np.empty((3, len(columns), n_bins))
        for row, j in enumerate(range(block.start, block.stop)):
            members = by_label[of_class[j] : of_class[j + 1]]
            if weights is None:
                sums[:, row] = _sorted_sums(columns[row], members, n_bins)
            else:
                index = mass_index(columns[row], n_bins, weights)
                sums[:, row] = index_sums(index, columns[row], labels == j, weights, n_bins)
        return sums

    blocks = row_blocks(probabilities.shape[1], probabilities.shape[0])
    return np.concatenate(map_blocks(part, blocks), axis=1)


def _sorted_sums(column: np.ndarray, members: np.ndarray, n_bins: int) -> np.ndarray:
    """The sums of one class from its sorted values: sorting them alone is far faster than finding their order."""
    n = len(column)
    ordered = np.sort(column)
    # bin k opens at the first tied group whose lowest rank r has floor(M·r/n) ≥ k
    opens = -(-np.arange(n_bins) * n // n_bins)
    inside = (opens > 0) & (opens < n)
    cut = np.flatnonzero(inside)[ordered[opens[inside]] == ordered[opens[inside] - 1]]
    opens[cut] = np.searchsorted(ordered, ordered[opens[cut]], side="right")
    edges = np.append(opens, n)
    running = np.concatenate(([0.0], np.cumsum(ordered, dtype=np.float64)))
    lowest = np.append(ordered, np.inf)[opens[1:]]
    bin_of_member = np.searchsorted(lowest, column[members], side="right")
    hits = np.bincount(bin_of_member, minlength=n_bins)
    return np.stack([np.diff(edges), np.diff(running[edges]), hits])
