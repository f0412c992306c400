"""Is the error that was measured more than chance? The consistency test (Bröcker & Smith 2007; Vaicenavicius 2019).

If the stated confidences are true, row i is right with probability c_i. Labels re-drawn that way give the ECE a
perfectly calibrated model would show on these n rows: its mean is the noise floor, and the share of drawn ECEs at
least as large as the observed one is a p-value that is uniform under calibration.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.special import stdtr

from calibrant.core.arrays import Array
from calibrant.core.bins import check_n_bins, total_gap, width_index
from calibrant.core.few_clusters import count_clusters, mean_error, needs_t_interval
from calibrant.evaluation.bootstrap import in_blocks
from calibrant.evaluation.tables import Estimate, PlainData
from calibrant.kernels.bins import index_sums
from calibrant.metrics.clinical import Z_95
from calibrant.metrics.top_label import Reliability, bin_index, reliability

SIGNIFICANCE = 0.05
FEWEST_ROWS, FEWEST_ERRORS = 30, 5
"""Below these no verdict is given."""


@dataclass(frozen=True)
class NoiseFloor(PlainData):
    """The ECE a perfectly calibrated model with these confidences would show at this n, and the consistency test.

    `mean`, `low` and `high` describe the ECE over label sets re-drawn from the confidences (2.5% and 97.5%
    quantiles), `critical` the largest ECE that is no evidence of miscalibration; `p_value` is
    (1 + #{drawn ECE ≥ observed}) / (draws + 1), divided by the share of the level that the ECE gets if all classes are
    tested as well. With fewer than 20 clusters half of the level goes to a t test of the mean gap.
    """

    mean: float
    low: float
    high: float
    critical: float
    p_value: float
    draws: int

    @property
    def significant(self) -> bool:
        """Is the error more than chance? Verdicts and the interval of the ECE follow this test."""
        return self.p_value < SIGNIFICANCE

    def restrict(self, ece: Estimate) -> Estimate:
        """Return the ECE with an interval that starts at 0 unless the test rejects calibration.

        If it does, an interval from 0 starts at a bound above 0 instead: the observed ECE exceeds the true one by at
        most the ECE of the noise, which is below `critical`.
        """
        if not np.isfinite(ece.low):
            return ece
        if not self.significant:
            return replace(ece, low=0.0)
        return ece if ece.low > 0 else replace(ece, low=max(ece.value - self.critical, np.finfo(float).tiny))


CLASS_SHARE = 0.2
"""Share of the level that the test of all classes gets."""
ROW_DRAWS_LIMIT = 25_000_000
"""Rows × draws up to which every row is drawn by itself."""
CELLS = 2048
"""Above that limit: cells of nearly equal confidence, drawn as one binomial each."""


def consistency_test(
    confidence: Array,
    correct: Array,
    *,
    n_bins: int = 15,
    weights: Array | None = None,
    draws: int = 1000,
    seed: int = 0,
    clusters: Array | None = None,
    share: float = 1.0,
) -> NoiseFloor:
    """Noise floor and p-value of the equal-width top-label ECE.

    p = (1 + #{ECE_r ≥ ECE}) / (R + 1), with ECE_r the error of labels drawn as a_i ~ Bernoulli(c_i).

    Parameters
    ----------
    confidence, correct : the top probability and whether it was right, (n,).
    weights : row weights (n,) or None.
    clusters : the cluster of each row (n,), numbered from 0, or None. Labels of one cluster are not independent, so
        the residuals Σ w(c − a) of whole clusters are multiplied at random instead (`cluster_sums`).
    share : share of the level that this test gets; the p-value is divided by it.

    Examples
    --------
    >>> generator = np.random.default_rng(0)
    >>> confidence = generator.uniform(0.5, 1, 2000)
    >>> honest = generator.random(2000) < confidence
    >>> consistency_test(confidence, honest).p_value > 0.05
    True
    >>> consistency_test(confidence, honest & (generator.random(2000) < 0.8)).p_value < 0.01
    True
    """
    confidence, correct = np.asarray(confidence), np.asarray(correct, np.float64)
    index = width_index(confidence, check_n_bins(n_bins))
    confidence = np.clip(confidence.astype(np.float64), 0.0, 1.0)
    mass = row_mass(weights, len(confidence))
    total = mass.sum()
    _, stated, right = index_sums(index, confidence, correct, mass, n_bins)
    observed = total_gap(stated - right, total)
    if clusters is None:
        gaps = stated - drawn_right(confidence, index, n_bins, weights, draws=draws, seed=seed)
        return noise_floor(total_gap(gaps, total), observed, share)
    gaps = cluster_sums(index, confidence, correct, mass, clusters, n_bins, draws=draws, seed=seed)
    if not needs_t_interval(count_clusters(clusters, mass)):
        return noise_floor(total_gap(gaps, total), observed, share)
    # over few clusters the test of the bins has hardly any power
    floor = noise_floor(total_gap(gaps, total), observed, share / 2)
    p_value = mean_gap_p_value(confidence, correct, mass, clusters) / (share / 2)
    return replace(floor, p_value=min(1.0, p_value, floor.p_value))


def mean_gap_p_value(confidence: Array, correct: Array, mass: Array, clusters: Array) -> float:
    """Compute the p-value of the t test over clusters that mean confidence equals accuracy.

    The variance is at least the one that the stated confidences imply for independent rows, because few or no errors
    may have been seen. A single cluster gives 1.
    """
    gap, total = confidence - correct, mass.sum()
    mean = float(mass @ gap / total)
    error, freedom = mean_error(mass * (gap - mean), mass, clusters)
    implied = np.sqrt(mass**2 @ (confidence * (1 - confidence))) / total
    error = np.fmax(error, implied)
    if not np.isfinite(freedom) or error == 0:
        return 1.0
    return float(2 * stdtr(freedom, -abs(mean) / error))


def row_mass(weights: Any, n_rows: int) -> Array:
    """The weight of each row (n,), 1 where none are given."""
    return np.ones(n_rows) if weights is None else np.asarray(weights, np.float64)


def design_effect(residual: Array, clusters: Array | None) -> float:
    """How many times the variance of a sum of residuals (n,) grows because rows of a cluster err together."""
    sums = residual if clusters is None else np.bincount(clusters, residual)
    return max(float(sums @ sums) / max(float(residual @ residual), 1e-300), 1.0)


def direction(over: float, under: float) -> int:
    """1 where confidence is too high and −1 where it is too low; 0 where bins err in both directions.

    They do where the mean gap, over − under, hides more than half of the error, over + under.

    >>> direction(0.04, 0.01), direction(0.01, 0.04), direction(0.04, 0.02)
    (1, -1, 0)
    """
    net = over - under
    return 0 if abs(net) < (over + under) / 2 else 1 if net > 0 else -1


def noise_floor(errors: Array, observed: float, share: float = 1.0) -> NoiseFloor:
    """The floor and the p-value, at a share of the level, from the errors (R,) of calibrated models."""
    # sums taken in another order differ in the last bits: a tie must count as a tie
    p_value = min(1.0, (1 + int((errors >= observed - 1e-12).sum())) / (len(errors) + 1) / share)
    # the most errors above the observed one with which the p-value is significant
    most = max(int(np.ceil(SIGNIFICANCE * share * (len(errors) + 1))) - 2, 0)
    critical = float(np.partition(errors, -most - 1)[-most - 1])
    low, high = np.quantile(errors, [0.025, 0.975]).tolist()
    return NoiseFloor(float(errors.mean()), low, high, critical, p_value, len(errors))


def drawn_right(confidence: Array, index: Array, n_bins: int, weights: Array | None, *, draws: int, seed: int) -> Array:
    """Weight of right answers by bin (R, n_bins) when a_i ~ Bernoulli(c_i).

    Up to 25 M rows × draws each row is drawn. Beyond, the rows of a bin are cut into cells of neighbouring
    confidences, and a cell of m rows is one Binomial(m, mean c): the mean is exact, and the variance is off by
    Σ(c−c̄)² only, which shrinks with the square of the cells' width. Weighted rows take the normal limit there.
    """
    generator = np.random.default_rng([seed, 11])
    if len(confidence) * draws <= ROW_DRAWS_LIMIT:
        # float32 sums of ones are exact; those of weights would depend on the processor's order of summation
        onehot = np.eye(n_bins, dtype=np.float32 if weights is None else np.float64)[index]
        if weights is not None:
            onehot *= weights[:, None]
        # 32 random bits: 24-bit floats would never draw an error of a confidence above 1 − 6e-8
        threshold, certain = np.minimum(confidence * 2.0**32, 2.0**32 - 1).astype(np.uint32), confidence >= 1.0

        def drawn(count: int) -> Array:
            bits = generator.integers(1 << 32, size=(count, len(confidence)), dtype=np.uint32)
            return (certain | (bits < threshold)).astype(onehot.dtype) @ onehot

        return in_blocks(drawn, draws, len(confidence)).astype(np.float64)
    if weights is not None:
        mean = np.bincount(index, weights * confidence, n_bins)
        variance = np.bincount(index, weights**2 * confidence * (1 - confidence), n_bins)
        return mean + np.sqrt(variance) * generator.standard_normal((draws, n_bins))
    order = np.argsort(confidence)
    # cells begin at every edge of a bin and every n/CELLS rows
    steps = np.arange(0, len(order), max(1, len(order) // CELLS))
    starts = np.union1d(steps, np.flatnonzero(np.diff(index[order])) + 1)
    counts = np.diff(starts, append=len(order))
    means = np.minimum(np.add.reduceat(confidence[order], starts) / counts, 1.0)
    return generator.binomial(counts, means, size=(draws, len(counts))) @ np.eye(n_bins)[index[order][starts]]


def unit_sums(index: Array, column: Any, unit: Array, n_cells: int) -> csr_array:
    """Sums of a column (n,) by the cell and the unit of each row (n_cells, U); a row may be in several cells (…, n)."""
    places = index.ravel(), np.resize(unit, index.size)
    return csr_array((np.resize(column, index.size), places), shape=(n_cells, unit.max() + 1))


def cluster_sums(  # noqa: PLR0917
    index: Array, stated: Array, correct: Array, mass: Array, clusters: Array, n_cells: int, *, draws: int, seed: int
) -> Array:
    """Sums of w(c − a) by cell (R, n_cells), as `unit_sums`, of calibrated rows, whatever joins those of a cluster.

    Each cluster's sums are multiplied by a normal number, and the draws divided by √(χ²/ν), with ν + 1 the effective
    number of clusters (Kish). Errors may be so rare that few or none were seen, and the observed squares of residuals
    then say nothing of the noise: they only tell how much clusters add to that of single rows, which is known, c(1−c).
    """
    generator, residual = np.random.default_rng([seed, 13]), mass * (stated - correct)
    table = unit_sums(index, residual, clusters, n_cells)
    observed, claimed = (
        np.bincount(index.ravel(), np.resize(column, index.size), n_cells)
        for column in (residual**2, mass**2 * stated * (1 - stated))
    )
    scale = claimed / np.maximum(observed, 1e-300)
    own = scale @ table.power(2)
    freedom = max(own.sum() ** 2 / max((own**2).sum(), 1e-300) - 1, 1.0)

    def drawn(count: int) -> Array:
        noise = (table @ generator.standard_normal((table.shape[1], count))).T
        return np.sqrt(scale / (generator.chisquare(freedom, (count, 1)) / freedom)) * noise

    return in_blocks(drawn, draws, table.shape[1], 8_000_000)


def reliability_bins(
    confidence: Array,
    correct: Array,
    *,
    n_bins: int = 15,
    binning: str = "width",
    weights: Array | None = None,
    draws: int = 400,
    seed: int = 0,
) -> Reliability:
    """Bin the top-label confidences (n,) and set beside each bin's accuracy its interval and the noise band.

    The interval is Wilson's at 95%. The band holds 95% of the accuracies that labels drawn from the confidences
    themselves give (Bröcker & Smith 2007).

    Examples
    --------
    >>> bins = reliability_bins(np.array([0.9, 0.9, 0.4, 0.6]), np.array([1, 1, 0, 1]), n_bins=2)
    >>> bins.count.tolist(), bins.accuracy.tolist()
    ([1, 3], [0.0, 1.0])
    """
    confidence = np.asarray(confidence)
    mass = None if weights is None else np.asarray(weights, np.float64)
    bins = reliability(confidence, correct, sample_weight=mass, n_bins=n_bins, binning=binning)
    index = bin_index(confidence, mass, n_bins, binning)
    count = np.bincount(index, minlength=n_bins)
    squares = count if mass is None else np.bincount(index, mass**2, n_bins)
    drawn = drawn_right(np.clip(confidence.astype(np.float64), 0.0, 1.0), index, n_bins, mass, draws=draws, seed=seed)
    with np.errstate(invalid="ignore", divide="ignore"):
        # Kish's number of equally weighted rows that would be as noisy: the plain count where there are no weights
        low, high = wilson_interval(bins.accuracy, bins.counts**2 / squares)
        noise_low, noise_high = np.quantile(drawn, [0.025, 0.975], axis=0) / bins.counts
    return replace(bins, count=count, accuracy_low=low, accuracy_high=high, noise_low=noise_low, noise_high=noise_high)


def wilson_interval(share: Array, count: Array) -> tuple[Array, Array]:
    """95% Wilson score interval of shares out of (effective) counts.

    >>> low, high = wilson_interval(np.array([0.5]), np.array([100.0]))
    >>> round(float(low[0]), 3), round(float(high[0]), 3)
    (0.404, 0.596)
    """
    square = Z_95**2
    scale = 1 + square / count
    centre = (share + square / (2 * count)) / scale
    half = Z_95 / scale * np.sqrt(share * (1 - share) / count + square / (4 * count**2))
    low, high = np.clip([centre - half, centre + half], 0.0, 1.0)
    return low, high
