"""Scale every column of the logits and add a bias, with the finiteness check in the same pass."""

from __future__ import annotations

import numpy as np

from calibrant.core.arrays import Array, explain_bad_values
from calibrant.core.statistic import kernel
from calibrant.core.threads import map_blocks, row_blocks


def scale_rows(logits: Array, scale: Array, bias: Array | None, *, keep_prediction: bool = False) -> Array:
    """s∘z + b of each row, in the dtype of the logits; raises InputError where a logit is not finite.

    With `keep_prediction` (for a scale that is the same for all classes) the predicted class stays the predicted
    class even where rounding makes the top two equal.
    """
    dtype = logits.dtype
    scaled = np.empty(logits.shape, dtype)
    kernel = scale_block.form(logits.size)
    columns = scale.astype(dtype), np.zeros(logits.shape[1], dtype) if bias is None else bias.astype(dtype)

    def part(block: slice) -> None:
        if not kernel(logits[block], *columns, scaled[block], keep_prediction):
            explain_bad_values(logits[block], from_logits=True, name="logits", first_row=block.start)

    map_blocks(part, row_blocks(*logits.shape))
    return scaled


@kernel(compiled_in="calibrant.kernels.compiled.scaling")
def scale_block(logits: Array, scale: Array, bias: Array, scaled: Array, keep_prediction: bool) -> bool:
    """Fill `scaled` with s∘z + b; False if a logit may not be finite (or if only their sum is not)."""
    with np.errstate(over="ignore", invalid="ignore"):
        finite = bool(np.isfinite(logits.sum(dtype=logits.dtype)))
    np.multiply(logits, scale, out=scaled)
    if bias.any():
        scaled += bias
    if keep_prediction:
        restore_prediction(logits, scaled)
    return finite


def restore_prediction(logits: Array, scaled: Array) -> None:
    """Where rounding moved the first maximum of a row, lift the old one by the smallest step there is."""
    prediction = logits.argmax(axis=1)
    moved = np.flatnonzero(scaled.argmax(axis=1) != prediction)
    if len(moved):
        scaled[moved, prediction[moved]] = np.nextafter(scaled[moved].max(axis=1), np.inf, dtype=scaled.dtype)
