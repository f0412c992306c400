"""A map per label by any method for one score; rare labels get the map of all labels together."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import clone

from calibrant.calibrators.prepare import in_pieces
from calibrant.core.errors import FitWarning
from calibrant.core.rows import Rows

FEWEST = 20
"""A label with fewer rows of either value gets the map of all labels; chosen on the calibration part of PTB-XL."""

POOLED_ENTRIES = 200_000
"""Scores that the map of all labels is made of; with more, labels are taken evenly by how often they occur."""


def fit_label_maps(method: Any, rows: Rows, *, pooled_only: bool = False) -> tuple[list[Any], np.ndarray]:
    """Fitted calibrators, and the place (L,) among them of each label's; a pooled one is the first."""
    weight = np.ones(rows.n) if rows.weights is None else rows.weights
    positives = weight @ rows.labels
    rare = np.minimum(positives, weight.sum() - positives) < FEWEST
    if pooled_only:
        rare[:] = True
    elif rare.any():
        warnings.warn(
            f"{int(rare.sum())} of {rows.n_classes} labels have fewer than {FEWEST} rows of either value: they get the "
            "map of all labels together",
            FitWarning,
            stacklevel=6,
        )
    fitted: list[Any] = []
    places = np.zeros(rows.n_classes)
    if rare.any():
        some = some_labels(rows, max(1, POOLED_ENTRIES // rows.n))
        weights = None if some.weights is None else np.repeat(some.weights, some.n_classes)
        fitted.append(_fitted(method, Rows(some.logits.reshape(-1), some.labels.reshape(-1), weights)))
    for label in np.flatnonzero(~rare):
        places[label] = len(fitted)
        fitted.append(_fitted(method, Rows(rows.logits[:, label], rows.labels[:, label], rows.weights)))
    return fitted, places


def _fitted(method: Any, rows: Rows) -> Any:
    unfitted = clone(method)
    return unfitted.fit_rows(in_pieces(unfitted, rows))


def some_labels(rows: Rows, most: int) -> Rows:
    """At most this many labels, taken evenly in the order of how often they occur; all where there are no more."""
    if rows.n_classes <= most:
        return rows
    # labels of equal frequency are ordered by their scores, so that their numbers do not matter
    order = np.lexsort((rows.mass() @ rows.logits, rows.mass() @ rows.labels))
    chosen = order[np.linspace(0, rows.n_classes - 1, most).round().astype(np.intp)]
    return replace(rows, logits=rows.logits[:, chosen], labels=rows.labels[:, chosen])


def map_labels(xp: Any, logits: Any, fitted: list[Any], learned: Iterable[Any], places: np.ndarray) -> Any:
    """Calibrated logits (n×L), column by column."""
    own = list(learned)
    columns = [
        fitted[place]._map_binary(xp, logits[:, label], own[place])
        for label, place in enumerate(places.astype(np.intp).tolist())
    ]
    return xp.stack(columns, axis=1)
