"""95% intervals of every metric from one set of resamples.

Top-label errors are norms of residuals Σ(c−a)/n over cells of neighbouring confidences. The cells are cut at every
bin edge in use, so hard-binned errors are exact sums of cells; the others (Kolmogorov–Smirnov, smoothed, kernel)
read the cells' mean confidence, of which there are about 256. Bins, bandwidths and chosen bin counts are held at
those of the full sample: only the data are resampled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from calibrant.core.bin_sums import over, total_gap, under
from calibrant.core.bins import mass_index, width_index
from calibrant.evaluation.bootstrap import Norm, Resamples, inverted_interval, percentile_interval

FINE_CELLS = 256
SOFT_BINS, SOFT_TEMPERATURE = 15, 0.01
MMCE_WIDTH = 0.4
CLASS_TABLE_ELEMENTS = 20_000_000
"""Rows × classes × bins of the widest table that is resampled at once."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class TopLabelCells:
    """The resampled rows' confidence and correctness, summed by cell, and how they vary over the resamples.

    confidence : mean confidence of each cell (L,), increasing. share : weight of each cell / total (L,).
    residual : Σ w(c−a) / Σw of each cell (L,), of ALL rows. noise : its deviations (R, L), scaled to all rows.
    width, mass : the equal-width and equal-mass bin of each cell (L,).
    """

    resamples: Resamples
    n_bins: int
    cell: np.ndarray
    confidence: np.ndarray
    share: np.ndarray
    residual: np.ndarray
    width: np.ndarray
    mass: np.ndarray
    weights: np.ndarray
    hits: np.ndarray

    @classmethod
    def build(
        cls,
        confidence: np.ndarray,
        correct: np.ndarray,
        weights: np.ndarray | None,
        resamples: Resamples,
        *,
        n_bins: int = 15,
        fine: int = FINE_CELLS,
    ) -> TopLabelCells:
        """Cut the confidences (n,) at the edges of equal-width bins, equal-mass bins and `fine` equal-mass cells."""
        width = width_index(confidence, n_bins)
        mass = mass_index(confidence, n_bins, weights)
        finest = mass_index(confidence, fine, weights) if fine > 1 else np.zeros_like(mass)
        # every index grows with confidence, so the joint key does too: cells come out sorted
        key = (width * n_bins + mass) * fine + finest
        _, first, cell = np.unique(key, return_index=True, return_inverse=True)
        ones = np.ones(len(confidence)) if weights is None else weights
        stated = confidence.astype(np.float64)
        count = len(first)
        weight = np.bincount(cell, ones, minlength=count)
        total = weight.sum()
        safe = np.where(weight > 0, weight, 1.0)
        mean = np.bincount(cell, ones * stated, minlength=count) / safe
        residual = np.bincount(cell, ones * (stated - correct), minlength=count) / total
        chosen = resamples.take(cell)
        return cls(
            resamples, n_bins, chosen, mean, weight / total, residual, width[first], mass[first],
            resamples.take(ones), resamples.take(stated - correct),
        )  # fmt: skip

    @cached_property
    def noise(self) -> np.ndarray:
        """Deviations (R, L) of the cells' residuals."""
        column, count = self.weights * self.hits, len(self.confidence)
        total = np.maximum(self.resamples.sums(self.weights[:, None]), 1e-300)
        drawn = self.resamples.cell_sums(self.cell, column, count) / total
        return self.resamples.shrink * (drawn - np.bincount(self.cell, column, count) / self.weights.sum())

    def draws_by_correctness(self, correct: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Weight of right and of wrong rows by cell: the resampled rows themselves first, then the draws (R+1, L)."""
        count, parts = len(self.confidence), (self.weights * correct, self.weights * ~correct)
        right, wrong = (
            np.vstack([np.bincount(self.cell, part, count), self.resamples.cell_sums(self.cell, part, count)])
            for part in parts
        )
        return right, wrong

    def binned(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Residual (M,), noise (R, M) and share (M,) of bins given as the bin of each cell."""
        onehot = np.zeros((len(index), int(index.max()) + 1))
        onehot[np.arange(len(index)), index] = 1.0
        return self.residual @ onehot, self.noise @ onehot, self.share @ onehot

    def mapped(self, norm: Norm, table: np.ndarray, value: float) -> Interval:
        """Interval of a norm of linear combinations (L, F) of the residuals."""
        return inverted_interval(norm, self.residual @ table, self.noise @ table, value=value)


def bin_error_intervals(cells: TopLabelCells, values: dict[str, float]) -> dict[str, Interval]:
    """Intervals of the errors over hard bins: ece, over- and underconfidence, mce, adaptive_ece, …, where asked."""
    result = {}
    residual, noise, share = cells.binned(cells.width)
    safe = np.where(share > 0, share, 1.0)

    def largest(g: np.ndarray) -> np.ndarray:
        return (np.abs(g) / safe).max(axis=-1)

    norms: dict[str, Norm] = {
        "ece": total_gap, "over_confidence": over, "under_confidence": under, "mce": largest,
    }  # fmt: skip
    for name in norms.keys() & values.keys():
        result[name] = inverted_interval(norms[name], residual, noise, value=values[name])
    if "adaptive_ece" in values:
        residual, noise, _ = cells.binned(cells.mass)
        result["adaptive_ece"] = inverted_interval(total_gap, residual, noise, value=values["adaptive_ece"])
    if "sweep_ece" in values:
        residual, noise, _ = cells.binned(monotone_bins(cells))
        result["sweep_ece"] = inverted_interval(total_gap, residual, noise, value=values["sweep_ece"])
    return result


def monotone_bins(cells: TopLabelCells, most: int = 200) -> np.ndarray:
    """The bin of each cell for the largest count of equal-mass bins up to which accuracies never fall."""
    before = np.concatenate(([0.0], np.cumsum(cells.share)[:-1]))
    right = cells.share * cells.confidence - cells.residual
    index = np.zeros(len(before), dtype=np.intp)
    for count in range(2, most):
        finer = np.minimum(np.floor(count * before + 1e-9), count - 1).astype(np.intp)
        weight = np.bincount(finer, cells.share, minlength=count)
        filled = weight > 0
        accuracy = np.bincount(finer, right, minlength=count)[filled] / weight[filled]
        if (np.diff(accuracy) < -1e-12).any():
            break
        index = finer
    return index


def debiased_interval(cells: TopLabelCells, value: float, correction: float, index: np.ndarray) -> Interval:
    """Interval of √max(0, Σ share·gap² − correction), which compares debiased with debiased."""
    residual, noise, share = cells.binned(index)
    safe = np.where(share > 0, share, 1.0)

    def squares(g: np.ndarray) -> np.ndarray:
        return (g**2 / safe).sum(axis=-1)

    return inverted_interval(
        lambda g: np.sqrt(squares(g)),
        residual,
        noise,
        value=value,
        statistic=lambda g: squares(g) - correction,
    )


def smooth_error_intervals(cells: TopLabelCells, values: dict[str, float]) -> dict[str, Interval]:
    """Intervals of soft_ece, smooth_ece, mmce and ks_error, where asked."""
    result = {}
    c = cells.confidence
    if "soft_ece" in values:
        centres = (np.arange(SOFT_BINS) + 0.5) / SOFT_BINS
        member = np.exp(-((c[:, None] - centres) ** 2) / SOFT_TEMPERATURE)
        member /= member.sum(axis=1, keepdims=True)
        sizes = np.maximum(cells.share @ member, 1e-12)
        result["soft_ece"] = cells.mapped(lambda g: np.sqrt((g**2 / sizes).sum(axis=-1)), member, values["soft_ece"])
    if "smooth_ece" in values:
        kernel = reflected_gaussian(c, max(values["smooth_ece"], 1e-3))
        result["smooth_ece"] = cells.mapped(lambda g: np.abs(g).mean(axis=-1), kernel, values["smooth_ece"])
    if "mmce" in values:
        # K = F Fᵀ turns the quadratic form into a sum of squares of mapped residuals
        root = laplacian_root(c, MMCE_WIDTH)
        result["mmce"] = cells.mapped(lambda g: np.sqrt((g**2).sum(axis=-1)), root, values["mmce"])
    if "ks_error" in values:
        result["ks_error"] = inverted_interval(
            lambda g: np.abs(np.cumsum(g, axis=-1)).max(axis=-1), cells.residual, cells.noise, value=values["ks_error"]
        )
    return result


def reflected_gaussian(confidence: np.ndarray, bandwidth: float, points: int = 200) -> np.ndarray:
    """Density (L, points) at the midpoints of [0, 1] of a Gaussian around each confidence, reflected at 0 and 1."""
    grid = (np.arange(points) + 0.5) / points
    density = np.zeros((len(confidence), points))
    for mirror in range(-2, 4):
        image = mirror + confidence if mirror % 2 == 0 else mirror + 1 - confidence
        density += np.exp(-0.5 * ((grid - image[:, None]) / bandwidth) ** 2)
    return density / (bandwidth * np.sqrt(2 * np.pi))


def laplacian_root(confidence: np.ndarray, width: float) -> np.ndarray:
    """F (L, L) with F Fᵀ = exp(−|c−c'|/width), for sorted confidences.

    The kernel is the covariance of a Markov process, whose Cholesky factor has a closed form: what the point j adds
    to its predecessor, carried on to every later point i.
    """
    distance = np.abs(confidence[:, None] - confidence) / width
    # means of neighbouring cells may swap by a rounding error
    steps = np.maximum(np.diff(confidence, prepend=-np.inf), 0.0)
    fresh = np.sqrt(-np.expm1(-2 * steps / width))
    return np.tril(np.exp(-distance)) * fresh


def ranking_intervals(cells: TopLabelCells, correct: np.ndarray, values: dict[str, float]) -> dict[str, Interval]:
    """Intervals of confidence_auroc and aurc, where asked; `correct` (m,) of the resampled rows."""
    wanted: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
        "confidence_auroc": auroc_by_cell,
        "aurc": _aurc,
    }
    wanted = {name: function for name, function in wanted.items() if name in values}
    if not wanted:
        return {}
    right, wrong = cells.draws_by_correctness(correct)
    result = {}
    for name, function in wanted.items():
        drawn = function(right, wrong)
        deviation = cells.resamples.shrink * (drawn[1:] - drawn[0])
        result[name] = percentile_interval(values[name] + deviation, values[name])
    return result


def auroc_by_cell(right: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """Chance (R,) that a right row is in a higher cell than a wrong one, from their weights by cell (R, L)."""
    below = np.cumsum(wrong, axis=1) - wrong / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        return (right * below).sum(axis=1) / (right.sum(axis=1) * wrong.sum(axis=1))


def _aurc(right: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    kept = np.cumsum((right + wrong)[:, ::-1], axis=1)
    errors = np.cumsum(wrong[:, ::-1], axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        risk = np.where(kept > 0, errors / kept, 0.0)
    return (risk * (right + wrong)[:, ::-1]).sum(axis=1) / kept[:, -1]


def mean_intervals(
    columns: dict[str, np.ndarray], weights: np.ndarray | None, resamples: Resamples
) -> tuple[dict[str, Interval], dict[str, np.ndarray]]:
    """Percentile intervals of weighted means of columns (n,), and the draws (R,) behind them."""
    table = np.stack([resamples.take(column).astype(np.float64) for column in columns.values()], axis=1)
    mass = np.ones(len(table)) if weights is None else resamples.take(weights)
    deviations = resamples.mean_draws(table, mass)
    intervals, draws = {}, {}
    for place, (name, column) in enumerate(columns.items()):
        value = float(np.average(column.astype(np.float64), weights=weights))
        draws[name] = value + deviations[:, place]
        intervals[name] = percentile_interval(draws[name], value)
    return intervals, draws


def class_rows(n_classes: int, n_bins: int) -> int:
    """How many rows a table of classes × bins may have."""
    return max(256, CLASS_TABLE_ELEMENTS // (n_classes * n_bins))


def spread_interval(
    means: np.ndarray,
    groups: np.ndarray,
    column: np.ndarray,
    mass: np.ndarray,
    *,
    resamples: Resamples,
    value: float,
) -> Interval:
    """Interval of the standard deviation over groups (classes) of a column's group means.

    means : of every group over ALL rows (G,), NaN for an absent one. groups, column, mass : of the resampled rows (m,).
    """
    present = np.isfinite(means)
    if present.sum() < 2:
        return value, value
    onehot = np.zeros((len(groups), len(means)), dtype=np.float32)
    onehot[np.arange(len(groups)), groups] = mass
    weight, own = resamples.sums(onehot), onehot.sum(axis=0)
    centred = column[:, None] - (column @ onehot) / np.where(own > 0, own, 1.0)
    noise = resamples.sums(onehot * centred) / np.maximum(weight, 1e-12)
    noise = np.where(weight > 0, resamples.shrink * noise, 0.0)
    return inverted_interval(
        lambda g: g.std(axis=-1), means[present], noise[:, present], value=value, ceiling=float("inf")
    )
