"""Objects in memory become `Predictions`: frames, dictionaries, pairs and results of trainers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from calibrant.core.arrays import as_array
from calibrant.core.errors import InputError
from calibrant.core.schema import resolve_task
from calibrant.data.assemble import assemble, listing, split_names
from calibrant.data.columns import canonical, layout
from calibrant.data.fields import CLASS_NAMES, LABEL_IDS, PREDICTIONS, ArrayField, Field, Wanted
from calibrant.data.guards import refuse_probabilities
from calibrant.data.predictions import Predictions
from calibrant.data.source import DifferenceSource


def from_object(given: Any, wanted: Wanted, name: str = "") -> Predictions:
    """Predictions from any object that holds scores and labels."""
    if isinstance(given, Predictions):
        return _retold(given, wanted)
    if hasattr(given, PREDICTIONS) and hasattr(given, LABEL_IDS):
        given = {PREDICTIONS: _first(given.predictions), LABEL_IDS: _first(given.label_ids)}
    if isinstance(given, (tuple, list)) and len(given) in (2, 3):
        return _from_pair(given, wanted, name)
    columns = _columns(given)
    if columns is None:
        raise InputError(
            f"{name or 'predictions'} must be Predictions, a path, a frame, a dictionary of arrays, an object with "
            f".predictions and .label_ids, or a pair (scores, labels), got {type(given).__name__}"
        )
    return assemble(_fields(columns, wanted, name), name, "", wanted)


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


def _columns(given: Any) -> dict[str, Any] | None:
    """Columns by name of a dictionary or a frame; None for anything else."""
    if isinstance(given, Mapping):
        return {str(key): value for key, value in given.items()}
    if hasattr(given, "column_names") and hasattr(given, "column"):  # pyarrow
        return {name: _arrow(given.column(name)) for name in given.column_names}
    if hasattr(given, "columns") and hasattr(given, "__getitem__"):  # pandas and polars
        return {str(name): given[name] for name in given.columns}
    return None


def _arrow(column: Any) -> Any:
    return column.to_pylist() if str(column.type).startswith(("list", "large_list", "fixed")) else column.to_numpy()


def _fields(columns: Mapping[str, Any], wanted: Wanted, name: str) -> dict[str, Field]:
    """The columns as fields, wide ones joined."""
    names = canonical(list(columns))
    arrays = {word: _array(columns[own], word) for word, own in zip(names, columns, strict=True)}
    found: dict[str, Field] = {word: ArrayField(array) for word, array in arrays.items() if array is not None}
    if any(split for split in split_names(found)) or {"values", "indices"} <= set(names):
        return found
    arranged = layout(list(found), wanted, name or "the table")
    for key, members in arranged.matrices.items():
        found[key] = ArrayField(np.column_stack([found[member].read() for member in members]))
    if arranged.class_names is not None and CLASS_NAMES not in found:
        found[CLASS_NAMES] = ArrayField(np.array(arranged.class_names, dtype=str))
    return {key: field for key, field in found.items() if key not in arranged.columns or key in arranged.matrices}


def _array(column: Any, name: str) -> np.ndarray | None:
    """A column as an array; a column of lists as a matrix; None for what is no array."""
    if isinstance(column, (str, bytes)) or column is None:
        return None
    if hasattr(column, "to_numpy") and not isinstance(column, np.ndarray):
        column = column.to_numpy()
    try:
        array = as_array(column, name)
    except InputError:
        return None
    if array.dtype.kind == "O" and array.ndim == 1 and len(array):
        first = array[0]
        try:
            if isinstance(first, (list, tuple, np.ndarray)) or hasattr(first, "tolist"):
                return np.stack([np.asarray(item) for item in array])
            if all(isinstance(item, str) for item in array):
                return array.astype(str)
        except ValueError as error:
            raise InputError(f"{name} has rows of different lengths: every row needs one number per class") from error
    return array if array.ndim else None
