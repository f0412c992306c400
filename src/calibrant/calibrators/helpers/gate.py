"""What enters and leaves every calibrator: one look at the values, and winners that survive rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from calibrant.core.arrays import check_values
from calibrant.core.errors import InputError
from calibrant.core.rows import Rows
from calibrant.core.threads import map_blocks, row_blocks
from calibrant.core.zeros import raised


def admitted(values: np.ndarray, log_floor: float | None) -> np.ndarray:
    """The one place where the values of a prediction's input are looked at; zeros (−inf) get the floor of the fit.

    Blocks on all cores find out in one pass whether there is anything to explain.
    """
    matrix = values.reshape(len(values), -1)

    def looks_finite(block: slice) -> bool:
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(np.isfinite(matrix[block].sum(dtype=matrix.dtype)))

    if all(map_blocks(looks_finite, row_blocks(*matrix.shape))):
        return values
    check_values(matrix, from_logits=True, name="logits" if values.ndim == 2 else "scores")
    if log_floor is None and np.isinf(values).any():
        raise InputError("logits contain -Inf (a probability of 0), but this calibrator learned no floor: fit it again")
    return values if log_floor is None else raised(values, log_floor)


def check_names(estimator: Any, given: Any, matrix: np.ndarray, *, reset: bool) -> None:
    """Learn (`reset`) or compare the number and the names of the columns, as scikit-learn does."""
    if isinstance(given, np.ndarray) and not hasattr(estimator, "feature_names_in_"):
        # what `validate_data` comes to where nobody names columns, without its search for tables
        if reset:
            estimator.n_features_in_ = matrix.shape[1]
        return
    if isinstance(given, Rows):
        estimator.n_features_in_ = matrix.shape[1]
        return
    validate_data(estimator, X=given if hasattr(given, "columns") else matrix, reset=reset, skip_check_array=True)


def keep_winner(probabilities: np.ndarray, winner: np.ndarray) -> np.ndarray:
    """The same array; where rounding made another class win, this one gets the next larger number.

    At a very high temperature logits differ by less than probabilities can.
    """
    lost = np.flatnonzero(probabilities.argmax(axis=1) != winner)
    if len(lost):
        highest = probabilities[lost].max(axis=1)
        probabilities[lost, winner[lost]] = np.nextafter(highest, probabilities.dtype.type(2))
    return probabilities
