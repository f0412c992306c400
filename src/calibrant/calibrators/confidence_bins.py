"""What maps of confidences share: the columns they are fitted to, and bins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from calibrant.core.arrays import Array, explain_bad_values
from calibrant.core.bins import place, quantile_edges
from calibrant.core.errors import InputError
from calibrant.core.rows import Rows
from calibrant.core.softmax import logsumexp
from calibrant.core.statistic import kernel
from calibrant.core.threads import map_blocks, row_blocks
from calibrant.kernels.bins import index_sums
from calibrant.kernels.isotonic import distinct_scores
from calibrant.kernels.rows import TOP, scan_logits

COLUMNS_AT_ONCE = 16
"""Columns copied together: one cache line of a float32 row holds them."""


class TopColumns(NamedTuple):
    """Confidence (float64) of each row, the class that has it, and whether that is the label."""

    confidence: Array
    prediction: Array
    correct: Array


@dataclass(frozen=True)
class ConfidenceBins:
    """Rows in bins of their confidence: total weight, accuracy and mean confidence of each bin (M,).

    An empty bin has weight 0 and NaN means; `fill_empty` gives it what its nearest neighbour learned.
    """

    index: Array
    mass: Array
    accuracy: Array
    confidence: Array

    @classmethod
    def of(cls, top: TopColumns, weights: Array | None, index: Array, n_bins: int) -> ConfidenceBins:
        """Rows that were placed by `index`."""
        mass, confidence, hits = index_sums(index, top.confidence, top.correct, weights, n_bins)
        with np.errstate(invalid="ignore"):
            return cls(index, mass, hits / mass, confidence / mass)

    @property
    def filled(self) -> Array:
        """Which bins hold any weight."""
        return self.mass > 0


def top_columns(rows: Rows) -> TopColumns:
    """Confidence (float64), prediction and correctness of each row, in one pass over the logits.

    Of chunked rows they are what is kept: 13 bytes per row.
    """
    return TopColumns(*rows.gather(_top, scan_logits.form(rows.n * rows.n_classes)))


@kernel()
def _top(logits, labels, weights, scan):
    found, suspicious = scan(np.ascontiguousarray(logits), labels, TOP)
    if suspicious:
        explain_bad_values(logits, from_logits=True, name="logits")
    return found.confidence, found.prediction.astype(np.int32), found.correct


@_top.on_device
def _(rows, _):
    return rows.top()


def mapped_columns(rows: Rows, mode: str) -> tuple[Iterable[TopColumns], int]:
    """What a mode maps, and how many maps that makes: the top confidence, or the probability of every class."""
    if mode not in {"top_label", "one_vs_rest"}:
        raise InputError(f"mode must be 'top_label' or 'one_vs_rest', got {mode!r}")
    if mode == "top_label":
        return [top_columns(rows)], 1
    chances = enumerate(class_probabilities(rows.logits))
    return (TopColumns(chance, rows.labels, rows.labels == j) for j, chance in chances), rows.n_classes


def class_probabilities(logits: Array) -> Iterator[Array]:
    """The probability of each class in turn (n,), float64: the same bits when fitting and when transforming."""
    blocks = row_blocks(len(logits), logits.shape[1])
    log_mass = np.concatenate(map_blocks(lambda block: logsumexp(logits[block].astype(np.float64)), blocks))
    for first in range(0, logits.shape[1], COLUMNS_AT_ONCE):
        for column in logits[:, first : first + COLUMNS_AT_ONCE].T.astype(np.float64):
            yield np.exp(column - log_mass)


def quantile_bins(top: TopColumns, weights: Array | None, n_bins: int) -> tuple[Array, ConfidenceBins]:
    """Edges (M + 1,) of equal mass and the fit rows in them, placed by the edges as any new row will be."""
    groups = distinct_scores(top.confidence, top.correct, weights)
    edges = quantile_edges(groups.scores, groups.weight, n_bins)
    return edges, ConfidenceBins.of(top, weights, place(top.confidence, edges), n_bins)


def fill_empty(values: Array, filled: Array) -> Array:
    """Values (M,) with those of empty bins taken from the nearest filled bin, the lower of two as near."""
    full = np.flatnonzero(filled)
    distance = np.abs(np.arange(len(values))[:, None] - full[None, :])
    return values[full[distance.argmin(axis=1)]]


def map_rows(work: Callable[[slice], Array], logits: Array) -> Array:
    """Join work(block) over blocks of rows, run on all cores, into one array like the logits."""
    result = np.empty_like(logits)

    def part(block):
        result[block] = work(block)

    map_blocks(part, row_blocks(len(logits), logits[:1].size, 1 << 18))
    return result
