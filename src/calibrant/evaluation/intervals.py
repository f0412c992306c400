"""95% intervals of every figure, by the rule of its metric, from one set of resamples.

Top-label errors are norms of residuals Σ(c−a)/n over cells of neighbouring confidences. The cells are cut at every
bin edge in use, so hard-binned errors are exact sums of cells; the others (Kolmogorov–Smirnov, smoothed, kernel)
read the cells' mean confidence, of which there are about 256. Bins, bandwidths and chosen bin counts are held at
those of the full sample: only the data are resampled.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from calibrant.core.arrays import Array
from calibrant.core.bins import mass_index, width_index
from calibrant.core.errors import InputError
from calibrant.core.few_clusters import count_clusters, mean_error, needs_t_interval, t_quantile
from calibrant.evaluation.bootstrap import (
    LEVEL,
    Resamples,
    clopper_pearson,
    inverted_interval,
    percentile_interval,
)
from calibrant.kernels.isotonic import ScoreGroups
from calibrant.metrics.classwise import class_loss_sums, class_sums, probability_block
from calibrant.metrics.clinical import spline_knots
from calibrant.metrics.inputs import Checked
from calibrant.metrics.record import BINS, ClassGaps, ClassSpread, Figure, Gaps, Mean, Metric, Redrawn
from calibrant.metrics.top_label import monotone_edges

FINE_CELLS = 256
FEW_ERRORS = 10
"""Below so many errors (or right rows) the interval of a share is exact."""
FUNCTION_RESAMPLES = 200
"""Calls of a function that has no rule of its own."""

MASS_RESAMPLES = 200
"""Resamples for the equal-mass errors, whose tables have no empty cells to skip."""
CLASS_RESAMPLES = 400
"""Resamples for the interval of a mean over classes, which varies little from one to the next."""
NOISE_ELEMENTS = 1 << 24
"""Classes × bins × resamples that are held: of very many classes fewer resamples are used."""

Interval = tuple[float, float]
Found = tuple[Interval, np.ndarray]
"""An interval, and the draws (R,) behind it for paired comparisons."""


class Cells:
    """The resampled rows' confidence and correctness, summed by cell, and how they vary over the resamples.

    confidence : mean confidence of each cell (L,), increasing. share : weight of each cell / total (L,).
    residual : Σ w(c−a) / Σw of each cell (L,), of ALL rows.
    width, mass : the equal-width and equal-mass bin of each cell (L,).
    score, knots : mean log-odds of each cell (L,) and knots of a spline over them, where the log-odds are known.
    weight, positive, excess : weight of each cell, of its right (positive) rows, and Σ w(a − c); of the resampled rows
        themselves first, then of the draws (R+1, L).
    noise : deviations (R, L) of the cells' residuals.
    """

    def __init__(self, rows: Checked, resamples: Resamples, n_bins: int, fine: int = FINE_CELLS) -> None:
        """Cut the confidences (n,) at the edges of equal-width bins, equal-mass bins and `fine` equal-mass cells."""
        (confidence, correct, weights), ones, self.n_bins = rows.top(), rows.mass, n_bins
        width, mass = width_index(confidence, n_bins), mass_index(confidence, n_bins, weights)
        finest = mass_index(confidence, fine, weights)
        # every index grows with confidence, so the joint key does too: cells come out sorted
        _, first, cell = np.unique((width * n_bins + mass) * fine + finest, return_index=True, return_inverse=True)
        self.width, self.mass = width[first], mass[first]
        gap, weight = confidence.astype(np.float64) - correct, np.bincount(cell, ones)
        self.share, self.residual = weight / weight.sum(), np.bincount(cell, ones * gap) / weight.sum()
        safe = np.where(weight > 0, weight, 1.0)
        self.score = self.confidence = np.bincount(cell, ones * confidence) / safe
        self.knots = np.empty(0)
        if fine > 1 and rows.flat:
            self.score = np.bincount(cell, ones * rows.log_odds) / safe
            self.knots = spline_knots(rows.log_odds, weights)
        cell, ones, gap, correct = (column[resamples.rows] for column in (cell, ones, gap, correct))
        columns = np.stack([ones, ones * correct, -ones * gap])
        observed = np.stack([np.bincount(cell, column, len(first)) for column in columns])
        sums = np.vstack([observed[None], resamples.cell_sums(cell, columns, len(first))])
        self.weight, self.positive, self.excess = (np.ascontiguousarray(sums[:, place]) for place in range(3))
        total = np.maximum(self.weight.sum(axis=1, keepdims=True), 1e-300)
        self.noise = resamples.shrink * (self.excess[0] / ones.sum() - self.excess[1:] / total[1:])

    def table(self, gaps: Gaps, value: float) -> Array:
        """What a rule sums of the cells (L, F): bins, or its own table."""
        if callable(gaps.table):
            return gaps.table(self, value)
        index = {"width": self.width, "mass": self.mass}.get(gaps.table)
        if index is None:
            right = self.share * self.confidence - self.residual
            edges = monotone_edges(ScoreGroups(self.confidence, self.share, right))
            index = np.searchsorted(edges, np.arange(len(right)), side="right") - 1
        return np.eye(max(self.n_bins, index.max() + 1))[index]


@dataclass(eq=False)
class ScannedRows(Checked):
    """The rows that metrics of `measure` and `compare` see: columns and sums by class are known from one pass.

    kept : probabilities (m, K) of the rows that `draws` resamples, for the intervals of classes.
    """

    kept: Any = None
    draws: Any = None

    @cached_property
    def probabilities(self) -> Array:
        """The probabilities (n×K), or (n,) of the positive class, that a user's function is given."""
        return self.found.confidence if self.flat else probability_block(self, slice(0, None), np.float64)


class Intervals:
    """The interval of any figure of some rows.

    drawn : resamples of all rows. figures : those that will be asked for. paired : draws are wanted for comparisons.
    """

    def __init__(
        self, rows: ScannedRows, drawn: Resamples, figures: Sequence[Figure], n_bins: int, *, paired: bool = False
    ) -> None:
        self.rows, self.drawn, self.n_bins, self.paired = rows, drawn, n_bins, paired
        self.class_noise = cache(self._class_noise)  # two metrics read the same bins
        rules = [one.interval for one in figures]
        tables = [rule.table if isinstance(rule, Gaps) else "" for rule in rules if isinstance(rule, Gaps | Redrawn)]
        if tables:
            self.cells = Cells(rows, drawn, n_bins, 1 if all(one in BINS for one in tables) else FINE_CELLS)
        # clusters, unless every row is drawn by itself; few clusters are all drawn
        clusters = drawn.unit if drawn.counts.shape[1] < len(drawn.unit) else None
        self.n_clusters = count_clusters(clusters, rows.mass[drawn.rows])
        self.columns = list(dict.fromkeys(rule.column for rule in rules if isinstance(rule, Mean)))
        if self.columns:
            columns = [rows.column(name)[drawn.rows].astype(np.float64) for name in self.columns]
            # deviations (R, F) of the means of all columns that rules ask for
            self.means = drawn.mean_draws(np.stack(columns, axis=1), rows.mass[drawn.rows])

    def of(self, metric: Metric, figure: Figure, value: float) -> Found:
        """Interval and draws of one figure."""
        rule, drawn, draws = figure.interval, self.drawn, np.empty(0)
        if needs_t_interval(self.n_clusters):
            return (self._t_interval(rule, value) if isinstance(rule, Mean) else (np.nan, np.nan)), draws
        if isinstance(rule, Gaps):
            return self._gaps(rule, value)
        if isinstance(rule, ClassGaps):
            sums = class_sums(self.rows, self.n_bins, rule.binning)
            share = (sums.weight / sums.weight.sum(axis=-1, keepdims=True)).ravel()
            used, noise = self.class_noise(rule.binning)
            residual = sums.excess.ravel()[used]
            safe = np.where(share > 0, share, 1.0)[used].astype(np.float32)
            norm = partial(rule.norm, share=safe, n_classes=len(sums.weight))
            return inverted_interval(norm, residual, noise[:CLASS_RESAMPLES], value=value), norm(residual + noise)
        if isinstance(rule, ClassSpread):
            return self._class_spread(rule, value)
        if isinstance(rule, Mean):
            draws = value + self.means[:, self.columns.index(rule.column)]
        elif rule is not None:
            found = rule.figure(self.cells) if isinstance(rule, Redrawn) else self._resampled(metric, figure)
            # cells blur the figure a little, so that only the deviations are taken from them
            draws = np.maximum(value + drawn.shrink * (found[1:] - found[0]), rule.lowest)
        if isinstance(rule, Mean) and rule.share:
            # Exact ends where few rows are wrong, or right: resamples of few errors vary too little. As many rows count
            # as equally weighted, independent ones would be as noisy: Kish's number, or that of the clusters, and no
            # more than the spread of the draws tells.
            mass, units, spread = self.rows.mass, drawn.counts.shape[1], draws.var()
            count = mass.sum() ** 2 / (mass**2).sum()
            if units < len(drawn.unit):
                count = min(count, value * (1 - value) / spread if spread > 0 else units / drawn.shrink**2)
            if count * min(value, 1 - value) < FEW_ERRORS:
                return clopper_pearson(count * value, count), draws
        return percentile_interval(draws, value), draws

    def _t_interval(self, rule: Mean, value: float) -> Interval:
        """Interval of a mean over few clusters: Student's t, or that of a share if few rows are wrong or right."""
        column, mass = self.rows.column(rule.column).astype(np.float64), self.rows.mass
        error, freedom = mean_error(mass * (column - value), mass, self.drawn.unit)
        reach = float(t_quantile(freedom))
        if rule.share and np.isfinite(error):
            # rows of equal weight that would be as noisy, and fewer because their noise is estimated from few clusters
            # (Korn & Graubard 1998)
            kish = mass.sum() ** 2 / (mass**2).sum()
            count = min(kish, value * (1 - value) / error**2 if error > 0 else self.n_clusters)
            if count * min(value, 1 - value) < FEW_ERRORS:
                count *= (t_quantile(kish - 1) / reach) ** 2
                return clopper_pearson(count * value, count)
        high = 1.0 if rule.share else np.inf
        return max(value - reach * error, 0.0), min(value + reach * error, high)

    def _gaps(self, rule: Gaps, value: float) -> Found:
        cells = self.cells
        table = cells.table(rule, value)
        residual, noise, share = (part @ table for part in (cells.residual, cells.noise, cells.share))
        safe, line = np.where(share > 0, share, 1.0), residual
        norm = partial(rule.norm, share=safe)
        if rule.shrunk:
            # The pattern of ĝ over bins is partly noise, whose norm grows with the number of bins: along t·ĝ the
            # interval of an error that is the same in all bins would start and end too low (coverage 88 to 92% where
            # it is to be 95%). So the spread of the bins around their common gap is shrunk by what noise alone gives
            # it; the factor is that of James and Stein, from the mean squared deviations of the resamples.
            line = share * residual.sum()
            apart = residual - line
            chance = ((noise - share * noise.sum(axis=1, keepdims=True)) ** 2 / safe).sum(axis=1).mean()
            line += max(0.0, 1 - chance / max((apart**2 / safe).sum(), 1e-300)) * apart
        # of a debiased error the squares are compared, without what noise adds to them, which is the same for every g
        statistic = (lambda g: norm(g) ** 2) if rule.debiased else norm
        found = inverted_interval(norm, residual, noise, value=value, statistic=statistic, direction=line)
        if rule.worst:
            # a bin of few rows can be off by chance, while others cannot: the largest of ends that hold together. Rows
            # that are all right vary too little among themselves, and as much as was stated at least
            confidence, mass = self.rows.column("confidence"), self.rows.mass
            wide = confidence.astype(np.float64)
            stated = np.clip(mass**2 * wide * (1 - wide), 0.0, None)
            chance = np.bincount(width_index(confidence, self.n_bins), stated, self.n_bins) / mass.sum() ** 2
            spread = np.sqrt(np.maximum(noise.var(axis=0), chance)) + 1e-300
            reach = np.quantile((np.abs(noise) / spread).max(axis=1), (1 + LEVEL) / 2)
            found = max(found[0], min(float(((np.abs(residual) - reach * spread) / safe).max()), value)), found[1]
        return found, norm(residual + noise)

    def _class_noise(self, binning: str) -> tuple[Array, Array]:
        """The bins, among K·M of "width" or "mass", and deviations (R, U) of the residuals of classes over them.

        Of many classes most bins of equal width are empty, add nothing to a sum and are left out. Only entries beyond
        the first bin are summed one by one: of equal width, it holds nearly all of a row's probabilities. The first bin
        is what remains of the class's total, which is one small matrix product.
        """
        rows, n_bins, probabilities = self.rows, self.n_bins, self.rows.kept
        m, n_classes = probabilities.shape
        most, draws = max(20, NOISE_ELEMENTS // (n_classes * n_bins)), rows.draws
        if binning == "mass":
            most = MASS_RESAMPLES
        elif not self.paired:
            most = min(most, CLASS_RESAMPLES)
        draws = draws._replace(counts=draws.counts[:most])
        counts = np.ascontiguousarray(draws.counts[:, draws.unit].T, dtype=np.float32)
        mass, gaps = rows.mass[draws.rows], probabilities.astype(np.float32)
        gaps[np.arange(m), rows.labels[draws.rows]] -= 1.0
        gaps *= mass[:, None].astype(np.float32)
        columns = np.ascontiguousarray(probabilities.T)
        if binning == "width":
            index, filled = width_index(columns, n_bins), class_sums(rows, n_bins, binning).weight.ravel() > 0
        else:
            index = np.stack([mass_index(column, n_bins, mass) for column in columns])
            filled = np.ones(n_classes * n_bins, bool)
        classes, places = np.nonzero(index)
        bins, summed = classes * n_bins + index[classes, places], filled.copy()
        summed[::n_bins] = summed[bins] = True
        used = np.flatnonzero(summed)
        first = np.flatnonzero(used % n_bins == 0)
        table = csr_array((gaps[places, classes], (np.cumsum(summed)[bins] - 1, places)), shape=(len(used), m))
        observed, sums = table.sum(axis=1, dtype=np.float64), table @ counts
        observed[first] = gaps.sum(axis=0, dtype=np.float64) - np.add.reduceat(observed, first)
        sums[first] = draws.sums(gaps).T - np.add.reduceat(sums, first)
        sums /= np.maximum(draws.sums(mass[:, None])[:, 0], 1e-300).astype(np.float32)
        sums -= (observed / mass.sum()).astype(np.float32)[:, None]
        sums *= np.float32(draws.shrink)
        return np.flatnonzero(filled), np.ascontiguousarray(sums[filled[used]].T)

    def _class_spread(self, rule: ClassSpread, value: float) -> Found:
        rows, draws = self.rows, self.rows.draws
        weight, total = class_loss_sums(rows)
        present = weight > 0  # of many classes few may occur
        means, count = total[present] / weight[present], present.sum()
        labels, mass, column = (part[draws.rows] for part in (rows.labels, rows.mass, rows.column(rule.column)))
        place = np.cumsum(present)[labels] - 1
        own, sums = (np.bincount(place, one, count) for one in (mass, mass * column))
        centred = column - (sums / np.where(own > 0, own, 1.0))[place]
        drawn, noise = draws.cell_sums(place, np.stack([mass, mass * centred]), count).swapaxes(0, 1)
        noise = np.where(drawn > 0, draws.shrink * noise / np.maximum(drawn, 1e-12), 0.0)
        found = inverted_interval(lambda g: g.std(axis=-1), means, noise, value=value, ceiling=np.inf)
        return found, (means + noise).std(axis=-1)

    def _resampled(self, metric: Metric, figure: Figure) -> Array:
        """The figure of the resampled rows themselves first, then of the draws.

        Rows are repeated if the metric does not count a weight of 2 as the row twice.
        """
        rows, drawn = self.rows, self.drawn
        columns = [part[drawn.rows] for part in (rows.probabilities, rows.labels, rows.mass)]

        def value(counts: Array) -> float:
            if metric.copies:
                probabilities, labels, weights = *columns[:2], columns[2] * counts
            else:
                probabilities, labels, weights = (np.repeat(part, counts, axis=0) for part in columns)
            return metric.values(probabilities, labels, sample_weight=weights)[figure.name]

        whole = value(np.ones(len(drawn.unit), np.int64))
        try:
            return np.array([whole, *map(value, drawn.counts[:FUNCTION_RESAMPLES, drawn.unit])])
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            remedy = "" if metric.copies else "; use sample_weight, so that no class is lost"
            raise InputError(f"the metric {metric.name} fails on resampled rows ({reason}){remedy}") from error
