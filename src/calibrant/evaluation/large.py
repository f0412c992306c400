"""Hundreds of millions of single scores, measured in one pass and little memory.

Rows are summed into narrow cells of probability, by outcome: n_bins·2¹⁴ of them, so that the edges of bins are edges of
cells, and equal-width errors are those of the rows. Log loss, Brier score, accuracy and entropy are summed row by row.
Intervals come from a random sample of rows, with their widths scaled by √(m/n).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from calibrant.core import progress
from calibrant.core.bin_sums import total_gap
from calibrant.core.bins import width_index
from calibrant.core.errors import InputError
from calibrant.data import Predictions
from calibrant.evaluation.consistency import NoiseFloor, noise_floor
from calibrant.evaluation.flat import flat_columns, hits, two_class
from calibrant.evaluation.table import Estimate
from calibrant.kernels.rows import RowColumns

CELLS_PER_BIN = 2**14
SAMPLE = 200_000
"""Rows behind the intervals."""

BLOCK = 2**20
MEANS = ("nll", "brier", "accuracy", "confidence", "entropy")


class Cells:
    """What is kept of the rows."""

    def __init__(self, n_bins: int, task: str) -> None:
        self.n_bins, self.task = n_bins, task
        self.weight, self.stated = np.zeros((2, 2 * n_bins * CELLS_PER_BIN))
        self.variance = np.zeros(n_bins)
        self.sums = dict.fromkeys(MEANS, 0.0)

    def add(self, columns: RowColumns) -> None:
        """Sum up a block of rows."""
        p, outcome = columns.confidence, columns.correct
        cell = 2 * width_index(p, self.n_bins * CELLS_PER_BIN) + outcome
        self.weight += np.bincount(cell, minlength=len(self.weight))
        self.stated += np.bincount(cell, p, minlength=len(self.weight))
        self.variance += np.bincount(width_index(p, self.n_bins), p * (1 - p), minlength=self.n_bins)
        values = (columns.nll, columns.brier, hits(columns, self.task), p, columns.entropy)
        for name, column in zip(MEANS, values, strict=True):
            self.sums[name] += float(column.sum(dtype=np.float64))

    def rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean probability, outcome and number of rows of every cell that holds any."""
        there = np.flatnonzero(self.weight)
        weight = self.weight[there]
        return self.stated[there] / weight, (there % 2).astype(np.int64), weight

    def floor(self, seed: int, draws: int = 1000) -> NoiseFloor:
        """The consistency test, whose drawn outcomes are normal in a bin of so many rows."""
        p, outcome, weight = self.rows()
        gap = np.bincount(width_index(p, self.n_bins), weight * (p - outcome), minlength=self.n_bins)
        noise = np.random.default_rng([seed, 11]).standard_normal((draws, self.n_bins)) * np.sqrt(self.variance)
        total = weight.sum()
        return noise_floor(total_gap(noise, total), float(total_gap(gap, total)))


def collect(predictions: Predictions, n_bins: int, seed: int) -> tuple[Cells, np.ndarray, np.ndarray]:
    """Cells of all rows, and scores and outcomes of a random sample of them."""
    found = Cells(n_bins, predictions.task)
    generator = np.random.default_rng([seed, 17])
    scores, outcomes = [], []
    done, from_logits = 0, predictions.kind == "logits"
    for values, labels in _blocks(predictions):
        checked = two_class(values, labels, None, from_logits)
        found.add(flat_columns(checked, name=f"{predictions.name}: {predictions.field}", first_row=done))
        kept = np.flatnonzero(generator.random(len(values), dtype=np.float32) < SAMPLE / predictions.n)
        scores.append(values[kept].astype(np.float64))
        outcomes.append(labels[kept])
        done += len(values)
        progress.step("measuring", done, predictions.n)
    return found, np.concatenate(scores), np.concatenate(outcomes)


def _blocks(predictions: Predictions) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Scores and outcomes side by side, a block at a time."""
    assert predictions.label_field is not None  # noqa: S101 (what makes predictions large)
    called = f"{predictions.name}: labels"
    labels = predictions.label_field.source(predictions.name).blocks(0, predictions.n, BLOCK)
    waiting = np.empty(0)
    for block in predictions.source.blocks(0, predictions.n, BLOCK):
        while len(waiting) < len(block):
            waiting = np.concatenate([waiting, next(labels)[:, 0]])
        mine, waiting = waiting[: len(block)], waiting[len(block) :]
        if not np.isin(mine, (0, 1)).all():
            raise InputError(f"{called} range from {mine.min():g} to {mine.max():g}, but outcomes are 0 or 1")
        yield block[:, 0], mine.astype(np.int64)


def scaled(sample: Estimate, value: float, shrink: float, *, most: float = np.inf) -> Estimate:
    """The interval of a sample around the value of all rows, narrower by `shrink`."""
    if not np.isfinite(sample.low):
        return Estimate(value)
    low = value - shrink * (sample.value - sample.low)
    return Estimate(value, max(low, 0.0), min(value + shrink * (sample.high - sample.value), most))
