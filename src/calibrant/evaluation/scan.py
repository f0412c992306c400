"""The pass of `measure` and `compare` over predictions, chunk by chunk on an engine.

It keeps a few numbers per row and sums by class, so a file larger than memory can be measured, as it is or under a
fitted calibrator.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from calibrant.core import progress
from calibrant.core.bin_sums import BinSums
from calibrant.core.errors import InputError
from calibrant.data import Predictions
from calibrant.data.chunks import Chunk, cut
from calibrant.engines.engine import Engine, opened
from calibrant.evaluation.bootstrap import Resamples
from calibrant.evaluation.flat import flat_columns, two_class
from calibrant.evaluation.intervals import class_rows
from calibrant.kernels.rows import RowColumns, scan
from calibrant.metrics.classwise import class_sums, probability_block
from calibrant.metrics.inputs import Checked

Part = tuple[list[RowColumns], BinSums, list[np.ndarray], int]
"""Columns of the rows, sums by class, probabilities of the wanted rows, number of rows."""


@dataclass(frozen=True)
class Scanned:
    """What is kept of a pass: columns of all rows, sums by class, and the rows kept for the intervals of classes.

    kept : probabilities (m, K) of the rows that `draws` resamples.
    """

    columns: RowColumns
    sums: BinSums
    kept: np.ndarray
    draws: Resamples


def scan_predictions(
    predictions: Predictions,
    drawn: Resamples,
    *,
    n_bins: int,
    calibrator: Any = None,
    engine: str | Engine = "local",
    columns: str = "all",
) -> Scanned:
    """One pass over the rows as they are, or as a fitted calibrator transforms them.

    Parameters
    ----------
    drawn : the resamples of the rows; class figures use as many of them as a table of classes × bins allows.
    columns : how much to compute of each row, as in `kernels.rows.scan`.
    """
    n_classes = predictions.n_classes if predictions.task == "multiclass" else 2
    draws = drawn.fewer(class_rows(n_classes, n_bins))
    n_rows = predictions.n * (predictions.n_classes if predictions.task == "multilabel" else 1)
    wanted = np.arange(n_rows) if draws.rows is None else draws.rows
    order = np.argsort(wanted, kind="stable")
    work = partial(_scanned, wanted=wanted[order], n_bins=n_bins, calibrator=calibrator, columns=columns)
    stage = "" if calibrator is not None else "measuring"
    with opened(engine) as running:
        merge = partial(_merge, n_rows=predictions.n, stage=stage)
        found, sums, kept, _ = running.run(work, cut(predictions), merge)
    chosen = np.empty((len(wanted), n_classes), dtype=predictions.dtype)
    chosen[order] = np.concatenate(kept)
    return Scanned(RowColumns(*map(np.concatenate, zip(*found, strict=True))), sums, chosen, draws)


@dataclass(frozen=True)
class AtGroups:
    """A calibrator that treats groups of rows differently, with the group of every row."""

    calibrator: Any
    codes: np.ndarray

    def transform_from(self, logits: np.ndarray, row: int) -> np.ndarray:
        """Calibrated logits of the rows from number `row` on."""
        return self.calibrator.transform_codes(logits, self.codes[row : row + len(logits)])


def at_groups(calibrator: Any, groups: np.ndarray | None, n_rows: int) -> tuple[Any, tuple[str, ...]]:
    """A calibrator with the groups of all rows where it takes them, and what a reader should know."""
    if not getattr(calibrator, "takes_groups", False):
        return calibrator, ()
    codes = calibrator.group_codes(groups, n_rows, quiet=True)
    unseen = int((codes < 0).sum())
    return AtGroups(calibrator, codes), (f"{unseen} rows without a known group get the pooled fit",) if unseen else ()


def _transformed(calibrator: Any, logits: np.ndarray, row: int) -> np.ndarray:
    if isinstance(calibrator, AtGroups):
        return calibrator.transform_from(logits, row)
    return calibrator.transform(logits)


def top_columns(predictions: Predictions, engine: str | Engine = "local") -> RowColumns:
    """Confidence, prediction and correctness of every row, from a pass that also checks every value."""
    with opened(engine) as running:
        parts = running.run(_top, cut(predictions), lambda left, right: left + right)
    return RowColumns(*map(np.concatenate, zip(*parts, strict=True)))


def _top(chunk: Chunk) -> list[RowColumns]:
    return [_columns(chunk, checked, row, "top") for checked, row in _blocks(chunk, None)]


def _blocks(chunk: Chunk, calibrator: Any) -> Iterator[tuple[Checked, int]]:
    """The rows of a chunk in memory, and the number of the first among all rows."""
    row = chunk.first_row
    if chunk.predictions.task != "multiclass":
        for part in chunk.parts(check=False):
            values = part.values if calibrator is None else _transformed(calibrator, part.logits, row)
            from_logits = calibrator is not None or part.kind == "logits"
            yield two_class(values, part.labels, part.weights, from_logits), row * _width(chunk)
            row += part.n
        return
    if calibrator is None:
        for part in chunk.parts(check=False):
            yield Checked(part.values, part.labels, part.weights, part.kind == "logits"), row
            row += part.n
        return
    for part in chunk.parts(check=False):
        yield Checked(_transformed(calibrator, part.logits, row), part.labels, part.weights, True), row
        row += part.n


def _width(chunk: Chunk) -> int:
    """Scores that one row stands for: each label of a multilabel task is a row of the figures."""
    return chunk.predictions.source.shape[1] if chunk.predictions.task == "multilabel" else 1


def _columns(chunk: Chunk, checked: Checked, row: int, columns: str) -> RowColumns:
    called, first_row = chunk.predictions.called(row // _width(chunk) - chunk.first_row)
    with chunk.naming():
        if chunk.predictions.task != "multiclass":
            return flat_columns(checked, name=called, first_row=first_row)
        return scan(
            checked.values, checked.labels, from_logits=checked.from_logits, columns=columns,
            name=called, first_row=first_row,
        )  # fmt: skip


def _scanned(chunk: Chunk, *, wanted: np.ndarray, n_bins: int, calibrator: Any, columns: str) -> Part:
    found, kept, sums = [], [], None
    given = chunk.predictions
    for checked, row in _blocks(chunk, calibrator):
        n_rows, n_classes = checked.values.shape
        if calibrator is not None and given.task == "multiclass" and n_classes != given.n_classes:
            raise InputError(f"the calibrator returned {n_classes} columns, but there are {given.n_classes} classes")
        found.append(_columns(chunk, checked, row, columns))
        binned = class_sums(checked, n_bins, "width")
        sums = binned if sums is None else sums + binned
        inside = wanted[np.searchsorted(wanted, row) : np.searchsorted(wanted, row + n_rows)]
        some = Checked(checked.values[inside - row], checked.labels[:1], None, checked.from_logits)
        kept.append(probability_block(some, slice(0, None)) if len(inside) else np.empty((0, n_classes)))
    assert sums is not None  # noqa: S101 (a chunk has rows)
    return found, sums, kept, chunk.n


def _merge(left: Part, right: Part, *, n_rows: int, stage: str) -> Part:
    left[0].extend(right[0])
    left[2].extend(right[2])
    done = left[3] + right[3]
    if stage:
        progress.step(stage, done, n_rows)
    return left[0], left[1] + right[1], left[2], done
