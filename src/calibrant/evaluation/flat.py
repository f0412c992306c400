"""Tasks with one score per row: what their figures are about, and many labels as rows of one score."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from calibrant.data import Predictions
from calibrant.data.source import Source


def about(task: str) -> str:
    """Which class the figures of a task are about."""
    return "predicted class" if task in ("multiclass", "pairs") else "positive class"


def flattened(predictions: Predictions) -> Predictions:
    """Of many labels, every row and label as a row of a binary problem; the labels of one row form a cluster."""
    if predictions.task != "multilabel":
        return predictions
    n, width = predictions.source.shape
    return Predictions.from_source(
        FlattenedSource(predictions.source),
        predictions.kind,
        predictions.labels.reshape(-1),
        None if predictions.weights is None else np.repeat(predictions.weights, width),
        task="binary",
        groups={name: np.repeat(column, width) for name, column in predictions.groups.items()},
        clusters=np.repeat(np.arange(n) if predictions.clusters is None else predictions.clusters, width),
        field=predictions.field,
    )


class FlattenedSource(Source):
    """The columns of each row one after another (n·L×1)."""

    def __init__(self, source: Source) -> None:
        self.name, self.dtype = source.name, source.dtype
        self.shape = (source.shape[0] * source.shape[1], 1)
        self._source = source

    def blocks(self, start: int, stop: int, rows: int) -> Iterator[np.ndarray]:
        """Blocks of the rows behind, cut to size."""
        width = self._source.shape[1]
        for first in range(start, stop, rows):
            last = min(first + rows, stop)
            top, bottom = first // width, -(-last // width)
            block = np.concatenate(list(self._source.blocks(top, bottom, bottom - top))).reshape(-1, 1)
            yield block[first - top * width : last - top * width]

    def locate(self, row: int) -> tuple[str, int]:
        """The row behind."""
        return self._source.locate(row // self._source.shape[1])
