"""Where the rows of a matrix come from: memory, a part of a file, several of them in a row.

A source is all that `Predictions` knows about storage. It tells its shape, hands out blocks of consecutive rows, and
says which file and row a row came from. Sources hold addresses, not open files, so they can be sent to other
processes, and two threads may read one source at the same time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import numpy as np

from calibrant.core.arrays import check_values, widen
from calibrant.core.softmax import log_stored


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
