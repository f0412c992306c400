"""Expected calibration error of the top label: over bins of equal width or mass, soft bins, or no bins at all.

A confidence on the edge of two equal-width bins belongs to the lower one, (lo, hi], as in the papers and in
scikit-learn; torchmetrics and netcal put it into the upper one, which makes a difference on few samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from calibrant.core.arrays import Array, check_choice, check_number
from calibrant.core.bins import (
    BinSums,
    check_n_bins,
    cumulate,
    mass_index,
    over,
    rank_slack,
    total_gap,
    width_edges,
    width_index,
)
from calibrant.core.threads import map_blocks, row_blocks
from calibrant.kernels.bins import index_sums, memberships, width_sums
from calibrant.kernels.isotonic import ScoreGroups
from calibrant.metrics.inputs import (
    Checked,
    ClassIndices,
    Probabilities,
    RowWeights,
    adds_up,
    check,
    check_norm,
    confidence_groups,
)
from calibrant.metrics.record import Figure, Gaps, metric

_ELEMENTS_PER_ROW = 4
"""A binned row costs about as much as this many elements of a matrix: from half a million rows on, compile."""


def bin_index(confidence: Array, weights: Array | None, n_bins: int, binning: str) -> Array:
    """The bin of each row: equal width, or equal mass."""
    if check_choice(binning, "binning", ("width", "mass")) == "width":
        return width_index(confidence, check_n_bins(n_bins))
    return mass_index(confidence, check_n_bins(n_bins), weights)


@adds_up
def bin_sums(rows: Checked, n_bins: int, binning: str) -> BinSums:
    """Sums over the bins of the top label, on all cores; those over bins of equal width add up over chunks."""
    check_n_bins(n_bins)
    ranked = check_choice(binning, "binning", ("width", "mass")) == "mass"
    confidence, correct, weights = columns = rows.top(ordered=ranked)
    if ranked:
        return BinSums(*index_sums(mass_index(confidence, n_bins, weights), *columns, n_bins))
    kernel = width_sums.form(_ELEMENTS_PER_ROW * len(confidence))

    def part(block: slice) -> Array:
        return kernel(confidence[block], correct[block], None if weights is None else weights[block], n_bins)

    return BinSums(*np.sum(map_blocks(part, row_blocks(len(confidence), _ELEMENTS_PER_ROW)), axis=0))


@metric(
    "ECE",
    "ECE",
    "mean gap between confidence and accuracy",
    Gaps("width", lambda g, share: total_gap(g), shrunk=True),
    compared=1,
)
def ece(
    probabilities: Probabilities,
    labels: ClassIndices,
    *,
    n_bins: int = 15,
    norm: float = 1,
    binning: str = "width",
    weighting: str = "bin",
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> float:
    """Mean gap between confidence and accuracy over bins (Guo et al. 2017, eq. 3).

    ``(Σ_b (n_b/n)·|A_b − C_b|^p)^(1/p)`` with ``weighting="bin"`` (Karandikar et al. 2021, eq. 6), or
    ``(1/n Σ_i |A_{b(i)} − c_i|^p)^(1/p)`` with ``weighting="label"`` (eq. 7).

    Parameters
    ----------
    n_bins : int
        Number of bins.
    norm : {1, 2, inf}
        p; ``inf`` is the maximum calibration error (MCE).
    binning : {"width", "mass"}
        Bins of equal width over [0, 1], or of equal numbers of samples.
    weighting : {"bin", "label"}
        Compare accuracy with a bin's mean confidence, or with each sample's own.

    Examples
    --------
    >>> from calibrant.metrics import ece
    >>> round(ece([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]], [0, 1, 1]), 4)
    0.4
    """
    rows, p = check(probabilities, labels, sample_weight, from_logits), check_norm(norm)
    sums = bin_sums(rows, n_bins, binning)
    if check_choice(weighting, "weighting", ("bin", "label")) == "bin":
        return float(sums.norm(p))
    if binning == "width" and p == 2:
        return within_and_between(sums, square_sums(rows, n_bins))
    confidence, _, weights = rows.top(ordered=True)
    gap = np.abs(sums.accuracy[bin_index(confidence, weights, n_bins, binning)] - confidence.astype(np.float64))
    return label_error([(gap, rows.mass)], p)


def label_error(parts: Iterable[tuple[Array, Array]], p: float) -> float:
    """(Σ w·gap^p / Σw)^(1/p) over parts of gaps and weights, in units of the largest gap against underflow."""
    largest = total = mass = 0.0
    for gaps, share in parts:
        counted = np.where(share > 0, gaps, 0.0)
        before, largest = largest, max(largest, float(counted.max()))
        unit = largest or 1.0
        total = total * (before / unit) ** p + float((share * (counted / unit) ** p).sum())
        mass += float(share.sum())
    return largest if np.isinf(p) else largest * (total / mass) ** (1 / p)


@adds_up
def square_sums(rows: Checked, n_bins: int) -> Array:
    """Σw·c² of each bin (M,)."""
    confidence = rows.column("confidence")
    return np.bincount(width_index(confidence, n_bins), rows.mass * confidence.astype(np.float64) ** 2, n_bins)


def within_and_between(sums: BinSums, squares: Array) -> float:
    """√ of the mean of (A_b − c_i)²: Σ_b n_b·(A_b − C_b)² plus the variance of confidence within each bin."""
    weight = np.where(sums.weight > 0, sums.weight, 1.0)
    within = squares - sums.confidence**2 / weight
    # equal confidences vary by rounding only
    within = np.where(within > 8 * np.finfo(np.float64).eps * squares, within, 0.0)
    between = (sums.confidence - sums.correct) ** 2 / weight
    return float(np.sqrt((within + between).sum() / sums.weight.sum()))


@dataclass(frozen=True)
class OverUnderConfidence:
    """The two parts of the ECE: bins whose confidence is too high, and bins whose confidence is too low."""

    over: float
    under: float


@metric(
    figures=(
        Figure(
            "over_confidence", "overconfidence", "over", True, 0, "the part of ECE where confidence is too high",
            Gaps("width", lambda g, share: over(g)), field="over", compared=7,
        ),
        Figure(
            "under_confidence", "underconfidence", "under", True, 0, "the part of ECE where confidence is too low",
            Gaps("width", lambda g, share: over(-g)), field="under", compared=8,
        ),
    )
)  # fmt: skip
def over_under_confidence(
    probabilities: Probabilities,
    labels: ClassIndices,
    *,
    n_bins: int = 15,
    binning: str = "width",
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> OverUnderConfidence:
    """Split the ECE into over- and under-confidence (Frenkel & Goldberger 2021, eq. 3-4).

    ``over = Σ_b (n_b/n)·max(0, C_b − A_b)``, ``under = Σ_b (n_b/n)·max(0, A_b − C_b)``; they add up to the ECE, and
    their difference is the mean confidence minus the accuracy.

    Examples
    --------
    >>> from calibrant.metrics import over_under_confidence
    >>> over_under_confidence([[0.75, 0.25], [0.0, 1.0]], [0, 0])
    OverUnderConfidence(over=0.5, under=0.125)
    """
    sums = bin_sums(check(probabilities, labels, sample_weight, from_logits), n_bins, binning)
    return OverUnderConfidence(float(over(sums.excess)), float(over(-sums.excess)))


@metric(
    "largest bin (MCE)",
    "MCE",
    "gap of the worst bin",
    Gaps("width", lambda g, share: (np.abs(g) / share).max(axis=-1), worst=True),
)
def mce(
    probabilities: Probabilities,
    labels: ClassIndices,
    *,
    n_bins: int = 15,
    binning: str = "width",
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> float:
    """Maximum calibration error: the largest gap between confidence and accuracy of any bin (Guo et al. 2017, eq. 5).

    ``max_b |A_b − C_b|`` over the bins that hold rows; the same as `ece` with ``norm=inf``.

    Examples
    --------
    >>> from calibrant.metrics import mce
    >>> round(mce([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]], [0, 1, 1]), 4)
    0.4
    """
    return float(bin_sums(check(probabilities, labels, sample_weight, from_logits), n_bins, binning).norm(np.inf))


@metric(
    "adaptive ECE",
    "ada",
    "the same gap over bins of equal size",
    Gaps("mass", lambda g, share: total_gap(g), shrunk=True),
    compared=2,
)
def adaptive_ece(
    probabilities: Probabilities,
    labels: ClassIndices,
    *,
    n_bins: int = 15,
    norm: float = 1,
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> float:
    """ECE of the top label over bins of equal mass (Nguyen & O'Connor 2015).

    ``Σ_b (n_b/n)·|A_b − C_b|`` with bin ``floor(M·rank/n)``; tied confidences share the lowest rank of their
    group, so the answer does not depend on the order of the rows.

    Examples
    --------
    >>> from calibrant.metrics import adaptive_ece
    >>> round(adaptive_ece([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]], [0, 1, 1], n_bins=3), 4)
    0.4333
    """
    rows = check(probabilities, labels, sample_weight, from_logits)
    return float(bin_sums(rows, n_bins, "mass").norm(check_norm(norm)))


@metric(
    "debiased ECE",
    "debiased",
    "the gap with its sampling noise subtracted",
    Gaps("width", lambda g, share: np.sqrt((g**2 / share).sum(axis=-1)), debiased=True),
)
def debiased_ece(
    probabilities: Probabilities,
    labels: ClassIndices,
    *,
    n_bins: int = 15,
    binning: str = "width",
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> float:
    """ℓ2 ECE minus what sampling noise alone adds to it (Kumar et al. 2019, def. 5.1).

    ``√max(0, Σ_b (n_b/n)·[(C_b − A_b)² − A_b(1 − A_b)/(n_b − 1)])``; bins of fewer than 2 samples count 0.
    Weights are counts: a mean below 0.2 is an `InputError`.

    Examples
    --------
    >>> from calibrant.metrics import debiased_ece
    >>> debiased_ece([[0.75, 0.25]] * 4, [1, 1, 1, 1])
    0.75
    """
    sums = bin_sums(check(probabilities, labels, sample_weight, from_logits, weights_are="counts"), n_bins, binning)
    weight, _, correct = np.stack(sums)[:, sums.weight >= 2]
    accuracy = correct / weight
    noise = accuracy * (1 - accuracy) / (weight - 1)
    excess = weight @ (sums.gap[sums.weight >= 2] ** 2 - noise) / sums.weight.sum()
    return float(np.sqrt(max(excess, 0.0)))


_BATCH_ELEMENTS = 1 << 18


@metric(
    "sweep ECE",
    "sweep",
    "the gap over as many bins as stay monotone",
    Gaps("monotone", lambda g, share: total_gap(g)),
)
def sweep_ece(
    probabilities: Probabilities,
    labels: ClassIndices,
    *,
    norm: float = 1,
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> float:
    """Equal-mass ECE at the largest bin count whose accuracies still rise with confidence (Roelofs et al. 2020).

    The count is the largest b such that for every count up to b no bin has a lower accuracy than the bin before it.

    Examples
    --------
    >>> from calibrant.metrics import sweep_ece
    >>> sweep_ece([[0.75, 0.25], [0.0, 1.0]], [1, 1])
    0.375
    """
    groups = confidence_groups(probabilities, labels, sample_weight, from_logits)
    columns = groups.weight, groups.weight * groups.scores, groups.positive
    return float(BinSums(*np.add.reduceat(columns, monotone_edges(groups)[:-1], axis=1)).norm(check_norm(norm)))


def monotone_edges(groups: ScoreGroups) -> Array:
    """The edges (first group of each bin, and the number of groups) of the most bins whose accuracies rise.

    It is the largest count of bins such that no count up to it breaks the order. Sums are cumulated over the groups, so
    that any bin's accuracy is two look-ups.
    """
    sums = np.array([cumulate(one) for one in (groups.weight, groups.positive)], dtype=np.float64)
    rank, total, slack = sums[0, :-1], sums[0, -1], rank_slack(groups.weight)

    def first_group(k: Array, n_bins: Array | int) -> Array:
        """The first group of bin k or later: floor(M·rank/n) ≥ k."""
        return np.searchsorted(rank, k * total / n_bins * (1 - slack))

    def edges(n_bins: int) -> Array:
        """The first group of each bin that holds any, and the number of groups."""
        return np.unique(np.append(first_group(np.arange(n_bins), n_bins), len(rank)))

    def bin_of(group: Array, counts: Array) -> tuple[Array, Array]:
        """The first group of the bin that holds a group, and of the next bin."""
        k = np.floor(counts * rank[group] / total * (1 + slack))
        return first_group(k, counts), first_group(k + 1, counts)

    def falls(*places: Array) -> Array:
        """Is the accuracy between the first two places above that between the last two? False where either is empty."""
        weight, correct = np.diff(sums[:, np.stack(places)], axis=1)
        return correct[1] * weight[0] < correct[0] * weight[1] - slack * total * weight.sum(axis=0)

    left, right = groups.weight[:-1], groups.weight[1:]
    rises = groups.positive[1:] * left - groups.positive[:-1] * right
    single, n_bins, changes = np.arange(len(rank) + 1), 2, np.flatnonzero(rises) + 1
    # even single confidences may be in order, and then so is every way of joining neighbours
    if (rises >= -slack * left * right).all():
        return single
    while n_bins <= 64 or n_bins < len(changes):
        found = edges(n_bins)
        if falls(found[:-2], found[1:-1], found[2:]).any():
            return edges(n_bins - 1)
        n_bins += 1
    # few changes of accuracy, many bins: only bins that hold a change can break the order
    batch = max(1, _BATCH_ELEMENTS // len(changes))
    # with more bins every group stands alone, and nothing changes any more
    while n_bins <= total / groups.weight.min() + 1:
        counts = np.arange(n_bins, n_bins + batch)[:, None]
        start, stop = bin_of(changes, counts)
        before, _ = bin_of(np.maximum(start - 1, 0), counts)
        _, after = bin_of(np.minimum(stop, len(rank) - 1), counts)
        broken = np.flatnonzero((falls(before, start, stop) | falls(start, stop, after)).any(axis=1))
        if len(broken):
            return edges(n_bins + int(broken[0]) - 1)
        n_bins += batch
    return single


N_CELLS = 4096
"""Cells of [0, 1] the residuals are gathered in."""


def reflected_gaussian(cells: Any, value: float) -> Array:
    """Density (L, 200) at the midpoints of [0, 1] of a Gaussian around each confidence, reflected at 0 and 1.

    The bandwidth is the error itself.
    """
    grid, bandwidth = (np.arange(200) + 0.5) / 200, max(value, 1e-3)
    density = np.zeros((len(cells.confidence), 200))
    for mirror in range(-2, 4):
        image = mirror + cells.confidence if mirror % 2 == 0 else mirror + 1 - cells.confidence
        density += np.exp(-0.5 * ((grid - image[:, None]) / bandwidth) ** 2)
    return density / (bandwidth * np.sqrt(2 * np.pi))


@metric(
    "smooth ECE",
    "smooth",
    "gap after kernel smoothing, without bins",
    Gaps(reflected_gaussian, lambda g, share: np.abs(g).mean(axis=-1)),
)
def smooth_ece(
    probabilities: Probabilities, labels: ClassIndices, *, sample_weight: RowWeights = None, from_logits: bool = False
) -> float:
    """smECE: smoothed residuals at the bandwidth that equals the error itself (Błasiok & Nakkiran 2023, def. 3).

    ``smECE_σ = ∫₀¹ |1/n Σ_i K_σ(t, c_i)(a_i − c_i)| dt`` with a Gaussian kernel reflected at 0 and 1, taken at the
    fixed point ``σ = smECE_σ``. Residuals are shared between the two nearest of 4096 cells (error below 1e-4).

    Examples
    --------
    >>> from calibrant.metrics import smooth_ece
    >>> round(smooth_ece([[0.75, 0.25]] * 4, [0, 0, 1, 1]), 4)
    0.25
    """
    rows = check(probabilities, labels, sample_weight, from_logits)
    confidence, correct, _ = rows.top(ordered=True)
    wide = confidence.astype(np.float64, copy=False)
    residual = rows.mass * (correct - wide)
    position = np.clip(wide * N_CELLS - 0.5, 0.0, N_CELLS - 1.0)
    cell = np.minimum(position.astype(np.intp), N_CELLS - 2)
    upper = position - cell
    grid = np.bincount(cell, residual * (1 - upper), minlength=N_CELLS)
    grid[1:] += np.bincount(cell, residual * upper, minlength=N_CELLS - 1)
    # mirrored at 1, so that its Fourier transform becomes a cosine series
    spectrum = np.fft.rfft(np.concatenate([grid, grid[::-1]])) / rows.mass.sum()
    # on [0, 1] with reflecting ends the Gaussian kernel multiplies the k-th cosine by exp(−(πkσ)²/2)
    frequency = np.pi * np.arange(len(spectrum))

    def surplus(bandwidth: float) -> float:
        smoothed = np.fft.irfft(spectrum * np.exp(-((frequency * bandwidth) ** 2) / 2), 2 * N_CELLS)
        return bandwidth - float(np.abs(smoothed[:N_CELLS]).sum())

    # the error falls in σ, so σ − error has one root
    return increasing_root(surplus, tolerance=1e-10, steps=60)


def increasing_root(function: Callable[[float], float], *, tolerance: float, steps: int) -> float:
    """Where an increasing function of t ≥ 0 crosses zero; 0 if it does not start below it, 1 if it stays below.

    False position by the Illinois rule: an end that stays twice counts half, which keeps the search from stalling.
    """
    low, high, below, above, last = 0.0, 1.0, function(0.0), function(1.0), 0.0
    if below >= 0:
        return 0.0
    while above < 0:
        low, below, high = high, above, 2 * high
        if high > 64:
            return 1.0
        above = function(high)
    for _ in range(steps):
        middle = (low * above - high * below) / (above - below)
        here = function(middle)
        if abs(here) < tolerance * (above - below) or high - low < tolerance:
            return middle
        if here < 0:
            low, below, above = middle, here, above / 2 if last < 0 else above
        else:
            high, above, below = middle, here, below / 2 if last > 0 else below
        last = here
    return (low * above - high * below) / (above - below)


@metric(
    "soft ECE",
    "soft",
    "gap over soft bins, as the training loss measures it",
    Gaps(
        lambda cells, value: memberships(cells.confidence, 15, 0.01),
        lambda g, share: np.sqrt((g**2 / share).sum(axis=-1)),
    ),
)
def soft_ece(
    probabilities: Probabilities,
    labels: ClassIndices,
    *,
    n_bins: int = 15,
    temperature: float = 0.01,
    norm: float = 2,
    weighting: str = "bin",
    decay: float | None = None,
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> float:
    """SB-ECE: ECE over soft bins (Karandikar et al. 2021, eq. 8-12).

    Memberships ``u_ij = softmax_j(−(c_i − ξ_j)²/T)`` of M equal bins with centres ξ_j give sizes S_j and means C_j,
    A_j. ``(Σ_j (S_j/n)·|A_j − C_j|^p)^(1/p)`` with ``weighting="bin"`` (eq. 11), and
    ``(1/n Σ_ij u_ij·|A_j − c_i|^p)^(1/p)`` with ``weighting="label"`` (eq. 12).

    Parameters
    ----------
    temperature : float
        T; towards 0 the bins turn hard.
    weighting : {"bin", "label"}
        "bin" is the counterpart of the ECE and the default here; the training loss `calibrant.losses.soft_ece`
        defaults to "label", the form that the paper trains.
    decay : float, optional
        d > 1 sets T = 1/(M² ln d): at a centre the neighbour's membership is 1/d of its own.

    Examples
    --------
    >>> from calibrant.metrics import soft_ece
    >>> round(soft_ece([[0.75, 0.25]] * 4, [0, 0, 1, 1]), 4)
    0.25
    """
    rows, p = check(probabilities, labels, sample_weight, from_logits), check_norm(norm)
    softness = bin_temperature(n_bins, temperature, decay)
    *sums, squares = soft_sums(rows, n_bins, softness)
    bins = BinSums(*sums)
    if check_choice(weighting, "weighting", ("bin", "label")) == "bin":
        return float(bins.norm(p))
    if p == 2:
        return within_and_between(bins, squares)
    confidence, mass = rows.top(ordered=True)[0].astype(np.float64), rows.mass

    def parts() -> Iterator[tuple[Array, Array]]:
        for block in row_blocks(len(confidence), n_bins):
            members = memberships(confidence[block], n_bins, softness)
            yield np.abs(bins.accuracy - confidence[block, None]), members * mass[block, None]

    return label_error(parts(), p)


@adds_up
def soft_sums(rows: Checked, n_bins: int, temperature: float) -> Array:
    """Σw·u, Σw·u·c, Σw·u·a and Σw·u·c² of the soft bins (4, M), eq. 8-10."""
    confidence, correct, _ = rows.top()
    mass = rows.mass

    def part(block: slice) -> Array:
        c, w = confidence[block].astype(np.float64), mass[block]
        return np.stack([w, w * c, w * correct[block], w * c * c]) @ memberships(c, n_bins, temperature)

    return np.sum(map_blocks(part, row_blocks(len(confidence), n_bins)), axis=0)


SMALLEST_TEMPERATURE = 1e-200
"""Lower temperatures change no membership, and would overflow."""


def bin_temperature(n_bins: int, temperature: float, decay: float | None) -> float:
    """T, or 1/(M² ln d) where a decay d is given: at a centre the neighbour's membership is then 1/d of its own."""
    check_n_bins(n_bins)
    if decay is not None:
        return 1 / (n_bins**2 * math.log(check_number(decay, "decay", above=1)))
    return max(check_number(temperature, "temperature", above=0), SMALLEST_TEMPERATURE)


def by_cell(cells: Any, value: float) -> Array:
    """Residuals as they are, one per cell of confidences."""
    return np.eye(len(cells.confidence))


def path_range(residual: Array) -> Array:
    """max_k S_k − min_k S_k of the cumulated residuals S (…, L), S_0 = 0 included."""
    path = np.cumsum(residual, axis=-1)
    return np.maximum(path.max(axis=-1), 0.0) - np.minimum(path.min(axis=-1), 0.0)


@metric(
    "KS error",
    "KS",
    "largest gap accumulated over confidence, without bins",
    Gaps(by_cell, lambda g, share: np.abs(np.cumsum(g, axis=-1)).max(axis=-1)),
)
def ks_error(
    probabilities: Probabilities, labels: ClassIndices, *, sample_weight: RowWeights = None, from_logits: bool = False
) -> float:
    """Largest gap between the cumulated confidences and the cumulated right predictions (Gupta et al. 2020, eq. 7).

    ``max_t |Σ_{c_i ≤ t} (c_i − a_i)|/n`` over the confidences t; ties are summed before the maximum is taken.

    Examples
    --------
    >>> from calibrant.metrics import ks_error
    >>> ks_error([[0.75, 0.25], [0.0, 1.0]], [1, 1])
    0.375
    """
    groups = confidence_groups(probabilities, labels, sample_weight, from_logits)
    return float(np.abs(np.cumsum(groups.excess)).max() / groups.weight.sum())


@metric(
    "Kuiper error",
    "Kuiper",
    "largest gap over any range of p, without bins",
    Gaps(by_cell, lambda g, share: path_range(g)),
    about="score",
)
def kuiper_error(
    probabilities: Probabilities, labels: ClassIndices, *, sample_weight: RowWeights = None, from_logits: bool = False
) -> float:
    """Range of the cumulated gaps, ``max_k S_k − min_k S_k`` with ``S_k = 1/n Σ_{c_i ≤ t_k} (a_i − c_i)`` and S_0 = 0.

    The largest gap of any interval of confidences (Arrieta-Ibarra et al. 2022); tied confidences are summed first.

    Examples
    --------
    >>> from calibrant.metrics import kuiper_error
    >>> kuiper_error([0.25, 0.75], [1, 0])
    0.375
    """
    groups = confidence_groups(probabilities, labels, sample_weight, from_logits)
    return float(path_range(groups.excess) / groups.weight.sum())


WIDTH = 0.4
NARROWEST = 0.01
"""The smallest width: exp(1/width) must be finite."""


def laplacian_root(cells: Any, value: float) -> Array:
    """F (L, L) with F Fᵀ = exp(−|c−c'|/0.4), for sorted confidences: Σ_ij g_i K_ij g_j is the sum of squares of g F.

    The kernel is the covariance of a Markov process, whose Cholesky factor has a closed form: what the point j adds
    to its predecessor, carried on to every later point i.
    """
    confidence = cells.confidence
    distance = np.abs(confidence[:, None] - confidence) / WIDTH
    # means of neighbouring cells may swap by a rounding error
    steps = np.maximum(np.diff(confidence, prepend=-np.inf), 0.0)
    return np.tril(np.exp(-distance)) * np.sqrt(-np.expm1(-2 * steps / WIDTH))


@metric(
    "MMCE",
    "MMCE",
    "kernel mean of the gap, without bins",
    Gaps(laplacian_root, lambda g, share: np.sqrt((g**2).sum(axis=-1))),
)
def mmce(
    probabilities: Probabilities,
    labels: ClassIndices,
    *,
    width: float = WIDTH,
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> float:
    """Maximum mean calibration error with a Laplacian kernel (Kumar et al. 2018, eq. 5).

    ``√(Σ_ij (a_i − c_i)(a_j − c_j)·exp(−|c_i − c_j|/width)) / n``, the diagonal included.

    Parameters
    ----------
    width : float
        Distance over which confidences are compared, at least 0.01.

    Examples
    --------
    >>> from calibrant.metrics import mmce
    >>> mmce([[0.75, 0.25]] * 4, [0, 0, 1, 1])
    0.25
    """
    check_number(width, "width", least=NARROWEST)
    groups = confidence_groups(probabilities, labels, sample_weight, from_logits)
    residual = groups.excess
    # for sorted c the kernel of a pair splits into exp(−c_i/width)·exp(c_j/width): a running sum replaces the matrix
    near, far = residual * np.exp(-groups.scores / width), residual * np.exp(groups.scores / width)
    form = np.dot(residual, residual) + 2 * np.dot(near, np.cumsum(far) - far)
    return float(np.sqrt(max(form, 0.0)) / groups.weight.sum())


def _missing() -> Array:
    return np.empty(0)


@dataclass(frozen=True)
class Reliability:
    """Bins (M,) of confidence; NaN marks the means of an empty bin."""

    edges: Array
    """Bin edges (M+1,); for equal mass, the lowest confidence of each bin and the highest of all."""
    counts: Array
    """Weight in each bin."""
    confidence: Array
    """Mean confidence of each bin."""
    accuracy: Array
    """Share of right predictions in each bin."""
    count: Array = field(default_factory=_missing)
    """Number of rows; this and what follows is filled in by `evaluation.consistency.reliability_bins`, else empty."""
    accuracy_low: Array = field(default_factory=_missing)
    """Lower end of the 95% Wilson interval of the accuracy."""
    accuracy_high: Array = field(default_factory=_missing)
    """Its upper end."""
    noise_low: Array = field(default_factory=_missing)
    """The accuracy of a calibrated model lies between this …"""
    noise_high: Array = field(default_factory=_missing)
    """… and this in 95% of data sets like this one."""

    @property
    def lower(self) -> Array:
        """Where each bin begins (M,); an equal-width bin is (lower, upper]."""
        return self.edges[:-1]

    @property
    def upper(self) -> Array:
        """Where each bin ends (M,)."""
        return self.edges[1:]

    @property
    def filled(self) -> Array:
        """Which bins hold any weight (M,)."""
        return self.counts > 0

    @property
    def n(self) -> int:
        """Rows in all bins together."""
        return int(self.count.sum())

    @property
    def share(self) -> Array:
        """Each bin's part of all weight (M,)."""
        return self.counts / self.counts.sum()

    @property
    def gap(self) -> Array:
        """Confidence minus accuracy (M,); 0 in an empty bin."""
        return np.where(self.filled, self.confidence - self.accuracy, 0.0)

    @property
    def over(self) -> float:
        """The part of the calibration error where confidence is too high."""
        return float(over(self.share * self.gap))

    @property
    def under(self) -> float:
        """The part of the calibration error where confidence is too low."""
        return float(over(-self.share * self.gap))

    @property
    def ece(self) -> float:
        """The ECE that these bins add up to."""
        return self.over + self.under


@metric()
def reliability(
    probabilities: Probabilities,
    labels: ClassIndices,
    *,
    n_bins: int = 15,
    binning: str = "width",
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> Reliability:
    """Counts, mean confidence and accuracy of each bin: the data of a reliability diagram (DeGroot & Fienberg 1983).

    Examples
    --------
    >>> from calibrant.metrics import reliability
    >>> bins = reliability([[0.75, 0.25], [0.0, 1.0]], [0, 0], n_bins=2)
    >>> bins.counts.tolist(), bins.accuracy.tolist()
    ([0.0, 2.0], [nan, 0.5])
    """
    rows = check(probabilities, labels, sample_weight, from_logits)
    sums = bin_sums(rows, n_bins, binning)
    edges = width_edges(n_bins)
    if binning == "mass":
        confidence, _, weights = rows.top(ordered=True)
        lowest = np.full(n_bins, np.inf)
        np.minimum.at(lowest, bin_index(confidence, weights, n_bins, binning), confidence.astype(np.float64))
        # an empty bin opens where the next one does
        edges = np.minimum.accumulate(np.append(lowest, confidence.max())[::-1])[::-1]
    weight = np.where(sums.weight > 0, sums.weight, np.nan)
    return Reliability(edges, sums.weight, sums.confidence / weight, sums.correct / weight)
