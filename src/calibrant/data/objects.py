"""Objects in memory become `Predictions`: frames, dictionaries, pairs and results of trainers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.core.schema import resolve_task
from calibrant.data.assemble import assemble, listing
from calibrant.data.columns import arrange
from calibrant.data.fields import LABEL_IDS, PREDICTIONS, Wanted
from calibrant.data.guards import refuse_probabilities
from calibrant.data.predictions import Predictions
from calibrant.data.source import DifferenceSource
from calibrant.data.tables import column_fields, frame_columns


def from_object(given: Any, wanted: Wanted, name: str = "") -> Predictions:
    """Predictions from any object that holds scores and labels."""
    if isinstance(given, Predictions):
        return _retold(given, wanted)
    if hasattr(given, PREDICTIONS) and hasattr(given, LABEL_IDS):
        given = {PREDICTIONS: _first(given.predictions), LABEL_IDS: _first(given.label_ids)}
    if isinstance(given, (tuple, list)) and len(given) in (2, 3):
        return _from_pair(given, wanted, name)
    columns = dict(given) if isinstance(given, Mapping) else frame_columns(given)
    if columns is None:
        raise InputError(
            f"{name or 'predictions'} must be Predictions, a path, a frame, a dictionary of arrays, an object with "
            f".predictions and .label_ids, or a pair (scores, labels), got {type(given).__name__}"
        )
    found = column_fields({str(word): column for word, column in columns.items()})
    found = arrange(found, list(found), wanted, name or "the table")
    made = assemble(found, name, "", wanted)
    made.notes = found.notes
    return made


def as_predictions(given: Any, name: str = "", **options: Any) -> Predictions:
    """Predictions from themselves, a path or any object that holds scores and labels; options as `open_predictions`."""
    from calibrant.data.opening import describe, open_predictions

    if isinstance(given, (str, os.PathLike)):
        return open_predictions(given, **options)
    return from_object(given, describe(**options), name)


def _from_pair(given: Any, wanted: Wanted, name: str) -> Predictions:
    """(scores, labels) or (scores, labels, weights); bare scores are logits."""
    scores, labels, *rest = given
    for option in ("scores", "labels", "weights", "cluster"):
        if isinstance(getattr(wanted, option), str):
            raise InputError(f"{option}={getattr(wanted, option)!r} names a column, but a pair of arrays has no names")
    if wanted.by:
        raise InputError(f"by={wanted.by[0]!r} names a column, but a pair of arrays has no names: give Predictions")
    made = Predictions(
        scores,
        labels,
        kind=wanted.kind,
        task=wanted.task,
        weights=rest[0] if rest else wanted.weights,
        clusters=wanted.cluster,
        class_names=wanted.class_names,
        ignore_index=wanted.ignore_index,
        name=name,
    )
    refuse_probabilities(made)
    return made


def _retold(given: Predictions, wanted: Wanted) -> Predictions:
    """Predictions with what the caller adds: a task for two columns, groups and clusters from other columns."""
    made = given
    if wanted.kind not in (None, given.kind):
        raise InputError(f"kind={wanted.kind!r}, but {given.name or 'the predictions'} hold {given.kind}")
    if wanted.task not in (None, given.task):
        resolve_task(wanted.task, given.source.shape, None, given.name or "the predictions")
        if (given.task, wanted.task) != ("multiclass", "binary"):
            raise InputError(f"{given.name or 'the predictions'} hold a {given.task} task, not {wanted.task}")
        made = given.with_source(DifferenceSource(given.source, given.kind), "logits")
        made.task = "binary"
    columns = {word: column_of(given, word) for word in wanted.by}
    clusters = wanted.cluster
    if isinstance(clusters, str):
        clusters = column_of(given, clusters)
    if (columns and set(columns) != set(given.groups)) or clusters is not None:
        made = made.with_source(made.source, checked=made._checked)
        made.groups = {**given.groups, **columns}
        made.clusters = given.clusters if clusters is None else np.asarray(clusters)
        if made.clusters is not None and len(made.clusters) != made.n:
            raise InputError(f"clusters has {len(made.clusters)} rows, but the predictions have {made.n}")
    return made


def column_of(given: Predictions, word: str) -> np.ndarray:
    """A column of groups or any other column of the file, by name."""
    if word in given.groups:
        return given.groups[word]
    if word in given.extras:
        return given.extras[word].read()
    known = listing({**given.groups, **given.extras})
    raise InputError(f"{given.name or 'the predictions'} has no column {word!r}, only {known}")


def _first(value: Any) -> Any:
    """The first of several outputs: a trainer may return hidden states behind the logits."""
    return value[0] if isinstance(value, tuple) else value
