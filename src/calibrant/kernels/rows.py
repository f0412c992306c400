"""One pass over the matrix gives every per-row column that the top-label metrics need.

`scan` is the front: it cuts the matrix into blocks, runs the numpy or the compiled twin on all cores and joins
the columns. Bad values (NaN, Inf, rows that do not sum to one) are noticed in the same pass, so validation is
free. Where several classes share the maximum, the prediction is the first of them, as in `numpy.argmax`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from calibrant.core.arrays import PROBABILITY_TOLERANCE, Array, explain_bad_values
from calibrant.core.errors import InputError
from calibrant.core.statistic import kernel
from calibrant.core.threads import map_blocks, row_blocks

CORRECT, TOP, SCORES, ALL = 0, 1, 2, 3
"""How much a scan computes: is the prediction right; also which it is; also its proper scores; also the entropy."""

LEVELS = {"correct": CORRECT, "top": TOP, "scores": SCORES, "all": ALL}


class RowColumns(NamedTuple):
    """What one row of the matrix comes down to; columns that were not asked for have length 0."""

    confidence: Array
    """max_j p_j (n,): in the dtype of the probabilities, float64 from logits."""
    prediction: Array
    """The first class of the highest value (n,), int64."""
    correct: Array
    """prediction == label (n,), bool."""
    nll: Array
    """−log p_y (n,), float64."""
    brier: Array
    """Σ_j (p_j − 1{y=j})² (n,), float64."""
    entropy: Array
    """−Σ_j p_j log p_j (n,), float64, in nats."""


def scan(
    values: Array,
    labels: Array | None,
    *,
    from_logits: bool,
    columns: str = "all",
    name: str = "",
    first_row: int = 0,
) -> RowColumns:
    """Per-row columns of a checked n×K matrix; raises InputError at values that are no logits or probabilities.

    Parameters
    ----------
    values : array (n, K)
        float32 or float64 logits or probabilities, as `core.arrays.check_matrix` returns them.
    labels : array (n,) of int64, or None
        Without labels `correct`, `nll` and `brier` are meaningless.
    columns : {"correct", "top", "scores", "all"}
        "correct": confidence and correct, the fastest. "top": also prediction. "scores": also nll and brier. "all":
        also entropy.
    first_row : int
        Row number of the first row, for the error message of a chunk.
    """
    if columns not in LEVELS:
        raise InputError(f"columns must be one of {', '.join(LEVELS)}, got {columns!r}")
    if labels is None:
        labels = np.zeros(len(values), dtype=np.int64)
    kernel = (scan_logits if from_logits else scan_probabilities).form(values.size)
    name = name or ("logits" if from_logits else "probabilities")

    def part(block: slice) -> RowColumns:
        rows = np.ascontiguousarray(values[block])
        result, suspicious = kernel(rows, labels[block], LEVELS[columns])
        if suspicious:
            explain_bad_values(rows, from_logits=from_logits, name=name, first_row=first_row + block.start)
        return result

    parts = map_blocks(part, row_blocks(*values.shape))
    return parts[0] if len(parts) == 1 else RowColumns(*map(np.concatenate, zip(*parts, strict=True)))


@kernel(compiled_in="calibrant.kernels.compiled.rows")
def scan_probabilities(probabilities: Array, labels: Array, level: int) -> tuple[RowColumns, bool]:
    """Columns of a block of probabilities, and whether any value looked wrong."""
    rows = np.arange(len(labels))
    prediction = probabilities.argmax(axis=1)
    confidence = probabilities[rows, prediction]
    with np.errstate(over="ignore", invalid="ignore"):
        sums = probabilities.sum(axis=1, dtype=np.float64)
        suspicious = not (
            probabilities.min() >= 0
            and confidence.max() <= 1 + PROBABILITY_TOLERANCE
            and (np.abs(sums - 1) <= PROBABILITY_TOLERANCE).all()
        )
    correct = prediction == labels
    nll = brier = entropy = np.empty(0)
    if level >= SCORES and not suspicious:
        of_label = probabilities[rows, labels].astype(np.float64)
        nll = -np.log(np.maximum(of_label, np.finfo(probabilities.dtype).tiny))
        squares = np.einsum("ij,ij->i", probabilities, probabilities, dtype=np.float64)
        brier = np.maximum(squares - 2 * of_label + 1, 0.0)
    if level >= ALL and not suspicious:
        wide = probabilities.astype(np.float64)
        positive = np.where(wide > 0, wide, 1.0)
        entropy = np.maximum(-(positive * np.log(positive)).sum(axis=1), 0.0)
    return RowColumns(confidence, _kept(prediction, level), correct, nll, brier, entropy), suspicious


@kernel(compiled_in="calibrant.kernels.compiled.rows")
def scan_logits(logits: Array, labels: Array, level: int) -> tuple[RowColumns, bool]:
    """Columns of the softmax of a block of logits, and whether any value looked wrong."""
    rows = np.arange(len(labels))
    prediction = logits.argmax(axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        shifted = logits.astype(np.float64)
        # the sum of finite logits may overflow
        suspicious = not (np.isfinite(shifted.sum()) or _sound(shifted))
        shifted -= shifted[rows, prediction][:, None]
        exponentials = np.exp(shifted)
        total = exponentials.sum(axis=1)
    correct = prediction == labels
    nll = brier = entropy = np.empty(0)
    if level >= SCORES and not suspicious:
        log_total = np.log(total)
        # a label of probability 0 costs what the smallest number of the dtype would
        behind = shifted[rows, labels]
        at_zero = -np.log(np.float64(np.finfo(logits.dtype).tiny))
        nll = np.where(np.isneginf(logits[rows, labels]), at_zero, log_total - behind)
        of_label = exponentials[rows, labels] / total
        squares = np.einsum("ij,ij->i", exponentials, exponentials) / total**2
        brier = np.maximum(squares - 2 * of_label + 1, 0.0)
        if level >= ALL:
            # a term that underflowed to 0 adds nothing, whatever its logit
            np.maximum(shifted, -745.0, out=shifted)
            entropy = np.maximum(log_total - np.einsum("ij,ij->i", exponentials, shifted) / total, 0.0)
    return RowColumns(1 / total, _kept(prediction, level), correct, nll, brier, entropy), suspicious


def _sound(logits: Array) -> bool:
    """Are these logits finite, or −inf in some columns of a row?"""
    return bool((logits < np.inf).all() and np.isfinite(logits.max(axis=1)).all())


def _kept(prediction: Array, level: int) -> Array:
    return prediction[: len(prediction) if level >= TOP else 0].astype(np.int64, copy=False)
