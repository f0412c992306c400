"""Arrays that lie uncompressed inside a file, at an offset: mapped window by window."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from calibrant.core.arrays import widen
from calibrant.core.errors import InputError
from calibrant.data.fields import Field, Header
from calibrant.data.source import Source, matrix_shape, widened_dtype

BFLOAT16 = np.dtype([("bfloat16", "<u2")])
"""numpy has no bfloat16: the upper half of a float32, marked by this dtype until it is widened."""


class RawField(Field):
    """An array of `shape` and `dtype` that begins `offset` bytes into a file."""

    def __init__(self, path: Path, offset: int, header: Header, called: str) -> None:
        self.path, self.offset, self.header = path, offset, header
        self.shape = header.shape
        self.dtype = np.dtype(np.float32) if header.dtype == BFLOAT16 else header.dtype
        held = path.stat().st_size - offset
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
        """Its rows, mapped a window at a time."""
        return ColumnMajorSource(self, name) if self.header.fortran else MappedSource(self, name)


class MappedSource(Source):
    """Rows of a row-major matrix in a file.

    Each block is its own small map, given back with the block, so a pass over a huge file keeps little of it in the
    process; reading a map costs a third of copying into fresh memory.
    """

    def __init__(self, field: RawField, name: str) -> None:
        self.name = name
        self.shape = matrix_shape(field.shape)
        self.dtype = widened_dtype(field.dtype)
        self._path, self._offset, self._stored = field.path, field.offset, field.header.dtype

    def blocks(self, start: int, stop: int, rows: int) -> Iterator[np.ndarray]:
        """Maps of consecutive rows; copies where the file is not aligned or not in a native dtype."""
        for first in range(start, stop, rows):
            yield self._window(first, min(first + rows, stop))

    def whole(self) -> np.ndarray | None:
        """One map of the matrix, if its dtype needs no widening."""
        if self._stored != self.dtype or self._offset % self._stored.itemsize:
            return None
        return self._window(0, self.shape[0])

    def _window(self, start: int, stop: int) -> np.ndarray:
        row_bytes = self.shape[1] * self._stored.itemsize
        first_byte = self._offset + start * row_bytes
        aligned = first_byte - first_byte % mmap.ALLOCATIONGRANULARITY
        length = (stop - start) * row_bytes
        # a private map: writable like any array, so that compiled kernels need no second version for read-only
        # arrays, and no write ever reaches the file
        with self._path.open("rb") as file:
            try:
                window = mmap.mmap(
                    file.fileno(), first_byte - aligned + length, access=mmap.ACCESS_COPY, offset=aligned
                )
            except ValueError as error:
                raise InputError(f"{self.name} became shorter while it was read") from error
        array = np.frombuffer(window, self._stored, (stop - start) * self.shape[1], first_byte - aligned)
        block = widen(decode(array)).reshape(stop - start, self.shape[1])
        return block if block.flags.aligned else block.copy()


class ColumnMajorSource(Source):
    """Rows of a column-major (Fortran order) matrix in a file, gathered column by column."""

    def __init__(self, field: RawField, name: str) -> None:
        self.name = name
        self.shape = matrix_shape(field.shape)
        self.dtype = widened_dtype(field.dtype)
        self._path, self._offset, self._stored = field.path, field.offset, field.header.dtype

    def blocks(self, start: int, stop: int, rows: int) -> Iterator[np.ndarray]:
        """Row-major copies."""
        size = self._stored.itemsize
        for first in range(start, stop, rows):
            count = min(rows, stop - first)
            block = np.empty((count, self.shape[1]), self.dtype)
            with self._path.open("rb", buffering=0) as file:
                for column in range(self.shape[1]):
                    file.seek(self._offset + (column * self.shape[0] + first) * size)
                    piece = file.read(count * size)
                    if len(piece) != count * size:
                        raise InputError(f"{self.name} became shorter while it was read")
                    block[:, column] = decode(np.frombuffer(piece, self._stored))
            yield block


def decode(array: np.ndarray) -> np.ndarray:
    """bfloat16 as float32; everything else as it is."""
    if array.dtype != BFLOAT16:
        return array
    return (array["bfloat16"].astype(np.uint32) << 16).view(np.float32)
