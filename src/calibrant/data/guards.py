"""Test rows that were also fit rows."""

import numpy as np

from calibrant.core.arrays import Array
from calibrant.data.predictions import Predictions

SHARED = 0.2
"""Share of the unique score rows that may coincide between two sets by chance."""

IDS = ("id", "ids", "row", "row_id", "uid", "sample_id", "image_id")
"""Names of columns that identify a row."""


def shared_rows(val: Predictions, test: Predictions) -> str:
    """Why the two sets seem to hold the same rows; empty where nothing suggests it.

    Equal arrays, equal identifiers, or over a fifth of the score rows that occur once: rows that repeat within a set,
    as those of forests do, tell nothing.
    """
    if val.source.shape[1] != test.source.shape[1]:
        return ""
    word = next((word for word in IDS if word in val.extras and word in test.extras), None)
    if word is not None:  # identifiers that differ outweigh scores that coincide
        what, mine, theirs = f"the {word}", *(np.unique(one.extras[word].read()) for one in (val, test))
    else:
        hashes, others = _hashes(val), _hashes(test)
        if np.array_equal(hashes, others):
            return f"all {test.n:,} test rows are the fit rows"
        counted = [np.unique(own, return_counts=True) for own in (hashes, others)]
        what, mine, theirs = "exactly the scores", *(values[counts == 1] for values, counts in counted)
        if min(len(mine), len(theirs)) < SHARED * min(val.n, test.n):
            return ""  # too few distinct scores to tell
    both = len(np.intersect1d(mine, theirs))
    few = both <= SHARED * min(len(mine), len(theirs))
    return "" if few else f"{both:,} of the {test.n:,} test rows have {what} of a fit row"


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
