"""Tasks of several labels, one sigmoid each: all labels as one binary problem, and each by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.core.zeros import raised
from calibrant.data import Predictions
from calibrant.evaluation.bootstrap import draw
from calibrant.evaluation.groups import clusters_by, columns_by
from calibrant.evaluation.scoring import score
from calibrant.evaluation.table import Figures, PlainData


@dataclass(frozen=True)
class LabelFigures(PlainData):
    """One label by itself: its name, how many rows have it, and figures about its positive class."""

    name: str
    n_positive: int
    metrics: Figures


def repeated(predictions: Predictions, by: Any, cluster: Any) -> tuple[Any, Any]:
    """Groups and clusters for the rows that figures are made of.

    A row of many labels, or with label shares, stands for several of them: they share its group, and form a cluster.
    """
    if predictions.task == "multilabel":
        rows = np.repeat(np.arange(predictions.n), predictions.n_classes)
    elif predictions.label_shares is not None:
        rows = np.nonzero(predictions.label_shares)[0]
    else:
        return by, cluster
    groups = None if by is None else {name: column[rows] for name, column in columns_by(predictions, by).items()}
    clusters = clusters_by(predictions, cluster)
    return groups, rows if clusters is None else clusters[rows]


def label_figures(predictions: Predictions, *, n_bins: int, resamples: int, seed: int) -> tuple[LabelFigures, ...]:
    """Figures of each label as a binary problem, with intervals."""
    drawn = draw(predictions.n, resamples, seed)
    names = predictions.class_names or range(predictions.n_classes)
    given: dict[str, Any] = {"kind": predictions.kind, "task": "binary", "weights": predictions.weights}
    found = []
    for name, scores, labels in zip(names, predictions.values.T, predictions.labels.T, strict=True):
        figures = score(None, Predictions(scores, labels, **given), resamples=drawn, n_bins=n_bins).metrics
        figures.pop("sce", None)  # the same as the ECE where there is one probability
        found.append(LabelFigures(str(name), int(labels.sum()), figures))
    return tuple(found)


class RawScores:
    """Scores as they are: what a method must beat; infinite ones are those of the floor of the fit data."""

    n_parameters_ = 0
    keeps_prediction = keeps_ranking = True

    def __init__(self, floor: float) -> None:
        self.floor = floor

    def transform(self, logits: np.ndarray) -> np.ndarray:
        """The same logits, finite."""
        return raised(logits, self.floor, scores=True)
