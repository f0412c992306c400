"""The pass of `measure` over the predictions, chunk by chunk on an engine."""

from __future__ import annotations

from functools import partial

import numpy as np

from calibrant.core import progress
from calibrant.data import Predictions
from calibrant.data.chunks import Chunk, cut
from calibrant.engines.engine import Engine, opened
from calibrant.kernels.rows import RowColumns, scan
from calibrant.metrics.binning import BinSums
from calibrant.metrics.classwise import class_sums, probability_block
from calibrant.metrics.inputs import Checked

Part = tuple[list[RowColumns], BinSums, list[np.ndarray], int]
"""Columns of the rows, sums by class, probabilities of the wanted rows, number of rows."""


def scan_chunks(
    predictions: Predictions, wanted: np.ndarray, n_bins: int, engine: str | Engine
) -> tuple[RowColumns, BinSums, np.ndarray]:
    """Per-row columns, binned sums by class, and the probabilities (m×K) of the wanted rows, in their order."""
    order = np.argsort(wanted, kind="stable")
    with opened(engine) as running:
        work = partial(_scanned, wanted=wanted[order], n_bins=n_bins)
        columns, sums, kept, _ = running.run(work, cut(predictions), partial(_merge, n_rows=predictions.n))
    chosen = np.empty((len(wanted), predictions.n_classes), dtype=predictions.dtype)
    chosen[order] = np.concatenate(kept)
    return RowColumns(*map(np.concatenate, zip(*columns, strict=True))), sums, chosen


def _scanned(chunk: Chunk, *, wanted: np.ndarray, n_bins: int) -> Part:
    columns, kept, sums, row = [], [], None, chunk.first_row
    for part in chunk.parts(check=False):
        values, labels, from_logits = part.values, part.labels, part.kind == "logits"
        name, first_row = chunk.source.locate(row - chunk.first_row)
        called = f"{name}: {chunk.field}" if name else chunk.field
        with chunk.naming():
            found = scan(values, labels, from_logits=from_logits, columns="all", name=called, first_row=first_row)
        columns.append(found)
        binned = class_sums(Checked(values, labels, part.weights, from_logits), n_bins, "width")
        sums = binned if sums is None else sums + binned
        inside = wanted[np.searchsorted(wanted, row) : np.searchsorted(wanted, row + part.n)]
        some = Checked(values[inside - row], labels[:1], None, from_logits)
        kept.append(probability_block(some, slice(0, None)) if len(inside) else np.empty((0, part.n_classes)))
        row += part.n
    assert sums is not None  # noqa: S101 (a chunk has rows)
    return columns, sums, kept, chunk.n


def _merge(left: Part, right: Part, *, n_rows: int) -> Part:
    left[0].extend(right[0])
    left[2].extend(right[2])
    done = left[3] + right[3]
    progress.step("measuring", done, n_rows)
    return left[0], left[1] + right[1], left[2], done
