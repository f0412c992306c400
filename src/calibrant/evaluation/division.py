"""One set of predictions divided at random into rows to fit on and rows to measure on, clusters kept together."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.core.arrays import check_whole
from calibrant.core.errors import InputError
from calibrant.data import Predictions
from calibrant.evaluation.groups import column_of, columns_by, split_name

FOLDS = 5
"""Folds of a cross-fit where nothing else is asked for."""
FOLD = "\0fold"
"""The column of groups that holds the fold of each row; no file can have one of this name."""


def carried(rows: Predictions, by: Any, cluster: Any) -> tuple[Predictions, list[str] | None]:
    """Predictions that hold their groups and clusters themselves, so that a part of them does; the names of groups."""
    columns = {} if by is None else columns_by(rows, by)
    groups = {**rows.groups, **{split_name(name)[0]: column for name, column in columns.items()}}
    clusters = rows.clusters if cluster is None else column_of(rows, cluster)
    return rows.like(groups=groups, clusters=clusters), list(columns) or None


def divided(
    rows: Predictions, *, cv: int | None = None, split: float | None = None, seed: int = 0
) -> tuple[Predictions, Predictions, str]:
    """The rows to fit on, those to measure on, and words on how they were drawn.

    Parameters
    ----------
    cv : folds of a cross-fit: both sets are then all rows, and their column `FOLD` says which fold a row is in.
    split : in place of it, the share of rows to fit on.

    Examples
    --------
    >>> rows = Predictions(np.zeros((10, 2)), [0, 1] * 5, clusters=[0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
    >>> val, test, words = divided(rows, split=0.6)
    >>> val.n, test.n, words, set(val.clusters) & set(test.clusters)
    (6, 4, 'split at random, seed 0', set())
    """
    if cv is not None and split is not None:
        raise InputError("cv divides the rows into folds, split into two parts: give one of them")
    cv = check_whole(FOLDS if cv is None else cv, "cv", 2)
    shares = np.arange(1, cv) / cv if split is None else np.array([split])
    # clusters (or rows) are drawn in turn, and a part ends where they hold its share of the rows
    _, unit, sizes = np.unique(
        np.arange(rows.n) if rows.clusters is None else rows.clusters, return_inverse=True, return_counts=True
    )
    order = np.random.default_rng([seed, 31]).permutation(len(sizes))
    reached = np.cumsum(sizes[order]) - sizes[order] / 2
    fold = np.searchsorted(shares, reached / rows.n, side="right")[np.argsort(order)[unit]]
    if len(np.unique(fold)) <= len(shares):
        raise InputError(f"{len(sizes)} rows or clusters cannot be divided at {shares.tolist()} of them")
    if split is None:
        rows = rows.like(groups={**rows.groups, FOLD: fold})
        return rows, rows, f"cross-fitted in {cv} folds, seed {seed}"
    val, test = (rows[fold == part].like(notes=rows.notes) for part in (0, 1))
    return val, test, f"split at random, seed {seed}"
