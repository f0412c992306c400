"""Predictions cut into chunks: the rows that one task of an engine reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.core.rows import Rows
from calibrant.core.threads import BLOCK_ELEMENTS
from calibrant.core.zeros import raised
from calibrant.data.predictions import Predictions
from calibrant.data.source import ArraySource, SliceSource, Source
from calibrant.data.tasks import FLAT, check_task_values, to_logits
from calibrant.data.top_k import KIND as TOP_K
from calibrant.data.top_k import TopKPredictions, check_block

STREAM_ELEMENTS = BLOCK_ELEMENTS // 4
"""Elements of one block that is read and summed at a time: 1 MB of float32 is still in the cache when it is summed."""

CHUNK_ELEMENTS = 8 * BLOCK_ELEMENTS
"""Elements of one chunk at most, where the format lets one begin to read anywhere: 32 MB of float32."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of one part: an address, not values, so that it can be sent to another process."""

    source: Source
    kind: str
    field: str
    n_classes: int
    labels: np.ndarray
    weights: np.ndarray | None
    first_row: int
    """Its first row among all rows."""
    part: int
    n_parts: int
    task: str = "multiclass"
    floor: np.ndarray | None = None
    """What a probability of 0 counts as (K,); None leaves it at −inf."""

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.source.shape[0]

    def values(self, *, check: bool, most: int | None = None, elements: int = STREAM_ELEMENTS) -> Iterator[np.ndarray]:
        """Blocks in order, up to `most` rows; `check` raises at values that are no logits or probabilities."""
        rows = max(1, elements // self.source.shape[1])
        stop = self.n if most is None else min(most, self.n)
        done = 0
        with self.naming():
            for block in self.source.blocks(0, stop, rows):
                if check:
                    self._check(block, done)
                yield block
                done += len(block)

    def rows(self, *, check: bool, most: int | None = None) -> Iterator[Rows]:
        """The blocks as a calibrator sees them."""
        start = 0
        for block in self.values(check=check, most=most):
            own = slice(start, start + len(block))
            logits = to_logits(block, self.task) if self.kind == "probabilities" else block
            logits = logits[:, 0] if self.task in FLAT else logits
            logits = logits if self.floor is None else raised(logits, self.floor)
            weights = None if self.weights is None else self.weights[own]
            yield Rows(logits, self.labels[own].astype(np.int64, copy=False), weights)
            start += len(block)

    def parts(self, *, check: bool) -> Iterator[Predictions]:
        """The rows as predictions in memory; nearly always all at once."""
        start = 0
        for block in self.values(check=check, elements=CHUNK_ELEMENTS):
            own = slice(start, start + len(block))
            weights = None if self.weights is None else self.weights[own]
            labels = self.labels[own].astype(np.int64, copy=False)
            source = ArraySource(block, self.source.locate(start)[0])
            if self.kind == TOP_K:
                yield TopKPredictions(source, self.n_classes, labels, weights, checked=True)
            else:
                yield Predictions.from_source(
                    source, self.kind, labels, weights, task=self.task, field=self.field, checked=True
                )
            start += len(block)

    def _check(self, block: np.ndarray, done: int) -> None:
        name, first_row = self.source.locate(done)
        called = f"{name}: {self.field}" if name else self.field
        if self.kind == TOP_K:
            check_block(block, self.n_classes, called.removesuffix("values"), first_row)
        else:
            check_task_values(self.task, block, from_logits=self.kind == "logits", name=called, first_row=first_row)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Errors say which part they come from."""
        try:
            yield
        except (InputError, OSError) as error:
            raise part_error(error, self.source.name, self.part, self.n_parts) from error

    def __getstate__(self) -> dict[str, Any]:
        # a class index seldom needs eight bytes on the way to another process
        state = dict(self.__dict__)
        state["labels"] = self.labels.astype(np.min_scalar_type(self.n_classes - 1))
        return state


def part_error(error: Exception, name: str, part: int, n_parts: int) -> InputError:
    """The same trouble, with the part named where there are several."""
    words = " ".join(str(error).split())
    if n_parts < 2:
        return error if isinstance(error, InputError) else InputError(f"{name} cannot be read: {words}")
    words = words if name in words else f"{name}: {words}"
    return InputError(f"part {part + 1} of {n_parts}: {words}")


def cut(predictions: Predictions, *, elements: int = CHUNK_ELEMENTS, with_labels: bool = True) -> list[Chunk]:
    """All rows as chunks, in order; none spans two parts."""
    pieces = predictions.source.pieces()
    weights = predictions.weights
    labels = predictions.labels if with_labels else np.zeros(predictions.n, dtype=np.int8)
    rows = max(1, elements // predictions.source.shape[1])
    found, offset = [], 0
    for part, piece in enumerate(pieces):
        borders = [*piece.cuts(rows), piece.shape[0]]
        for start, stop in pairwise(borders):
            own = slice(offset + start, offset + stop)
            found.append(
                Chunk(
                    piece if stop - start == piece.shape[0] else SliceSource(piece, start, stop),
                    predictions.kind,
                    predictions.field,
                    predictions.n_classes,
                    labels[own],
                    None if weights is None else weights[own],
                    own.start,
                    part,
                    len(pieces),
                    predictions.task,
                )
            )
        offset += piece.shape[0]
    return found
