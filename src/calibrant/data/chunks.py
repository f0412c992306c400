"""Predictions cut into chunks, the rows that one task of an engine reads, and `FileBlocks`: rows that are all in files.

Scores that are never in memory as a whole are read pass by pass on an engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from calibrant.core import progress
from calibrant.core.errors import InputError
from calibrant.core.rows import SAMPLED_ROWS, Columns, Rows, fingerprint_of_sample, temperature_words
from calibrant.core.statistic import Kernel, Statistic
from calibrant.core.threads import BLOCK_ELEMENTS
from calibrant.core.zeros import log_floor_of, raised, sample_stride, warn_of_zeros
from calibrant.data.predictions import Predictions, fits_in_memory, to_logits
from calibrant.data.scratch import Scratch, fits_on_disk
from calibrant.data.source import ArraySource, SliceSource
from calibrant.engines.engine import Engine

STREAM_ELEMENTS = BLOCK_ELEMENTS // 2
"""Elements of one block that is read and summed at a time: 2 MB of float32 are in the cache until they are summed."""

CHUNK_ELEMENTS = 8 * BLOCK_ELEMENTS
"""Elements of one chunk at most, where the format lets one begin to read anywhere: 32 MB of float32."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of one part: an address, not values, so that it can be sent to another process."""

    predictions: Predictions
    """The rows, not yet read, with labels and weights and no other columns."""
    first_row: int
    """Its first row among all rows."""
    part: int
    n_parts: int
    log_floor: float | None = None
    """The logarithm of what a probability of 0 counts as; None leaves it at −inf."""

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.predictions.n

    def values(self, *, check: bool, most: int | None = None, elements: int = STREAM_ELEMENTS) -> Iterator[np.ndarray]:
        """Blocks in order, up to `most` rows; `check` raises at values that are no logits or probabilities."""
        source = self.predictions.source
        rows = max(1, elements // source.shape[1])
        done = 0
        with self.naming():
            for block in source.blocks(0, self.n if most is None else min(most, self.n), rows):
                if check:
                    self.predictions.check_block(block, done)
                yield block
                done += len(block)

    def logits(self, *, check: bool, most: int | None = None) -> Iterator[np.ndarray]:
        """Blocks (m, K), or (m,) of one score per row, as a calibrator sees them."""
        given = self.predictions
        for block in self.values(check=check, most=most):
            values = block[:, 0] if given.flat else block
            logits = to_logits(values, given.task) if given.kind == "probabilities" else values
            yield logits if self.log_floor is None else raised(logits, self.log_floor)

    def parts(self, *, check: bool) -> Iterator[Predictions]:
        """The rows as predictions in memory; nearly always all at once."""
        return self._in_memory(self.values(check=check, elements=CHUNK_ELEMENTS))

    def _in_memory(self, blocks: Iterator[np.ndarray]) -> Iterator[Predictions]:
        start = 0
        for block in blocks:
            source = ArraySource(block, self.predictions.source.locate(start)[0])
            part = self.predictions._part(source, slice(start, start + len(block)), checked=True)
            part._labels = part.labels.astype(np.int64, copy=False)
            yield part
            start += len(block)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Errors say which part they come from."""
        try:
            yield
        except (InputError, OSError) as error:
            raise part_error(error, self.predictions.name, self.part, self.n_parts) from error

    def __getstate__(self) -> dict[str, Any]:
        # a class index seldom needs eight bytes on the way to another process
        given = self.predictions
        narrow = None if given._labels is None else given._labels.astype(np.min_scalar_type(given.n_classes - 1))
        return {**self.__dict__, "predictions": given._like(given.source, _labels=narrow)}


def part_error(error: Exception, name: str, part: int, n_parts: int) -> InputError:
    """The same error, with the part named where there are several."""
    words = " ".join(str(error).split())
    if n_parts < 2:
        return error if isinstance(error, InputError) else InputError(f"{name} cannot be read: {words}")
    words = words if name in words else f"{name}: {words}"
    return InputError(f"part {part + 1} of {n_parts}: {words}")


def cut(predictions: Predictions, *, elements: int = CHUNK_ELEMENTS, with_labels: bool = True) -> list[Chunk]:
    """All rows as chunks, in order; none spans two parts."""
    pieces = predictions.source.pieces()
    rows = max(1, elements // predictions.source.shape[1])
    labels = predictions.labels if with_labels else None
    columns: dict[str, Any] = {"groups": {}, "clusters": None, "label_shares": None, "class_names": None}
    bare = predictions._like(predictions.source, whole=False, _labels=labels, **columns)
    found, offset = [], 0
    for part, piece in enumerate(pieces):
        for start, stop in pairwise([*piece.cuts(rows), piece.shape[0]]):
            source = piece if stop - start == piece.shape[0] else SliceSource(piece, start, stop)
            own = bare._part(source, slice(offset + start, offset + stop), checked=False)
            found.append(Chunk(own, offset + start, part, len(pieces)))
        offset += piece.shape[0]
    return found


SAMPLE_BYTES = 64 * 2**20
"""Most bytes of a sample of the rows, which is held in memory."""

SPILL_BYTES = 256 * 2**20
"""Arrays larger than this go to a scratch file."""

Sums = tuple[Any, ...]
Work = Callable[..., Sums]
"""`work(logits, labels, weights)` → sums, or arrays with an entry per row."""

Marked = dict[tuple[int, int], np.ndarray]
"""Some of the rows: every s-th of those from row r on, by (s, r)."""


def file_rows(predictions: Predictions, engine: Engine) -> Rows:
    """Predictions in files as rows; of probabilities the logarithms are used."""
    blocks = FileBlocks(predictions, engine)
    return Rows(None, predictions.labels, predictions.weights, clusters=predictions.clusters, blocks=blocks)


class FileBlocks:
    """Scores on disk.

    Memory: a block of 8 MB of float32 per thread. Values are checked in the first pass over them. Sums are taken block
    by block inside a chunk and chunk by chunk in order, so they have the same bits on every engine and on any number of
    workers.
    """

    on_device = False

    def __init__(self, predictions: Predictions, engine: Engine) -> None:
        self.predictions, self.engine = predictions, engine
        self.shape: tuple[int, ...] = (predictions.n,) if predictions.flat else (predictions.n, predictions.n_classes)
        self.n_passes = 0
        self._chunks = cut(predictions, with_labels=False)
        self._checked = False
        self._marked: Marked = {}
        self._floor: float | None = None
        self._sample: Rows | None = None
        self._scratches: list[Scratch] = []

    def sums(self, statistic: Statistic, parameters: tuple[Any, ...], rows: Rows) -> Sums:
        """Sum of the statistic over all rows: one pass, and a second one where it finds zeros."""
        work, shows_bad_values = rows.work_of(statistic, parameters), statistic.shows_bad_values
        note = temperature_words(parameters)
        self.n_passes += 1
        stage, floor = f"pass {self.n_passes}", self._chunks[0].log_floor
        sums = self._pass(work, rows, stage, note, check=not shows_bad_values)
        if not self._checked:
            if shows_bad_values and not np.isfinite(sums[:shows_bad_values]).all():
                self._pass(_nothing, rows, "checking")
            self._checked = True
            if self._chunks[0].log_floor is not floor:
                sums = self._pass(work, rows, stage, note)
        return sums

    def gather(self, columns: Columns, parameters: tuple[Any, ...], rows: Rows) -> Sums:
        """Arrays with an entry per row, joined in the order of the rows.

        Arrays that are large together wait in a scratch file: they are maps then, and cost no memory until read.
        """
        self._settle(rows)
        self.n_passes += 1
        found: list[np.ndarray] = []

        def put(part: tuple[int, list[np.ndarray]] | None) -> None:
            if part is not None:
                first_row, arrays = part
                found.extend(self._column(array.dtype) for array in arrays[len(found) :])
                for column, array in zip(found, arrays, strict=True):
                    column[first_row : first_row + len(array)] = array

        def merge(left: Any, right: Any) -> None:
            put(left)
            put(right)

        form = columns.form(rows.size) if isinstance(columns, Kernel) else columns
        put(
            self._run(
                partial(_gathered, form=form, parameters=parameters), self._tasks(rows), merge, f"pass {self.n_passes}"
            )
        )
        return tuple(found)

    def sample(self, rows: Rows, size: int) -> Rows:
        """About `size` rows in memory (64 MB of them at most): the first of every chunk."""
        room = SAMPLE_BYTES // (self._width * self.predictions.dtype.itemsize)
        each = -(-min(size, max(room, 1)) // len(self._chunks))
        if self._sample is None or self._sample.n < min(each * len(self._chunks), rows.n) // 2:
            parts = self._run(partial(_head, most=each), self._tasks(rows), _extend, "sampling")
            logits, places = (np.concatenate(column) for column in zip(*parts, strict=True))
            if not np.isfinite(logits).all() and self._chunks[0].log_floor is None:
                self._settle(rows)
                return self.sample(rows, size)
            self._sample = Rows(logits, places)
        own = None if rows.weights is None else rows.weights[self._sample.labels]
        return Rows(self._sample.logits, rows.labels[self._sample.labels], own, each=rows.each)

    def weighted(self, weights: np.ndarray | None) -> FileBlocks:
        """Itself: weights are sent with each chunk."""
        return self

    def solved_temperature(self) -> None:
        """Only sums find it."""

    def array(self) -> np.ndarray:
        """All scores as one array: in memory, or in a scratch copy on disk.

        A large uncompressed file is read into memory if it fits, as a map would end the process where another one cuts
        the file short. It is mapped only where it fits neither in memory nor on the disk of the scratch files.
        """
        given = self.predictions
        nbytes = self.shape[0] * self._width * given.dtype.itemsize
        if nbytes <= SPILL_BYTES or (
            given.kind == "logits"
            and given.source.whole() is not None
            and (fits_in_memory(nbytes) or not fits_on_disk(nbytes))
        ):
            return given.logits
        logits = self._scratch(self.shape, given.dtype)
        for chunk in self._chunks:
            done = chunk.first_row
            for block in chunk.logits(check=True):
                logits[done : done + len(block)] = block
                done += len(block)
            progress.step("copying to a scratch file", done, self.shape[0])
        return logits

    @property
    def log_floor(self) -> float:
        """The logarithm of what a probability of 0 counts as."""
        if self._floor is None:
            rows = Rows(None, self.predictions.labels, self.predictions.weights, blocks=self)
            self._floor = self._learned_floor(rows)
        return self._floor

    def fingerprint(self, rows: Rows) -> str:
        """The name of the data set, the same as that of the arrays in memory."""
        marked = self._marked_rows(rows, self._strides[0])
        return fingerprint_of_sample((rows.n, self._width), marked, rows.labels, rows.weights)

    def _settle(self, rows: Rows) -> None:
        """Look at every value in a pass of its own, if no pass has done so yet."""
        if not self._checked:
            self._pass(_nothing, rows, "checking")
            self._checked = True

    def _pass(self, work: Work, rows: Rows, stage: str, note: str = "", *, check: bool = True) -> Sums:
        """One pass; the first one also checks the values and marks rows, and gives the zeros that it meets a value."""
        first = not self._marked
        marks = self._strides if first else ()
        task = partial(_summed, work=work, check=check and not self._checked, marks=marks)
        sums, marked, n_zero = self._run(task, self._tasks(rows), _join, stage, note)
        self._marked = self._marked or marked
        if n_zero and self._chunks[0].log_floor is None:
            self._floor = self._learned_floor(rows)
            warn_of_zeros(n_zero, rows.n, self._floor)
            self._chunks = [replace(chunk, log_floor=self._floor) for chunk in self._chunks]
        return sums

    def _learned_floor(self, rows: Rows) -> float:
        stride = self._strides[1]
        sample = self._marked_rows(rows, stride)
        if rows.weights is not None:
            sample = sample[rows.weights[::stride] > 0]
        return log_floor_of(sample, one_score=len(self.shape) == 1)

    def _marked_rows(self, rows: Rows, stride: int) -> np.ndarray:
        """Every stride-th row, as the first pass met them."""
        if not self._marked:
            self._settle(rows)
        return np.concatenate([self._marked[key] for key in sorted(self._marked) if key[0] == stride])

    @property
    def _strides(self) -> tuple[int, int]:
        """Which rows name the data set, and from which the value of a zero is learned."""
        n_rows = self.shape[0]
        return max(1, n_rows // SAMPLED_ROWS), sample_stride(n_rows, 2 if len(self.shape) == 1 else self._width)

    @property
    def _width(self) -> int:
        return 1 if len(self.shape) == 1 else self.shape[1]

    def _tasks(self, rows: Rows) -> list[_Task]:
        """Each chunk with its own labels and weights, so that no more is sent to a worker."""
        tasks = []
        for chunk in self._chunks:
            own = slice(chunk.first_row, chunk.first_row + chunk.n)
            tasks.append(_Task(chunk, rows.labels[own], None if rows.weights is None else rows.weights[own]))
        return tasks

    def _run(self, work: Any, tasks: list[_Task], merge: Any, stage: str, note: str = "") -> Any:
        """`engine.run` that tells how far it is, how fast, and at which temperature."""
        started, merged = time.perf_counter(), 0
        rows = np.cumsum([task.chunk.n for task in tasks])
        progress.step(stage, 0, self.shape[0], note)

        def told(left: Any, right: Any) -> Any:
            nonlocal merged
            merged += 1
            speed = rows[merged] / max(time.perf_counter() - started, 1e-9)
            progress.step(stage, int(rows[merged]), self.shape[0], f"{speed:,.0f} rows/s {note}".rstrip())
            return merge(left, right)

        return self.engine.run(work, tasks, told)

    def _column(self, dtype: np.dtype) -> np.ndarray:
        n_rows = self.shape[0]
        return self._scratch((n_rows,), dtype) if n_rows * 16 > SPILL_BYTES else np.empty(n_rows, dtype)

    def _scratch(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        scratch = Scratch()
        self._scratches.append(scratch)
        return np.memmap(scratch.path, dtype, "w+", shape=shape)


@dataclass(frozen=True)
class _Task:
    """One chunk with its labels and weights."""

    chunk: Chunk
    labels: np.ndarray
    weights: np.ndarray | None

    def blocks(self, *, check: bool, most: int | None = None) -> Iterator[tuple[Any, ...]]:
        """The number of its first row, logits, labels and weights of each block."""
        done = 0
        for logits in self.chunk.logits(check=check, most=most):
            own = slice(done, done + len(logits))
            labels = self.labels[own].astype(np.int64, copy=False)
            yield self.chunk.first_row + done, logits, labels, None if self.weights is None else self.weights[own]
            done += len(logits)

    def __getstate__(self) -> dict[str, Any]:
        # a class index seldom needs eight bytes on the way to another process
        narrow = self.labels.astype(np.min_scalar_type(int(self.labels.max(initial=0))))
        return {**self.__dict__, "labels": narrow}


def _summed(task: _Task, *, work: Work, check: bool, marks: tuple[int, ...]) -> tuple[Sums, Marked, int]:
    """The sums of one chunk, those of its rows that are marked, and how many rows that count hold a zero."""
    sums: Sums | None = None
    marked: Marked = {}
    n_zero = 0
    for row, *block in task.blocks(check=check):
        logits, _, weights = block
        with np.errstate(invalid="ignore"):  # values that are not finite yet unchecked show in the sums
            part = work(*block)
        sums = part if sums is None else _add_into(sums, part)
        if check and task.chunk.log_floor is None:
            infinite = np.isinf(logits).reshape(len(logits), -1).any(axis=1)
            n_zero += int(infinite.sum() if weights is None else (infinite & (weights > 0)).sum())
        for stride in marks:
            if len(chosen := logits[-row % stride :: stride]):
                marked[stride, row] = chosen.copy()
    assert sums is not None  # noqa: S101 (a chunk has rows)
    return sums, marked, n_zero


def _gathered(task: _Task, *, form: Work, parameters: tuple[Any, ...]) -> tuple[int, list[np.ndarray]]:
    parts = [form(*block, *parameters) for _, *block in task.blocks(check=False)]
    return task.chunk.first_row, [np.concatenate(columns) for columns in zip(*parts, strict=True)]


def _head(task: _Task, *, most: int) -> list[tuple[np.ndarray, np.ndarray]]:
    heads = task.blocks(check=True, most=most)
    # blocks may be read into the same memory: a copy outlives the next one
    return [(np.array(logits), np.arange(row, row + len(logits))) for row, logits, *_ in heads if len(logits)]


def _nothing(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> Sums:
    return ()


def _extend(left: list[Any], right: list[Any]) -> list[Any]:
    left.extend(right)
    return left


def _join(left: tuple[Sums, Marked, int], right: tuple[Sums, Marked, int]) -> tuple[Sums, Marked, int]:
    left[1].update(right[1])
    return _add_into(left[0], right[0]), left[1], left[2] + right[2]


def _add_into(left: Sums, right: Sums) -> Sums:
    """Elementwise sum that reuses the arrays on the left where it may."""
    joined = []
    for mine, theirs in zip(left, right, strict=True):
        if isinstance(mine, np.ndarray) and mine.flags.writeable and mine.dtype == np.result_type(mine, theirs):
            joined.append(np.add(mine, theirs, out=mine))
        else:
            joined.append(mine + theirs)
    return tuple(joined)
