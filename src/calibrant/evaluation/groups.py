"""Figures of every group, whether groups differ beyond chance, and which group is worst served.

The signed gap of a group is its mean confidence minus its accuracy (of one probability per row: mean probability minus
the share of positives). Its intervals hold for all groups at once: they hold the accuracies whose normal number, by the
skewness of a binomial, is at most q, the 95% quantile of the largest of the groups' correlated normal numbers (max-t;
Westfall & Young 1993). It is found by multiplying what is independent by normal numbers: rows that share their finest
group, their range of confidence and their outcome as one unit, or whole clusters, which add to every group that they
have rows in.

Whether groups differ: rows are compared within bins of confidence, so that groups of easy and of hard rows under one
and the same calibration map do not count as different. The odds of each bin are first multiplied by what all its rows
together call for, which gives every row a chance q. The sums S_g = Σ w(q − a), less the part that the group would have
in an error of the whole bin (its share of Σ w·q(1−q)), then have mean 0 where one map serves all groups, and a known
variance V: the score test of a logistic regression on groups, with an intercept per bin. Q = Σ S²/V is compared with
its values for outcomes drawn with the chances q, since χ² is no guide where errors are rare.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.special import stdtr

from calibrant.core.arrays import Array
from calibrant.core.bins import BinSums, check_n_bins, over, total_gap, width_edges, width_index
from calibrant.core.bins import place as range_of
from calibrant.core.errors import InputError
from calibrant.core.few_clusters import BOOTSTRAP_CLUSTERS, VERDICT_CLUSTERS, mean_errors, t_quantile
from calibrant.core.schema import MISSING, identifiers
from calibrant.core.softmax import sigmoid
from calibrant.evaluation.bootstrap import LEVEL, column_of, in_blocks
from calibrant.evaluation.consistency import (
    FEWEST_ERRORS,
    FEWEST_ROWS,
    ROW_DRAWS_LIMIT,
    SIGNIFICANCE,
    NoiseFloor,
    cluster_sums,
    noise_floor,
    row_mass,
    unit_sums,
)
from calibrant.evaluation.evidence import count_evidence
from calibrant.evaluation.results import about
from calibrant.evaluation.tables import (
    Estimate,
    Figures,
    Json,
    PlainData,
    Row,
    Table,
    figure_cells,
    metric_columns,
    plain,
)
from calibrant.kernels.logistic import Pull, fit_logistic, logistic_sums
from calibrant.metrics.clinical import Z_95
from calibrant.metrics.inputs import Checked

QUANTILES = 4
"""Groups that a column of measurements is cut into."""
MOST_FLOATS = 20
"""A column of floats with more distinct values than this is a measurement."""
MOST_INTEGERS = 1000
"""Whole numbers are codes (a season, a ward) up to this many distinct values."""
MOST_GROUPS = 20_000


class Grouping(NamedTuple):
    """Groups of rows over one or two columns.

    codes : the group of each row (L, n) on each level, numbered in the order of first appearance, so that renaming
        groups changes nothing. With one column there is one level; with two there are the groups of either column,
        then their intersections. The last level is the finest.
    names : for each group of all levels, the value in each column that defines it.
    """

    codes: Array
    names: tuple[dict[str, str], ...]

    def totals(self, column: Array, index: Any = 0, *bins: int) -> Array:
        """Sums of a column by group (G,), or by group and the index of each row among so many bins (G, bins).

        A column of (n,) stands for all levels; one of (L, n) has its own values on each.
        """
        size = prod(bins)
        places = self.codes * size + index
        sums = np.bincount(places.ravel(), np.resize(column, places.size), len(self.names) * size)
        return sums.reshape(-1, *bins)


def make_grouping(columns: Mapping[str, Any], n_rows: int) -> Grouping:
    """Groups by one column, or by two columns and their intersections.

    >>> grouping = make_grouping({"ward": ["a", "b", "a"], "sex": ["f", "f", "m"]}, 3)
    >>> [" & ".join(f"{k} {v}" for k, v in name.items()) for name in grouping.names][:3]
    ['ward a', 'ward b', 'sex f']
    """
    if not 1 <= len(columns) <= 2:
        raise InputError(f"by needs one or two columns, got {len(columns)}: {', '.join(columns) or 'none'}")
    coded = {split_name(name)[0]: encode(values, name, n_rows) for name, values in columns.items()}
    codes = []
    names: list[dict[str, str]] = []
    for level in dict.fromkeys([*((column,) for column in coded), tuple(coded)]):
        code, _ = identifiers({column: coded[column][0] for column in level})
        codes.append(code + len(names))
        for row in np.unique(code, return_index=True)[1]:
            names.append({column: coded[column][1][coded[column][0][row]] for column in level})
    if len(names) > MOST_GROUPS:
        raise InputError(
            f"by {' and '.join(coded)} gives {len(names):,} groups, more than {MOST_GROUPS:,}: "
            "is it an identifier of rows? cut it into quantiles (NAME:4) or give another column"
        )
    return Grouping(np.stack(codes), tuple(names))


def encode(values: Any, name: str, n_rows: int) -> tuple[Array, list[str]]:
    """The group of each row (n,) and the groups' labels, by first appearance; measurements are cut into quantiles.

    `NAME:5` asks for five quantile groups of a column of numbers.
    """
    name, wanted = split_name(name)
    column = np.asarray(values)
    if column.dtype.kind in "fiu":
        finite = np.isfinite(column)
        known, most = column[finite].astype(np.float64), MOST_FLOATS if column.dtype.kind == "f" else MOST_INTEGERS
        if len(known) and (wanted or len(np.unique(known)) > most):
            # ranges that hold about the same number of rows; ties share a range
            count = wanted or QUANTILES
            edges = np.unique(np.quantile(known, np.arange(1, count) / count, method="lower"))
            borders = [f"{border:.4g}" for border in (known.min(), *edges, known.max())]
            words = np.array([f"({low}, {high}]" for low, high in pairwise(borders)])
            words[0] = words[0].replace("(", "[")
            column = np.where(finite, words[np.searchsorted(edges, column)], MISSING)
    elif wanted:
        raise InputError(f"the column {name!r} holds {column.dtype}, which cannot be cut into {wanted} quantiles")
    return identifiers(column, n_rows, f"the column {name!r}")


def split_name(name: str) -> tuple[str, int]:
    """`age:5` → ("age", 5); 0 where no number of quantiles is asked for."""
    stem, colon, count = name.rpartition(":")
    if colon and count.isdigit() and stem:
        if not 2 <= int(count) <= 1000:
            raise InputError(f"{name!r} asks for {count} quantile groups: give 2 to 1000")
        return stem, int(count)
    return name, 0


def columns_by(predictions: Any, by: Any) -> dict[str, Array]:
    """The columns to group by: names of columns of the predictions, one array of a value per row, or a mapping."""
    if isinstance(by, str):
        by = [part.strip() for part in by.split(",") if part.strip()]
    if isinstance(by, Sequence) and 1 <= len(by) <= 2 and all(isinstance(name, str) for name in by):
        by = {name: split_name(name)[0] for name in by}
    given = by if isinstance(by, Mapping) else {"group": by}
    found = {str(name): column_of(predictions, values) for name, values in given.items()}
    for name, column in found.items():
        if column.shape != (predictions.n,):
            raise InputError(
                f"the column {split_name(name)[0]!r} has shape {column.shape}, but there are {predictions.n} rows: "
                "give one entry per row"
            )
    return found


def common_groups(val: Any, columns: Mapping[str, Array]) -> tuple[Array | None, Array]:
    """The name of each row's group in `val` and in the columns of test rows, numbers cut at the same places.

    None where `val` lacks a column.
    """
    start = 0
    with suppress(InputError):
        columns = {name: np.concatenate([val.column(split_name(name)[0]), own]) for name, own in columns.items()}
        start = val.n
    names = {}
    for name, column in columns.items():
        code, labels = encode(column, name, len(column))
        names[name] = np.array(labels)[code]
    code, labels = identifiers(names)
    found = np.array(labels)[code]
    return found[:start] if start else None, found[start:]


NEAR_THE_ENDS = np.array([0.0003, 0.001, 0.002, 0.004, 0.007, 0.012, 0.02, 0.035])
"""Extra edges near 0 and 1, where p(1−p) changes fast."""


class _Rows:
    """The rows of an analysis and their sums by group.

    total : weight of each group (G,), NaN where it is 0. count : its rows (G,).
    range : the finest group and the narrow range of confidence of each row (n,), as one number.
    unit : what is resampled (n,): rows of one finest group, range of confidence and outcome; or whole clusters.
    index : the bin of each row (n,). totals, codes : those of the grouping.
    independent : rows or clusters of positive weight of each group (G,).
    few : groups of too few clusters for normal intervals (G,).
    joined : how many times clusters multiply the variance of each group's residuals (G,); see `design_effect`.
    """

    def __init__(  # noqa: PLR0917
        self,
        confidence: Array,
        correct: Array,
        weights: Array | None,
        clusters: Array | None,
        grouping: Grouping,
        n_bins: int,
    ) -> None:
        self.totals, self.codes, self.weights, self.clusters = grouping.totals, grouping.codes, weights, clusters
        self.stated, self.correct = np.clip(confidence.astype(np.float64), 0.0, 1.0), correct.astype(np.float64)
        self.mass = mass = row_mass(weights, len(correct))
        self.index, self.n_bins = width_index(confidence, n_bins), n_bins
        total = self.totals(mass)
        self.total, self.count = np.where(total > 0, total, np.nan), np.bincount(self.codes.ravel())
        # edges of the bins, and finer ones near 0 and 1
        edges = np.unique(np.concatenate([width_edges(n_bins), NEAR_THE_ENDS, 1 - NEAR_THE_ENDS]))
        self.range = self.codes[-1] * len(edges) + range_of(self.stated, edges)
        self.independent, self.few = self.count, np.zeros(len(self.count), bool)
        if clusters is None:
            self.unit = np.unique(2 * self.range + (self.correct > 0.5), return_inverse=True)[1]
        else:
            self.unit = clusters
            self.unit_mass = self.by_unit(mass)
            self.independent = (self.unit_mass > 0).sum(axis=1)
            self.few = self.independent < BOOTSTRAP_CLUSTERS
        residual = mass * (self.stated - self.correct)
        self.joined = np.maximum(self.squares(residual) / np.maximum(self.totals(residual**2), 1e-300), 1.0)

    def by_unit(self, column: Array) -> csr_array:
        """Sums of a column, (n,) or (L, n), by group and unit (G, U); a cluster may add to several groups."""
        return unit_sums(self.codes, column, self.unit, len(self.count))

    def squares(self, column: Array) -> Array:
        """Squares of a column by group (G,), of the sums over what varies independently: rows, or clusters."""
        if self.clusters is None:
            return self.totals(column**2)
        return self.by_unit(column).power(2).sum(axis=1)

    def mean(self, column: Array) -> tuple[Array, Array]:
        """Mean of a column in each group and its standard error: NaN where fewer than 2 rows or clusters tell of it."""
        mean = self.totals(self.mass * column) / self.total
        deviations = self.mass * (column - mean[self.codes])
        error = np.sqrt(self.squares(deviations)) / self.total
        if self.few.any():
            error = np.where(self.few, mean_errors(self.by_unit(deviations), self.unit_mass)[0], error)
        return mean, np.where(self.independent >= 2, error, np.nan)

    def freedom(self) -> Array:
        """Degrees of freedom of the standard errors of means (G,)."""
        if not self.few.any():
            return self.independent - 1.0
        return np.where(self.few, mean_errors(self.unit_mass, self.unit_mass)[1], self.independent - 1.0)


def _simultaneous(rows: _Rows, resamples: int, seed: int) -> tuple[tuple[Array, ...], Array, Array]:
    """The signed gap of each group with ends that hold for all groups at once, their quantiles (G,), and p-values.

    The accuracy of a group varies as that of N equal rows would. The ends are the accuracies that N rows do not reject:
    an interval of two standard errors is too wide on one side and too narrow on the other where errors are few.
    """
    mass, generator = rows.mass, np.random.default_rng([seed, 17])
    claimed = mass**2 * rows.stated * (1 - rows.stated)
    stated, right = (rows.totals(mass * column) / rows.total for column in (rows.stated, rows.correct))
    gap, error = rows.mean(rows.stated - rows.correct)
    # half an error and half a right answer more than seen, which vary as the stated confidences imply
    half = rows.totals(mass**2) / rows.total / 2
    near = (rows.total * right + half) / (rows.total + 2 * half)
    seen, near = right * (1 - right), near * (1 - near)
    with np.errstate(divide="ignore", invalid="ignore"):
        implied = np.nan_to_num(rows.totals(claimed) * rows.joined / (stated * (1 - stated)))
        variance = ((rows.total * error) ** 2 + implied * (near - seen)) / near
        # a few clusters may show too little spread by chance
        worth = rows.total**2 / (variance if rows.clusters is None else np.fmax(variance, implied))
    own = mass * (rows.stated - rows.correct - gap[rows.codes])
    # normal multiples of the sums of clusters, or of the spread that the stated confidences imply
    total = rows.by_unit(claimed).sqrt() if rows.clusters is None else rows.by_unit(own)
    spread = np.sqrt(total.power(2).sum(axis=1))[:, None]
    known = np.isfinite(error * worth)
    if rows.few.any():
        # the critical numbers are Student's at a level divided by the number of groups, because max-t would take the
        # spread of few clusters as known
        freedom, n_groups = rows.freedom(), np.count_nonzero(known)
        limits = t_quantile(freedom, (1 - LEVEL) / 2 / np.maximum(n_groups, 1))
        p_gap = np.minimum(1.0, 2 * n_groups * stdtr(freedom, -np.abs(_normal(right, stated, worth))))
        ends = [np.where(known, stated - _end(right, end, worth, limits), np.nan) for end in (1.0, 0.0)]
        return (gap, *ends), limits, np.where(known, p_gap, np.nan)

    def largest(count: int) -> Array:
        """The largest of the groups' standardised deviations in each of so many draws."""
        drawn = total @ generator.standard_normal((total.shape[1], count)) / np.maximum(spread, 1e-300)
        return np.abs(drawn)[known].max(axis=0, initial=0.0)

    reached = in_blocks(largest, resamples, total.shape[1])
    reached.sort()
    p_gap = (1 + resamples - np.searchsorted(reached, np.abs(_normal(right, stated, worth)) - 1e-12)) / (resamples + 1)
    critical = max(float(reached[min(int(np.ceil(LEVEL * (resamples + 1))), resamples) - 1]), Z_95)
    ends = [np.where(known, stated - _end(right, end, worth, critical), np.nan) for end in (1.0, 0.0)]
    return (gap, *ends), np.full(len(gap), critical if known.any() else np.nan), np.where(known, p_gap, np.nan)


def _normal(seen: Array, chance: Array, worth: Array) -> Array:
    """The share of right answers that was seen, as a standard normal number where they have this chance (G,).

    A sum of skewness γ that is t standard deviations from its mean is taken as gamma distributed, whose cube root is
    nearly normal: z = (6/γ)(∛(1 + γt/2) − 1) + γ/6 (Wilson & Hilferty 1931). It is close to the normal number of the
    mid-p value of a binomial.
    """
    spread = np.sqrt(np.maximum(chance * (1 - chance), 1e-300) / worth)
    skew = (1 - 2 * chance) / (worth * spread)
    skew = np.where(np.abs(skew) < 1e-5, 1e-5, skew)
    return 6 / skew * (np.cbrt(1 + skew * (seen - chance) / spread / 2) - 1) + skew / 6


def _end(seen: Array, end: float, worth: Array, critical: Array | float) -> Array:
    """The chance between what was seen and 0 or 1 from which on its normal number is beyond the critical one (G,)."""
    inside, outside = seen, np.full(len(seen), end)
    for _ in range(50):
        middle = (inside + outside) / 2
        covered = np.abs(_normal(seen, middle, worth)) <= critical
        inside, outside = np.where(covered, middle, inside), np.where(covered, outside, middle)
    return outside


MOST_SUMS, FEWEST_DRAWS = 20_000_000, 99
"""Sums by group and bin that are held: of very many groups fewer draws are made."""


def _chance_sums(rows: _Rows, stated: Array, draws: int, seed: int) -> Array:
    """Sums of w(c − a) by group and bin (R, G, bins) of rows that are right with these chances (n,)."""
    n_bins, mass, generator = rows.n_bins, rows.mass, np.random.default_rng([seed, 11])
    index, cells = rows.codes * n_bins + rows.index, len(rows.count) * n_bins
    draws = min(draws, max(FEWEST_DRAWS, MOST_SUMS // cells))
    if rows.clusters is not None:
        sums = cluster_sums(index, stated, rows.correct, mass, rows.clusters, cells, draws=draws, seed=seed)
        return sums.reshape(draws, -1, n_bins)
    # rows of one finest group and narrow range are one binomial; of unequal weights each row, up to a limit
    unit = rows.range
    if rows.weights is not None and len(stated) * draws <= ROW_DRAWS_LIMIT:
        unit = np.arange(len(stated))
    _, first, unit = np.unique(unit, return_index=True, return_inverse=True)
    weight, square, mean, claimed = (
        np.maximum(np.bincount(unit, column), 1e-300)
        for column in (mass, mass**2, mass * stated, mass**2 * stated * (1 - stated))
    )
    size, mean = np.maximum(np.rint(weight**2 / square), 1.0), np.minimum(mean / weight, 1.0)
    scale = np.sqrt(claimed / np.maximum(size * mean * (1 - mean), 1e-300))
    to_bins = unit_sums(index[:, first], 1.0, np.arange(len(first)), cells)

    def drawn(count: int) -> Array:
        noise = generator.binomial(size.astype(np.int64), mean, size=(count, len(first))) - size * mean
        return (scale * noise) @ to_bins.T

    return in_blocks(drawn, draws, len(first)).reshape(draws, -1, n_bins)


@dataclass(frozen=True)
class Heterogeneity(PlainData):
    """The test that all groups share one calibration map."""

    statistic: float
    freedom: int
    p_value: float


def groups_differ(
    confidence: Array,
    correct: Array,
    mass: Array,
    grouping: Grouping,
    clusters: Array | None = None,
    *,
    n_bins: int = 15,
    draws: int = 1000,
    seed: int = 0,
) -> Heterogeneity:
    """Test the finest groups of a grouping; where too few clusters hold an error, p is 1.

    >>> from calibrant.evaluation.groups import make_grouping
    >>> generator = np.random.default_rng(0)
    >>> p, ward = generator.uniform(0.5, 1, 2000), generator.integers(0, 3, 2000)
    >>> right = generator.random(2000) < p
    >>> groups_differ(p, right, np.ones(2000), make_grouping({"ward": ward}, 2000)).p_value > 0.05
    True
    """
    finest = grouping.codes[-1:] - grouping.codes[-1].min()
    own = Grouping(finest, grouping.names[-finest.max() - 1 :])
    rows = _Rows(confidence, correct, mass if np.ptp(mass) else None, clusters, own, n_bins)
    stated, index = rows.stated, rows.index
    events, expected, count = (np.bincount(index, one, n_bins) for one in (rows.correct, stated, None))
    # a few rows say little of their bin
    right, wrong = (
        (seen + FEWEST_ERRORS) / (claimed + FEWEST_ERRORS)
        for seen, claimed in ((events, expected), (count - events, count - expected))
    )
    odds = (right / wrong)[index] * stated
    chance = odds / (odds + 1 - stated)
    linear, square = (
        rows.totals(weight * chance * (1 - chance), index, n_bins) for weight in (rows.mass, rows.mass**2)
    )
    share = linear / np.maximum(linear.sum(axis=0), 1e-300)
    variance = ((1 - 2 * share) * square + share**2 * square.sum(axis=0)).sum(axis=1)
    known = variance > 1e-12 * variance.max()
    freedom = int(known.sum()) - 1
    few = clusters is not None and count_evidence(rows.correct, mass, clusters, task="binary", stated=stated).shortage
    if freedom < 1 or few:
        return Heterogeneity(0.0, 0, 1.0)

    def statistic(sums: Array) -> Array:
        """Q of sums by group and bin (…, G, bins), about as large as the degrees of freedom."""
        parts = sums.sum(axis=-1) - sums.sum(axis=-2) @ share.T
        return (parts[..., known] ** 2 / variance[known]).sum(axis=-1) * freedom / (freedom + 1)

    observed = float(statistic(rows.totals(rows.mass * (chance - rows.correct), index, n_bins)))
    drawn = statistic(_chance_sums(rows, chance, draws, seed))
    return Heterogeneity(observed, freedom, noise_floor(drawn, observed).p_value)


SMALLEST_CHANCE = 1e-12
SLOPE_RIDGE = 1e-6
"""Pull of slope and intercept to 1 and 0, per row: where a group is separable its slope stays finite."""


def _slopes(rows: _Rows, share: Array) -> tuple[Array, Array]:
    """Slope of each group and its sandwich standard error; NaN where a group has one outcome or one score only.

    share : of positives in each group (G,).
    """
    chance, codes = rows.stated, rows.codes
    true, false = np.log(np.maximum([chance, 1 - chance], SMALLEST_CHANCE))
    columns = np.stack([true - false, rows.correct, rows.mass])
    slope, influence = np.full(len(share), np.nan), np.zeros(codes.size)
    for group, places in enumerate(np.split(np.argsort(codes, axis=None), np.cumsum(rows.count)[:-1])):
        score, correct, mass = columns[:, places % len(chance)]
        if 0 < share[group] < 1 and np.ptp(score) > 0:
            given = score[None], correct, mass
            strength = SLOPE_RIDGE * max(rows.total[group], 1.0) * np.eye(2)
            point = fit_logistic(*given, pull=Pull(np.array([1.0, 0.0]), strength)).point
            own, other = np.linalg.inv(logistic_sums(*given, point)[2] + strength)[0]
            residual = mass * (correct - sigmoid(point[0] * score + point[1]))
            slope[group], influence[places] = point[0], residual * (own * score + other)
    error = np.sqrt(rows.squares(influence.reshape(codes.shape)))
    return slope, np.where(np.isfinite(slope), error, np.nan)


def group_name(by: Mapping[str, str]) -> str:
    """The columns and values of a group in words."""
    return " & ".join(f"{column} {value}" for column, value in by.items())


@dataclass(frozen=True)
class GroupFigures(PlainData):
    """One group: who it is, how large, and its figures.

    metrics : `gap` (and `calibration_slope`, `observed_expected` of one probability per row) with intervals that hold
        for all groups at once; `accuracy`, `nll`, `brier` with their own 95% intervals; `ece` beside its noise floor,
        since the percentiles of an ECE never cover 0.
    p_gap : chance of a gap this large in any group, were all calibrated: the p-value of the gap, corrected for the
        number of groups.
    too_few : fewer than 30 rows, fewer than 6 clusters, or fewer than 5 errors both observed and expected.
    """

    by: dict[str, str]
    n: int
    metrics: Figures
    noise_floor: NoiseFloor
    p_gap: float
    too_few: bool
    bins: BinSums | None = field(default=None, compare=False, repr=False)
    """Sums of the group's reliability bins (M,)."""

    json_fields = ("by", "n", "metrics", "p_gap", "too_few")

    @property
    def name(self) -> str:
        """Its columns and values in words."""
        return group_name(self.by)

    def to_dict(self) -> Json:
        """Plain JSON data."""
        floor = self.noise_floor
        return super().to_dict() | plain({"noise_floor": floor.mean, "p_value": floor.p_value})


@dataclass(frozen=True)
class GroupAnalysis:
    """Every group, and what may be said about all of them.

    differ : the test that groups differ in calibration beyond chance, at equal confidence.
    critical : standard errors to either side of a simultaneous interval, the most of any group.
    worst : place of the group that is worst served beyond chance, or None. verdict : the same in one sentence.
    """

    columns: tuple[str, ...]
    groups: tuple[GroupFigures, ...]
    differ: Heterogeneity
    critical: float
    worst: int | None
    verdict: str

    def group(self, **by: Any) -> GroupFigures:
        """The group with these values, e.g. `group(hospital="C")`."""
        wanted = {column: str(value) for column, value in by.items()}
        for one in self.groups:
            if one.by == wanted:
                return one
        raise KeyError(f"no group {wanted}; there are: {', '.join(one.name for one in self.groups[:20])}")

    def table(self) -> Table:
        """Groups × metrics, with the number of rows, the noise floor of the ECE and the p-value of the gap."""
        rows = []
        for place, one in enumerate(self.groups):
            more = {"n": Estimate(one.n), "noise_floor": Estimate(one.noise_floor.mean), "p_gap": Estimate(one.p_gap)}
            rows.append(Row(one.name, figure_cells(one.metrics | more), place == self.worst))
        return Table("group", metric_columns(rows[0].cells), rows, self.verdict)

    def to_frame(self) -> Any:
        """A pandas table: one row per group; each metric as `name`, `name_low`, `name_high`."""
        return self.table().to_frame()


def group_analysis(
    confidence: Array,
    correct: Array,
    grouping: Grouping,
    *,
    weights: Array | None = None,
    clusters: Array | None = None,
    scores: dict[str, Array] | None = None,
    about: str = "predicted class",
    n_bins: int = 15,
    resamples: int = 1000,
    seed: int = 0,
) -> GroupAnalysis:
    """Figures of every group of rows.

    Parameters
    ----------
    confidence, correct : of the predicted class (n,); or probability and label (0/1) of the positive class.
    grouping : who belongs to which group.
    clusters : the cluster of each row (n,), numbered from 0, or None: whole clusters are then drawn.
    scores : further columns (n,) whose mean is a figure: "nll", "brier".
    about : "positive class" adds the calibration slope and observed/expected.

    Examples
    --------
    >>> from calibrant.evaluation.groups import make_grouping
    >>> generator = np.random.default_rng(0)
    >>> ward, p = np.repeat(["A", "B"], 1000), generator.uniform(0.5, 1, 2000)
    >>> right = generator.random(2000) < p - 0.1 * (ward == "B")
    >>> group_analysis(p, right, make_grouping({"ward": ward}, 2000)).worst
    1
    """
    check_n_bins(n_bins)
    n_rows = grouping.codes.shape[1]
    if not len(confidence) == len(correct) == n_rows:
        raise InputError(f"confidence has {len(confidence)} rows, but there are {n_rows} groups of rows")
    rows = _Rows(np.asarray(confidence), np.asarray(correct), weights, clusters, grouping, n_bins)
    confidence, correct, mass = rows.stated, rows.correct, rows.mass
    gap, critical, p_gap = _simultaneous(rows, resamples, seed)
    sums = BinSums(*(rows.totals(mass * column, rows.index, n_bins) for column in (1, confidence, correct)))

    reach = np.where(rows.few, t_quantile(rows.freedom()), Z_95)
    no_interval = np.where(rows.few, np.nan, 1.0)

    def around(value: Array, half: Array) -> tuple[Array, ...]:
        return value, value - half, value + half

    def mean(column: Array) -> tuple[Array, ...]:
        value, error = rows.mean(column)
        return around(value, reach * error)

    figures = {
        "ece": (sums.norm(1),), "over_confidence": (over(sums.excess),), "under_confidence": (over(-sums.excess),),
        "mce": (sums.norm(np.inf),), "gap": gap,
        "accuracy": mean(correct), "confidence": mean(confidence),
    }  # fmt: skip
    accuracy, mistaken = figures["accuracy"][0], 1 - confidence
    if about == "positive class":
        mistaken = np.minimum(confidence, mistaken)
        slope, slope_error = _slopes(rows, accuracy)
        figures["calibration_slope"] = around(slope, no_interval * critical * slope_error)
        stated = figures["confidence"][0]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = ((stated - gap[place]) / stated for place in (0, 2, 1))
            figures["observed_expected"] = tuple(
                ratio * scale for ratio, scale in zip(ratios, (1.0, no_interval, no_interval), strict=True)
            )
    figures |= {name: mean(column) for name, column in (scores or {}).items()}
    errors = rows.count * np.maximum(mean(mistaken)[0], np.minimum(accuracy, 1 - accuracy))
    few = (rows.count < FEWEST_ROWS) | (errors / rows.joined < FEWEST_ERRORS)
    if clusters is not None:
        few |= rows.independent < VERDICT_CLUSTERS
    chance = total_gap(_chance_sums(rows, confidence, resamples, seed), rows.total)
    found = [
        GroupFigures(
            name,
            int(rows.count[place]),
            Figures({key: Estimate(*(float(part[place]) for part in parts)) for key, parts in figures.items()}),
            noise_floor(chance[:, place], figures["ece"][0][place]),
            float(p_gap[place]),
            bool(few[place]),
            BinSums(*(one[place] for one in sums)),
        )
        for place, name in enumerate(grouping.names)
    ]
    columns = tuple(grouping.names[-1])
    groups = tuple(sorted(found, key=lambda one: _order(one, columns)))
    differ = groups_differ(confidence, correct, mass, grouping, clusters, n_bins=n_bins, seed=seed)
    pooled = float(np.average(confidence - correct, weights=mass))
    widest = float(np.fmax.reduce(critical))
    return GroupAnalysis(columns, groups, differ, widest, *_worst_served(groups, differ, pooled, about))


def row_groups(rows: Checked, grouping: Grouping, **options: Any) -> GroupAnalysis:
    """`group_analysis` of rows, with accuracy, NLL and Brier score of every group."""
    confidence, correct, _ = rows.top()
    scores = {"accuracy": rows.column("hit"), "nll": rows.column("nll"), "brier": rows.column("brier")}
    return group_analysis(confidence, correct, grouping, scores=scores, about=about(rows.task), **options)


def group_differences(own: Any, other: Any, comparison: Any) -> Figures:
    """own − other of the mean loss in each group by its name, for two `MethodRow`s of the same rows of a comparison.

    The intervals hold for all groups at once: Student's, at a level divided by the number of groups (Bonferroni), from
    the spread of the differences of rows, or of the sums over clusters.
    """
    columns, metric, grouping = own.columns, comparison.loss, comparison.grouping
    rows = _Rows(columns.confidence, columns.correct, comparison.weights, comparison.clusters, grouping, 1)
    mean, error = rows.mean(getattr(columns, metric).astype(np.float64) - getattr(other.columns, metric))
    half = error * t_quantile(rows.freedom(), (1 - LEVEL) / 2 / len(mean))
    ends = np.stack([mean, mean - half, mean + half], axis=1).tolist()
    return Figures({group_name(by): Estimate(*found) for by, found in zip(grouping.names, ends, strict=True)})


def _order(one: GroupFigures, columns: Sequence[str]) -> tuple[Any, ...]:
    """Columns first, then intersections; column by column: numbers by size, words by letter, what is missing last."""
    places = []
    for column, value in one.by.items():
        try:
            size = False, float(value.strip("[(").split(",")[0])
        except ValueError:
            size = True, 0.0
        places.append((columns.index(column), value == MISSING, size, value))
    return len(places), places


def _worst_served(
    groups: Sequence[GroupFigures], differ: Heterogeneity, pooled: float, about: str
) -> tuple[int | None, str]:
    """Place of the group whose interval of the gap keeps furthest from 0, and one sentence.

    It says who is worst served and by how much, beside all rows together, whose gap is `pooled`.
    """
    tested = f"groups {'differ' if differ.p_value < SIGNIFICANCE else 'do not differ beyond chance'} "
    tested += "(p ≤ 0.001)" if differ.p_value <= 0.001 else f"(p = {differ.p_value:.3f})"
    if not differ.freedom and len(groups) > 1:
        tested = "whether groups differ cannot be tested on so little data"
    gaps = [one.metrics["gap"] for one in groups]
    away = [0.0 if one.too_few else max(0.0, gap.low, -gap.high) for one, gap in zip(groups, gaps, strict=True)]
    worst = int(np.argmax(away))
    if all(one.too_few for one in groups):
        return None, f"the rows or clusters of each group are too few to tell; {tested}"
    if not away[worst] > 0:
        return None, f"no group departs from calibration beyond chance; {tested}"
    one, gap = groups[worst], gaps[worst]
    words = [f"risk {way}estimated" if about == "positive class" else f"{way}confident" for way in ("over", "under")]
    low, high = sorted((abs(gap.low), abs(gap.high)))
    sentence = (
        f"worst served: {one.name} ({one.n:,} rows), {words[gap.value < 0]} by {100 * abs(gap.value):.1f} points "
        f"[{100 * low:.1f}, {100 * high:.1f}]"
    )
    if "observed_expected" in one.metrics:
        sentence += f", {one.metrics['observed_expected'].value:.2f} times the expected events"
    return worst, f"{sentence}; all rows together: {words[pooled < 0]} by {100 * abs(pooled):.1f}; {tested}"
