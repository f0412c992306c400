"""The pass of `measure` and `compare` over predictions, chunk by chunk on an engine.

It keeps a few numbers per row and sums by class, so a file larger than memory can be measured, as it is or under a
fitted calibrator.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from operator import add
from typing import Any

import numpy as np

from calibrant.core.arrays import Array, check_score_values
from calibrant.core.errors import InputError
from calibrant.core.softmax import finite_log_odds, probability_log_odds
from calibrant.data import Predictions
from calibrant.data.chunks import Chunk, add_up, cut, flattened
from calibrant.engines.engine import Engine
from calibrant.evaluation.bootstrap import Resamples
from calibrant.kernels.rows import ALL, RowColumns
from calibrant.metrics.classwise import class_sums, probability_block
from calibrant.metrics.inputs import Checked

CLASS_TABLE_ELEMENTS = 20_000_000
"""Rows × classes × bins of the widest table that is resampled at once."""


@dataclass(eq=False)
class ScannedRows(Checked):
    """The rows that metrics of `measure` and `compare` see: columns and sums by class are known from one pass.

    kept : probabilities (m, K) of the rows that `draws` resamples, for the intervals of classes.
    """

    kept: Any = None
    draws: Any = None

    @cached_property
    def probabilities(self) -> Array:
        """The probabilities (n×K), or (n,) of the positive class, that a user's function is given."""
        return self.found.confidence if self.flat else probability_block(self, slice(0, None), np.float64)


def scan_predictions(
    predictions: Predictions,
    drawn: Resamples,
    *,
    n_bins: int,
    calibrator: Any = None,
    codes: Array | None = None,
    engine: str | Engine = "local",
) -> ScannedRows:
    """One pass over the rows as they are, or as a fitted calibrator transforms them.

    Parameters
    ----------
    drawn : the resamples of the rows; class figures use as many of them as a table of classes × bins allows.
    codes : the group of each row (n,), for a calibrator that treats groups differently.
    """
    seen = flattened(predictions)
    draws = drawn.fewer(max(256, CLASS_TABLE_ELEMENTS // (seen.n_classes * n_bins)))
    work = partial(_scanned, wanted=draws.rows, n_bins=n_bins, calibrator=calibrator, codes=codes)
    found, sums, kept, _ = add_up(work, predictions, engine, "measuring" if calibrator is None else "")
    chosen = np.concatenate(kept).astype(predictions.dtype)
    columns = RowColumns(*map(np.concatenate, zip(*found, strict=True)))
    of_logits = calibrator is not None or predictions.kind == "logits"
    if seen.flat:
        rows = column_rows(columns, draws, seen.weights, task=seen.task, of_logits=of_logits)
    else:

        def every() -> Array:
            parts = (rows.values for chunk in cut(predictions) for rows, _ in _blocks(chunk, calibrator, codes))
            return np.concatenate(list(parts))

        # all values are read again only where a metric needs them and not all rows were kept
        values = chosen if len(chosen) == seen.n else every
        given = values, seen.labels, seen.weights, of_logits and values is every, seen.task, seen.n_classes
        rows = ScannedRows(*given, ALL, columns, draws=draws)
    rows.kept = chosen
    rows.totals[class_sums, (n_bins, "width")] = sums
    return rows


def column_rows(
    columns: RowColumns, draws: Resamples, weights: Array | None, *, task: str, of_logits: bool
) -> ScannedRows:
    """Rows of one score per row of which columns are known.

    Probabilities that came from logits saturate at 1, while the log loss does not: the log-odds follow from it.
    """
    scores, labels = probability_log_odds(columns.confidence), columns.correct.astype(np.int64)
    if of_logits:
        loss = columns.nll.astype(np.float64)
        with np.errstate(divide="ignore"):
            # log(exp(x) − 1): the log-odds of the other class
            against = np.where(loss < 30, np.log(np.expm1(np.minimum(loss, 30.0))), loss)
        scores = np.where(columns.correct, -against, against)
    return ScannedRows(finite_log_odds(scores), labels, weights, True, task, level=ALL, found=columns, draws=draws)


def _blocks(
    chunk: Chunk, calibrator: Any, codes: Array | None, *, checked: bool = False
) -> Iterator[tuple[Checked, int]]:
    """The rows of a chunk in memory, and the number of the first among all rows; of many labels, each is a row.

    checked : values are checked, and all columns found, on the way.
    """
    row = chunk.first_row
    for part in chunk.parts():
        values, seen = part.values, flattened(part)
        if codes is not None:
            values = calibrator.transform_codes(part.logits, codes[row : row + part.n])
        elif calibrator is not None:
            values = calibrator.transform(part.logits)
        if values.shape != part.values.shape:
            raise InputError(f"the calibrator returned shape {values.shape} for scores of shape {part.values.shape}")
        if seen.flat:
            values = values.reshape(-1)
        from_logits = calibrator is not None or part.kind == "logits"
        rows = Checked(values, seen.labels, seen.weights, from_logits, seen.task, seen.n_classes)
        name, first_row = chunk.predictions.called(row - chunk.first_row)
        with chunk.naming():
            if checked and rows.flat:
                check_score_values(values, from_logits=from_logits, name=name, first_row=first_row)
            if checked:
                rows.columns("all", name=name, first_row=first_row)
        yield rows, row * (seen.n // part.n)
        row += part.n


def _scanned(
    chunk: Chunk, *, wanted: Array, n_bins: int, calibrator: Any, codes: Array | None
) -> tuple[list[RowColumns], Any, list[Array], int]:
    """Columns of the rows, sums by class, probabilities of the wanted rows, number of rows."""
    found, kept, sums = [], [], []
    for rows, first in _blocks(chunk, calibrator, codes, checked=True):
        found.append(rows.found)
        sums.append(class_sums(rows, n_bins, "width"))
        inside = wanted[np.searchsorted(wanted, first) : np.searchsorted(wanted, first + len(rows.labels))] - first
        some = Checked(rows.values[inside], rows.labels[:1], None, rows.from_logits, rows.task)
        kept.append(probability_block(some, slice(0, None)) if len(inside) else np.empty((0, rows.n_classes)))
    return found, reduce(add, sums), kept, chunk.n
