"""Arrays that lie uncompressed inside a file, at an offset: read block by block."""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from calibrant.core.arrays import widen
from calibrant.core.errors import InputError
from calibrant.data.fields import Field, Header
from calibrant.data.source import FieldSource, Source

KEPT_BYTES = 1 << 20
"""Blocks from this size on are kept for the next one."""

BFLOAT16 = np.dtype([("bfloat16", "<u2")])
"""numpy has no bfloat16: the upper half of a float32, marked by this dtype until it is widened."""


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
        """Its rows, read a block at a time."""
        return ColumnMajorSource(self, name) if self.header.fortran else RowMajorSource(self, name)


class RawSource(FieldSource):
    """Rows of a matrix in a file.

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


class RowMajorSource(RawSource):
    """Rows of a row-major matrix in a file."""

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


Stamp = tuple[int, int]
"""Size of a file in bytes and the time of its last change in nanoseconds."""

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
    return bool(found.st_mode & 0o022) or (hasattr(os, "geteuid") and found.st_uid != os.geteuid())


class ColumnMajorSource(RawSource):
    """Rows of a column-major (Fortran order) matrix in a file, gathered column by column."""

    def blocks(self, start: int, stop: int, rows: int) -> Iterator[np.ndarray]:
        """Row-major copies."""
        size = self._stored.itemsize
        for first in range(start, stop, rows):
            count = min(rows, stop - first)
            block = np.empty((count, self.shape[1]), self.dtype)
            with self._path.open("rb", buffering=0) as file:
                check_unchanged(file, self._stamp, self.name)
                for column in range(self.shape[1]):
                    file.seek(self._offset + (column * self.shape[0] + first) * size)
                    piece = file.read(count * size)
                    if len(piece) != count * size:
                        raise InputError(f"{self.name} became shorter while it was read")
                    block[:, column] = decode(np.frombuffer(piece, self._stored))
                check_unchanged(file, self._stamp, self.name)
            yield block


def decode(array: np.ndarray) -> np.ndarray:
    """bfloat16 as float32; everything else as it is."""
    if array.dtype != BFLOAT16:
        return array
    return (array["bfloat16"].astype(np.uint32) << 16).view(np.float32)
