"""Test rows that were also fit rows."""

import numpy as np

from calibrant.core.arrays import Array
from calibrant.data.predictions import Predictions

SHARED_IDS = 0.2
"""Share of the identifiers that may be in both sets by chance."""

LEAST_SHARE = 0.01
"""Share of rows in both sets beyond chance that is worth a warning."""

CHANCE_LIMIT = 3.0
"""Signed root of the likelihood ratio up to which chance explains the pairs of equal rows between the sets."""

CLEAR_PAIRS = 5
"""Pairs between the sets that chance does not explain if there is no pair inside a set.

With equal sizes and μ expected pairs of either kind, the probability exp(−μ)·P(Poisson(μ) ≥ 5) is at most 0.94%.
"""

IDS = ("id", "ids", "row", "row_id", "uid", "sample_id", "image_id")
"""Names of columns that identify a row."""


def shared_rows(val: Predictions, test: Predictions) -> str:
    """Return the reason why the two sets seem to share rows, or an empty string.

    They do if all arrays are equal, if identifiers are equal, or if more rows have equal scores than chance explains.
    """
    if val.source.shape[1] != test.source.shape[1]:
        return ""
    hashes, others = _hashes(val), _hashes(test)
    if np.array_equal(hashes, others) and np.array_equal(val.labels, test.labels):
        return f"all {test.n:,} test rows are the fit rows"
    word = next((word for word in IDS if word in val.extras and word in test.extras), None)
    if word is not None:
        mine, theirs = (np.unique(one.extras[word].read()) for one in (val, test))
        both = len(np.intersect1d(mine, theirs))
        if both > SHARED_IDS * min(len(mine), len(theirs)):
            return f"{both:,} of the {test.n:,} test rows have the {word} of a fit row"
    both = coinciding_rows(hashes, others)
    return f"{both:,} of the {test.n:,} test rows have exactly the scores of a fit row" if both else ""


def coinciding_rows(mine: Array, theirs: Array) -> int:
    """Return the number of rows of `theirs` with a value of `mine`, or 0 if rounding and ties explain it.

    If the sets were drawn independently from one distribution, their union could be split anew at random: the chance
    that a pair of equal rows is a pair between the sets is then known, and pairs inside the sets show how common equal
    rows are. A value of k rows counts as k/2 pairs, so that a frequent value does not outweigh the others.
    """
    n, m = len(mine), len(theirs)
    values, place = np.unique(np.concatenate([mine, theirs]), return_inverse=True)
    a, b = (np.bincount(part, minlength=len(values)).astype(np.float64) for part in (place[:n], place[n:]))
    a, b = a[a + b > 1], b[a + b > 1]
    k, both = a + b, int(b[a > 0].sum())
    if both < 2:
        return 0
    between, pairs = (a * b / (k - 1)).sum(), k.sum() / 2
    chance, split = 2 * n * m / ((n + m) * (n + m - 1)), n * m / (n + m) ** 2
    expected = chance * pairs
    # a·b has the variance of a random split; pairs that share a row vary less than independent ones
    two, three = k * (k - 1), k * (k - 1) * (k - 2)
    spread = (three + two) * split + (three * (k - 3) - two**2) * split**2
    scale = (spread / (k - 1) ** 2).sum() / (chance * (1 - chance) * pairs)
    inside, beyond = pairs - between, (between - expected) / (1 - chance)
    if beyond <= LEAST_SHARE * min(n, m):
        return 0
    if inside == 0:
        return both if between >= CLEAR_PAIRS or -2 * between * np.log(chance) > CHANCE_LIMIT**2 else 0
    ratio = between * np.log(between / expected) + inside * np.log(inside / (pairs - expected))
    return both if 2 * ratio > CHANCE_LIMIT**2 * scale else 0


def _hashes(predictions: Predictions) -> Array:
    """A 64-bit hash of the scores of each row: random odd multiples of their bits, summed modulo 2⁶⁴."""
    width = predictions.source.shape[1]
    odd = np.random.default_rng(20).integers(1, 2**63, width, dtype=np.uint64) | np.uint64(1)
    hashes = []
    for block in predictions.source.blocks(0, predictions.n, max(1, 2**22 // width)):
        bits = np.ascontiguousarray(block, dtype=np.float64).view(np.uint64)
        # numbers of few digits have zeros behind: the upper half of the bits goes there too
        hashes.append((bits ^ (bits >> np.uint64(32))) @ odd)
    return np.concatenate(hashes)
