"""Figures of every group, whether groups differ beyond chance, and which group is worst served.

The signed gap of a group is its mean confidence minus its accuracy (of one probability per row: mean probability minus
the share of positives). Its intervals hold for all groups at once: their half width is q standard errors, q the 95%
quantile over resamples of the largest studentised deviation of any group (max-t; Westfall & Young 1993).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from calibrant.core.bin_sums import BinSums, over, under
from calibrant.core.bins import check_n_bins, width_index
from calibrant.core.errors import InputError
from calibrant.evaluation.bootstrap import LEVEL
from calibrant.evaluation.consistency import NoiseFloor, noise_floor
from calibrant.evaluation.flat import about, hits
from calibrant.evaluation.group_slopes import group_slopes
from calibrant.evaluation.group_sums import GroupUnits, by_cluster, chance_errors
from calibrant.evaluation.group_test import Heterogeneity, groups_differ
from calibrant.evaluation.grouping import Grouping
from calibrant.evaluation.results import TestColumns
from calibrant.evaluation.table import Estimate, Figures, Row, Table, figure_cells, metric_columns
from calibrant.evaluation.verdicts import FEWEST_ERRORS, FEWEST_ROWS, SIGNIFICANCE
from calibrant.kernels.rows import RowColumns
from calibrant.metrics.flexible import Z_95

MANY_CLUSTERS = 200
"""From this many clusters per group on, the clusters' sums are taken as normal."""


@dataclass(frozen=True)
class GroupFigures:
    """One group: who it is, how large, and its figures.

    metrics : `gap` (and `calibration_slope`, `observed_expected` of one probability per row) with intervals that hold
        for all groups at once; `accuracy`, `nll`, `brier` with their own 95% intervals; `ece` beside its noise floor,
        since the percentiles of an ECE never cover 0.
    p_gap : chance of a gap this large in any group, were all calibrated: the p-value of the gap, corrected for the
        number of groups.
    too_few : fewer than 30 rows, or fewer than 5 errors both observed and expected.
    """

    by: dict[str, str]
    n: int
    metrics: Figures
    noise_floor: NoiseFloor
    p_gap: float
    too_few: bool
    bins: BinSums | None = field(default=None, compare=False, repr=False)
    """Sums of the group's reliability bins (M,)."""

    @property
    def name(self) -> str:
        """Its columns and values in words."""
        return " & ".join(f"{column} {value}" for column, value in self.by.items())

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "by": self.by,
            "n": self.n,
            "metrics": self.metrics.to_dict(),
            "noise_floor": self.noise_floor.mean,
            "p_value": self.noise_floor.p_value,
            "p_gap": self.p_gap,
            "too_few": self.too_few,
        }


@dataclass(frozen=True)
class GroupAnalysis:
    """Every group, and what may be said about all of them.

    differ : the test that groups differ in calibration beyond chance, at equal confidence.
    critical : standard errors to either side of a simultaneous interval.
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
        names = (*self.groups[0].metrics, "n", "noise_floor", "p_gap")
        return Table("group", metric_columns(names), tuple(rows), self.verdict)

    def to_frame(self) -> Any:
        """A pandas table: one row per group; each metric as `name`, `name_low`, `name_high`."""
        return self.table().to_frame()


def group_fields(analysis: GroupAnalysis) -> dict[str, Any]:
    """What a measurement's JSON says about its groups."""
    return {
        "groups": [one.to_dict() for one in analysis.groups],
        "groups_verdict": analysis.verdict,
        "groups_differ": analysis.differ.to_dict(),
        "worst_group": None if analysis.worst is None else analysis.groups[analysis.worst].by,
    }


def group_analysis(
    confidence: np.ndarray,
    correct: np.ndarray,
    grouping: Grouping,
    *,
    weights: np.ndarray | None = None,
    clusters: np.ndarray | None = None,
    scores: dict[str, np.ndarray] | None = None,
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
    >>> from calibrant.evaluation.grouping import make_grouping
    >>> generator = np.random.default_rng(0)
    >>> ward, p = np.repeat(["A", "B"], 1000), generator.uniform(0.5, 1, 2000)
    >>> right = generator.random(2000) < p - 0.1 * (ward == "B")
    >>> group_analysis(p, right, make_grouping({"ward": ward}, 2000)).worst
    1
    """
    check_n_bins(n_bins)
    if len(confidence) != len(correct) or len(confidence) != len(grouping.cell):
        raise InputError(f"confidence has {len(confidence)} rows, but there are {len(grouping.cell)} groups of rows")
    rows = _Rows(confidence, np.asarray(correct), weights, clusters, grouping, n_bins)
    gap, error = rows.gaps()
    critical, p_gap = _simultaneous(rows, gap, error, resamples, seed)
    chance = chance_errors(
        rows.stated, rows.correct, weights, grouping.cell, grouping.members, clusters,
        n_bins=n_bins, draws=resamples, seed=seed,
    )  # fmt: skip
    sums = rows.sums
    ece, half = sums.norm(1), critical * error
    figures: dict[str, tuple[np.ndarray, ...]] = {
        "ece": (ece,), "over_confidence": (over(sums.excess),), "under_confidence": (under(sums.excess),),
        "mce": (sums.norm(float("inf")),), "gap": (gap, gap - half, gap + half),
        "accuracy": rows.mean(rows.correct), "confidence": rows.mean(rows.stated),
    }  # fmt: skip
    if about == "positive class":
        figures |= _clinical(rows, gap, error, critical)
    figures |= {name: rows.mean(column) for name, column in (scores or {}).items()}
    count = rows.count
    expected = rows.mean(1 - rows.stated)[0] * count
    if about == "positive class":
        expected = rows.mean(np.minimum(rows.stated, 1 - rows.stated))[0] * count
    missed = np.minimum(rows.mean(rows.correct)[0], 1 - rows.mean(rows.correct)[0]) * count
    few = (count < FEWEST_ROWS) | ((np.minimum(expected, count) < FEWEST_ERRORS) & (missed < FEWEST_ERRORS))
    groups = tuple(
        GroupFigures(
            name,
            int(count[place]),
            Figures({key: Estimate(*(float(part[place]) for part in parts)) for key, parts in figures.items()}),
            noise_floor(chance[:, place], float(ece[place])),
            float(p_gap[place]),
            bool(few[place]),
            BinSums(sums.weight[place], sums.confidence[place], sums.correct[place]),
        )
        for place, name in enumerate(grouping.names)
    )
    differ = groups_differ(
        rows.stated, rows.correct, rows.mass, grouping, clusters, n_bins=n_bins, draws=resamples, seed=seed
    )
    # in the order of their values; columns first, then intersections
    groups = tuple(
        sorted(groups, key=lambda one: (len(one.by), grouping.columns.index(next(iter(one.by))), _order(one)))
    )
    worst = worst_served(groups)
    pooled = float(np.average(rows.stated - rows.correct, weights=rows.mass))
    words = verdict(groups, worst, differ, pooled, about)
    return GroupAnalysis(grouping.columns, groups, differ, float(critical), worst, words)


def column_groups(columns: RowColumns | TestColumns, grouping: Grouping, task: str, **options: Any) -> GroupAnalysis:
    """`group_analysis` of the columns of a task, with accuracy, NLL and Brier score of every group."""
    scores = {"accuracy": hits(columns, task), "nll": columns.nll, "brier": columns.brier}
    return group_analysis(columns.confidence, columns.correct, grouping, scores=scores, about=about(task), **options)


class _Rows:
    """The rows and their sums by group."""

    def __init__(  # noqa: PLR0917
        self,
        confidence: np.ndarray,
        correct: np.ndarray,
        weights: np.ndarray | None,
        clusters: np.ndarray | None,
        grouping: Grouping,
        n_bins: int,
    ) -> None:
        self.grouping, self.clusters, self.n_bins = grouping, clusters, n_bins
        self.stated = np.clip(np.asarray(confidence).astype(np.float64), 0.0, 1.0)
        self.correct = correct.astype(np.float64)
        self.mass = np.ones(len(correct)) if weights is None else np.asarray(weights, dtype=np.float64)
        index = grouping.cell * n_bins + width_index(np.asarray(confidence), n_bins)
        size = grouping.members.shape[1] * n_bins
        tables = [
            np.bincount(index, column, minlength=size).reshape(-1, n_bins)
            for column in (self.mass, self.mass * self.stated, self.mass * self.correct)
        ]
        self.sums = BinSums(*(grouping.members.astype(np.float64) @ table for table in tables))
        self.total = self.sums.weight.sum(axis=1)
        self.count = self.by_group(np.ones(len(correct)))
        gap = self.stated - self.correct
        if clusters is None:
            self.units = GroupUnits.of_rows(
                self.stated, self.correct, self.mass, grouping.cell, grouping.members, n_bins=n_bins
            )
            self.independent = self.count
        else:
            self.units = GroupUnits.of_clusters(gap, self.mass, grouping.cell, grouping.members, clusters)
            self.independent = np.diff(self.units.weight.indptr)
        self.claimed = self.by_group(self.mass**2 * self.stated * (1 - self.stated))

    def by_group(self, column: np.ndarray) -> np.ndarray:
        """Sums of a column (n,) by group (G,)."""
        members = self.grouping.members
        return members.astype(np.float64) @ np.bincount(self.grouping.cell, column, minlength=members.shape[1])

    def gaps(self) -> tuple[np.ndarray, np.ndarray]:
        """The signed gap of each group and its standard error; NaN error where fewer than 2 units tell of it."""
        weight, gap, spread = (part[:, 0] for part in self.units.moments(np.ones((len(self.units.size), 1))))
        # at least what the stated confidences imply: a group without an error still has noise
        error = np.sqrt(np.maximum(spread, self.claimed)) / np.where(weight > 0, weight, np.nan)
        return gap, np.where(self.independent >= 2, error, np.nan)

    def mean(self, column: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean of a column in each group with a 95% interval of its own."""
        weighted = self.mass * column
        mean = self.by_group(weighted) / self.total
        if self.clusters is None:
            square = self.by_group(weighted**2)
            cross, own = self.by_group(self.mass * weighted), self.by_group(self.mass**2)
        else:
            given = self.grouping.cell, self.grouping.members, self.clusters
            sums, weight = by_cluster(weighted, *given), by_cluster(self.mass, *given)
            square, cross, own = (
                np.asarray(product.sum(axis=1)).ravel() for product in (sums * sums, sums * weight, weight * weight)
            )
        half = Z_95 * np.sqrt(np.maximum(square - 2 * mean * cross + mean**2 * own, 0.0)) / self.total
        half = np.where(self.independent >= 2, half, np.nan)
        return mean, mean - half, mean + half


def _simultaneous(
    rows: _Rows, gap: np.ndarray, error: np.ndarray, resamples: int, seed: int
) -> tuple[float, np.ndarray]:
    """Standard errors to either side that hold all groups at once, and the p-value of each gap, corrected alike."""
    known = np.isfinite(error) & (error > 0)
    if not known.any():
        return float("nan"), np.full(len(gap), np.nan)
    largest = []
    if rows.units.clustered and np.median(rows.independent) >= MANY_CLUSTERS:
        largest.append(_normal_maxima(rows, gap, error, known, resamples, seed))
    own = np.asarray(rows.units.squares[2].sum(axis=1)).ravel()
    for ratios in () if largest else rows.units.ratios(resamples, seed):
        weight, drawn, spread = rows.units.moments(ratios)
        claimed = (rows.claimed / own)[:, None] * (rows.units.squares[2] @ ratios)
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.abs(drawn - gap[:, None]) * weight / np.sqrt(np.maximum(spread, claimed))
        largest.append(np.where(np.isfinite(t) & known[:, None], t, 0.0).max(axis=0))
    reached = np.sort(np.concatenate(largest))
    place = min(int(np.ceil(LEVEL * (len(reached) + 1))), len(reached)) - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(known, np.abs(gap) / error, np.nan)
    above = len(reached) - np.searchsorted(reached, t - 1e-12, side="left")
    # groups without an error vary in no resample: the quantile of one normal gap is the least
    return max(float(reached[place]), Z_95), np.where(known, (1 + above) / (len(reached) + 1), np.nan)


def _normal_maxima(  # noqa: PLR0917
    rows: _Rows, gap: np.ndarray, error: np.ndarray, known: np.ndarray, resamples: int, seed: int
) -> np.ndarray:
    """Largest studentised deviations (R,) of normal gaps with the covariance of the clusters' sums."""
    from scipy.sparse import diags_array

    sums = rows.units.gap - diags_array(gap) @ rows.units.weight
    covariance = np.asarray((sums @ sums.T).todense())
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    drawn = np.random.default_rng([seed, 17]).standard_normal((resamples, len(gap))) @ root.T
    return (np.abs(drawn[:, known]) / (error * rows.total)[known]).max(axis=1)


def _clinical(rows: _Rows, gap: np.ndarray, error: np.ndarray, critical: float) -> dict[str, tuple[np.ndarray, ...]]:
    """Calibration slope and observed/expected, with the simultaneous critical value of the gap."""
    stated, observed = rows.by_group(rows.mass * rows.stated), rows.by_group(rows.mass * rows.correct)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = observed / stated
        # the logarithm of O/E is nearly normal; its influence is y/O − p/E
        half = critical * error * rows.total / observed
        low, high = ratio * np.exp(-half), ratio * np.exp(half)
    slope, slope_error = group_slopes(rows.stated, rows.correct, rows.mass, rows.grouping, rows.clusters)
    width = critical * slope_error
    return {"calibration_slope": (slope, slope - width, slope + width), "observed_expected": (ratio, low, high)}


def _order(one: GroupFigures) -> tuple[Any, ...]:
    """Numbers by size, words by letter, what is missing last."""
    return tuple((value == "missing", *_sortable(value)) for value in one.by.values())


def _sortable(value: str) -> tuple[bool, float, str]:
    try:
        return False, float(value.strip("[(").split(",")[0]), value
    except ValueError:
        return True, 0.0, value


def worst_served(groups: tuple[GroupFigures, ...]) -> int | None:
    """The group with the largest gap that is certain: the one whose interval keeps furthest from 0."""
    best, furthest = None, 0.0
    for place, one in enumerate(groups):
        gap = one.metrics["gap"]
        away = max(gap.low, -gap.high)
        if np.isfinite(away) and not one.too_few and away > furthest:
            best, furthest = place, away
    return best


def verdict(
    groups: tuple[GroupFigures, ...], worst: int | None, differ: Heterogeneity, pooled: float, about: str
) -> str:
    """One sentence: who is worst served and by how much, beside all rows together."""
    tested = f"groups differ (p {_p(differ.p_value)})" if differ.p_value < SIGNIFICANCE else (
        f"groups do not differ beyond chance (p {_p(differ.p_value)})"
    )  # fmt: skip
    if worst is None:
        return f"no group departs from calibration beyond chance; {tested}"
    one = groups[worst]
    gap = one.metrics["gap"]
    words = ("overconfident", "underconfident")
    if about == "positive class":
        words = ("risk overestimated", "risk underestimated")
    low, high = sorted((abs(gap.low), abs(gap.high)))
    sentence = (
        f"worst served: {one.name} ({one.n:,} rows), {words[gap.value < 0]} by {100 * abs(gap.value):.1f} points "
        f"[{100 * low:.1f}, {100 * high:.1f}]"
    )
    if "observed_expected" in one.metrics:
        sentence += f", {one.metrics['observed_expected'].value:.2f} times the expected events"
    return f"{sentence}; all rows together: {words[pooled < 0]} by {100 * abs(pooled):.1f}; {tested}"


def _p(value: float) -> str:
    return "≤ 0.001" if value <= 0.001 else f"= {value:.3f}"
