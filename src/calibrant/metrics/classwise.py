"""Calibration of every class's probability, not only of the predicted one.

Class j asks whether rows that give it probability p are of class j a share p of the time: probabilities p_j against
1{y=j}, over all n rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal, TypedDict, Unpack, overload

import numpy as np

from calibrant.core.arrays import Array, check_choice, check_values
from calibrant.core.bins import BinSums, check_n_bins, mass_index, mean_power, over, total_gap
from calibrant.core.softmax import softmax
from calibrant.core.threads import BLOCK_ELEMENTS, map_blocks, row_blocks
from calibrant.kernels.bins import class_width_sums, index_sums
from calibrant.metrics.inputs import (
    ORDER_OF_CLASSES,
    Checked,
    ClassIndices,
    Probabilities,
    RowWeights,
    adds_up,
    check,
    check_norm,
)
from calibrant.metrics.record import ClassGaps, ClassSpread, Figure, metric


class _Options(TypedDict, total=False):
    n_bins: int
    norm: float
    binning: str
    divisor: str
    sample_weight: RowWeights
    from_logits: bool


@overload
def classwise_ece(
    probabilities: Probabilities, labels: ClassIndices, *, average: None = ..., **options: Unpack[_Options]
) -> Array: ...
@overload
def classwise_ece(
    probabilities: Probabilities, labels: ClassIndices, *, average: Literal["mean"], **options: Unpack[_Options]
) -> float: ...
@metric()
def classwise_ece(
    probabilities: Probabilities,
    labels: ClassIndices,
    *,
    n_bins: int = 15,
    norm: float = 1,
    binning: str = "width",
    average: str | None = None,
    divisor: str = "n",
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> Any:
    """ECE of each class's probability against 1{y=j} (Kull et al. 2019; Frenkel & Goldberger 2021, eq. 2).

    ``ECE_j = Σ_b (n_jb/n)·|A_jb − C_jb|``: every class divides by all n rows, since every row states a probability
    for it; so each entry is at most 1.

    Parameters
    ----------
    average : {None, "mean"}
        None returns the vector (K,); "mean" its mean, which is `sce`.
    divisor : {"n", "n_j"}
        "n_j" divides by the rows of class j instead, as eq. 2 is printed: an entry may then exceed 1. NaN for a class
        without rows, which the mean leaves out.

    Examples
    --------
    >>> from calibrant.metrics import classwise_ece
    >>> classwise_ece([[0.75, 0.25], [0.25, 0.75]], [0, 0]).tolist()
    [0.5, 0.5]
    """
    sums = class_sums(check(probabilities, labels, sample_weight, from_logits), n_bins, binning)
    vector = sums.norm(check_norm(norm)) / _share(sums, divisor) ** (1 / norm)
    if average is None:
        return vector
    check_choice(average, "average", ("mean",))
    return float(np.nanmean(vector))


@metric(
    "classwise ECE",
    "class",
    "the gap of every class's probability, averaged",
    ClassGaps("width", lambda g, share, n_classes: total_gap(g, n_classes)),
    also="classwise_ece",
    compared=3,
)
def sce(
    probabilities: Probabilities,
    labels: ClassIndices,
    *,
    n_bins: int = 15,
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> float:
    """Static calibration error: the mean of `classwise_ece` (Nixon et al. 2019).

    ``1/K Σ_j Σ_b (n_jb/n)·|A_jb − C_jb|`` over bins of equal width.

    Examples
    --------
    >>> from calibrant.metrics import sce
    >>> sce([[0.75, 0.25], [0.25, 0.75]], [0, 0])
    0.5
    """
    return float(class_sums(check(probabilities, labels, sample_weight, from_logits), n_bins, "width").norm(1).mean())


@metric(
    "ACE",
    "ACE",
    "classwise gap over ranges of equal size",
    ClassGaps("mass", lambda g, share, n_classes: (np.abs(g) / share).sum(axis=-1) / g.shape[-1]),
    about="matrix",
)
def ace(
    probabilities: Probabilities,
    labels: ClassIndices,
    *,
    n_bins: int = 15,
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> float:
    """Adaptive calibration error over all classes (Nixon et al. 2019).

    ``1/(K·R) Σ_j Σ_r |A_jr − C_jr|`` over R ranges of equal mass, each range counting 1/R; a range that ties left
    empty counts 0.

    Parameters
    ----------
    n_bins : int
        R.

    Examples
    --------
    >>> from calibrant.metrics import ace
    >>> ace([[0.75, 0.25], [0.25, 0.75]], [0, 0], n_bins=2)
    0.5
    """
    sums = class_sums(check(probabilities, labels, sample_weight, from_logits), n_bins, "mass")
    return float(np.abs(sums.gap).mean())


@metric(
    "marginal ECE",
    "marginal",
    "root mean square of the classwise gaps",
    ClassGaps("mass", lambda g, share, n_classes: np.sqrt((g * g / share).sum(axis=-1) / n_classes)),
    about="matrix",
)
def marginal_ece(
    probabilities: Probabilities,
    labels: ClassIndices,
    *,
    n_bins: int = 15,
    norm: float = 2,
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> float:
    """Marginal calibration error over all classes (Kumar et al. 2019; Karandikar et al. 2021, app. J).

    ``(1/K Σ_j ECE_{j,p}^p)^(1/p)`` over bins of equal mass, p = 2: a mean over classes. The figures printed by
    Karandikar et al. fit the sum ``(Σ_j ECE_{j,p}^p)^(1/p)``, which is K^(1/p) times this value.

    Examples
    --------
    >>> from calibrant.metrics import marginal_ece
    >>> round(marginal_ece([[0.75, 0.25], [0.25, 0.75]], [0, 0], n_bins=2), 4)
    0.559
    """
    checked, p = check(probabilities, labels, sample_weight, from_logits), check_norm(norm)
    vector = class_sums(checked, n_bins, "mass").norm(p)
    return float(vector.max() if np.isinf(p) else mean_power(vector, np.full(len(vector), 1 / len(vector)), p))


@dataclass(frozen=True)
class ClasswiseOverUnder:
    """Over- and under-confidence of each class's probability; together they are its classwise ECE."""

    over: Array
    under: Array


@metric()
def classwise_over_under(
    probabilities: Probabilities,
    labels: ClassIndices,
    *,
    n_bins: int = 15,
    divisor: str = "n",
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> ClasswiseOverUnder:
    """Split each class's ECE into over- and under-confidence (Frenkel & Goldberger 2021, eq. 3-5).

    The two parts add up to `classwise_ece` of the same `divisor`; "n_j" is the printed one.

    Examples
    --------
    >>> from calibrant.metrics import classwise_over_under
    >>> classwise_over_under([[0.75, 0.25], [0.25, 0.75]], [0, 0]).over.tolist()
    [0.0, 0.5]
    """
    sums = class_sums(check(probabilities, labels, sample_weight, from_logits), n_bins, "width")
    excess = sums.excess / _share(sums, divisor)[:, None]
    return ClasswiseOverUnder(over(excess), over(-excess))


def _share(sums: BinSums, divisor: str) -> Array:
    """The rows (K,) that a class's sums are divided by, as a share of all."""
    count = sums.correct.sum(axis=-1)
    if check_choice(divisor, "divisor", ("n", "n_j")) == "n":
        return np.ones_like(count)
    return np.where(count > 0, count, np.nan) / count.sum()


@adds_up
def class_sums(rows: Checked, n_bins: int, binning: str) -> BinSums:
    """Bin sums (K, n_bins) of every class's probability, checking the values on the way.

    Those over bins of equal width add up over chunks; of equal mass, every class's bins depend on all rows.
    """
    check_n_bins(n_bins, rows.n_classes)
    ranked, weights = check_choice(binning, "binning", ("width", "mass")) == "mass", rows.weights
    n_rows, n_classes = (rows.every(ORDER_OF_CLASSES) if ranked else rows).matrix.shape
    if ranked:
        # in float32 many probabilities would tie at 0 or 1, and ties decide which bin of equal mass a row is in
        parts = map_blocks(lambda block: probability_block(rows, block, np.float64), row_blocks(n_rows, n_classes))
        probabilities = np.concatenate(parts)

        def of_class(j: int) -> Array:
            column = np.ascontiguousarray(probabilities[:, j])
            return index_sums(mass_index(column, n_bins, weights), column, rows.labels == j, weights, n_bins)

        return BinSums(*np.stack(map_blocks(of_class, range(n_classes)), axis=1))
    kernel = class_width_sums.form(n_rows * n_classes)

    def part(block: slice) -> Array:
        own = None if weights is None else weights[block]
        return kernel(probability_block(rows, block), rows.labels[block], own, n_bins)

    # a block is worth its table of classes × bins
    blocks = row_blocks(n_rows, n_classes, max(BLOCK_ELEMENTS, 3 * n_bins * n_classes))
    return BinSums(*reduce(np.add, map_blocks(part, blocks)))


def probability_block(checked: Checked, block: slice, dtype: Any = None) -> Array:
    """Checked probabilities of some rows, through the softmax (of this precision) where the matrix holds logits."""
    rows = np.ascontiguousarray(checked.matrix[block])
    check_values(rows, from_logits=checked.from_logits, first_row=block.start)
    return softmax(rows.astype(dtype or rows.dtype, copy=False)) if checked.from_logits else rows


@dataclass(frozen=True)
class ClasswiseLosses:
    """Mean NLL of each class that occurs, and the spread of these means."""

    classes: Array
    """Classes of positive weight, ascending."""
    losses: Array
    """Mean NLL of each of them."""
    variance: float
    """Mean squared distance of the losses from their mean."""
    std: float
    """Square root of the variance."""


@metric(
    figures=(
        Figure(
            "classwise_loss_std", "class loss spread", "class std", False, -1, "spread of the class losses",
            ClassSpread("nll"), field="std",
        ),
    ),
    about="matrix",
)  # fmt: skip
def classwise_losses(
    probabilities: Probabilities, labels: ClassIndices, *, sample_weight: RowWeights = None, from_logits: bool = False
) -> ClasswiseLosses:
    """Mean NLL per class with its variance over classes (Jung et al. 2023, eq. 3).

    ``L_j = −1/n_j Σ_{y_i=j} log p_i[j]``. Classes without a sample are left out.

    Examples
    --------
    >>> from calibrant.metrics import classwise_losses
    >>> classwise_losses([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]], [0, 0]).losses.round(4).tolist()
    [0.6931]
    """
    weight, loss = class_loss_sums(check(probabilities, labels, sample_weight, from_logits))
    classes = np.flatnonzero(weight > 0)
    losses = loss[classes] / weight[classes]
    return ClasswiseLosses(classes, losses, float(losses.var()), float(losses.std()))


@adds_up
def class_loss_sums(rows: Checked) -> Array:
    """Σw and Σw·nll of the rows of each class (2, K)."""
    columns = rows.mass, rows.mass * rows.column("nll")
    return np.stack([np.bincount(rows.labels, one, minlength=rows.n_classes) for one in columns])
