"""Where arrays come from: fields of a file that are not yet read, and sources that give their rows in blocks.

Every format is read by a function that returns the named arrays of a file as `Field`s. A `Source` is all that
`Predictions` knows about storage: it tells its shape, hands out blocks of consecutive rows, and says which file and row
a row came from. Both hold addresses, not open files, so they can be sent to other processes, and two threads may read
one source at the same time. What a file may claim is bounded before anything is allocated for it.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
import threading
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Literal

import numpy as np

from calibrant.core.arrays import check_values, look_like_probabilities, probabilities_error, widen
from calibrant.core.errors import InputError
from calibrant.core.softmax import log_stored

MAX_ROWS = 2**32
"""Rows of one file; labels of that many would need 32 GiB."""

MAX_CLASSES = 2**22
"""Columns of one matrix; the largest vocabularies have a tenth of that."""

MAX_TEXT_BYTES = 2**24
"""Bytes of a text header, of class names, or of one line of text."""

MAX_EXPANSION = 200
"""Times its compressed size that data may expand to, once it is larger than `ROOM_TO_EXPAND`."""

ROOM_TO_EXPAND = 2**28
"""Bytes that any file may expand to: constant labels shrink a thousandfold and are no attack while small."""


def check_counts(shape: tuple[int, ...], name: str) -> None:
    """Raise if a matrix claims more rows or classes than any real one has."""
    for count, most, what in zip(shape, (MAX_ROWS, MAX_CLASSES), ("rows", "classes"), strict=False):
        if not 0 <= count <= most:
            raise InputError(f"{name} claims {count} {what}, but at most {most} are read from one file")


ROOM_FOR_TEXT = 2**25
"""The same for text, which takes longer to parse and, being digits, never shrinks as much as arrays can."""


def check_expansion(expanded: int, compressed: int, name: str, room: int = ROOM_TO_EXPAND) -> None:
    """Raise if `compressed` bytes unpack to so many that this looks like a decompression bomb."""
    asked = os.environ.get("CALIBRANT_MAX_EXPANDED_BYTES", "")
    room = int(asked) if asked.isdigit() else room
    if expanded > room and expanded > MAX_EXPANSION * max(compressed, 1):
        raise InputError(
            f"{name} unpacks {compressed} bytes to {expanded} or more, over {MAX_EXPANSION} times as many: "
            f"if you trust the file, store it uncompressed or set CALIBRANT_MAX_EXPANDED_BYTES above {room}"
        )


@contextmanager
def reading(path: Path, what: str, damage: tuple[type[Exception], ...]) -> Iterator[None]:
    """Errors name the file: bad input as it is, and `damage` as that of a file that is not whole."""
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty (0 bytes): it is not a whole {what}")
    try:
        yield
    except InputError as error:
        if str(path) in str(error):
            raise
        raise InputError(f"{path} cannot be read as a {what}: {error}") from error
    except damage as error:
        words = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{path} is not a whole {what}: {words}") from error


CHUNK_BYTES = 64 * 2**20
"""Bytes of values in one chunk at most (one row, where a row is larger)."""

HEAD = 64
"""Rows that are looked at first."""

KEPT_BYTES = 1 << 20
"""Blocks from this size on are kept for the next one."""

BFLOAT16 = np.dtype([("bfloat16", "<u2")])
"""numpy has no bfloat16: the upper half of a float32, marked by this dtype until it is widened."""

Stamp = tuple[int, int]
"""Size of a file in bytes and the time of its last change in nanoseconds."""


class Source(ABC):
    """An n×K matrix that can be read block by block.

    Attributes
    ----------
    name : str
        What error messages call it, usually the file.
    shape : tuple of int
        (n, K).
    dtype : numpy.dtype
        dtype of the blocks: float32 or float64.
    """

    name: str
    shape: tuple[int, int]
    dtype: np.dtype[Any]

    @abstractmethod
    def blocks(self, start: int, stop: int, rows: int) -> Iterator[np.ndarray]:
        """Consecutive blocks of at most `rows` rows that cover start … stop − 1."""

    def whole(self) -> np.ndarray | None:
        """The matrix as one array where that costs no copy, otherwise None."""
        return None

    def locate(self, row: int) -> tuple[str, int]:
        """The file a row came from, and its number there."""
        return self.name, row

    def pieces(self) -> list[Source]:
        """The sources behind, one after another, each of which can be sent to another process by itself."""
        return [self]

    def check_unchanged(self) -> None:  # noqa: B027 (most sources have nothing to check)
        """Raise InputError where the file behind is no longer the one that was opened; memory never changes."""

    def cuts(self, rows: int) -> list[int]:
        """Rows about `rows` apart, 0 among them, at which reading may begin without reading what lies before."""
        return list(range(0, self.shape[0], rows))

    def refuse_probabilities(self, called: str, fewest: int = 2) -> None:
        """Raise if two or more rows (`fewest`) of what is called logits all lie in [0, 1] and sum to one."""
        rows = self.shape[0]
        if rows < fewest or self.shape[1] < 2:
            return
        head = next(iter(self.blocks(0, min(HEAD, rows), HEAD)))
        if not look_like_probabilities(head):
            return  # real logits never pass here, so that the rest need not be read
        step = max(HEAD, 2**22 // self.shape[1])
        if all(look_like_probabilities(np.concatenate([head[:1], block])) for block in self.blocks(0, rows, step)):
            raise probabilities_error(rows, called, 'give kind="probabilities" (--kind probabilities)')


def widened_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype that the gate gives an array of this dtype."""
    return widen(np.empty((0, 2), dtype)).dtype


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """(n, K) of a matrix; one score per row is a matrix of one column."""
    return (shape[0], 1) if len(shape) == 1 else (shape[0], shape[1])


class FieldSource(Source):
    """The rows of a field of a file, read in blocks."""

    def __init__(self, field: Any, name: str) -> None:
        self.name = name
        self.shape = matrix_shape(field.shape)
        self.dtype = widened_dtype(field.dtype)


class ArraySource(Source):
    """A matrix in memory."""

    def __init__(self, array: np.ndarray, name: str = "") -> None:
        self.name = name
        self.shape = matrix_shape(array.shape)
        self.array = widen(array).reshape(self.shape)
        self.dtype = self.array.dtype

    def blocks(self, start: int, stop: int, rows: int) -> Iterator[np.ndarray]:
        """Views of the array."""
        for first in range(start, stop, rows):
            yield self.array[first : min(first + rows, stop)]

    def whole(self) -> np.ndarray:
        """The array itself."""
        return self.array


class ViewSource(Source):
    """Rows made from those of another source; one from one, unless a view says otherwise."""

    def __init__(self, source: Source, shape: tuple[int, int]) -> None:
        self.name, self.dtype, self.shape = source.name, source.dtype, shape
        self._source = source

    def check_unchanged(self) -> None:
        """Ask the source behind."""
        self._source.check_unchanged()

    def locate(self, row: int) -> tuple[str, int]:
        """The place in the source behind."""
        return self._source.locate(row)

    def cuts(self, rows: int) -> list[int]:
        """Those of the source behind."""
        return self._source.cuts(rows)


class SliceSource(ViewSource):
    """Consecutive rows of another source."""

    def __init__(self, source: Source, start: int, stop: int) -> None:
        super().__init__(source, (stop - start, source.shape[1]))
        self._start = start

    def blocks(self, start: int, stop: int, rows: int) -> Iterator[np.ndarray]:
        """Blocks of the source behind."""
        yield from self._source.blocks(self._start + start, self._start + stop, rows)

    def whole(self) -> np.ndarray | None:
        """A view of the whole behind."""
        whole = self._source.whole()
        return None if whole is None else whole[self._start : self._start + self.shape[0]]

    def locate(self, row: int) -> tuple[str, int]:
        """The place in the source behind."""
        return self._source.locate(self._start + row)

    def pieces(self) -> list[Source]:
        """The pieces of the source behind, the first and the last cut to size."""
        found: list[Source] = []
        offset, stop = 0, self._start + self.shape[0]
        for piece in self._source.pieces():
            first, last = max(self._start - offset, 0), min(stop - offset, piece.shape[0])
            if first < last:
                found.append(piece if last - first == piece.shape[0] else SliceSource(piece, first, last))
            offset += piece.shape[0]
        return found

    def cuts(self, rows: int) -> list[int]:
        """Those of the source behind."""
        stop = self._start + self.shape[0]
        return [0, *(cut - self._start for cut in self._source.cuts(rows) if self._start < cut < stop)]


class PartsSource(Source):
    """Several sources one after another; no block spans two of them."""

    def __init__(self, parts: list[Source], name: str) -> None:
        self.name = name
        self.shape = (sum(part.shape[0] for part in parts), parts[0].shape[1])
        self.dtype = np.result_type(*(part.dtype for part in parts))
        self._parts = parts
        self._starts = np.concatenate(([0], np.cumsum([part.shape[0] for part in parts]))).tolist()

    def blocks(self, start: int, stop: int, rows: int) -> Iterator[np.ndarray]:
        """Blocks of the parts in turn, in their common dtype."""
        for part, offset in zip(self._parts, self._starts, strict=False):
            first, last = max(start - offset, 0), min(stop - offset, part.shape[0])
            if first < last:
                for block in part.blocks(first, last, rows):
                    yield block.astype(self.dtype, copy=False)

    def locate(self, row: int) -> tuple[str, int]:
        """The part that holds the row."""
        index = bisect_right(self._starts, row) - 1
        return self._parts[index].locate(row - self._starts[index])

    def pieces(self) -> list[Source]:
        """The pieces of all parts."""
        return [piece for part in self._parts for piece in part.pieces()]

    def cuts(self, rows: int) -> list[int]:
        """Those of all parts."""
        return [start + cut for part, start in zip(self._parts, self._starts, strict=False) for cut in part.cuts(rows)]


class TakenSource(ViewSource):
    """Rows of another source in ascending order, some of them several times or not at all."""

    def __init__(self, source: Source, rows: np.ndarray) -> None:
        super().__init__(source, (len(rows), source.shape[1]))
        self._rows = rows

    def blocks(self, start: int, stop: int, rows: int) -> Iterator[np.ndarray]:
        """Blocks gathered from the span of the source that holds their rows."""
        for first in range(start, stop, rows):
            own = self._rows[first : min(first + rows, stop)]
            lowest, highest = int(own[0]), int(own[-1]) + 1
            span = np.concatenate(list(self._source.blocks(lowest, highest, rows)))
            yield span[own - lowest]

    def locate(self, row: int) -> tuple[str, int]:
        """The place in the source behind."""
        return self._source.locate(int(self._rows[row]))

    def cuts(self, rows: int) -> list[int]:
        """Anywhere: each block reads the span that holds its rows."""
        return Source.cuts(self, rows)


class DifferenceSource(ViewSource):
    """The log odds (n×1) of the second of two columns: z₁ − z₀, or log p₁ − log p₀ of probabilities."""

    def __init__(self, source: Source, kind: str) -> None:
        super().__init__(source, (source.shape[0], 1))
        self._kind = kind

    def blocks(self, start: int, stop: int, rows: int) -> Iterator[np.ndarray]:
        """Differences of the blocks of the source behind."""
        done = start
        for block in self._source.blocks(start, stop, rows):
            if self._kind == "probabilities":
                name, row = self.locate(done)
                called = f"{name}: probabilities" if name else "probabilities"
                check_values(block, from_logits=False, name=called, first_row=row)
                yield log_stored(block[:, 1:]) - log_stored(block[:, :1])
            else:
                yield block[:, 1:] - block[:, :1]
            done += len(block)


class PickedSource(ViewSource):
    """Some columns of another source."""

    def __init__(self, source: Source, places: list[int]) -> None:
        super().__init__(source, (source.shape[0], len(places)))
        self._places = places

    def blocks(self, start: int, stop: int, rows: int) -> Iterator[np.ndarray]:
        """Copies of the columns."""
        for block in self._source.blocks(start, stop, rows):
            yield np.ascontiguousarray(block[:, self._places])


@dataclass(frozen=True)
class Header:
    """What a file says about an array before its numbers."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes the numbers take; whole-number arithmetic, since a header may claim anything."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def order(self) -> Literal["C", "F"]:
        """Row-major or column-major."""
        return "F" if self.fortran else "C"


class Field(ABC):
    """One named array of a file, not yet read."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @abstractmethod
    def read(self) -> np.ndarray:
        """The whole array."""

    @abstractmethod
    def source(self, name: str) -> Source:
        """The rows of a matrix, to be read in blocks."""

    def beside(self, others: Sequence[Field], key: str) -> Field:
        """This column and others side by side, as one matrix that is called `key`."""
        return ArrayField(np.column_stack([one.read() for one in (self, *others)]))

    @property
    def nbytes(self) -> int:
        """Bytes the array will take."""
        return math.prod(self.shape) * self.dtype.itemsize


class ArrayField(Field):
    """An array that is already in memory."""

    def __init__(self, array: np.ndarray) -> None:
        self._array, self.shape, self.dtype = array, array.shape, array.dtype

    def read(self) -> np.ndarray:
        """The array."""
        return self._array

    def source(self, name: str) -> Source:
        """Its rows."""
        return ArraySource(self._array, name)


class BrokenField(Field):
    """An array that cannot be read; its error comes up when the array is needed, and not before.

    A file may hold more than predictions: an array that is not asked for need not be readable.
    """

    def __init__(self, error: InputError) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "dtype"):
            raise self._error
        raise AttributeError(name)

    def read(self) -> np.ndarray:
        """Raise."""
        raise self._error

    def source(self, name: str) -> Source:
        """Raise."""
        raise self._error


class Fields(dict[str, Field]):
    """Fields of a file by name, with what the reader had to decide."""

    notes: tuple[str, ...] = ()
    members: Mapping[str, list[str]] = MappingProxyType({})
    """Columns of the file behind a matrix, where it has several."""


class RawField(Field):
    """An array of `shape` and `dtype` that begins `offset` bytes into a file.

    keeps : what must live as long as the field or its rows are used, such as the owner of a scratch file.
    """

    def __init__(self, path: Path, offset: int, header: Header, called: str, *, keeps: Any = None) -> None:
        self.path, self.offset, self.header, self.keeps = path, offset, header, keeps
        self.shape = header.shape
        self.dtype = np.dtype(np.float32) if header.dtype == BFLOAT16 else header.dtype
        self.stamp = stamp_of(path)
        held = self.stamp[0] - offset
        if header.nbytes > held:
            raise InputError(
                f"{called} promises {header.nbytes} bytes of data (shape {self.shape}, {self.dtype}), "
                f"but {max(held, 0)} are there: the file is truncated"
            )

    def read(self) -> np.ndarray:
        """The whole array, in memory."""
        raw = np.fromfile(self.path, dtype=np.uint8, count=self.header.nbytes, offset=self.offset)
        if raw.size != self.header.nbytes:
            raise InputError(f"{self.path} holds {raw.size} of {self.header.nbytes} bytes: the file is truncated")
        return decode(raw.view(self.header.dtype)).reshape(self.shape, order=self.header.order)

    def source(self, name: str) -> Source:
        """Its rows, read a block at a time; those of a column-major array lie apart, so it is read as a whole."""
        return ArraySource(np.ascontiguousarray(self.read()), name) if self.header.fortran else RawSource(self, name)


class RawSource(FieldSource):
    """Rows of a row-major matrix in a file.

    Blocks are read, not mapped: a map of a file that another process cuts short ends this process with SIGBUS. Before
    and after each block the file must have the size and the time of change that it had when it was opened.
    """

    def __init__(self, field: RawField, name: str) -> None:
        super().__init__(field, name)
        self._path, self._offset, self._stored = field.path, field.offset, field.header.dtype
        self._stamp, self._keeps = field.stamp, field.keeps

    def check_unchanged(self) -> None:
        """Raise InputError where the file is no longer the one that was opened."""
        with self._path.open("rb") as file:
            check_unchanged(file, self._stamp, self.name)

    def blocks(self, start: int, stop: int, rows: int) -> Iterator[np.ndarray]:
        """Consecutive rows in memory; the memory of a block that is no longer referred to is used for the next."""
        with self._path.open("rb", buffering=0) as file:
            for first in range(start, stop, rows):
                last = min(first + rows, stop)
                stored = fresh((last - first) * self.shape[1], self._stored)
                check_unchanged(file, self._stamp, self.name)
                read_into(file, self._offset + first * self.shape[1] * self._stored.itemsize, stored, self.name)
                check_unchanged(file, self._stamp, self.name)
                yield widen(decode(stored)).reshape(last - first, self.shape[1])
                del stored

    def whole(self) -> np.ndarray | None:
        """One map of the matrix, if its dtype needs no widening and no other user may write to the file."""
        if self._stored != self.dtype or self._offset % self._stored.itemsize or others_may_write(self._path):
            return None
        length = self.shape[0] * self.shape[1] * self._stored.itemsize
        aligned = self._offset - self._offset % mmap.ALLOCATIONGRANULARITY
        # a private map: writable like any array, so that compiled kernels need no second version for read-only
        # arrays, and no write ever reaches the file
        with self._path.open("rb") as file:
            check_unchanged(file, self._stamp, self.name)
            try:
                window = mmap.mmap(
                    file.fileno(), self._offset - aligned + length, access=mmap.ACCESS_COPY, offset=aligned
                )
            except ValueError as error:
                raise InputError(f"{self.name} became shorter while it was read") from error
        array = np.frombuffer(window, self._stored, self.shape[0] * self.shape[1], self._offset - aligned)
        return array.reshape(self.shape)


_spare = threading.local()


def _references_when_free() -> int:
    """What this interpreter counts for an array that only a list and a loop variable hold."""
    kept = [np.empty(1, np.uint8)]
    for buffer in kept:
        return sys.getrefcount(buffer)
    raise AssertionError


FREE = _references_when_free()


def fresh(count: int, dtype: np.dtype) -> np.ndarray:
    """An array for one block: the one of an earlier block of this thread if nothing refers to it any more.

    Memory straight from the system costs as much as reading the block.
    """
    nbytes = count * dtype.itemsize
    kept: list[np.ndarray] = _spare.__dict__.setdefault("buffers", [])
    for buffer in kept:
        if sys.getrefcount(buffer) <= FREE and buffer.nbytes >= nbytes:
            return buffer[:nbytes].view(dtype)
    buffer = np.empty(nbytes, np.uint8)
    if nbytes >= KEPT_BYTES:
        kept[:] = [*kept[-1:], buffer]
    return buffer.view(dtype)


def read_into(file: IO[bytes], offset: int, array: np.ndarray, name: str) -> None:
    """Fill an array from a place of a file; an InputError where the file ends before."""
    file.seek(offset)
    view, done = array.view(np.uint8).data, 0
    while done < array.nbytes:
        count = file.readinto(view[done:])  # type: ignore[attr-defined]
        if not count:
            raise InputError(f"{name} became shorter while it was read: {array.nbytes - done} bytes are missing")
        done += count


def stamp_of(path: Path) -> Stamp:
    """What identifies the state of a file."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def check_unchanged(file: IO[bytes], stamp: Stamp, name: str) -> None:
    """Raise InputError where an open file has another size or time of change than when it was first looked at."""
    found = os.fstat(file.fileno())
    if (found.st_size, found.st_mtime_ns) != stamp:
        raise InputError(
            f"{name} changed while it was read ({stamp[0]} bytes before, {found.st_size} now): "
            "another process writes to it; read a copy, or wait until it is finished"
        )


def others_may_write(path: Path) -> bool:
    """Whether another user may change the file: it belongs to someone else, or its mode lets others write."""
    found = path.stat()
    return bool(found.st_mode & 0o022) or (os.name == "posix" and found.st_uid != os.geteuid())


def decode(array: np.ndarray) -> np.ndarray:
    """bfloat16 as float32; everything else as it is."""
    if array.dtype != BFLOAT16:
        return array
    return (array["bfloat16"].astype(np.uint32) << 16).view(np.float32)
