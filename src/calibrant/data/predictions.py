"""`Predictions`: what a classifier said about n rows, and what was true."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from calibrant.core import progress
from calibrant.core.arrays import (
    PROBABILITY_TOLERANCE,
    Array,
    as_array,
    check_score_values,
    check_shape,
    check_shares,
    check_values,
    check_weights,
)
from calibrant.core.errors import InputError
from calibrant.core.memory import spare_memory
from calibrant.core.rows import Rows
from calibrant.core.schema import FLAT, PERCENT, Reading, Schema, check_kind, cluster_codes, resolve_task
from calibrant.core.softmax import log_odds, log_stored, sigmoid, softmax
from calibrant.data.source import (
    ANY_LABELS,
    CHUNK_BYTES,
    ArrayField,
    ArraySource,
    Field,
    PartsSource,
    Source,
    TakenSource,
    ViewSource,
    Wanted,
    check_counts,
    difference,
    fractions,
    picked_columns,
)
from calibrant.data.tables import frame_columns

MEMORY_SHARE = 0.25
"""Of the spare memory: files that need more are mapped, smaller ones are read."""

OF_THE_WHOLE = ("skipped", "notes", "score_columns", "extras", "local_clusters", "spread", "dense")
"""What is known of a whole file, and not of some of its rows or of several files."""


PER_ROW = ("_labels", "weights", "label_shares", "clusters")
"""Attributes with an entry per row; groups are a mapping of such."""


class Predictions:
    """Logits or probabilities of n rows with their labels, perhaps weights, groups, clusters and class names.

    Give `logits=` or `probabilities=` (or `scores` with `kind=`; bare scores are logits), or `confidence=` and
    `correct=`. The task follows from the names and shapes, or from `task=`; it is never guessed from the values.
    The values may live in a file larger than memory: they are read when asked for, `chunks` never holds more than
    about 64 MB of them, and `logits` maps an uncompressed file that would take over a quarter of the spare memory.
    `open_predictions` reads files.

    Parameters
    ----------
    scores : array (n, K), (n,) or (N, K, H, W)
        Scores of which `kind` says what they are.
    labels : array
        (n,) class numbers or names; (n,) of 0/1 for binary; (n, L) of 0/1 for multilabel; (N, H, W) for dense scores.
    kind : {"logits", "probabilities", "percent"}
        What `scores` are; logits unless said otherwise. Percent are probabilities from 0 to 100.
    task : {"multiclass", "binary", "multilabel", "pairs"}, optional
        Where the shapes do not tell: an (n, 2) matrix is multiclass unless this says binary; labels (n, K) are many
        labels per row unless this says multiclass, which makes them one-hot.
    label_shares : array (n, K), optional
        In place of labels: the share of annotators that chose each class.
    weights, clusters : array (n,), optional
        How often each row counts; what is independent of each other (patient, image, document).
    groups : array (n,) or mapping of names to arrays (n,), optional
        Whom to compare.
    class_names : sequence of str, optional
        Names of the columns.
    ignore_index : int, optional
        Rows with this label are left out.

    Attributes
    ----------
    skipped : tuple of str
        Why parts of a folder or pattern were left out, where that was asked for.
    extras : mapping of str to Field
        Other arrays of the file with an entry per row, not yet read.
    notes : tuple of str
        What a reader had to decide, such as the value of a missing option.
    local_clusters : bool
        Do the clusters only count the images of this file?
    dense : tuple of (tuple of int, int), optional
        Of dense scores whose places are all rows: the shape of the places, and the axis of the classes.
    reading : Reading, optional
        How the columns of a table or the arrays of a file were read.
    absent : "keep", "never" or None
        What is known of classes without labels, as the parameter of `AutoCalibrator`: options of multiple choice that
        cannot be right are "never".
    spread : bool
        Are these rows made from label shares, which are fractions of rows by design?

    Examples
    --------
    >>> import numpy as np
    >>> p = Predictions(probabilities=np.array([[0.75, 0.25], [0.5, 0.5]]), labels=np.array([0, 1]))
    >>> p.task, p.kind, p.n, p.n_classes
    ('multiclass', 'probabilities', 2, 2)
    >>> float(np.exp(p[:1].logits[0, 0]).round(12))
    0.75
    >>> Predictions(probabilities=[0.9, 0.2], labels=[1, 0]).task
    'binary'
    """

    source: Source
    kind: str
    task: str
    field: str
    weights: Array | None = None
    label_shares: Array | None = None
    groups: Mapping[str, Array] = MappingProxyType({})
    clusters: Array | None = None
    class_names: tuple[str, ...] | None = None
    skipped: tuple[str, ...] = ()
    extras: Mapping[str, Any] = MappingProxyType({})
    notes: tuple[str, ...] = ()
    local_clusters: bool = False
    dense: tuple[tuple[int, ...], int] | None = None
    spread: bool = False
    absent: str | None = None
    score_columns: tuple[str, ...] = ()
    reading: Reading | None = None
    _labels: Array | None = None
    _checked: bool = False
    _converted: Array | None = None

    def __init__(
        self,
        scores: Any = None,
        labels: Any = None,
        *,
        kind: str | None = None,
        task: str | None = None,
        logits: Any = None,
        probabilities: Any = None,
        confidence: Any = None,
        correct: Any = None,
        label_shares: Any = None,
        weights: Any = None,
        groups: Any = None,
        clusters: Any = None,
        class_names: Sequence[str] | None = None,
        ignore_index: int | None = None,
        name: str = "",
    ) -> None:
        named = {"scores": scores, "logits": logits, "probabilities": probabilities, "confidence": confidence}
        given = {word: value for word, value in named.items() if value is not None}
        check_kind(kind, percent=True)
        if len(given) != 1:
            raise InputError("give either logits or probabilities (or scores, or confidence), and not both")
        ((word, values),) = given.items()
        said = {"scores": kind, "logits": "logits"}.get(word, PERCENT if kind == PERCENT else "probabilities")
        if kind not in (None, said):
            raise InputError(f"{word}= says {said}, but kind= says {kind}: give one of them")
        if task is None and (word == "confidence" or correct is not None):
            task = "pairs"
        prefix = f"{name}: " if name else ""
        if labels is not None and correct is not None:
            raise InputError(f"{prefix}give either labels or correct, and not both")
        answers = labels if correct is None else correct
        if groups is not None and not isinstance(groups, Mapping):
            groups = frame_columns(groups) or {"group": groups}
        told = Wanted(said or "logits", task, class_names=class_names, ignore_index=ignore_index, guard=0, name=name)
        made = join(
            ArrayField(as_array(values, prefix + word)),
            {"labels": answers, "label_shares": label_shares, "weights": weights, "clusters": clusters},
            {str(group): as_array(column, f"{prefix}{group}") for group, column in (groups or {}).items()},
            {"scores": word, "labels": "labels" if correct is None else "correct"},
            told,
        )
        self.__dict__ = made.__dict__

    @classmethod
    def from_arrays(cls, **arrays: Any) -> Predictions:
        """The same as `Predictions(...)`, by names only."""
        return cls(**arrays)

    @property
    def name(self) -> str:
        """Where the values came from; empty for arrays in memory."""
        return self.source.name

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.source.shape[0]

    @property
    def n_classes(self) -> int:
        """Number of classes K; 2 for binary and pairs, the number of labels for multilabel."""
        return 2 if self.flat else self.source.shape[1]

    @property
    def flat(self) -> bool:
        """Is there one score per row (binary, pairs)?"""
        return self.task in FLAT

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values: float32 or float64."""
        return self.source.dtype

    @property
    def schema(self) -> Schema:
        """What the numbers mean."""
        columns = {"scores": self.score_columns, "groups": tuple(self.groups)}
        named = {role: names for role, names in columns.items() if names}
        return Schema(self.task, self.kind, self.n_classes, self.class_names, named)

    @property
    def has_labels(self) -> bool:
        """Are there labels or label shares?"""
        return self._labels is not None or self.label_shares is not None

    @property
    def labels(self) -> Array:
        """Class numbers (n,), outcomes (n,) or (n, L), int64; an InputError where there are none."""
        if self._labels is None:
            remedy = "" if self.label_shares is None else ": it has label shares, use expanded()"
            raise InputError(f"{self.name or 'these predictions'} has no labels, and this needs them{remedy}")
        return self._labels

    @cached_property
    def values(self) -> Array:
        """The values (n, K), or (n,) for one score per row, as stored, float16 widened; large files are mapped."""
        values = self.source.whole()
        # the pages of a map are gone when another process cuts the file short: what fits is read
        if values is not None and (isinstance(self.source, ArraySource) or not fits_in_memory(values.nbytes)):
            for _ in () if self._checked else self.chunks():
                pass
        else:
            values, first = np.empty(self.source.shape, self.dtype), 0
            for part in self.chunks():
                values[first : first + part.n] = part.values.reshape(part.n, -1)
                first += part.n
        return values[:, 0] if self.flat else values

    @property
    def logits(self) -> Array:
        """Logits of the shape of `values`; of probabilities, their logarithms, or log odds of single scores."""
        return self.values if self.kind == "logits" else self._convert()

    @property
    def probabilities(self) -> Array:
        """Probabilities of the shape of `values`; of logits, their softmax, or sigmoid of single scores."""
        return self.values if self.kind == "probabilities" else self._convert()

    def chunks(self, rows: int | None = None, *, check: bool | None = None) -> Iterator[Predictions]:
        """Consecutive parts in memory, of `rows` rows or about 64 MB each.

        Their values are checked to be logits or probabilities, unless they were before or `check` says otherwise.
        """
        if rows is not None and rows < 1:
            raise InputError(f"a chunk needs at least 1 row, got {rows}")
        rows = rows or max(1, CHUNK_BYTES // (self.source.shape[1] * self.dtype.itemsize))
        checked, first = not self._checked if check is None else check, 0
        for block in self.source.blocks(0, self.n, rows):
            if checked:
                called, row = self.called(first)
                value_check(self.task)(block, from_logits=self.kind == "logits", name=called, first_row=row)
            own = slice(first, first + len(block))
            yield self._part(ArraySource(block, self.source.locate(first)[0]), own, checked=True)
            first = own.stop
            if check is None and first > rows:
                progress.step(f"reading {self.name}", first, self.n)
        self._checked |= checked

    def rows(self) -> Rows:
        """Everything in memory, as calibrators take it."""
        return Rows(self.logits, self.labels, self.weights)

    def expanded(self) -> Predictions:
        """Label shares as rows: each row once per class that someone chose, weighted by the share; else itself.

        The rows made from one row form a cluster, unless there are clusters already.
        """
        if self.label_shares is None:
            return self
        row, label = np.nonzero(self.label_shares)
        weights = self.label_shares[row, label]
        if self.weights is not None:
            weights = weights * self.weights[row]
        made = self.like(label_shares=None)._part(TakenSource(self.source, row), row, self._checked)
        made._labels, made.weights, made.notes, made.spread = label.astype(np.int64), weights, self.notes, True
        made.clusters = row if self.clusters is None else cluster_codes(self.clusters)[0][row]
        return made

    def aligned(self, schema: Schema, mine: str = "the calibrator") -> Self:
        """The same rows with their columns in the order of another schema, which error messages call `mine`."""
        found = schema.align(self.schema, mine, self.name or "these predictions")
        order, labels = found.order, self._labels
        if order is None:
            known = not found.note or found.note in self.notes
            return self if known else self.like(notes=(*self.notes, found.note))
        if labels is not None:
            labels = labels[:, order] if labels.ndim == 2 else np.argsort(order)[labels]
        in_order = itemgetter(*order)
        return self.like(
            source=ViewSource(self.source, partial(picked_columns, places=order), len(order)),
            class_names=None if self.class_names is None else in_order(self.class_names),
            label_shares=None if self.label_shares is None else self.label_shares[:, order],
            score_columns=in_order(self.score_columns) if len(self.score_columns) > 1 else (),
            # labels that were not read may be numbers of columns that lie elsewhere now
            extras={name: field for name, field in self.extras.items() if name not in ANY_LABELS},
            _labels=labels,
        )

    def named(self, class_names: Sequence[str] | None) -> Self:
        """The same predictions with names for their columns; their labels stay the class numbers that they are."""
        names = None if class_names is None else tuple(map(str, class_names))
        if names is not None and len(names) != self.n_classes:
            raise InputError(
                f"class_names has {len(names)} names, but {self.called(0)[0]} has {self.n_classes} columns"
            )
        return self.like(class_names=names)

    def column(self, word: str) -> Array:
        """A column of groups or any other column of the file, by name."""
        if word in self.groups:
            return self.groups[word]
        if word in self.extras:
            return self.extras[word].read()
        raise InputError(
            f"{self.name or 'the predictions'} has no column {word!r}, only "
            f"{', '.join(sorted({*self.groups, *self.extras})) or 'nothing'}"
        )

    def refuse_probabilities(self) -> None:
        """Raise if values that are called logits are probabilities."""
        if self.kind == "logits" and self.task == "multiclass":
            self.source.refuse_probabilities(self.called(0)[0])

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: Any) -> Predictions:
        """Rows by slice, number, numbers or mask; a plain slice is not read until its values are asked for."""
        if isinstance(index, (int, np.integer, slice)):
            found = range(self.n)[index]
            rows = range(found, found + 1) if isinstance(found, int) else found
            if rows.step == 1:
                own = slice(rows.start, rows.stop)
                return self._part(PartsSource([self.source], rows=rows), own, checked=self._checked)
        places = np.arange(self.n)[index]
        return self._part(ArraySource(self.values[places], self.name), places, checked=True)

    def __repr__(self) -> str:
        where = f" of {self.name}" if self.name else ""
        width = "" if self.flat else f" × {self.n_classes} {'labels' if self.task == 'multilabel' else 'classes'}"
        task = "" if self.task == "multiclass" else f"{self.task}, "
        extras = "" if self.weights is None else ", weighted"
        return f"<Predictions{where}: {self.n} rows{width}, {task}{self.kind}, {self.dtype}{extras}>"

    def like(self, *, whole: bool = True, **changed: Any) -> Self:
        """The same predictions with some other attributes, such as a `source`; `whole`: of the same rows."""
        made = copy.copy(self)
        for word in ("values", "_converted", *(() if whole else OF_THE_WHOLE)):
            made.__dict__.pop(word, None)
        made.__dict__.update(changed)
        return made

    def _part(self, source: Source, index: slice | Array, checked: bool) -> Self:
        if not source.shape[0]:
            raise InputError(f"the selection holds 0 of the {self.n} rows, while a minimum of 1 is required")
        taken = {word: getattr(self, word)[index] for word in PER_ROW if getattr(self, word) is not None}
        groups = {name: column[index] for name, column in self.groups.items()}
        return self.like(whole=False, source=source, groups=groups, _checked=checked, **taken)

    def called(self, row: int) -> tuple[str, int]:
        """What error messages call the values of a row: file and field, and the number of the row there."""
        name, row = self.source.locate(row)
        return f"{name}: {self.field}" if name else self.field, row

    def _convert(self) -> Array:
        if self._converted is not None:
            return self._converted
        if self.kind == "probabilities":
            converted = to_logits(self.values, self.task)
        else:
            converted = softmax(self.values) if self.task == "multiclass" else sigmoid(self.values)
        if converted.nbytes <= CHUNK_BYTES:
            # small enough to keep: callers ask again and again
            self._converted = converted
        return converted


Columns = dict[str, np.ndarray]
"""What has an entry per row, by name."""


def join(
    scores: Field, columns: Mapping[str, Any], groups: Columns, words: Mapping[str, str], wanted: Wanted
) -> Predictions:
    """Check scores and what belongs to them, and join them: the one gate for arrays, files and frames.

    columns : labels, label_shares, weights and clusters; None for what is not there.
    words : what error messages call the scores and these columns, where the file has names of its own.
    wanted : what is known of the scores, whatever the file and the caller told.
    """
    name, kind, ignore_index = wanted.name, str(wanted.kind), wanted.ignore_index
    prefix, field = f"{name}: " if name else "", words["scores"]
    called, names = prefix + field, {word: prefix + words.get(word, word) for word in columns}
    own = {word: as_array(column, names[word]) for word, column in columns.items() if column is not None}
    local, dense = len(scores.shape) > 2 and "clusters" not in own, None
    if len(scores.shape) > 2:
        scores, own, groups, dense = _flattened(scores.read(), own, groups, called)
    labels = own.get("labels")
    label_shape = None if labels is None else labels.shape
    task = resolve_task(wanted.task, scores.shape, label_shape, called)
    two = task == "binary" and scores.shape[1:] == (2,)
    check_shape(scores.shape, scores.dtype, called, classes=two or task == "multiclass")
    check_counts(scores.shape, called)
    source, n_rows = scores.source(name), scores.shape[0]
    if kind == PERCENT:
        made_of = partial(fractions, classes=two or task == "multiclass")
        source, kind = ViewSource(source, made_of), "probabilities"
    if task == "multiclass" and labels is not None and label_shape == scores.shape and labels.dtype.kind in "fiub":
        labels, known = _classes(labels, names["labels"]), wanted.class_names
        if known is not None:  # which may be numbers of other columns
            labels = np.take(known, labels, mode="clip")
        own["labels"], label_shape = labels, labels.shape
    if ignore_index is not None and labels is not None:
        if label_shape != (n_rows,):
            raise InputError(
                f"ignore_index needs one class per row: {names['labels']} has shape {label_shape}, but {field} has "
                f"{n_rows} rows"
            )
        kept = np.flatnonzero(labels != ignore_index)
        if not len(kept):
            raise InputError(f"{names['labels']} is {ignore_index} in all {n_rows} rows: nothing is left to read")
        source, dense = TakenSource(source, kept), None
        own, groups = ({word: column[kept] for word, column in some.items()} for some in (own, groups))
    if task == "multilabel" and wanted.task is None and label_shape == scores.shape:
        head = next(source.blocks(0, min(64, source.shape[0]), 64))
        refuse_one_hot(own["labels"], head, kind, names["labels"], field)
    if wanted.guard and kind == "logits" and task in ("multiclass", "binary"):
        source.refuse_probabilities(called, wanted.guard)
    if two:
        source, kind = ViewSource(source, partial(difference, kind=kind), 1), "logits"
    made = Predictions.__new__(Predictions)
    made.source, made.kind, made.task, made.field, made.groups = source, kind, task, field, groups
    made.local_clusters, made.dense = local, dense
    made = made.named(wanted.class_names)
    _add_columns(made, own, names)
    if isinstance(scores, ArrayField):  # which are checked at once
        made.source = ArraySource(made.values, name)
    return made


def _classes(labels: Array, name: str) -> Array:
    """Class numbers of one-hot labels."""
    wrong = (labels.sum(axis=1) != 1) | (labels.max(axis=1) != 1) | (labels.min(axis=1) != 0)
    for row in np.flatnonzero(wrong):
        raise InputError(f"{name} is not one-hot in row {row}: task multiclass needs one 1 per row, and zeros")
    return labels.argmax(axis=1)


def _add_columns(made: Predictions, own: Columns, names: Mapping[str, str]) -> None:
    """Check everything but the scores against their shape, and add labels and the like."""
    if "labels" in own:
        made._labels = made.schema.labels(own["labels"], names["labels"], made.field, made.n)
    if "label_shares" in own:
        if made.task != "multiclass" or "labels" in own:
            raise InputError(f"{names['label_shares']} stand in place of the labels of a multiclass task")
        made.label_shares = check_shares(own["label_shares"], made.source.shape, names["label_shares"])
    made.clusters = own.get("clusters")
    for word, column in {**made.groups, "clusters": made.clusters}.items():
        if column is not None and column.shape != (made.n,):
            raise InputError(
                f"{names.get(word, word)} has shape {column.shape}, but {made.called(0)[0]} has {made.n} rows: "
                "give one entry per row"
            )
    made.weights = check_weights(own.get("weights"), made.n, names["weights"])


def refuse_one_hot(labels: Array, scores: Array, kind: str, name: str, against: str) -> None:
    """Raise where a matrix of labels may be one-hot classes: then a task of several labels must be said.

    scores : some rows of the scores. Classes have one 1 per row, and probabilities that sum to one; many labels that
    happen to look so in every one of 30 rows are rare enough to be asked for.
    """
    if labels.shape[1] < 2 or labels.dtype.kind not in "fiub" or not (labels.sum(axis=1) == 1).all():
        return
    sums = np.abs(scores.sum(axis=1, dtype=np.float64) - 1) <= PROBABILITY_TOLERANCE
    if (kind == "probabilities" and sums.all()) or (kind == "logits" and len(labels) >= 30):
        raise InputError(
            f"{name} has one 1 in each of its {len(labels)} rows, beside {against} of {labels.shape[1]} columns: say "
            'task="multiclass" for one-hot labels, task="multilabel" for many labels, or give label_shares'
        )


def _flattened(
    scores: Array, columns: Columns, groups: Columns, called: str
) -> tuple[Field, Columns, Columns, tuple[tuple[int, ...], int]]:
    """Dense outputs (N×K×H×W, or N×T×K of tokens) as rows, one cluster per image unless clusters are given.

    Labels tell which axis holds the classes. Without them it is the last of three, and otherwise axis 1.
    """
    shape, last = scores.shape, scores.ndim - 1
    without = {axis: shape[:axis] + shape[axis + 1 :] for axis in (1, last)}
    axis = last if last == 2 else 1
    places = columns["labels"].shape if "labels" in columns else without[axis]
    fits = [one for one, left in without.items() if left == places]
    if len(fits) > 1 and "labels" in columns:
        raise InputError(f"{called} has shape {shape} and labels {places}: the classes may be axis 1 or the last one")
    if not fits and shape != places:
        raise InputError(
            f"{called} has shape {shape}, but labels {places}: give labels of the shape without the classes"
        )
    axis = fits[0] if len(fits) == 1 else axis
    rows = np.moveaxis(scores, axis, -1).reshape(-1, shape[axis]) if fits else scores.reshape(-1)

    def flat(column: Array) -> Array:
        """One entry per place of a column that has one per place or one per image."""
        return column.reshape(-1) if column.shape == places else np.repeat(column, math.prod(places[1:]), axis=0)

    spread = {word: flat(column) for word, column in {"clusters": np.arange(places[0]), **columns}.items()}
    return ArrayField(rows), spread, {word: flat(column) for word, column in groups.items()}, (places, axis)


def fits_in_memory(nbytes: int) -> bool:
    """Whether so many bytes may be held in memory as one array."""
    return nbytes <= CHUNK_BYTES or nbytes <= MEMORY_SHARE * spare_memory()


def value_check(task: str) -> Callable[..., None]:
    """What raises unless values are logits or probabilities of the task."""
    return check_values if task == "multiclass" else check_score_values


def to_logits(probabilities: Array, task: str) -> Array:
    """Logits of probabilities: logarithms of a row over classes, log odds of single scores."""
    return log_stored(probabilities) if task == "multiclass" else log_odds(probabilities)
