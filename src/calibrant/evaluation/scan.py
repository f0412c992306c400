"""The pass of `measure` and `compare` over predictions, chunk by chunk on an engine.

It keeps a few numbers per row and sums by class, so a file larger than memory can be measured, as it is or under a
fitted calibrator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from calibrant.core import progress
from calibrant.core.bins import BinSums
from calibrant.core.errors import InputError
from calibrant.core.softmax import finite_log_odds, probability_log_odds
from calibrant.data import Predictions
from calibrant.data.chunks import Chunk, cut
from calibrant.engines.engine import Engine, opened
from calibrant.evaluation.bootstrap import Resamples
from calibrant.evaluation.flat import flat_columns, hits, two_class
from calibrant.kernels.rows import RowColumns, scan
from calibrant.metrics.classwise import class_sums, class_width_bins, probability_block
from calibrant.metrics.inputs import Checked, CheckedScores

CLASS_TABLE_ELEMENTS = 20_000_000
"""Rows × classes × bins of the widest table that is resampled at once."""

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
    draws = drawn.fewer(max(256, CLASS_TABLE_ELEMENTS // (n_classes * n_bins)))
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


class ScannedRows(CheckedScores):
    """The rows that metrics of `measure` and `compare` see: columns and sums by class are known from one pass.

    task : decides what a hit is. n_bins : of the sums by class. of_logits : the losses came from logits.
    whole : reads all values again, which happens only where a metric needs them and not all rows were kept.
    """

    scanned: Scanned
    task: str
    n_bins: int
    of_logits: bool
    whole: Callable[[], Checked]

    def __init__(
        self,
        scanned: Scanned,
        labels: np.ndarray,
        weights: np.ndarray | None,
        *,
        task: str,
        n_bins: int,
        of_logits: bool,
        whole: Callable[[], Checked],
    ) -> None:
        self.__dict__ |= {"scanned": scanned, "labels": labels, "weights": weights, "task": task, "n_bins": n_bins}
        self.__dict__ |= {"of_logits": of_logits, "whole": whole}

    @property
    def flat(self) -> bool:
        """Is there one score per row?"""
        return self.task != "multiclass"

    @property
    def n_classes(self) -> int:
        """K; 2 where there is one score per row."""
        return 2 if self.flat else len(self.scanned.sums.weight)

    def total(self, statistic: Callable[..., Any], *options: Any) -> Any:
        """The sums by class are at hand."""
        if statistic is class_width_bins and options == (self.n_bins,):
            return self.scanned.sums
        known = self.__dict__.setdefault("_totals", {})
        if (statistic, options) not in known:
            known[statistic, options] = super().total(statistic, *options)
        return known[statistic, options]

    def columns(self, wanted: str) -> RowColumns:
        """The columns of the pass."""
        return self.scanned.columns

    def column(self, name: str) -> np.ndarray:
        """One number per row; what a hit is follows from the task."""
        return hits(self.scanned.columns, self.task) if name == "hit" else getattr(self.scanned.columns, name)

    def top(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Confidence, correctness and weights of every row."""
        return self.scanned.columns.confidence, self.scanned.columns.correct, self.weights

    @cached_property
    def _matrix(self) -> Checked:
        if self.scanned.draws.rows is None and not self.flat:
            return Checked(self.scanned.kept, self.labels, self.weights, False)
        return self.whole()

    @property
    def values(self) -> np.ndarray:
        """The matrix (n×K)."""
        return self._matrix.values

    @property
    def from_logits(self) -> bool:
        """Is the matrix one of logits, or are scores log-odds?"""
        return self.flat or self._matrix.from_logits

    @cached_property
    def scores(self) -> np.ndarray:
        """Log-odds (n,) of rows of one score.

        Probabilities that came from logits saturate at 1, while the log loss does not: the log-odds follow from it.
        """
        columns = self.scanned.columns
        if not self.of_logits:
            return finite_log_odds(probability_log_odds(columns.confidence))
        loss = columns.nll.astype(np.float64)
        with np.errstate(divide="ignore"):
            # log(exp(x) − 1): the log-odds of the other class
            against = np.where(loss < 30, np.log(np.expm1(np.minimum(loss, 30.0))), loss)
        return finite_log_odds(np.where(columns.correct, -against, against))

    @property
    def positive(self) -> np.ndarray:
        """Is the label 1 (n,)?"""
        return self.scanned.columns.correct

    @cached_property
    def probabilities(self) -> np.ndarray:
        """The probabilities (n×K), or (n,) of the positive class, that a user's function is given."""
        if self.flat:
            return self.scanned.columns.confidence
        return probability_block(self._matrix, slice(0, None), np.float64)


def whole_rows(predictions: Predictions, calibrator: Any = None) -> Checked:
    """All rows in memory, as they are or as a fitted calibrator transforms them."""
    parts = [checked for chunk in cut(predictions) for checked, _ in _blocks(chunk, calibrator)]
    columns = (np.concatenate([one.values for one in parts]), np.concatenate([one.labels for one in parts]))
    weights = None if parts[0].weights is None else np.concatenate([one.weights for one in parts])
    return Checked(*columns, weights, parts[0].from_logits)


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
