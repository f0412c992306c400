"""Figures of every group, whether groups differ beyond chance, and which group is worst served.

The signed gap of a group is its mean confidence minus its accuracy (of one probability per row: mean probability minus
the share of positives). Its intervals hold for all groups at once: their half width is q standard errors, q the 95%
quantile over resamples of the largest studentised deviation of any group (max-t; Westfall & Young 1993).

How rows are summed: rows that share their group, their range of confidence and their outcome are one unit. A Poisson
resample gives the unit's m rows a Poisson(m) number of copies, and sums over them are that number times the unit's
mean: exact for m = 1, and off by the spread of confidence inside a narrow range otherwise. Where rows come in
clusters, the clusters are the units, and a unit adds to every group that it has rows in.

Whether groups differ: rows are compared within bins of confidence, so that groups of easy and of hard rows under one
and the same calibration map do not count as different. With e = (c − a) minus its mean over all rows of the bin, the
sums S_g = Σ w·e of calibrated-alike groups have mean 0 and a known covariance V, as in the Cochran–Mantel–Haenszel
test of a table in layers; Q = SᵀV⁺S is χ² with rank(V) degrees of freedom.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.sparse import csr_array, diags_array
from scipy.special import chdtrc

from calibrant.core.bins import BinSums, check_n_bins, over, under, width_edges, width_index
from calibrant.core.bins import place as bin_of_edges
from calibrant.core.errors import InputError
from calibrant.core.schema import identifiers
from calibrant.core.softmax import sigmoid, softplus
from calibrant.evaluation.bootstrap import LEVEL, poisson_table
from calibrant.evaluation.consistency import NoiseFloor, flipped_sums, noise_floor
from calibrant.evaluation.flat import about, hits
from calibrant.evaluation.results import TestColumns
from calibrant.evaluation.table import Estimate, Figures, PlainData, Row, Table, figure_cells, metric_columns
from calibrant.evaluation.verdicts import FEWEST_ERRORS, FEWEST_ROWS, SIGNIFICANCE
from calibrant.kernels.rows import RowColumns
from calibrant.metrics.flexible import Z_95

QUANTILES = 4
"""Groups that a column of measurements is cut into."""
MOST_FLOATS = 20
"""A column of floats with more distinct values than this is a measurement."""
MOST_INTEGERS = 1000
"""Whole numbers are codes (a season, a ward) up to this many distinct values."""
MOST_GROUPS = 20_000


@dataclass(frozen=True)
class Grouping:
    """Groups of rows over one or two columns.

    cell : the finest group of each row (n,), numbered in the order of first appearance, so that renaming groups
        changes nothing.
    names : for each group, the value in each column that defines it.
    members : which finest groups make up each group (G, F). With one column these are the groups themselves; with two
        there are the groups of either column, then their intersections.
    columns : the names of the columns.
    """

    cell: np.ndarray
    names: tuple[dict[str, str], ...]
    members: np.ndarray
    columns: tuple[str, ...]

    @property
    def n_groups(self) -> int:
        """Number of groups G."""
        return len(self.names)

    @property
    def levels(self) -> tuple[slice, ...]:
        """Ranges of groups that each hold every row once."""
        covered = np.cumsum(self.members.sum(axis=1)) // self.members.shape[1]
        ends = [int(np.flatnonzero(covered >= level + 1)[0]) + 1 for level in range(int(covered[-1]))]
        return tuple(slice(start, stop) for start, stop in zip([0, *ends[:-1]], ends, strict=True))

    def rows_of(self, group: int) -> np.ndarray:
        """Places of the rows of a group."""
        return np.flatnonzero(self.members[group][self.cell])


def make_grouping(columns: Mapping[str, Any], n_rows: int) -> Grouping:
    """Groups by one column, or by two columns and their intersections.

    >>> grouping = make_grouping({"ward": ["a", "b", "a"], "sex": ["f", "f", "m"]}, 3)
    >>> [" & ".join(f"{k} {v}" for k, v in name.items()) for name in grouping.names][:3]
    ['ward a', 'ward b', 'sex f']
    """
    if not 1 <= len(columns) <= 2:
        raise InputError(f"by needs one or two columns, got {len(columns)}: {', '.join(columns) or 'none'}")
    coded = {split_name(name)[0]: encode(values, name, n_rows) for name, values in columns.items()}
    (first, (code, labels)), *rest = coded.items()
    if not rest:
        names = tuple({first: label} for label in labels)
        return _checked(Grouping(code, names, np.eye(len(labels), dtype=bool), tuple(coded)))
    ((second, (other, other_labels)),) = rest
    joint = code * len(other_labels) + other
    found, cell = _by_appearance(joint)
    left, right = np.divmod(found, len(other_labels))
    names = tuple({first: label} for label in labels) + tuple({second: label} for label in other_labels)
    names += tuple({first: labels[i], second: other_labels[j]} for i, j in zip(left, right, strict=True))
    members = np.concatenate(
        [
            np.arange(len(labels))[:, None] == left,
            np.arange(len(other_labels))[:, None] == right,
            np.eye(len(found), dtype=bool),
        ]
    )
    return _checked(Grouping(cell, names, members, tuple(coded)))


def _checked(grouping: Grouping) -> Grouping:
    if grouping.n_groups > MOST_GROUPS:
        raise InputError(
            f"by {' and '.join(grouping.columns)} gives {grouping.n_groups:,} groups, more than {MOST_GROUPS:,}: "
            "is it an identifier of rows? cut it into quantiles (NAME:4) or give another column"
        )
    return grouping


def encode(values: Any, name: str, n_rows: int) -> tuple[np.ndarray, list[str]]:
    """The group of each row (n,) and the groups' labels, by first appearance; measurements are cut into quantiles.

    `NAME:5` asks for five quantile groups of a column of numbers.
    """
    name, wanted = split_name(name)
    column = np.asarray(values)
    if column.shape != (n_rows,):
        raise InputError(
            f"the column {name!r} has shape {column.shape}, but there are {n_rows} rows: give one value per row"
        )
    numeric = column.dtype.kind in "fiu"
    if wanted and not numeric:
        raise InputError(f"the column {name!r} holds {column.dtype}, which cannot be cut into {wanted} quantiles")
    if numeric:
        most = MOST_FLOATS if column.dtype.kind == "f" else MOST_INTEGERS
        if wanted or len(np.unique(column[np.isfinite(column)])) > most:
            column = _quantiles(column.astype(np.float64), wanted or QUANTILES)
    return identifiers(column)


def split_name(name: str) -> tuple[str, int]:
    """`age:5` → ("age", 5); 0 where no number of quantiles is asked for."""
    stem, colon, count = name.rpartition(":")
    if colon and count.isdigit() and stem:
        if not 2 <= int(count) <= 1000:
            raise InputError(f"{name!r} asks for {count} quantile groups: give 2 to 1000")
        return stem, int(count)
    return name, 0


def _by_appearance(column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct values in the order in which they first appear, and the place of each row's value among them."""
    found, first, inverse = np.unique(column, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return found[order], rank[inverse]


def _quantiles(column: np.ndarray, count: int) -> np.ndarray:
    """Labels of ranges that hold about the same number of rows; ties share a range."""
    known = np.isfinite(column)
    if not known.any():
        return np.full(len(column), "missing")
    edges = np.unique(np.quantile(column[known], np.arange(1, count) / count, method="lower"))
    index = np.searchsorted(edges, column, side="left")
    low, high = column[known].min(), column[known].max()
    borders = [low, *edges, high]
    words = [f"{'[' if j == 0 else '('}{borders[j]:.4g}, {borders[j + 1]:.4g}]" for j in range(len(edges) + 1)]
    return np.where(known, np.array(words)[np.minimum(index, len(edges))], "missing")


def cluster_codes(clusters: Any, n_rows: int) -> np.ndarray | None:
    """The cluster of each row (n,) by first appearance; None where every row is a cluster of its own."""
    if clusters is None:
        return None
    column = np.asarray(clusters)
    if column.shape != (n_rows,):
        raise InputError(f"clusters has shape {column.shape}, but there are {n_rows} rows: give one cluster per row")
    code, found = identifiers(column)
    if len(found) == n_rows:
        return None
    if len(found) < 2:
        raise InputError("all rows are in one cluster: at least 2 are needed, and intervals need some 20 or more")
    return code


def columns_by(predictions: Any, by: Any) -> dict[str, np.ndarray]:
    """The columns to group by: names of columns of the predictions, one array of a value per row, or a mapping."""
    if isinstance(by, Mapping):
        return {str(name): _column(predictions, values) for name, values in by.items()}
    if isinstance(by, str):
        by = [part.strip() for part in by.split(",") if part.strip()]
    if isinstance(by, Sequence) and 1 <= len(by) <= 2 and all(isinstance(name, str) for name in by):
        return {name: _column(predictions, split_name(name)[0]) for name in by}
    return {"group": np.asarray(by)}


def clusters_by(predictions: Any, cluster: Any) -> np.ndarray | None:
    """The cluster of each row, numbered by first appearance: a named column, an array, or what the predictions have."""
    given = predictions.clusters if cluster is None else _column(predictions, cluster)
    return cluster_codes(given, predictions.n)


def _column(predictions: Any, given: Any) -> np.ndarray:
    if not isinstance(given, str):
        return np.asarray(given)
    return predictions.column(given)


def common_groups(val: Any, test: Any, by: Any) -> tuple[np.ndarray | None, np.ndarray]:
    """The name of each row's group in both sets, numbers cut at the same places; None where `val` lacks a column."""
    after = columns_by(test, by)
    try:
        before = columns_by(val, list(after) if isinstance(by, (Mapping, np.ndarray)) else by)
    except InputError:
        before = {}
    names: dict[str, np.ndarray] = {}
    whole = before.keys() == after.keys() and all(len(column) == val.n for column in before.values())
    for name, column in after.items():
        both = np.concatenate([np.asarray(before[name]), np.asarray(column)]) if whole else np.asarray(column)
        code, labels = encode(both, name, len(both))
        names[name] = np.array(labels)[code]
    code, labels = identifiers(names)
    found = np.array(labels)[code]
    return (found[: val.n], found[val.n :]) if whole else (None, found)


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
        found, unit = np.unique(
            (cell * ranges + bin_of_edges(confidence, edges)) * 2 + (correct > 0.5), return_inverse=True
        )
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
    found, unit = np.unique(cell * ranges + bin_of_edges(confidence, edges), return_inverse=True)
    count, stated = (np.bincount(unit, values, minlength=len(found)) for values in (mass, mass * confidence))
    spread = np.sqrt(np.bincount(unit, mass**2 * confidence * (1 - confidence), minlength=len(found)))
    chance = np.clip(stated / np.where(count > 0, count, 1.0), 0.0, 1.0)
    owner, generator = found // ranges, np.random.default_rng([seed, 11])
    bin_of = bin_of_edges((edges[:-1] + edges[1:])[found % ranges] / 2, width_edges(n_bins))
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


MOST_JOINT = 2000
"""Groups up to which the whole covariance is used; beyond, its diagonal."""


@dataclass(frozen=True)
class Heterogeneity(PlainData):
    """The test that all groups share one calibration map."""

    statistic: float
    freedom: int
    p_value: float


def groups_differ(
    confidence: np.ndarray,
    correct: np.ndarray,
    mass: np.ndarray,
    grouping: Grouping,
    clusters: np.ndarray | None = None,
    *,
    n_bins: int = 15,
    draws: int = 1000,
    seed: int = 0,
) -> Heterogeneity:
    """Test the finest groups of a grouping; with clusters, by random signs of whole clusters.

    >>> from calibrant.evaluation.groups import make_grouping
    >>> generator = np.random.default_rng(0)
    >>> p, ward = generator.uniform(0.5, 1, 2000), generator.integers(0, 3, 2000)
    >>> right = generator.random(2000) < p
    >>> groups_differ(p, right, np.ones(2000), make_grouping({"ward": ward}, 2000)).p_value > 0.05
    True
    """
    cell, n_cells = grouping.cell, grouping.members.shape[1]
    index, gap = width_index(confidence, n_bins), confidence - correct
    weight = np.bincount(index, mass, minlength=n_bins)
    mean = np.bincount(index, mass * gap, minlength=n_bins) / np.where(weight > 0, weight, 1.0)
    residual = gap - mean[index]
    sums = np.bincount(cell, mass * residual, minlength=n_cells)
    if clusters is not None:
        return _by_signs(sums, mass * residual, cell, clusters, draws=draws, seed=seed)
    joint = np.bincount(cell * n_bins + index, mass, minlength=n_cells * n_bins).reshape(n_cells, n_bins)
    squares = np.bincount(cell * n_bins + index, mass**2, minlength=n_cells * n_bins).reshape(n_cells, n_bins)
    count = np.bincount(index, minlength=n_bins)
    spread = np.bincount(index, mass * residual**2, minlength=n_bins) / np.where(weight > 0, weight, 1.0)
    spread *= np.where(count > 1, count / np.maximum(count - 1, 1), 0.0)
    share = joint / np.where(weight > 0, weight, 1.0)
    own = squares.sum(axis=0)
    diagonal = (spread * (squares - 2 * share * squares + share**2 * own)).sum(axis=1)
    known = diagonal > 1e-12 * max(diagonal.max(initial=0.0), 1e-300)
    if known.sum() < 2:
        return Heterogeneity(0.0, 0, 1.0)
    if n_cells > MOST_JOINT:
        freedom = int(known.sum()) - 1
        statistic = float((sums[known] ** 2 / diagonal[known]).sum()) * freedom / (freedom + 1)
        return Heterogeneity(statistic, freedom, _chi_square_tail(statistic, freedom))
    cross = (share * spread) @ squares.T
    covariance = np.diag((spread * squares).sum(axis=1)) - cross - cross.T + (share * (spread * own)) @ share.T
    values, vectors = np.linalg.eigh(covariance)
    kept = values > 1e-9 * values.max()
    statistic = float(((vectors[:, kept].T @ sums) ** 2 / values[kept]).sum())
    return Heterogeneity(statistic, int(kept.sum()), _chi_square_tail(statistic, int(kept.sum())))


def _chi_square_tail(statistic: float, freedom: int) -> float:
    return float(chdtrc(freedom, statistic))


def _by_signs(
    sums: np.ndarray, residual: np.ndarray, cell: np.ndarray, clusters: np.ndarray, *, draws: int, seed: int
) -> Heterogeneity:
    """Σ S_g²/V_g, V_g the sum of squares of the clusters' parts, against its values under random signs."""
    table = csr_array((residual, (cell, clusters)), shape=(len(sums), int(clusters.max()) + 1))
    table.sum_duplicates()
    variance = np.asarray((table * table).sum(axis=1)).ravel()
    known = variance > 0
    if known.sum() < 2:
        return Heterogeneity(0.0, 0, 1.0)
    statistic = float((sums[known] ** 2 / variance[known]).sum())
    drawn = flipped_sums(cell, residual, clusters, len(sums), draws=draws, seed=seed)[:, known]
    at_least = int(((drawn**2 / variance[known]).sum(axis=1) >= statistic - 1e-12).sum())
    return Heterogeneity(statistic, int(known.sum()) - 1, (1 + at_least) / (draws + 1))


SMALLEST_CHANCE = 1e-12
SLOPE_STEPS, HALVINGS = 50, 40
SLOPE_RIDGE = 1e-6
"""Pull of a and b to 0 and 1, per row: where a group is separable its slope stays finite."""


def group_slopes(
    probability: np.ndarray, labels: np.ndarray, mass: np.ndarray, grouping: Grouping, clusters: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Slope of each group and its sandwich standard error; NaN where a group has one outcome only."""
    score = np.log(np.maximum(probability, SMALLEST_CHANCE)) - np.log(np.maximum(1 - probability, SMALLEST_CHANCE))
    slope, error = np.full((2, grouping.n_groups), np.nan)
    for level in grouping.levels:
        code = grouping.members[level].argmax(axis=0)[grouping.cell]
        slope[level], error[level] = _fit_slopes(score, labels, mass, code, level.stop - level.start, clusters)
    return slope, error


def _fit_slopes(  # noqa: PLR0917
    score: np.ndarray, labels: np.ndarray, mass: np.ndarray, code: np.ndarray, size: int, clusters: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    def total(column: np.ndarray) -> np.ndarray:
        return np.bincount(code, column, minlength=size)

    weight, positives = total(mass), total(mass * labels)
    pull = SLOPE_RIDGE * np.maximum(weight, 1.0)
    away = np.where(labels > 0.5, -1.0, 1.0)

    def loss(point: np.ndarray) -> np.ndarray:
        losses = total(mass * softplus(away * (point[0, code] + point[1, code] * score)))
        return losses + pull / 2 * (point[0] ** 2 + (point[1] - 1) ** 2)

    point = np.stack([np.zeros(size), np.ones(size)])
    present = loss(point)
    for _ in range(SLOPE_STEPS):
        mean = sigmoid(point[0, code] + point[1, code] * score)
        residual, curve = mass * (labels - mean), mass * mean * (1 - mean)
        first = total(residual) - pull * point[0], total(residual * score) - pull * (point[1] - 1)
        h00, h01, h11 = total(curve) + pull, total(curve * score), total(curve * score**2) + pull
        determinant = np.maximum(h00 * h11 - h01**2, 1e-300)
        step = np.stack([h11 * first[0] - h01 * first[1], h00 * first[1] - h01 * first[0]]) / determinant
        # probabilities that are far too extreme have little curvature: a full step may jump over the optimum and back
        for _ in range(HALVINGS):
            reached = loss(point + step)
            worse = ~(reached <= present + 1e-12 * np.abs(present))
            if not worse.any():
                break
            step[:, worse] /= 2
        else:
            step[:, worse], reached[worse] = 0.0, present[worse]
        point, present = point + step, reached
        if np.abs(step).max() < 1e-9:
            break
    influence = mass * (labels - mean) * ((h00 / determinant)[code] * score - (h01 / determinant)[code])
    if clusters is None:
        variance = total(influence**2)
    else:
        sums = by_cluster(influence, code, np.eye(size, dtype=bool), clusters)
        variance = np.asarray((sums * sums).sum(axis=1)).ravel()
    known = (positives > 0) & (positives < weight)
    return np.where(known, point[1], np.nan), np.where(known, np.sqrt(variance), np.nan)


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
    >>> from calibrant.evaluation.groups import make_grouping
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
