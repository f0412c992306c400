"""The logistic solver: when the likelihood has no maximum."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog

from calibrant.kernels.logistic import is_separable


def has_unbounded_direction(scores, labels, non_negative):
    """Return whether a line exists whose sign agrees with all labels, and disagrees with a constant somewhere."""
    signed = (2.0 * np.array(labels) - 1)[:, None] * np.column_stack([scores, np.ones(len(scores))])
    bounds = [(0 if non_negative else -1, 1), (None, None)]
    found = linprog(-signed.sum(axis=0), A_ub=-signed, b_ub=np.zeros(len(signed)), bounds=[bounds[0], (-9, 9)])
    return -found.fun > 1e-9


@pytest.mark.parametrize("non_negative", [True, False])
def test_separation_with_ties_in_either_direction_is_detected(non_negative):
    for scores in itertools.combinations_with_replacement([0.0, 1.0, 2.0], 4):
        for labels in itertools.product([0, 1], repeat=4):
            values, classes = np.array(scores), np.array(labels)
            ends = np.array(
                [
                    [values[classes == one].min(initial=np.inf), values[classes == one].max(initial=-np.inf)]
                    for one in (0, 1)
                ]
            )
            expected = has_unbounded_direction(values, classes, non_negative)
            assert is_separable(ends, non_negative=non_negative) == expected, (scores, labels)
