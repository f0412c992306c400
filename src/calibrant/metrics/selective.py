"""How well confidence ranks rows: right from wrong, the error rate of the most confident, order before and after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from calibrant.core.arrays import (
    Array,
    as_array,
    check_counts,
    check_flag,
    check_matrix,
    check_number,
    check_scores,
    check_weights,
)
from calibrant.core.errors import InputError
from calibrant.kernels.rows import scan
from calibrant.metrics.inputs import ClassIndices, Probabilities, RowWeights, confidence_groups
from calibrant.metrics.record import Redrawn, documented, metric


def area_under_roc(sums: Any) -> Array:
    """Chance that a right row is above a wrong one, ties counted half, from weights by group (L,) or cell (R, L).

    NaN where there are none of either.
    """
    right, wrong = sums.positive, sums.weight - sums.positive
    below = np.cumsum(wrong, axis=-1) - wrong / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        return (right * below).sum(axis=-1) / (right.sum(axis=-1) * wrong.sum(axis=-1))


def aurc_by_cell(draws: Any) -> Array:
    """`aurc` (R,) of rows that count as tied within a cell."""
    weight, right = draws.weight[:, ::-1], draws.positive[:, ::-1]
    kept = np.cumsum(weight, axis=1)
    risk = np.cumsum(weight - right, axis=1) / np.where(kept > 0, kept, 1.0)
    return (risk * weight).sum(axis=1) / kept[:, -1]


@metric(
    "confidence AUROC",
    "conf AUROC",
    "how well confidence tells right from wrong",
    Redrawn(area_under_roc, lowest=-np.inf),
    percent=True,
    better=1,
    about="confidence",
)
def confidence_auroc(
    probabilities: Probabilities, labels: ClassIndices, *, sample_weight: RowWeights = None, from_logits: bool = False
) -> float:
    """Chance that a right prediction is more confident than a wrong one (Hendrycks & Gimpel 2017).

    The area under the ROC curve of confidence against correctness; ties count half. Where all are right or all are
    wrong there is nothing to tell apart and the answer is 0.5.

    Examples
    --------
    >>> from calibrant.metrics import confidence_auroc
    >>> confidence_auroc([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]], [0, 1, 0])
    0.5
    """
    groups = confidence_groups(probabilities, labels, sample_weight, from_logits)
    return float(np.nan_to_num(area_under_roc(groups), nan=0.5))


@dataclass(frozen=True)
class RiskCoverage:
    """Error rate among the most confident share, for every share that a confidence threshold can cut off."""

    coverage: Array
    """Share of samples kept, ascending, the last 1."""
    risk: Array
    """Error rate among those kept."""
    threshold: Array
    """Keep confidences of at least this."""

    def at(self, coverage: float) -> float:
        """Risk when at least this share is kept (ties are kept together)."""
        share = check_number(coverage, "coverage", least=0, most=1)
        return float(self.risk[np.searchsorted(self.coverage, share - 1e-12)])


@metric()
def risk_coverage(
    probabilities: Probabilities, labels: ClassIndices, *, sample_weight: RowWeights = None, from_logits: bool = False
) -> RiskCoverage:
    """Error rate when only the most confident share is kept (El-Yaniv & Wiener 2010).

    Examples
    --------
    >>> from calibrant.metrics import risk_coverage
    >>> risk_coverage([[0.75, 0.25], [0.0, 1.0]], [1, 1]).risk.tolist()
    [0.0, 0.5]
    """
    groups = confidence_groups(probabilities, labels, sample_weight, from_logits)
    kept = np.cumsum(groups.weight[::-1])
    wrong = np.cumsum((groups.weight - groups.positive)[::-1])
    return RiskCoverage(kept / kept[-1], wrong / kept, groups.scores[::-1].copy())


@metric(
    "AURC",
    "AURC",
    "mean error over all deferral rates",
    Redrawn(aurc_by_cell, lowest=-np.inf),
    percent=True,
    about="confidence",
)
def aurc(
    probabilities: Probabilities, labels: ClassIndices, *, sample_weight: RowWeights = None, from_logits: bool = False
) -> float:
    """Area under the risk-coverage curve (Geifman et al. 2019).

    ``1/n Σ_k risk(k)``, risk(k) the error rate of the k most confident samples. Samples of equal confidence come in
    no order: the mean over all their orders is taken. Weights are counts: a mean below 0.2 is an `InputError`.

    Examples
    --------
    >>> from calibrant.metrics import aurc
    >>> round(aurc([[0.75, 0.25], [0.0, 1.0]], [1, 1]), 4)
    0.25
    """
    from scipy.special import digamma  # here, since the import alone takes longer than most metrics

    groups = confidence_groups(probabilities, labels, sample_weight, from_logits, weights_are="counts")
    weight, wrong = groups.weight[::-1], (groups.weight - groups.positive)[::-1]
    rate = wrong / weight
    kept, wrong_before = np.append(0.0, np.cumsum(weight)), np.cumsum(wrong) - wrong
    # within a group risk(k) = rate + (wrong_before − rate·kept)/k, and Σ 1/k is a difference of harmonic numbers
    harmonic = np.diff(digamma(kept + 1))
    return float((weight * rate + (wrong_before - rate * kept[:-1]) * harmonic).sum() / kept[-1])


@documented
def rank_changes(
    before: ArrayLike, after: ArrayLike, *, sample_weight: RowWeights = None, from_logits: bool = False
) -> float:
    """Share of sample pairs whose confidence order was reversed (Frenkel & Goldberger 2022, §4).

    ``Σ_{i<j} 1{(c_i − c_j)(c'_i − c'_j) < 0} / (n(n−1)/2)``, by counting inversions in O(n log n). A pair tied before
    or after is not reversed. Weights count copies: n is their sum, which must exceed 1.

    Parameters
    ----------
    before, after : array (n,) or (n, K)
        Confidences of the same samples, or the matrices they are the row maxima of.
    from_logits : bool
        The matrices hold logits.

    Examples
    --------
    >>> from calibrant.metrics import rank_changes
    >>> round(rank_changes([0.5, 0.6, 0.7], [0.5, 0.9, 0.8]), 4)
    0.3333
    """
    check_flag(from_logits, "from_logits")
    first, second = _confidences(before, "before", from_logits), _confidences(after, "after", from_logits)
    if len(first) != len(second):
        raise InputError(f"before has {len(first)} rows, but after has {len(second)}")
    weights = check_weights(sample_weight, len(first))
    check_counts(weights)
    if weights is not None and weights.sum() <= 1 < len(first):
        raise InputError(f"sample_weight sums to {weights.sum():g}, but pairs need more than 1: give counts of copies")
    return reversed_share(first, second, weights)


def reversed_share(before: Array, after: Array, weights: Array | None = None) -> float:
    """`rank_changes` of confidences (n,): Σ w_i·w_j over the pairs that strictly change their order, as a share.

    They are the inversions that a merge sort meets.
    """
    total = len(before) if weights is None else float(weights.sum())
    if total <= 1:
        return 0.0
    # rows tied before stand in the order of after, rows tied after in the order of before: no inversion among them
    order = np.lexsort((after, before))
    places = np.argsort(after[order], kind="stable")
    size = 1 << (len(places) - 1).bit_length()
    # padding that stands last in both orders is never inverted; it makes every level a table of equal rows
    keys, mass = np.arange(0, 2 * size, 2), np.zeros(size)
    keys[: len(places)] = 2 * places
    mass[: len(places)] = 1.0 if weights is None else weights[order]
    inversions, half = 0.0, 1
    while half < size:
        rows = keys.reshape(-1, 2 * half)
        rows &= ~1
        rows[:, half:] |= 1  # the lowest bit remembers the half: the right one holds the higher ranks
        rows.sort(axis=1)
        of_row = mass[rows >> 1]
        from_right = of_row * (rows & 1)
        passed = np.cumsum(from_right).reshape(rows.shape)
        passed -= passed[:, :1] - from_right[:, :1]
        inversions += float(np.einsum("ij,ij->", passed, of_row - from_right))
        half *= 2
    return inversions / (total * (total - 1) / 2)


def _confidences(values: ArrayLike, name: str, from_logits: bool) -> Array:
    array = as_array(values, name)
    if array.ndim == 2 and array.shape[1] != 1:
        return scan(check_matrix(array, name), None, from_logits=from_logits, columns="correct", name=name).confidence
    scores = check_scores(array, name)
    bad = np.flatnonzero(~np.isfinite(scores))
    if len(bad):
        raise InputError(f"{name} is {scores[bad[0]]} in row {bad[0]}: confidences must be finite")
    return scores
