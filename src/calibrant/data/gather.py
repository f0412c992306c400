"""Arrays in memory become `Predictions`: one gate for the constructor, for frames and for dense outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calibrant.core.arrays import (
    as_array,
    check_matrix,
    check_shares,
    check_weights,
    widen,
)
from calibrant.core.errors import InputError
from calibrant.data.predictions import KINDS, Predictions
from calibrant.data.source import ArraySource, DifferenceSource, Source
from calibrant.data.tasks import check_task_labels, check_task_values, refuse_one_hot, resolve_task


def check_kind(kind: str | None) -> None:
    """Raise for a kind that does not exist."""
    if kind is not None and kind not in KINDS:
        raise InputError(f'kind must be "logits" or "probabilities", got {kind!r}')


def join_arrays(
    target: Predictions,
    given: Mapping[str, Any],
    *,
    kind: str | None,
    task: str | None,
    labels: Any,
    correct: Any,
    label_shares: Any,
    weights: Any,
    groups: Any,
    clusters: Any,
    class_names: Sequence[str] | None,
    ignore_index: int | None,
    name: str,
) -> None:
    """Check arrays and fill `target` with them."""
    word, kind, task = _named(given, kind, task, correct)
    prefix = f"{name}: " if name else ""
    if labels is not None and correct is not None:
        raise InputError(f"{prefix}give either labels or correct, and not both")
    label_word = "labels" if correct is None else "correct"
    columns = _Columns(
        scores=as_array(given[word], prefix + word),
        labels=_optional(labels if correct is None else correct, prefix + label_word),
        shares=_optional(label_shares, f"{prefix}label_shares"),
        weights=_optional(weights, f"{prefix}weights"),
        groups=named_groups(groups, prefix),
        clusters=_optional(clusters, f"{prefix}clusters"),
    )
    columns.flatten(prefix + word)
    if ignore_index is not None:
        columns.leave_out(ignore_index, prefix + label_word)
    shape, told = columns.scores.shape, task
    task = resolve_task(task, shape, None if columns.labels is None else columns.labels.shape, prefix + word)
    source, kind = _source(columns.scores, task, kind, name, prefix + word)
    if task == "multilabel" and told is None and columns.labels is not None and columns.labels.shape == shape:
        refuse_one_hot(columns.labels, columns.scores, kind, prefix + label_word, word)
    fill(
        target,
        source,
        kind,
        task,
        labels=columns.labels,
        label_shares=columns.shares,
        weights=columns.weights,
        groups=columns.groups,
        clusters=columns.clusters,
        class_names=class_names,
        name=name,
        field=word,
        label_word=label_word,
        checked=True,
    )
    target.local_clusters = columns.local


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
        if scores.dtype.kind not in "fiub":
            raise InputError(f"{called} must hold real numbers, got dtype {scores.dtype}")
        if not len(scores):
            raise InputError(f"{called} has 0 sample(s) (shape={scores.shape}) while a minimum of 1 is required")
        values = widen(scores).reshape(len(scores), 1)
        check_task_values(task, values, from_logits=kind == "logits", name=called)
        return ArraySource(values, name), kind
    values = check_matrix(scores, called)
    if task == "binary":
        check_task_values("multiclass", values, from_logits=kind == "logits", name=called)
        return DifferenceSource(ArraySource(values, name), kind), "logits"
    check_task_values(task, values, from_logits=kind == "logits", name=called)
    return ArraySource(values, name), kind


def fill(
    target: Predictions,
    source: Source,
    kind: str,
    task: str,
    *,
    labels: Any,
    label_shares: Any,
    weights: Any,
    groups: Mapping[str, np.ndarray],
    clusters: Any,
    class_names: Sequence[str] | None,
    name: str,
    field: str,
    label_word: str = "labels",
    weight_word: str = "weights",
    checked: bool = False,
) -> None:
    """Check everything but the scores against their shape, and set it."""
    prefix = f"{name}: " if name else ""
    n_rows, n_columns = source.shape
    if class_names is not None and len(class_names) != (n := 2 if task in ("binary", "pairs") else n_columns):
        raise InputError(f"{prefix}class_names has {len(class_names)} names, but {field} has {n} columns")
    if labels is not None:
        labels = check_task_labels(task, labels, source.shape, class_names, prefix + label_word, field)
    if label_shares is not None:
        if task != "multiclass" or labels is not None:
            raise InputError(f"{prefix}label_shares stand in place of the labels of a multiclass task")
        label_shares = check_shares(label_shares, source.shape, f"{prefix}label_shares")
    for word, column in groups.items():
        _check_length(column, n_rows, f"{prefix}{word}", field)
    if clusters is not None:
        _check_length(clusters, n_rows, f"{prefix}clusters", field)
    target._set(
        source,
        kind,
        labels,
        check_weights(weights, n_rows, f"{prefix}{weight_word}"),
        class_names,
        task=task,
        label_shares=label_shares,
        groups=groups,
        clusters=clusters,
        field=field,
        checked=checked,
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


class _Columns:
    """The arrays of one set of predictions while they are brought into rows."""

    def __init__(  # noqa: PLR0917
        self,
        scores: np.ndarray,
        labels: np.ndarray | None,
        shares: np.ndarray | None,
        weights: np.ndarray | None,
        groups: dict[str, np.ndarray],
        clusters: np.ndarray | None,
    ) -> None:
        self.scores, self.labels, self.shares = scores, labels, shares
        self.weights, self.groups, self.clusters = weights, groups, clusters
        self.local = False

    def flatten(self, called: str) -> None:
        """Dense outputs (N×K×H×W, or N×T×K of tokens) as rows, one cluster per image unless clusters are given."""
        if self.scores.ndim < 3:
            return
        if self.labels is None:
            raise InputError(f"{called} has shape {self.scores.shape}: labels must tell which axis holds the classes")
        places = self.labels.shape
        axis = class_axis(self.scores.shape, places, called)
        images, each = places[0], int(np.prod(places[1:]))
        if axis is None:
            self.scores = self.scores.reshape(-1)
        else:
            self.scores = np.moveaxis(self.scores, axis, -1).reshape(-1, self.scores.shape[axis])
        self.labels = self.labels.reshape(-1)
        self.weights = _per_place(self.weights, places)
        self.groups = {word: _per_place(column, places) for word, column in self.groups.items()}  # type: ignore[misc]
        self.local = self.clusters is None
        self.clusters = np.repeat(np.arange(images), each) if self.local else _per_place(self.clusters, places)

    def leave_out(self, label: int, called: str) -> None:
        """Remove the rows of an ignored label."""
        if self.labels is None or self.labels.ndim > 1:
            raise InputError(f"ignore_index needs {called} with one class per row")
        kept = np.flatnonzero(self.labels != label)
        if not len(kept):
            raise InputError(f"{called} is {label} in all {len(self.labels)} rows: nothing is left to read")
        self.scores, self.labels = self.scores[kept], self.labels[kept]
        self.shares = None if self.shares is None else self.shares[kept]
        self.weights = None if self.weights is None else self.weights[kept]
        self.clusters = None if self.clusters is None else self.clusters[kept]
        self.groups = {word: column[kept] for word, column in self.groups.items()}


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
