"""Predictions cut into chunks, the rows that one task of an engine reads, and `FileBlocks`: rows that are all in files.

What metrics find in chunks is added up in one pass. Scores that are never in memory as a whole are read pass by pass on
an engine.
"""

import operator
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import count, pairwise
from typing import Any, NamedTuple

import numpy as np

from calibrant.core import progress
from calibrant.core.arrays import Array
from calibrant.core.errors import InputError
from calibrant.core.rows import SAMPLED_ROWS, Blocks, Columns, Rows, fingerprint_of_sample
from calibrant.core.statistic import Statistic, add
from calibrant.core.threads import BLOCK_ELEMENTS
from calibrant.core.zeros import log_floor_of, raised, sample_stride, warn_of_zeros
from calibrant.data.predictions import Predictions, fits_in_memory
from calibrant.data.scratch import Scratch, fits_on_disk
from calibrant.data.source import PartsSource
from calibrant.engines.engine import Engine, opened

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

    def parts(self, *, check: bool = False, elements: int = CHUNK_ELEMENTS) -> Iterator[Predictions]:
        """The rows as predictions in memory, nearly always all at once; `check` raises at values that are no scores."""
        with self.naming():
            yield from self.predictions.chunks(max(1, elements // self.predictions.source.shape[1]), check=check)

    def blocks(self, *, check: bool) -> Iterator[tuple[Any, ...]]:
        """Number of the first row, logits (m, K) or (m,) as a calibrator sees them, labels and weights of blocks."""
        row = self.first_row
        for part in self.parts(check=check, elements=STREAM_ELEMENTS):
            logits = part.logits if self.log_floor is None else raised(part.logits, self.log_floor)
            yield row, logits, part.labels, part.weights
            row += part.n

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Errors say which part they come from."""
        try:
            yield
        except (InputError, OSError) as error:
            raise part_error(error, self.predictions.name, self.part, self.n_parts) from error


def part_error(error: Exception, name: str, part: int, n_parts: int) -> InputError:
    """The same error, with the part named where there are several."""
    given = error if isinstance(error, InputError) else InputError(f"{name} cannot be read: {error}")
    if n_parts < 2:
        return given
    words = " ".join(given.message.split())
    where = "" if name in words else f"{name}: "
    return InputError(f"part {part + 1} of {n_parts}: {where}{words}", **given.remedy)


def cut(predictions: Predictions, log_floor: float | None = None, *, elements: int = CHUNK_ELEMENTS) -> list[Chunk]:
    """All rows as chunks, in order; none spans two parts."""
    pieces = predictions.source.pieces()
    rows = max(1, elements // predictions.source.shape[1])
    bare = predictions.like(groups={}, clusters=None, label_shares=None, class_names=None)
    found, offset = [], 0
    for part, piece in enumerate(pieces):
        for start, stop in pairwise([*piece.cuts(rows), piece.shape[0]]):
            source = PartsSource([piece], rows=range(start, stop))
            own = bare._part(source, slice(offset + start, offset + stop), checked=False)
            found.append(Chunk(own, offset + start, part, len(pieces), log_floor))
        offset += piece.shape[0]
    return found


def add_up(
    work: Callable[[Chunk], tuple[Any, ...]], predictions: Predictions, engine: str | Engine, stage: str = "measuring"
) -> tuple[Any, ...]:
    """The results of all chunks, the last entry of which is a number of rows, added entry by entry in one pass."""

    def merge(left: tuple[Any, ...], right: tuple[Any, ...]) -> tuple[Any, ...]:
        total = add(left, right)
        if stage:
            progress.step(stage, total[-1], predictions.n)
        return total

    with opened(engine) as running:
        return running.run(work, cut(predictions), merge)


class Answers(NamedTuple):
    """Labels (n,), weights and clusters of the rows that figures are made of, where these are not the predictions."""

    labels: Array
    weights: Array | None
    clusters: Array
    task: str = "binary"
    n_classes: int = 2
    flat: bool = True

    @property
    def n(self) -> int:
        """How many there are."""
        return len(self.labels)


def flattened(predictions: Predictions) -> Predictions | Answers:
    """Of many labels, every row and label as a row of a binary problem; the labels of one row form a cluster."""
    if predictions.task != "multilabel":
        return predictions
    n, width = predictions.labels.shape
    clusters = np.arange(n) if predictions.clusters is None else predictions.clusters
    weights = None if predictions.weights is None else np.repeat(predictions.weights, width)
    return Answers(predictions.labels.reshape(-1), weights, np.repeat(clusters, width))


SAMPLE_BYTES = 64 * 2**20
"""Most bytes of a sample of the rows, which is held in memory."""

SPILL_BYTES = 256 * 2**20
"""Arrays larger than this go to a scratch file."""

Sums = tuple[Any, ...]
Work = Callable[..., Sums]
"""`work(logits, labels, weights)` → sums, or arrays with an entry per row."""


def file_rows(predictions: Predictions, engine: Engine) -> Rows:
    """Predictions in files as rows; of probabilities the logarithms are used."""
    blocks = FileBlocks(predictions, engine)
    return Rows(None, predictions.labels, predictions.weights, clusters=predictions.clusters, blocks=blocks)


class FileBlocks(Blocks):
    """Scores on disk.

    Memory: a block of 8 MB of float32 per thread. Values are checked in the first pass over them. Sums are taken block
    by block inside a chunk and chunk by chunk in order, so they have the same bits on every engine and on any number of
    workers.
    """

    def __init__(self, predictions: Predictions, engine: Engine) -> None:
        self.predictions, self.engine = predictions, engine
        n_rows, self._width = predictions.source.shape
        self.shape = (n_rows,) if predictions.flat else (n_rows, self._width)
        self._passes = count(1)
        # which rows name the data set, and from which the value of a zero is learned
        self._strides = max(1, n_rows // SAMPLED_ROWS), sample_stride(n_rows, predictions.n_classes)
        # known once a zero was met
        self._floor: float | None = None
        # some of the rows in order: a stride s, and every s-th of the rows of a block
        self._marked: list[tuple[int, Array]] = []
        self._sample: Rows | None = None
        self._scratches: list[Scratch] = []

    def sums(self, statistic: Statistic, parameters: tuple[Any, ...], rows: Rows) -> Sums:
        """Sum of the statistic over all rows."""
        work = rows.work_of(statistic, parameters, rows.each)
        # a first parameter that is one number is the inverse temperature of a likelihood
        beta = parameters[0] if parameters else None
        note = f"T {1 / beta:.4f}" if isinstance(beta, float) and beta > 0 else ""
        return self._pass(work, rows, f"pass {next(self._passes)}", note)

    def gather(self, columns: Columns, parameters: tuple[Any, ...], rows: Rows) -> Sums:
        """Arrays with an entry per row, joined in the order of the rows.

        Arrays that are large together wait in a scratch file: they are maps then, and cost no memory until read.
        """
        self._settle()
        n_rows = self.shape[0]
        found: list[Array] = []
        new = self._scratch if n_rows * 16 > SPILL_BYTES else np.empty

        def put(*parts: tuple[int, list[Array]] | None) -> None:
            for first_row, arrays in filter(None, parts):
                for array in arrays[len(found) :]:
                    found.append(new(n_rows, array.dtype))
                for column, array in zip(found, arrays, strict=True):
                    column[first_row : first_row + len(array)] = array

        work = partial(_gathered, work=rows.work_of(columns, parameters))
        put(self._run(work, self._chunks(rows), put, f"pass {next(self._passes)}"))
        return tuple(found)

    def sample(self, rows: Rows, size: int) -> Rows:
        """About `size` rows in memory (64 MB of them at most): the first of every chunk."""
        room = SAMPLE_BYTES // (self._width * self.predictions.dtype.itemsize)
        chunks = self._chunks()
        each = -(-min(size, max(room, 1)) // len(chunks))
        if self._sample is None or self._sample.n < min(each * len(chunks), rows.n) // 2:
            heads = self._run(partial(_head, most=each), chunks, operator.iadd, "sampling")
            logits, places = map(np.concatenate, zip(*heads, strict=True))
            if not np.isfinite(logits).all() and self._floor is None:
                self._settle()
                return self.sample(rows, size)
            self._sample = Rows(logits, places)
        places = self._sample.labels
        weights = None if rows.weights is None else rows.weights[places]
        return Rows(self._sample.logits, rows.labels[places], weights, each=rows.each)

    def array(self) -> Array:
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
        for chunk in self._chunks():
            for row, block, *_ in chunk.blocks(check=True):
                logits[row : row + len(block)] = block
            progress.step("copying to a scratch file", chunk.first_row + chunk.n, self.shape[0])
        return logits

    @cached_property
    def log_floor(self) -> float:
        """The logarithm of what a probability of 0 counts as."""
        stride = self._strides[1]
        sample, weights = self._marked_rows(stride), self.predictions.weights
        if weights is not None:
            sample = sample[weights[::stride] > 0]
        return log_floor_of(sample, one_score=self.predictions.flat)

    def fingerprint(self, rows: Rows) -> str:
        """The name of the data set, the same as that of the arrays in memory."""
        marked = self._marked_rows(self._strides[0])
        return fingerprint_of_sample((rows.n, self._width), marked, rows.labels, rows.weights)

    def _settle(self) -> None:
        """Look at every value in a pass of its own, if no pass has done so yet."""
        if not self._marked:
            self._pass(None, None, "checking")

    def _pass(self, work: Work | None, rows: Rows | None, stage: str, note: str = "") -> Sums:
        """One pass; the first one also checks the values and marks rows, and gives the zeros that it meets a value.

        Sums over zeros that had no value yet are taken again.
        """
        marks = () if self._marked else {*self._strides}
        marked, n_zero, *sums = self._run(
            partial(_summed, work=work, marks=marks), self._chunks(rows), add, stage, note
        )
        self._marked += marked
        if not n_zero or self._floor is not None:
            return tuple(sums)
        self._floor = self.log_floor
        warn_of_zeros(n_zero, self.shape[0], self._floor)
        return () if work is None else self._pass(work, rows, stage, note)

    def _marked_rows(self, stride: int) -> Array:
        """Every stride-th row, as the first pass met them."""
        self._settle()
        return np.concatenate([rows for own, rows in self._marked if own == stride])

    def _chunks(self, rows: Rows | None = None) -> list[Chunk]:
        """Each chunk with its own labels and weights, so that no more is sent to a worker."""
        given = self.predictions
        return cut(given if rows is None else given.like(_labels=rows.labels, weights=rows.weights), self._floor)

    def _run(self, work: Any, chunks: list[Chunk], merge: Any, stage: str, note: str = "") -> Any:
        """`engine.run` that tells how far it is, how fast, and at which temperature."""
        started, ends = time.perf_counter(), iter([chunk.first_row + chunk.n for chunk in chunks[1:]])
        progress.step(stage, 0, self.shape[0], note)

        def told(left: Any, right: Any) -> Any:
            done = next(ends)
            speed = done / max(time.perf_counter() - started, 1e-9)
            progress.step(stage, done, self.shape[0], f"{speed:,.0f} rows/s {note}".rstrip())
            return merge(left, right)

        return self.engine.run(work, chunks, told)

    def _scratch(self, shape: int | tuple[int, ...], dtype: np.dtype) -> Array:
        scratch = Scratch()
        self._scratches.append(scratch)
        return np.memmap(scratch.path, dtype, "w+", shape=shape)


def _summed(chunk: Chunk, *, work: Work | None, marks: Collection[int]) -> Sums:
    """Marked rows of one chunk, how many of its rows that count hold a zero, and its sums: all of it adds up.

    marks : strides of the rows to be marked in the first pass, which checks the values; none in a later one.
    """
    sums: Sums = ()
    for row, logits, labels, weights in chunk.blocks(check=bool(marks)):
        with np.errstate(invalid="ignore"):  # of zeros that have no value yet
            part = () if work is None else work(logits, labels, weights)
        n_zero = 0
        if marks and chunk.log_floor is None:
            infinite = np.isinf(logits).reshape(len(logits), -1).any(axis=1)
            n_zero = int(np.count_nonzero(infinite if weights is None else infinite & (weights > 0)))
        part = ([(stride, logits[-row % stride :: stride].copy()) for stride in marks], n_zero, *part)
        sums = add(sums, part) if sums else part
    return sums


def _gathered(chunk: Chunk, *, work: Work) -> tuple[int, list[Array]]:
    parts = [work(*block) for _, *block in chunk.blocks(check=False)]
    return chunk.first_row, list(map(np.concatenate, zip(*parts, strict=True)))


def _head(chunk: Chunk, *, most: int) -> list[tuple[Array, Array]]:
    # blocks may be read into the same memory: a copy outlives the next one
    blocks = replace(chunk, predictions=chunk.predictions[:most]).blocks(check=True)
    return [(np.array(logits), np.arange(row, row + len(logits))) for row, logits, *_ in blocks]
