"""One pass over the matrix gives every per-row column that the top-label metrics need.

`scan` is the front: it cuts the matrix into blocks, runs the numpy or the compiled twin on all cores and joins
the columns. Bad values (NaN, Inf, rows that do not sum to one) are noticed in the same pass, so validation is
free. Where several classes share the maximum, the prediction is the first of them, as in `numpy.argmax`.
"""

from typing import NamedTuple

import numpy as np

from calibrant.core.arrays import Array, are_probabilities, explain_bad_values
from calibrant.core.statistic import kernel
from calibrant.core.threads import map_blocks, row_blocks
from calibrant.core.zeros import cost_of_zero

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
    if labels is None:
        labels = np.zeros(len(values), np.int64)
    kernel = (scan_logits if from_logits else scan_probabilities).form(values.size)

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
    sound, prediction = are_probabilities(probabilities), probabilities.argmax(axis=1)
    wide = probabilities.astype(np.float64)
    log_p = np.log(np.maximum(wide, np.finfo(probabilities.dtype).tiny)) if level >= SCORES and sound else wide
    nll, brier, entropy = _scores(probabilities, labels, level if sound else TOP, wide, log_p)
    confidence, nll = probabilities[np.arange(len(wide)), prediction], np.minimum(nll, cost_of_zero(probabilities))
    places = prediction if level >= TOP else prediction[:0]
    return RowColumns(confidence, places, prediction == labels, nll, brier, entropy), not sound


@kernel(compiled_in="calibrant.kernels.compiled.rows")
def scan_logits(logits: Array, labels: Array, level: int) -> tuple[RowColumns, bool]:
    """Columns of the softmax of a block of logits, and whether any value looked wrong."""
    prediction = logits.argmax(axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        log_p = logits.astype(np.float64)
        log_p -= log_p[np.arange(len(log_p)), prediction][:, None]
        shares = np.exp(log_p, out=None if level >= SCORES else log_p)
        total = shares.sum(axis=1, keepdims=True)
        # −inf in some columns of a row is a probability of 0; NaN, +inf or −inf in all of them leave no total
        sound = bool(np.isfinite(total).all())
        if level >= SCORES and sound:
            shares /= total
            log_p -= np.log(total)
    places = prediction if level >= TOP else prediction[:0]
    scores = _scores(logits, labels, level if sound else TOP, shares, log_p)
    return RowColumns(1 / total[:, 0], places, prediction == labels, *scores), not sound


def _scores(values: Array, labels: Array, level: int, shares: Array, log_shares: Array) -> tuple[Array, Array, Array]:
    """NLL, Brier score and entropy of rows with these probabilities and their logarithms, both in float64."""
    rows = np.arange(len(labels))
    nll = brier = entropy = np.empty(0)
    if level >= SCORES:
        own = log_shares[rows, labels]
        nll = np.where(np.isneginf(own), cost_of_zero(values), -own)
        squares = np.einsum("ij,ij->i", shares, shares)
        brier = np.maximum(squares - 2 * shares[rows, labels] + 1, 0.0)
    if level >= ALL:
        # a term that underflowed to 0 adds nothing, whatever its logarithm
        entropy = np.maximum(-np.einsum("ij,ij->i", shares, np.maximum(log_shares, -745.0)), 0.0)
    return nll, brier, entropy
