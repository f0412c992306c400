"""The group of each row: columns of values, numbers cut into quantiles, and intersections of columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.core.schema import identifiers

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
