"""Probabilities of exactly 0: the one rule for what they count as.

A logit of −inf says that a class is impossible, which no finite sample shows. Files with 3 or 4 decimals are full of
such zeros. They count as one number, half the smallest positive probability in a fixed sample of the fit rows, which
`fit` learns as `log_floor_`; it is stored with the calibrator and applied to whatever it is given later. Of one score
per row, −inf and inf are probabilities of 0 and 1, and the smaller of p and 1 − p is looked at; predictions take scores
beyond the floor as the floor, so that their order stays.
"""

import numpy as np

from calibrant.core.arrays import Array
from calibrant.core.errors import warn_user
from calibrant.core.softmax import logsumexp

SAMPLED_ROWS, SAMPLED_ELEMENTS = 2000, 1 << 22
"""Most rows and numbers of the sample."""

LOG_EPS = float(np.log(np.finfo(np.float64).eps))
"""Logarithm of the probability that a zero of unchanged predictions counts as."""

SHORT_ROW = 100
"""Up to this many classes the sample is transposed, which takes a fifth of the time."""


def cost_of_zero(values: Array) -> float:
    """Nats that a probability of 0 for what happened adds to the log loss: −log of the eps of the dtype of the values.

    So it is in scikit-learn, too. Of probabilities smaller ones cost as much; losses of finite logits are exact.

    >>> round(cost_of_zero(np.zeros(1)), 2), round(cost_of_zero(np.zeros(1, np.float32)), 2)
    (36.04, 15.94)
    """
    return -float(np.log(np.float64(np.finfo(values.dtype).eps)))


def sample_stride(n_rows: int, n_classes: int) -> int:
    """Every so many-th row is in the sample, wherever the rows are."""
    return max(1, -(-n_rows // max(1, min(SAMPLED_ROWS, SAMPLED_ELEMENTS // n_classes))))


def log_floor_of(sample: Array, *, one_score: bool) -> float:
    """log of half the smallest positive probability of logits (n×K), or of scores of any shape.

    At most half of 1/K: where every positive probability is 1, they say nothing about the size of the others.

    >>> round(float(np.exp(log_floor_of(np.log([[0.5, 0.5], [0.8, 0.2]]), one_score=False))), 6)
    0.1
    """
    if one_score:
        finite = np.abs(sample[np.isfinite(sample)].astype(np.float64))
        lowest = -float(np.logaddexp(0.0, finite.max())) if len(finite) else 0.0
        return half_of(lowest, 2)
    n_classes = sample.shape[1]
    if not len(sample):
        return half_of(0.0, n_classes)
    with np.errstate(invalid="ignore", over="ignore"):
        # numpy reduces short rows one by one, but the columns of a copy several rows at a time
        columns = np.ascontiguousarray(sample.T) if n_classes <= SHORT_ROW else sample.T
        below = columns.min(axis=0)
        if np.isneginf(below).any():
            below = np.where(np.isneginf(columns), np.inf, columns).min(axis=0)
        depth = below.astype(np.float64) - columns.max(axis=0)
        # the log-mass of a row is its peak plus at most log K: no other row can hold the smallest probability
        few = np.flatnonzero(depth <= depth.min() + np.log(n_classes))
        lowest = (below[few] - logsumexp(sample[few].astype(np.float64))).min(initial=0.0)
    return half_of(float(lowest), n_classes)


def half_of(lowest: float, n_classes: int) -> float:
    """The floor, given the logarithm of the smallest positive probability."""
    return min(lowest, -float(np.log(n_classes))) - float(np.log(2.0))


def raised(logits: Array, log_floor: float, *, scores: bool = False) -> Array:
    """The same logits with every −inf replaced by that of the floor; of `scores`, each an own log-odds, every ±inf."""
    infinite = np.isinf(logits)
    if not infinite.any():
        return logits
    if scores or logits.ndim == 1:
        return np.where(infinite, np.copysign(floor_score(log_floor), logits), logits).astype(logits.dtype)
    result = logits.copy()
    rows = np.flatnonzero(infinite.any(axis=1))
    wanted = logsumexp(logits[rows].astype(np.float64))[:, None] + log_floor
    result[rows] = np.where(infinite[rows], wanted, logits[rows])
    return result


def floor_score(log_floor: float) -> float:
    """The size of the log-odds of the floor."""
    return float(np.log1p(-np.exp(log_floor)) - log_floor)


def warn_of_zeros(n_zero: int, n_rows: int, log_floor: float) -> None:
    """Say once per fit that there were zeros, and what they count as."""
    if n_zero:
        warn_user(
            f"{n_zero} of {n_rows} rows hold a probability of 0: it counts as half the smallest positive one "
            f"({np.exp(log_floor):.2g})"
        )
