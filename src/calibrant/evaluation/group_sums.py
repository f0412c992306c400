"""Sums by group, and how they vary over resamples: 1,000 resamples of a million rows without drawing a row.

Rows that share their group, their range of confidence and their outcome are one unit. A Poisson resample gives the
unit's m rows a Poisson(m) number of copies, and sums over them are that number times the unit's mean: exact for m = 1,
and off by the spread of confidence inside a narrow range otherwise. Where rows come in clusters, the clusters are the
units, and a unit adds to every group that it has rows in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from calibrant.core.bins import place, width_edges, width_index
from calibrant.evaluation.bootstrap import poisson_table
from calibrant.evaluation.consistency import flipped_sums

NEAR_THE_ENDS = np.array([0.0003, 0.001, 0.002, 0.004, 0.007, 0.012, 0.02, 0.035])
"""Extra edges near 0 and 1, where p(1−p) changes fast."""
BLOCK_ELEMENTS = 4_000_000
"""Draws that are held at a time."""


def fine_edges(n_bins: int) -> np.ndarray:
    """Edges of the ranges of confidence: those of the bins, and finer ones near 0 and 1."""
    return np.unique(np.concatenate([width_edges(n_bins), NEAR_THE_ENDS, 1 - NEAR_THE_ENDS]))


@dataclass(frozen=True)
class GroupUnits:
    """What is resampled: how much each of U units adds to each of G groups, as sparse matrices (G, U).

    weight, gap : W = Σw and S = Σw·(c − a) of the unit in the group.
    squares : Σ of S², S·W and W² over what varies independently inside the unit: its rows, or the cluster as a whole.
    size : Poisson mean of each unit (U,), by which its draws are divided.
    """

    weight: csr_array
    gap: csr_array
    squares: tuple[csr_array, csr_array, csr_array]
    size: np.ndarray
    clustered: bool

    @classmethod
    def of_rows(
        cls,
        confidence: np.ndarray,
        correct: np.ndarray,
        weights: np.ndarray,
        cell: np.ndarray,
        members: np.ndarray,
        *,
        n_bins: int,
    ) -> GroupUnits:
        """Rows of one finest group, range of confidence and outcome as one unit."""
        edges = fine_edges(n_bins)
        ranges = len(edges) - 1
        found, unit = np.unique((cell * ranges + place(confidence, edges)) * 2 + (correct > 0.5), return_inverse=True)
        belongs = csr_array(members[:, found // (2 * ranges)].astype(np.float64))
        gap = confidence - correct

        def matrix(values: np.ndarray) -> csr_array:
            return csr_array(belongs * np.bincount(unit, values, minlength=len(found)))

        square = np.bincount(unit, weights**2, minlength=len(found))
        squares = matrix((weights * gap) ** 2), matrix(weights**2 * gap), matrix(weights**2)
        size = np.bincount(unit, weights, minlength=len(found)) ** 2 / np.where(square > 0, square, 1.0)
        return cls(matrix(weights), matrix(weights * gap), squares, np.maximum(size, 1e-9), False)

    @classmethod
    def of_clusters(
        cls, gap: np.ndarray, weights: np.ndarray, cell: np.ndarray, members: np.ndarray, clusters: np.ndarray
    ) -> GroupUnits:
        """Whole clusters as units."""
        weight = by_cluster(weights, cell, members, clusters)
        total = by_cluster(weights * gap, cell, members, clusters)
        squares = total * total, total * weight, weight * weight
        return cls(weight, total, squares, np.ones(weight.shape[1]), True)

    def moments(self, ratios: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Σw, the mean gap and Σ(S − gap·W)² of each group in each resample (G, r)."""
        weight = self.weight @ ratios
        gap = (self.gap @ ratios) / np.where(weight > 0, weight, 1.0)
        own, cross, square = (matrix @ ratios for matrix in self.squares)
        return weight, gap, np.maximum(own - 2 * gap * cross + gap**2 * square, 0.0)

    def ratios(self, resamples: int, seed: int) -> Iterator[np.ndarray]:
        """Copies of each unit relative to what it has (U, r), block by block until all resamples are drawn."""
        generator = np.random.default_rng([seed, 17])
        block = max(1, BLOCK_ELEMENTS // len(self.size))
        for start in range(0, resamples, block):
            shape = len(self.size), min(block, resamples - start)
            if self.clustered:
                yield poisson_table()[generator.integers(0, 1 << 16, size=shape, dtype=np.uint16)].astype(np.float64)
            else:
                yield generator.poisson(self.size[:, None], size=shape) / self.size[:, None]


def by_cluster(values: np.ndarray, cell: np.ndarray, members: np.ndarray, clusters: np.ndarray) -> csr_array:
    """Sums of a column (n,) by group and cluster (G, C)."""
    shape = members.shape[1], int(clusters.max()) + 1
    finest = csr_array((values, (cell, clusters)), shape=shape)
    finest.sum_duplicates()
    return csr_array(csr_array(members.astype(np.float64)) @ finest)


def chance_errors(  # noqa: PLR0917
    confidence: np.ndarray,
    correct: np.ndarray,
    weights: np.ndarray | None,
    cell: np.ndarray,
    members: np.ndarray,
    clusters: np.ndarray | None,
    *,
    n_bins: int,
    draws: int,
    seed: int,
) -> np.ndarray:
    """The ECE of each group (R, G) under calibration: right with probability c, or clusters with a random sign."""
    n_groups, n_cells = members.shape
    belongs = csr_array(members.astype(np.float64))
    index, mass = width_index(confidence, n_bins), np.ones(len(cell)) if weights is None else weights
    total = belongs @ np.bincount(cell, mass, minlength=n_cells)
    errors = np.zeros((draws, n_groups))
    if clusters is not None:
        residual = mass * (confidence - correct)
        flipped = flipped_sums(cell * n_bins + index, residual, clusters, n_cells * n_bins, draws=draws, seed=seed)
        for b in range(n_bins):
            errors += np.abs(belongs @ flipped[:, b::n_bins].T).T
        return errors / total
    edges = fine_edges(n_bins)
    ranges = len(edges) - 1
    found, unit = np.unique(cell * ranges + place(confidence, edges), return_inverse=True)
    count, stated = (np.bincount(unit, values, minlength=len(found)) for values in (mass, mass * confidence))
    spread = np.sqrt(np.bincount(unit, mass**2 * confidence * (1 - confidence), minlength=len(found)))
    chance = np.clip(stated / np.where(count > 0, count, 1.0), 0.0, 1.0)
    owner, generator = found // ranges, np.random.default_rng([seed, 11])
    bin_of = place((edges[:-1] + edges[1:])[found % ranges] / 2, width_edges(n_bins))
    block = max(1, BLOCK_ELEMENTS // len(found))
    for start in range(0, draws, block):
        rows = slice(start, min(start + block, draws))
        shape = len(found), rows.stop - start
        if weights is None:
            right = generator.binomial(count.astype(np.int64)[:, None], chance[:, None], size=shape)
            excess = np.asarray(stated[:, None] - right, dtype=np.float64)
        else:
            excess = np.asarray(spread[:, None] * generator.standard_normal(shape))
        for b in np.unique(bin_of):
            inside = bin_of == b
            errors[rows] += np.abs(csr_array(members[:, owner[inside]].astype(np.float64)) @ excess[inside]).T
    return errors / total
