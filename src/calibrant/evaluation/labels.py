"""Tasks of several labels, one sigmoid each: all labels as one binary problem, and each by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.calibrators.identity import Identity
from calibrant.data import Predictions
from calibrant.data.source import Source
from calibrant.evaluation.bootstrap import draw
from calibrant.evaluation.results import Figures
from calibrant.evaluation.scoring import score


@dataclass(frozen=True)
class LabelFigures:
    """One label by itself: its name, how many rows have it, and figures about its positive class."""

    name: str
    n_positive: int
    metrics: Figures

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {"name": self.name, "n_positive": self.n_positive, "metrics": self.metrics.to_dict()}


def flattened(predictions: Predictions) -> Predictions:
    """Every row and label as a row of a binary problem; the labels of one row form a cluster."""
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


def one_label(predictions: Predictions, place: int) -> Predictions:
    """One column as a binary problem."""
    return Predictions(
        predictions.values[:, place],
        predictions.labels[:, place],
        kind=predictions.kind,
        task="binary",
        weights=predictions.weights,
        clusters=predictions.clusters,
    )


def label_figures(predictions: Predictions, *, n_bins: int, resamples: int, seed: int) -> tuple[LabelFigures, ...]:
    """Figures of each label, with intervals."""
    drawn = draw(predictions.n, resamples, seed)
    names = predictions.class_names or [str(place) for place in range(predictions.n_classes)]
    found = []
    for place, name in enumerate(names):
        column = one_label(predictions, place)
        raw = Identity().fit(column.logits, column.labels, sample_weight=column.weights)
        figures = score(raw, column, resamples=drawn, n_bins=n_bins).metrics
        del figures["sce"]  # the same as the ECE where there is one probability
        found.append(LabelFigures(str(name), int(column.labels.sum()), figures))
    return tuple(found)


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
