"""The pass of `measure` and `compare` over predictions, chunk by chunk on an engine.

It keeps a few numbers per row and sums by class, so a file larger than memory can be measured, as it is or under a
fitted calibrator.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from operator import add
from typing import Any

import numpy as np

from calibrant.core import progress
from calibrant.core.arrays import Array, check_score_values
from calibrant.core.bins import BinSums
from calibrant.core.errors import InputError
from calibrant.core.softmax import finite_log_odds, probability_log_odds
from calibrant.data import Predictions
from calibrant.data.chunks import Chunk, cut
from calibrant.data.source import Source
from calibrant.engines.engine import Engine, opened
from calibrant.evaluation.bootstrap import Resamples
from calibrant.kernels.rows import ALL, RowColumns
from calibrant.metrics.classwise import class_width_bins, probability_block
from calibrant.metrics.inputs import Checked

CLASS_TABLE_ELEMENTS = 20_000_000
"""Rows × classes × bins of the widest table that is resampled at once."""

Part = tuple[list[RowColumns], BinSums, list[np.ndarray], int]
"""Columns of the rows, sums by class, probabilities of the wanted rows, number of rows."""


def flattened(predictions: Predictions) -> Predictions:
    """Of many labels, every row and label as a row of a binary problem; the labels of one row form a cluster."""
    if predictions.task != "multilabel":
        return predictions
    n, width = predictions.source.shape
    return Predictions.from_source(
        FlattenedSource(predictions.source),
        predictions.kind,
        predictions.labels.reshape(-1),
        weights=None if predictions.weights is None else np.repeat(predictions.weights, width),
        task="binary",
        groups={name: np.repeat(column, width) for name, column in predictions.groups.items()},
        clusters=np.repeat(np.arange(n) if predictions.clusters is None else predictions.clusters, width),
        field=predictions.field,
    )


class FlattenedSource(Source):
    """The columns of each row one after another (n·L×1)."""

    def __init__(self, source: Source) -> None:
        self.name, self.dtype = source.name, source.dtype
        self.shape = (source.shape[0] * source.shape[1], 1)
        self._source = source

    def blocks(self, start: int, stop: int, rows: int) -> Iterator[Array]:
        """Blocks of the rows behind, cut to size."""
        width = self._source.shape[1]
        for first in range(start, stop, rows):
            last = min(first + rows, stop)
            top, bottom = first // width, -(-last // width)
            block = np.concatenate(list(self._source.blocks(top, bottom, bottom - top))).reshape(-1, 1)
            yield block[first - top * width : last - top * width]

    def locate(self, row: int) -> tuple[str, int]:
        """The row behind."""
        return self._source.locate(row // self._source.shape[1])


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
    wanted = np.arange(seen.n) if draws.rows is None else draws.rows
    order = np.argsort(wanted, kind="stable")
    work = partial(_scanned, wanted=wanted[order], n_bins=n_bins, calibrator=calibrator, codes=codes)
    stage = "" if calibrator is not None else "measuring"
    with opened(engine) as running:
        merge = partial(_merge, n_rows=predictions.n, stage=stage)
        found, sums, kept, _ = running.run(work, cut(predictions), merge)
    chosen = np.empty((len(wanted), seen.n_classes), dtype=predictions.dtype)
    chosen[order] = np.concatenate(kept)
    columns = RowColumns(*map(np.concatenate, zip(*found, strict=True)))
    of_logits = calibrator is not None or predictions.kind == "logits"
    if seen.flat:
        rows = column_rows(columns, draws, seen.weights, task=seen.task, of_logits=of_logits)
        rows.kept = chosen
    else:
        # all values are read again only where a metric needs them and not all rows were kept
        every = partial(_all_values, predictions, calibrator, codes) if draws.rows is not None else lambda: chosen
        given = every, seen.labels, seen.weights, of_logits and draws.rows is not None
        rows = ScannedRows(*given, n_classes=seen.n_classes, level=ALL, found=columns, kept=chosen, draws=draws)
    rows.totals[class_width_bins, (n_bins,)] = sums
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


def group_codes(calibrator: Any, groups: Array | None, n_rows: int) -> tuple[Array | None, tuple[str, ...]]:
    """The group of every row, for a calibrator that takes them, and what a reader should know."""
    if not getattr(calibrator, "takes_groups", False):
        return None, ()
    codes = calibrator.group_codes(groups, n_rows, quiet=True)
    unseen = int((codes < 0).sum())
    return codes, (f"{unseen} rows without a known group get the pooled fit",) if unseen else ()


def top_columns(predictions: Predictions, engine: str | Engine = "local") -> RowColumns:
    """Confidence, prediction and correctness of every row, from a pass that also checks every value."""
    with opened(engine) as running:
        parts = running.run(_top, cut(predictions), add)
    return RowColumns(*map(np.concatenate, zip(*parts, strict=True)))


def _top(chunk: Chunk) -> list[RowColumns]:
    return [_columns(chunk, rows, first, "top") for rows, first in _blocks(chunk)]


def _all_values(predictions: Predictions, calibrator: Any, codes: Array | None) -> Array:
    return np.concatenate([rows.values for chunk in cut(predictions) for rows, _ in _blocks(chunk, calibrator, codes)])


def _blocks(chunk: Chunk, calibrator: Any = None, codes: Array | None = None) -> Iterator[tuple[Checked, int]]:
    """The rows of a chunk in memory, and the number of the first among all rows; of many labels, each is a row."""
    row, task = chunk.first_row, chunk.predictions.task
    for part in chunk.parts():
        values, labels, weights, width = part.values, part.labels, part.weights, 1
        if calibrator is not None:
            own = () if codes is None else (codes[row : row + part.n],)
            values = (calibrator.transform_codes if own else calibrator.transform)(part.logits, *own)
        if task == "multilabel":
            width = values.shape[1]
            values, labels = values.reshape(-1), labels.reshape(-1)
            weights = None if weights is None else np.repeat(weights, width)
        from_logits = calibrator is not None or part.kind == "logits"
        if task == "multiclass":
            yield Checked(values, labels, weights, from_logits, task, values.shape[1]), row
        else:
            single = {"multilabel": "binary"}.get(task, task)
            yield Checked(values.astype(np.float64), labels, weights, from_logits, single), row * width
        row += part.n


def _columns(chunk: Chunk, rows: Checked, first: int, wanted: str) -> RowColumns:
    width = chunk.predictions.source.shape[1] if chunk.predictions.task == "multilabel" else 1
    name, first_row = chunk.predictions.called(first // width - chunk.first_row)
    with chunk.naming():
        if rows.flat:
            check_score_values(rows.values, from_logits=rows.from_logits, name=name, first_row=first_row)
        return rows.columns(wanted, name=name, first_row=first_row)


def _scanned(chunk: Chunk, *, wanted: Array, n_bins: int, calibrator: Any, codes: Array | None) -> Part:
    found, kept, sums = [], [], []
    given = chunk.predictions
    for rows, first in _blocks(chunk, calibrator, codes):
        if not rows.flat and rows.n_classes != given.n_classes:
            raise InputError(
                f"the calibrator returned {rows.n_classes} columns, but there are {given.n_classes} classes"
            )
        found.append(_columns(chunk, rows, first, "all"))
        sums.append(class_width_bins(rows, n_bins))
        inside = wanted[np.searchsorted(wanted, first) : np.searchsorted(wanted, first + len(rows.labels))] - first
        some = Checked(rows.values[inside], rows.labels[:1], None, rows.from_logits, rows.task)
        kept.append(probability_block(some, slice(0, None)) if len(inside) else np.empty((0, rows.n_classes)))
    return found, reduce(add, sums), kept, chunk.n


def _merge(left: Part, right: Part, *, n_rows: int, stage: str) -> Part:
    left[0].extend(right[0])
    left[2].extend(right[2])
    done = left[3] + right[3]
    if stage:
        progress.step(stage, done, n_rows)
    return left[0], left[1] + right[1], left[2], done
