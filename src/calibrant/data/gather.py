"""Arrays in memory become `Predictions`: one gate for the constructor, for frames and for dense outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibrant.core.arrays import (
    PROBABILITY_TOLERANCE,
    as_array,
    check_matrix,
    check_scores,
    check_shares,
    check_weights,
)
from calibrant.core.errors import InputError
from calibrant.core.schema import FLAT, Schema, check_kind, resolve_task
from calibrant.data.predictions import Predictions, check_task_values
from calibrant.data.source import ArraySource, DifferenceSource, Source


@dataclass
class Columns:
    """What has an entry per row, beside the scores."""

    labels: Any
    label_shares: Any
    weights: Any
    groups: Any
    clusters: Any

    def take(self, rows: np.ndarray) -> Columns:
        """The entries of some rows."""

        def taken(column: Any) -> Any:
            return None if column is None else np.asarray(column)[rows]

        groups = {word: taken(column) for word, column in self.groups.items()}
        labels, label_shares, weights = map(taken, (self.labels, self.label_shares, self.weights))
        return Columns(labels, label_shares, weights, groups, taken(self.clusters))

    def rows_without(self, label: int, called: str) -> np.ndarray:
        """Places of the rows that do not have an ignored label."""
        if np.ndim(self.labels) != 1:
            raise InputError(f"ignore_index needs {called} with one class per row")
        kept = np.flatnonzero(np.asarray(self.labels) != label)
        if not len(kept):
            raise InputError(f"{called} is {label} in all {len(self.labels)} rows: nothing is left to read")
        return kept


def join_arrays(
    target: Predictions,
    given: Mapping[str, Any],
    columns: Columns,
    *,
    kind: str | None,
    task: str | None,
    correct: Any,
    class_names: Sequence[str] | None,
    ignore_index: int | None,
    name: str,
) -> None:
    """Check arrays and fill `target` with them."""
    word, kind, task = _named(given, kind, task, correct)
    prefix = f"{name}: " if name else ""
    if columns.labels is not None and correct is not None:
        raise InputError(f"{prefix}give either labels or correct, and not both")
    label_word = "labels" if correct is None else "correct"
    scores = as_array(given[word], prefix + word)
    columns = Columns(
        labels=_optional(columns.labels if correct is None else correct, prefix + label_word),
        label_shares=_optional(columns.label_shares, f"{prefix}label_shares"),
        weights=_optional(columns.weights, f"{prefix}weights"),
        groups=named_groups(columns.groups, prefix),
        clusters=_optional(columns.clusters, f"{prefix}clusters"),
    )
    if scores.ndim > 2:
        target.local_clusters = columns.clusters is None
        scores, columns = _flattened(scores, columns, prefix + word)
    if ignore_index is not None:
        kept = columns.rows_without(ignore_index, prefix + label_word)
        scores, columns = scores[kept], columns.take(kept)
    told = task
    label_shape = None if columns.labels is None else columns.labels.shape
    task = resolve_task(task, scores.shape, label_shape, prefix + word)
    source, kind = _source(scores, task, kind, name, prefix + word)
    if task == "multilabel" and told is None and label_shape == scores.shape:
        refuse_one_hot(columns.labels, scores, kind, prefix + label_word, word)
    fill(target, source, kind, task, columns, class_names, name, word, label_word, checked=True)


def _named(given: Mapping[str, Any], kind: str | None, task: str | None, correct: Any) -> tuple[str, str, str | None]:
    """Which array holds the scores, their kind, and the task as far as the names tell it."""
    check_kind(kind)
    if len(given) != 1:
        raise InputError("give either logits or probabilities (or scores, or confidence), and not both")
    (word,) = given
    said = {"logits": "logits", "probabilities": "probabilities", "confidence": "probabilities"}.get(word)
    if said is not None and kind not in (None, said):
        raise InputError(f"{word}= says {said}, but kind= says {kind}: give one of them")
    if task is None and (word == "confidence" or correct is not None):
        task = "pairs"
    return word, said or kind or "logits", task


def _source(scores: np.ndarray, task: str, kind: str, name: str, called: str) -> tuple[Source, str]:
    """The scores as rows, checked; two columns of a binary task become their log odds."""
    if scores.ndim == 1 or (task != "multiclass" and scores.shape[1:] == (1,)):
        values = check_scores(scores, called)[:, None]
        check_task_values(task, values, from_logits=kind == "logits", name=called)
        return ArraySource(values, name), kind
    values = check_matrix(scores, called)
    if task == "binary":
        check_task_values("multiclass", values, from_logits=kind == "logits", name=called)
        return DifferenceSource(ArraySource(values, name), kind), "logits"
    check_task_values(task, values, from_logits=kind == "logits", name=called)
    return ArraySource(values, name), kind


def fill(  # noqa: PLR0917
    target: Predictions,
    source: Source,
    kind: str,
    task: str,
    columns: Columns,
    class_names: Sequence[str] | None,
    name: str,
    field: str,
    label_word: str = "labels",
    weight_word: str = "weights",
    *,
    checked: bool = False,
) -> None:
    """Check everything but the scores against their shape, and set it."""
    prefix = f"{name}: " if name else ""
    n_rows, n_columns = source.shape
    labels, label_shares = columns.labels, columns.label_shares
    if class_names is not None and len(class_names) != (n := 2 if task in FLAT else n_columns):
        raise InputError(f"{prefix}class_names has {len(class_names)} names, but {field} has {n} columns")
    if labels is not None:
        names = None if class_names is None else tuple(class_names)
        schema = Schema(task, kind, 2 if task in FLAT else n_columns, names)
        labels = schema.labels(labels, prefix + label_word, field, n_rows)
    if label_shares is not None:
        if task != "multiclass" or labels is not None:
            raise InputError(f"{prefix}label_shares stand in place of the labels of a multiclass task")
        label_shares = check_shares(label_shares, source.shape, f"{prefix}label_shares")
    lengths = columns.groups if columns.clusters is None else {**columns.groups, "clusters": columns.clusters}
    for word, column in lengths.items():
        _check_length(column, n_rows, f"{prefix}{word}", field)
    target._set(
        source,
        kind,
        labels,
        check_weights(columns.weights, n_rows, f"{prefix}{weight_word}"),
        class_names,
        task=task,
        label_shares=label_shares,
        groups=columns.groups,
        clusters=columns.clusters,
        field=field,
        checked=checked,
    )


def refuse_one_hot(labels: np.ndarray | None, scores: np.ndarray, kind: str, name: str, against: str) -> None:
    """Raise where a matrix of labels may be one-hot classes: then a task of several labels must be said.

    scores : some rows of the scores. Classes have one 1 per row, and probabilities that sum to one; many labels that
    happen to look so in every one of 30 rows are rare enough to be asked for.
    """
    if labels is None or labels.ndim != 2 or labels.shape[1] < 2 or not (labels.sum(axis=1) == 1).all():
        return
    sums = np.abs(scores.sum(axis=1, dtype=np.float64) - 1) <= PROBABILITY_TOLERANCE
    if (kind == "probabilities" and sums.all()) or (kind == "logits" and len(labels) >= 30):
        raise InputError(
            f"{name} has one 1 in each of its {len(labels)} rows, beside {against} of {labels.shape[1]} columns: give "
            "class numbers, label_shares, or say --task multilabel"
        )


def named_groups(groups: Any, prefix: str = "") -> dict[str, np.ndarray]:
    """Columns of groups by name; a single column is called "group"."""
    if groups is None:
        return {}
    if hasattr(groups, "columns") and not isinstance(groups, Mapping):  # a frame
        groups = {str(word): groups[word] for word in groups.columns}
    columns = groups if isinstance(groups, Mapping) else {"group": groups}
    return {str(word): as_array(column, f"{prefix}{word}") for word, column in columns.items()}


def _check_length(column: np.ndarray, n_rows: int, called: str, against: str) -> None:
    if column.ndim != 1 or len(column) != n_rows:
        raise InputError(f"{called} has shape {column.shape}, but {against} has {n_rows} rows: give one entry per row")


def _optional(values: Any, name: str) -> np.ndarray | None:
    return None if values is None else as_array(values, name)


def _flattened(scores: np.ndarray, columns: Columns, called: str) -> tuple[np.ndarray, Columns]:
    """Dense outputs (N×K×H×W, or N×T×K of tokens) as rows, one cluster per image unless clusters are given."""
    if columns.labels is None:
        raise InputError(f"{called} has shape {scores.shape}: labels must tell which axis holds the classes")
    places = columns.labels.shape
    axis = class_axis(scores.shape, places, called)
    images, each = places[0], int(np.prod(places[1:]))
    rows = scores.reshape(-1) if axis is None else np.moveaxis(scores, axis, -1).reshape(-1, scores.shape[axis])
    clusters = columns.clusters
    flat = replace(
        columns,
        labels=columns.labels.reshape(-1),
        weights=_per_place(columns.weights, places),
        groups={word: _per_place(column, places) for word, column in columns.groups.items()},
        clusters=np.repeat(np.arange(images), each) if clusters is None else _per_place(clusters, places),
    )
    return rows, flat


def class_axis(shape: tuple[int, ...], places: tuple[int, ...], called: str) -> int | None:
    """The axis of the classes in scores whose labels have the shape `places`; None where each place has one score."""
    if shape == places:
        return None
    fits = [axis for axis in {1, len(shape) - 1} if shape[:axis] + shape[axis + 1 :] == places]
    if len(fits) == 1:
        return fits[0]
    if fits:
        raise InputError(f"{called} has shape {shape} and labels {places}: the classes may be axis 1 or the last one")
    raise InputError(f"{called} has shape {shape}, but labels {places}: give labels of the shape without the classes")


def _per_place(column: np.ndarray | None, places: tuple[int, ...]) -> np.ndarray | None:
    """One entry per place of a column that has one per place or one per image."""
    if column is None or column.shape == places:
        return None if column is None else column.reshape(-1)
    return np.repeat(column, int(np.prod(places[1:])), axis=0)
