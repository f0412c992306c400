"""A map per label by any method for one score; rare labels get the map of all labels together."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
from sklearn.base import clone

from calibrant.core.binary_rows import BinaryRows
from calibrant.core.errors import FitWarning
from calibrant.core.multilabel_rows import MultilabelRows

FEWEST = 20
"""A label with fewer rows of either value gets the map of all labels; chosen on the calibration part of PTB-XL."""

POOLED_ENTRIES = 200_000
"""Scores that the map of all labels is made of; with more, labels are taken evenly by how often they occur."""


def fit_label_maps(method: Any, rows: MultilabelRows, *, pooled_only: bool = False) -> tuple[list[Any], np.ndarray]:
    """Fitted calibrators, and the place (L,) among them of each label's; a pooled one is the first."""
    weight = np.ones(rows.n) if rows.weights is None else rows.weights
    positives = weight @ rows.labels
    rare = np.minimum(positives, weight.sum() - positives) < FEWEST
    if pooled_only:
        rare[:] = True
    elif rare.any():
        warnings.warn(
            f"{int(rare.sum())} of {rows.n_labels} labels have fewer than {FEWEST} rows of either value: they get the "
            "map of all labels together",
            FitWarning,
            stacklevel=6,
        )
    fitted: list[Any] = []
    places = np.zeros(rows.n_labels)
    if rare.any():
        some = rows.some_labels(max(1, POOLED_ENTRIES // rows.n))
        weights = None if some.weights is None else np.repeat(some.weights, some.n_labels)
        fitted.append(_fitted(method, BinaryRows(some.scores.reshape(-1), some.labels.reshape(-1), weights)))
    for label in np.flatnonzero(~rare):
        places[label] = len(fitted)
        fitted.append(_fitted(method, BinaryRows(rows.scores[:, label], rows.labels[:, label], rows.weights)))
    return fitted, places


def _fitted(method: Any, rows: BinaryRows) -> Any:
    unfitted = clone(method)
    return unfitted.fit_rows(unfitted._divided(rows))


def map_labels(xp: Any, logits: Any, fitted: list[Any], learned: Iterable[Any], places: np.ndarray) -> Any:
    """Calibrated logits (n×L), column by column."""
    own = list(learned)
    columns = [
        fitted[place]._map_binary(xp, logits[:, label], own[place])
        for label, place in enumerate(places.astype(np.intp).tolist())
    ]
    return xp.stack(columns, axis=1)
