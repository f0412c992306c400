"""`ScoreChunks`: one score per row, for fits from scores that are never in memory as a whole."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from calibrant.core.fingerprint import fingerprint_of_sample
from calibrant.core.zeros import scores_floor, warn_of_zeros
from calibrant.data.chunked import ChunkedRows
from calibrant.data.chunks import Chunk
from calibrant.data.predictions import Predictions
from calibrant.engines.engine import Engine


class ScoreRange(NamedTuple):
    """Ends of the scores by label: lowest and highest of those labelled 0, then 1; and how many are infinite."""

    ends: np.ndarray
    """(2, 2): [label, (lowest, highest)]; (inf, −inf) where there are none."""
    n_infinite: int

    @property
    def low(self) -> float:
        """The lowest score of all."""
        return float(self.ends[:, 0].min())

    @property
    def high(self) -> float:
        """The highest score of all."""
        return float(self.ends[:, 1].max())


class ScoreChunks(ChunkedRows):
    """One score per row, on disk, that can be summed over pass by pass; rows of weight 0 do not count.

    `learn_floor` comes first: it is the pass that checks every value and finds the range of the scores.
    """

    one_score = True
    range: ScoreRange

    def __init__(self, predictions: Predictions, engine: Engine) -> None:
        super().__init__(predictions, engine)
        self.positives = float(self.labels.sum() if self.weights is None else self.weights @ self.labels)

    def learn_floor(self) -> np.ndarray:
        """What p = 0 and p = 1 count as (2,); from then on the scores hold that value in place of ±inf."""
        self.range = self._look_at_range(check=True)
        finite = np.array([self.range.low, self.range.high])
        floor = scores_floor(finite)
        if self.range.n_infinite:
            warn_of_zeros(self.range.n_infinite, self.n, floor)
            self._chunks = [replace(chunk, floor=floor) for chunk in self._chunks]
            self.range = self._look_at_range(check=False)
        return floor

    def fingerprint(self) -> str:
        """The name of the data set, the same as that of the arrays in memory."""
        kept = np.concatenate([self._marked[key] for key in sorted(self._marked)])
        return fingerprint_of_sample((self.n, 1), kept, self.labels, self.weights)

    def _look_at_range(self, *, check: bool) -> ScoreRange:
        work = partial(_range, check=check, marks=self._stride if check else 0)
        found, marked = self._run(work, self._chunks, _join_ranges, "checking")
        self._checked, self._marked, self._sample = True, self._marked or marked, None
        return found


Found = tuple[ScoreRange, dict[int, np.ndarray]]


def _range(chunk: Chunk, *, check: bool, marks: int) -> Found:
    ends = np.array([[np.inf, -np.inf], [np.inf, -np.inf]])
    n_infinite, marked, row = 0, dict[int, np.ndarray](), chunk.first_row
    for block in chunk.rows(check=check):
        counted = np.ones(block.n, bool) if block.weights is None else block.weights > 0
        finite = np.isfinite(block.logits)
        n_infinite += int((counted & ~finite).sum())
        for label in (0, 1):
            mine = block.logits[counted & finite & (block.labels == label)]
            if len(mine):
                ends[label] = min(ends[label, 0], float(mine.min())), max(ends[label, 1], float(mine.max()))
        if marks and len(chosen := block.logits[-row % marks :: marks]):
            marked[row] = chosen.copy()
        row += block.n
    return ScoreRange(ends, n_infinite), marked


def _join_ranges(left: Found, right: Found) -> Found:
    mine, theirs = left[0].ends, right[0].ends
    ends = np.stack([np.minimum(mine[:, 0], theirs[:, 0]), np.maximum(mine[:, 1], theirs[:, 1])], axis=1)
    return ScoreRange(ends, left[0].n_infinite + right[0].n_infinite), {**left[1], **right[1]}


def score_range(rows: Any) -> tuple[float, float]:
    """Lowest and highest score of the rows that count, wherever they are."""
    if isinstance(rows, ScoreChunks):
        return rows.range.low, rows.range.high
    counted = rows.scores if rows.weights is None else rows.scores[rows.weights > 0]
    return float(counted.min()), float(counted.max())
