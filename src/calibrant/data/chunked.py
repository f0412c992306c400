"""`ChunkedRows`: what `core.rows.Rows` offers a calibrator, from predictions that are never in memory as a whole."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from calibrant.core import progress
from calibrant.core.fingerprint import SAMPLED_ROWS, fingerprint_of_sample
from calibrant.core.row_views import WeightedRows
from calibrant.core.rows import Columns, Factor, Rows, SolvedTemperature
from calibrant.core.statistic import Kernel, Statistic
from calibrant.core.zeros import Minima, floor_of, raised, warn_of_zeros
from calibrant.data.chunks import Chunk, cut
from calibrant.data.predictions import Predictions, fits_in_memory
from calibrant.data.scratch import Scratch, fits_on_disk
from calibrant.engines.engine import Engine
from calibrant.kernels.column_minima import column_minima

SAMPLE_BYTES = 64 * 2**20
"""Most bytes of a sample of the rows, which is held in memory."""

SPILL_BYTES = 256 * 2**20
"""Arrays larger than this go to a scratch file."""

Sums = tuple[Any, ...]
Pass = tuple[Sums, dict[int, np.ndarray]]
"""Sums, and those rows (by the number of the first) that name the data set."""


class ChunkedRows:
    """Rows on disk that can be summed over, pass by pass, on an engine.

    Memory: the labels and weights (8 bytes per row each), and a block of 8 MB of float32 per thread. Values are checked
    in the first pass over them. Sums are taken block by block inside a chunk and chunk by chunk in order, so they have
    the same bits on every engine and on any number of workers.

    Parameters
    ----------
    predictions : Predictions
        With labels; of probabilities the logarithms are used.
    engine : Engine
        Where passes run.
    """

    def __init__(self, predictions: Predictions, engine: Engine) -> None:
        self.predictions, self.engine = predictions, engine
        self.labels, self.weights = predictions.labels, predictions.weights
        self.n, self.n_classes = predictions.n, predictions.n_classes
        self.total_weight = float(self.n) if self.weights is None else float(self.weights.sum())
        self.n_passes = 0
        self._chunks = cut(predictions)
        self._checked = False
        self._marked: dict[int, np.ndarray] = {}
        self._sample: Rows | None = None
        self._scratches: list[Scratch] = []

    in_memory = False

    def row_weights(self) -> np.ndarray | None:
        """The weight of each row (n,), or None where all weigh the same."""
        return self.weights

    def gather_top(self, columns: Columns) -> Sums:
        """`gather` of what is read off the top of each row."""
        return self.gather(columns)

    def solved_temperature(self) -> SolvedTemperature | None:
        """Nothing is known without a solver."""
        return None

    def reweighted(self, factor: Factor) -> WeightedRows:
        """A view of the same rows with their weights multiplied, pass by pass."""
        return WeightedRows(self, factor)

    def class_weight(self) -> np.ndarray:
        """Total weight of each class (K,); 0 for a class that is absent."""
        return np.bincount(self.labels, weights=self.weights, minlength=self.n_classes).astype(np.float64)

    def sample(self, size: int) -> Rows:
        """About `size` rows in memory (64 MB of them at most): the first of every chunk."""
        room = SAMPLE_BYTES // (self.n_classes * self.predictions.dtype.itemsize)
        each = -(-min(size, max(room, 1)) // len(self._chunks))
        if self._sample is None or self._sample.n < min(each * len(self._chunks), self.n) // 2:
            parts = self._run(partial(_head, most=each), self._chunks, _extend, "sampling")
            logits, labels, weights = zip(*parts, strict=True)
            joined = None if self.weights is None else np.concatenate(weights)
            self._sample = Rows(np.concatenate(logits), np.concatenate(labels), joined)
        return self._sample

    def total(self, statistic: Statistic, *parameters: Any) -> Sums:
        """Sum of `statistic(logits, labels, weights, *parameters)` over all rows: one pass."""
        self.n_passes += 1
        marks = 0 if self._marked else self._stride
        check = not self._checked and not statistic.shows_bad_values
        form = statistic.form(self.n * self.n_classes)
        work = partial(_summed, form=form, parameters=parameters, check=check, marks=marks)
        sums, marked = self._run(work, self._chunks, _join, f"pass {self.n_passes}", _temperature_words(parameters))
        if not self._checked and not check and not np.isfinite(sums[: statistic.shows_bad_values]).all():
            self._look()
        self._checked, self._marked = True, self._marked or marked
        return sums

    def learn_floor(self) -> np.ndarray:
        """What a probability of 0 counts as (K,), from a pass that also checks every value and names the data set.

        From then on the rows hold that value in place of −inf.
        """
        kernel = column_minima.form(self.n * self.n_classes)
        work = partial(_minima, kernel=kernel, check=not self._checked, marks=self._stride)
        minima, self._marked = self._run(work, self._chunks, _join_minima, "checking")
        self._checked, self._sample = True, None
        n_zero = minima.n_zero
        if n_zero and self.predictions.dtype == np.float32:
            wide = partial(_minima, kernel=partial(_in_float64, kernel), check=False, marks=0)
            minima, _ = self._run(wide, self._chunks, _join_minima, "zeros")
        floor = floor_of(minima.values)
        if n_zero:
            warn_of_zeros(n_zero, self.n, floor)
            self._chunks = [replace(chunk, floor=floor) for chunk in self._chunks]
        return floor

    def gather(self, columns: Columns, *parameters: Any) -> Sums:
        """Arrays with an entry per row, joined in the order of the rows.

        Arrays that are large together wait in a scratch file: they are maps then, and cost no memory until read.
        """
        self.n_passes += 1
        form = columns.form(self.n * self.n_classes) if isinstance(columns, Kernel) else columns
        found: list[np.ndarray] = []

        def put(part: tuple[int, list[np.ndarray], dict[int, np.ndarray]] | None) -> None:
            if part is not None:
                first_row, arrays, marked = part
                self._marked.update(marked)
                found.extend(self._column(array.dtype) for array in arrays[len(found) :])
                for column, array in zip(found, arrays, strict=True):
                    column[first_row : first_row + len(array)] = array

        def merge(left: Any, right: Any) -> None:
            put(left)
            put(right)

        marks = 0 if self._marked else self._stride
        work = partial(_gathered, form=form, parameters=parameters, check=not self._checked, marks=marks)
        put(self._run(work, self._chunks, merge, f"pass {self.n_passes}"))
        self._checked = True
        return tuple(found)

    def whole(self) -> Rows:
        """All rows as arrays, for fits that cannot go chunk by chunk: in memory, or in a scratch copy on disk.

        A large uncompressed file is read into memory if it fits, as a map would end the process where another one cuts
        the file short. It is mapped only where it fits neither in memory nor on the disk of the scratch files.
        """
        predictions = self.predictions
        nbytes = self.n * self.n_classes * predictions.dtype.itemsize
        if nbytes <= SPILL_BYTES or (
            predictions.kind == "logits"
            and predictions.source.whole() is not None
            and (fits_in_memory(nbytes) or not fits_on_disk(nbytes))
        ):
            rows = predictions.rows()
            floor = self._chunks[0].floor
            return rows if floor is None else Rows(raised(rows.logits, floor), rows.labels, rows.weights)
        logits = self._scratch((self.n, self.n_classes), predictions.dtype)
        for chunk in self._chunks:
            done = chunk.first_row
            for rows in chunk.rows(check=not self._checked):
                logits[done : done + rows.n] = rows.logits
                done += rows.n
            progress.step("copying to a scratch file", done, self.n)
        self._checked = True
        return Rows(logits, self.labels, self.weights)

    def _look(self) -> None:
        """A pass that does nothing but look at every value, to raise the error that names a bad one."""
        work = partial(_summed, form=_nothing, parameters=(), check=True, marks=0)
        self._run(work, self._chunks, _join, "checking")

    def fingerprint(self) -> str:
        """The name of the data set, the same as that of the arrays in memory; a pass over it if none was made."""
        if sum(map(len, self._marked.values())) < -(-self.n // self._stride):
            work = partial(_summed, form=_nothing, parameters=(), check=not self._checked, marks=self._stride)
            _, self._marked = self._run(work, self._chunks, _join, "checking")
            self._checked = True
        rows = np.concatenate([self._marked[key] for key in sorted(self._marked)])
        return fingerprint_of_sample((self.n, self.n_classes), rows, self.labels, self.weights)

    @property
    def _stride(self) -> int:
        return max(1, self.n // SAMPLED_ROWS)

    def _run(self, work: Any, chunks: list[Any], merge: Any, stage: str, note: str = "") -> Any:
        """`engine.run` that tells how far it is, how fast, and at which temperature."""
        started, merged = time.perf_counter(), 0
        rows = np.cumsum([chunk.n for chunk in chunks])
        progress.step(stage, 0, self.n, note)

        def told(left: Any, right: Any) -> Any:
            nonlocal merged
            merged += 1
            speed = rows[merged] / max(time.perf_counter() - started, 1e-9)
            progress.step(stage, int(rows[merged]), self.n, f"{speed:,.0f} rows/s {note}".rstrip())
            return merge(left, right)

        return self.engine.run(work, chunks, told)

    def _column(self, dtype: np.dtype) -> np.ndarray:
        return self._scratch((self.n,), dtype) if self.n * 16 > SPILL_BYTES else np.empty(self.n, dtype)

    def _scratch(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        scratch = Scratch()
        self._scratches.append(scratch)
        return np.memmap(scratch.path, dtype, "w+", shape=shape)


def _summed(chunk: Chunk, *, form: Callable[..., Sums], parameters: tuple[Any, ...], check: bool, marks: int) -> Pass:
    """The sums of one chunk, and those of its rows that name the data set."""
    sums: Sums | None = None
    marked: dict[int, np.ndarray] = {}
    row = chunk.first_row
    for block in chunk.rows(check=check):
        with np.errstate(invalid="ignore"):  # values that are not finite yet unchecked show in the sums
            part = form(block.logits, block.labels, block.weights, *parameters)
        sums = part if sums is None else _add_into(sums, part)
        _mark(marked, block.logits, row, marks)
        row += block.n
    assert sums is not None  # noqa: S101 (a chunk has rows)
    return sums, marked


MarkedMinima = tuple[Minima, dict[int, np.ndarray]]
"""Minima, and the rows that name the data set."""


def _in_float64(kernel: Callable[..., Any], logits: np.ndarray) -> Any:
    return kernel(logits.astype(np.float64))


def _minima(chunk: Chunk, *, kernel: Callable[..., Any], check: bool, marks: int) -> MarkedMinima:
    found = Minima(np.full(chunk.predictions.n_classes, np.inf), 0)
    marked: dict[int, np.ndarray] = {}
    row = chunk.first_row
    for block in chunk.rows(check=check):
        counted = block.logits if block.weights is None else block.logits[block.weights > 0]
        if len(counted):
            found = found + kernel(counted)
        _mark(marked, block.logits, row, marks)
        row += block.n
    return found, marked


def _join_minima(left: MarkedMinima, right: MarkedMinima) -> MarkedMinima:
    left[1].update(right[1])
    return left[0] + right[0], left[1]


def _gathered(
    chunk: Chunk, *, form: Callable[..., Sums], parameters: tuple[Any, ...], check: bool, marks: int
) -> tuple[int, list[np.ndarray], dict[int, np.ndarray]]:
    parts: list[Sums] = []
    marked: dict[int, np.ndarray] = {}
    row = chunk.first_row
    for block in chunk.rows(check=check):
        parts.append(form(block.logits, block.labels, block.weights, *parameters))
        _mark(marked, block.logits, row, marks)
        row += block.n
    return chunk.first_row, [np.concatenate(columns) for columns in zip(*parts, strict=True)], marked


def _mark(marked: dict[int, np.ndarray], logits: np.ndarray, row: int, marks: int) -> None:
    """Keep every `marks`-th of all rows (0: none); the first row of the block is number `row`."""
    if marks and len(chosen := logits[-row % marks :: marks]):
        marked[row] = chosen.copy()


def _head(chunk: Chunk, *, most: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
    return [
        (np.array(block.logits), block.labels, block.weights) for block in chunk.rows(check=True, most=most) if block.n
    ]


def _nothing(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> Sums:
    return ()


def _extend(left: list[Any], right: list[Any]) -> list[Any]:
    left.extend(right)
    return left


def _join(left: Pass, right: Pass) -> Pass:
    left[1].update(right[1])
    return _add_into(left[0], right[0]), left[1]


def _add_into(left: Sums, right: Sums) -> Sums:
    """Elementwise sum that reuses the arrays on the left where it may."""
    joined = []
    for mine, theirs in zip(left, right, strict=True):
        if isinstance(mine, np.ndarray) and mine.flags.writeable and mine.dtype == np.result_type(mine, theirs):
            joined.append(np.add(mine, theirs, out=mine))
        else:
            joined.append(mine + theirs)
    return tuple(joined)


def _temperature_words(parameters: tuple[Any, ...]) -> str:
    """A first parameter that is one number is the inverse temperature of a likelihood."""
    first = parameters[0] if parameters else None
    return f"T {1 / first:.4f}" if isinstance(first, float) and first > 0 else ""
