"""Predictions cut into chunks: the rows that one task of an engine reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.core.threads import BLOCK_ELEMENTS
from calibrant.core.zeros import raised
from calibrant.data.predictions import Predictions, to_logits
from calibrant.data.source import ArraySource, SliceSource

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
