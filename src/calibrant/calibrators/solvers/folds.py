"""Folds that depend on what a row holds, not on where it stands."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from calibrant.core.arrays import Array
from calibrant.core.errors import InputError
from calibrant.core.threads import map_blocks, row_blocks

FOLDS = 5
"""Of every cross-fit."""

SAMPLE_SCORES = 12_000_000
"""Most scores that methods with folds are fitted to, which takes about 100 bytes per score."""

HEAVY_SHARE = 0.1
"""Copies of one row that together weigh more than this share of a fold are distributed over the folds."""

FEWEST_HEAVY = 3.0
"""Up to this weight, copies of a row stay together whatever the size of a fold."""

PIECES = 60
"""Into so many parts a heavy row is cut: every number of folds up to 6 gets its share of them."""

_ODD = np.uint64(0x9E3779B97F4A7C15)


def content_folds(rows: Any, n_folds: int, seed: int) -> Array:
    """Fold 0 … n_folds − 1 of each row (n,), from a hash of its logits.

    Neither the order of the rows nor that of the columns matters. The folds are balanced in total weight, and within
    each stratum: the predicted class, together with the label where there are two classes. With more classes the
    label is left out on purpose: in a few hundred rows class counts are largely chance, and folds that all share
    these counts would confirm it.

    Copies of a row with the same label stay in one fold, so that a weight of 2 equals the row twice in a cross-fitted
    method too. Where the copies weigh more than a tenth of a fold (forests and naive Bayes give the same row thousands
    of times), they are distributed evenly: otherwise one fold would hold nearly all rows. A row of that weight must
    be cut into pieces first (`divided`). Where rows belong to clusters, all rows of a cluster are in one fold.

    Parameters
    ----------
    rows : Rows, or rows on a GPU
        Logits, labels and weights. A row of weight 0 gets a fold as well, and does not change the others.
    n_folds : int
    seed : int
        Another seed gives other folds.

    Examples
    --------
    >>> from calibrant.core.rows import Rows
    >>> logits = np.array([[0.0, 1.0]] * 600 + [[1.0, 0.0]] * 400)
    >>> fold = content_folds(Rows(logits, logits.argmax(axis=1)), 5, seed=0)
    >>> np.bincount(fold).tolist()
    [200, 200, 200, 200, 200]
    """
    weights = rows.mass()
    if rows.clusters is not None:
        # rows of one cluster are no independent check of each other
        _, cluster = np.unique(rows.clusters, return_inverse=True)
        mass = np.bincount(cluster, weights)
        if len(mass) < 2:
            raise InputError("all rows belong to one cluster: folds need two clusters at least")
        # the heaviest are dealt first, ties in an order drawn by the seed
        order = np.random.default_rng([seed, 29]).permutation(len(mass))
        return _dealt(order[np.argsort(-mass[order], kind="stable")], n_folds)[cluster]
    rows = _hashed(rows)
    hashes, stratum, first, cell, mass, heavy = _cells(rows, weights, n_folds, seed)
    fold = _deal(stratum[first], hashes[first], np.where(heavy, 0.0, mass), n_folds)[cell]
    copies = np.flatnonzero(heavy[cell])
    if len(copies):
        same, mass = _same_rows(rows, hashes, copies)[1], weights[copies]
        # heaviest first; the next row goes on where the weight of the one before ended
        order, counts = np.lexsort((-mass, same)), np.bincount(same)
        place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        whole = np.ceil(np.bincount(same, weights=mass) - 1e-9).astype(np.int64)
        fold[copies[order]] = ((np.cumsum(whole) - whole)[same[order]] + place) % n_folds
    return fold


def sample_rows(rows: Any, seed: int) -> Array | None:
    """Places of the rows in a sample of about `SAMPLE_SCORES` scores, chosen by their contents; None for fewer scores.

    Rows of the same cluster are in the sample together.
    """
    parts = -(-rows.size // SAMPLE_SCORES)
    return np.flatnonzero(content_folds(rows, parts, seed) == 0) if parts > 1 else None


def divided(rows: Any) -> Any:
    """The same rows, in which what `content_folds` distributes is cut into pieces.

    Pieces have whole weights where the row has: fold f then gets as much of a row of weight w as of w copies of it.

    Examples
    --------
    >>> from calibrant.core.rows import Rows
    >>> rows = Rows(np.array([[0.0, 1.0], [2.0, 0.0]]), np.array([1, 0]), np.array([7.0, 2.0]))
    >>> divided(rows).weights.tolist()
    [2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """
    weights = rows.weights
    if weights is None or not weights.max(initial=0.0) > 1:
        return rows
    matrix = _hashed(rows)
    hashes, _, _, cell, _, heavy = _cells(matrix, weights, FOLDS, 0)
    heavy = heavy[cell] & (weights > 0)
    copies = np.flatnonzero(heavy)
    if not len(copies):
        return rows
    first, same = _same_rows(matrix, hashes, copies)
    places, pieces = [np.flatnonzero(~heavy)], [weights[~heavy]]
    for place, total in zip(copies[first], np.bincount(same, weights=weights[copies]), strict=True):
        whole = total == np.rint(total)
        parts = np.ceil((total - np.arange(PIECES)) / PIECES) if whole else np.full(PIECES, total / PIECES)
        pieces.append(parts[parts > 0])
        places.append(np.full(len(pieces[-1]), place))
    return replace(rows.take(np.concatenate(places)), weights=np.concatenate(pieces))


def _dealt(order: Array, n_folds: int) -> Array:
    """The fold of each item when the folds are dealt in this order."""
    fold = np.empty(len(order), dtype=np.int64)
    fold[order] = np.arange(len(order)) % n_folds
    return fold


def _hashed(rows: Any) -> Any:
    """Rows with a matrix and one label per row, which tell them apart; the order of many labels does not matter."""
    if rows.one_score:
        return rows.matrix()
    if rows.labels.ndim == 1:
        return rows
    # below every logit, so that the stratum is the label of the highest score however the columns are ordered, and
    # powers of two, which are the same numbers in both dtypes
    marks = np.where(rows.labels > 0, -(2.0**100), -(2.0**101)).astype(rows.logits.dtype)
    values = np.column_stack([rows.logits, marks])
    return replace(rows, logits=values, labels=rows.logits.argmax(axis=1))


def _cells(rows: Any, weights: Array, n_folds: int, seed: int) -> tuple[Array, ...]:
    """Hash and stratum of each row; one row of each distinct pair of them, and the number of each row's pair (a cell).

    Rows that are each other's permutation share a hash; the stratum tells them apart, so that it is no accident of the
    row order which of them stands for the pair. Last the weight of each cell, and whether it is distributed.
    """
    salt = np.uint64((2 * seed + 1) * int(_ODD) % 2**64)

    def part(block):
        """A hash of each row that the order of its columns does not change, and the place of its largest value."""
        logits = rows.logits[block]
        return _mix(_mix(_bits(logits) ^ salt).sum(axis=1, dtype=np.uint64)), logits.argmax(axis=1)

    if rows.in_memory:
        parts = map_blocks(part, row_blocks(rows.n, rows.n_classes, 1 << 18))
        hashes, prediction = map(np.concatenate, zip(*parts, strict=True))
        own = rows.logits[np.arange(rows.n), rows.labels]
    else:  # on a GPU
        hashes, prediction, own = rows.blocks.fold_columns(salt, _ODD)
    stratum = prediction if rows.n_classes > 2 else 2 * prediction + rows.labels
    # the label enters by its logit, because class numbers must not matter
    hashes = _mix(hashes + _mix(_bits(own)))
    if rows.n_classes == 2:
        tied = rows.logits[:, 0] == rows.logits[:, 1]
        hashes = _mix(hashes + (tied * rows.labels).astype(np.uint64))
    first, cell = _numbered((stratum, hashes))
    mass = np.bincount(cell, weights=weights)
    return hashes, stratum, first, cell, mass, mass > max(FEWEST_HEAVY, HEAVY_SHARE * float(weights.sum()) / n_folds)


def _numbered(keys: Sequence[Array]) -> tuple[Array, Array]:
    """The first place of each distinct tuple of keys, and the number of the tuple at each place; the last key leads."""
    order = np.lexsort(keys)
    opens = np.ones(len(order), dtype=bool)
    opens[1:] = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.cumsum(opens) - 1
    return order[opens], number


def _same_rows(rows: Any, hashes: Array, places: Array) -> tuple[Array, Array]:
    """`_numbered` of the distinct rows with their label and group at these places, in the order of their content.

    Rows that are each other's permutation share a hash: here their columns are told apart.
    """
    bits = _mix(_bits(rows.logits[places]))
    with np.errstate(over="ignore"):
        # a hash in which the order of the columns matters
        exact = _mix((bits * (2 * np.arange(bits.shape[1], dtype=np.uint64) + 1)).sum(axis=1, dtype=np.uint64))
    keys = [rows.labels[places], exact, hashes[places]]
    if rows.groups is not None:
        groups = rows.groups
        # groups in the order of their weight: their names must not matter
        keys = [groups[places], np.bincount(groups, rows.weights)[groups[places]], *keys]
    return _numbered(keys)


def _deal(stratum: Array, hashes: Array, mass: Array, n_folds: int) -> Array:
    """The fold of each item: within a stratum the heaviest are dealt first, then in the order of the hashes.

    Strata are ordered by the smallest hash of their items, so that class numbers do not matter, and the dealing goes on
    from one stratum to the next: classes of one row do not all land in the first fold.
    """
    counted = mass > 0
    smallest = np.full(int(stratum.max()) + 1, np.iinfo(np.uint64).max, dtype=np.uint64)
    np.minimum.at(smallest, stratum[counted], hashes[counted])
    return _dealt(np.lexsort((hashes, -mass, stratum, smallest[stratum], ~counted)), n_folds)


def _bits(values: Array) -> Array:
    """The values as numbers to hash: float64 and float32 of the same data alike, −0 and 0 as one."""
    with np.errstate(over="ignore"):
        return (values.astype(np.float32).astype(np.float64) + 0.0).view(np.uint64)


def _mix(bits: Array) -> Array:
    with np.errstate(over="ignore"):
        bits = (bits ^ (bits >> np.uint64(32))) * _ODD
        return (bits ^ (bits >> np.uint64(29))) * _ODD
