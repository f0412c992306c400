"""Folds by content: a weighted row is distributed as its copies are."""

from __future__ import annotations

import numpy as np
import pytest

from calibrant.calibrators.solvers.folds import FOLDS, content_folds, divided
from calibrant.core.rows import Rows


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("count", [3, 4, 7, 40, 61, 300])
@pytest.mark.parametrize("flat", [False, True])
def test_a_row_of_weight_n_is_distributed_over_the_folds_as_n_copies_are(count, seed, flat):
    rng = np.random.default_rng(seed)
    scores, labels = rng.normal(size=101 if flat else (101, 3)), rng.integers(0, 2 if flat else 3, 101)
    times = np.ones(101, int)
    times[0] = count
    copies = Rows(np.repeat(scores, times, axis=0), np.repeat(labels, times))
    weighted = divided(Rows(scores, labels, times.astype(float)))
    # up to a weight of 3 the copies stay together
    one, other = (content_folds(rows.matrix() if flat else rows, FOLDS, seed) for rows in (copies, weighted))
    is_heavy = weighted.logits == scores[0] if flat else (weighted.logits == scores[0]).all(axis=1)
    np.testing.assert_array_equal(
        np.bincount(other[is_heavy], weighted.weights[is_heavy], FOLDS), np.bincount(one[:count], minlength=FOLDS)
    )
    np.testing.assert_array_equal(other[~is_heavy], one[count:])
    assert np.ptp(np.bincount(one[count:], minlength=FOLDS)) <= (2 if count == 3 else 1)
    assert np.ptp(np.bincount(one[:count], minlength=FOLDS)) == (count if count == 3 else min(count % FOLDS, 1))
