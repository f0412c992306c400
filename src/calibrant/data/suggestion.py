"""What to say where predictions cannot be read: the whole set of options with which they can, made from what they show.

Meaning is never taken from values alone. A suggestion may look at them, since it is the caller who says it then. Every
set of options is tried before it is suggested.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from dataclasses import replace
from itertools import islice, product
from typing import Any

import numpy as np

from calibrant.core.arrays import Array
from calibrant.core.errors import InputError, NoRowsError
from calibrant.core.schema import KINDS, PERCENT, class_key
from calibrant.data.assemble import assemble, choose, label_key
from calibrant.data.predictions import Predictions
from calibrant.data.source import (
    ANY_LABELS,
    CORRECT,
    ROW_NAMES,
    ArrayField,
    Found,
    LabelFile,
    Wanted,
    first_of,
    split_names,
)

HEAD = 1000
"""Rows at the beginning by which a suggestion is found."""

SCREENED = 20
"""Rows by which columns that sum to one are found."""

LARGEST = 2**28
"""Bytes of a column beyond which it is not looked at."""

MOST_COLUMNS, MOST_TRIES = 2_500, 400
"""Of a table that is looked at, and of sets of options."""

ROUNDING = 0.02
"""How far sums of probabilities may be from one for columns to seem to belong together."""

LABEL_NAME = re.compile(r"(?i)label|class|true|truth|target|actual|gold|outcome|species|obs|event|died|^y$")
SCORE_NAME = re.compile(
    r"(?i)prob|score|conf|risk|pred|logit|likelihood|entropy|perplex|judge|grade|reward|hat|output|margin|^p\d*$"
)
"""What columns of labels, and columns of one score per row, are often called."""

SAID = ("scores", "kind", "labels", "task", "weights", "class_names", "ignore_index")
"""Options that say what a file holds."""

Options = dict[str, Any]
Read = Callable[[Wanted], Found]


def assembled(read: Read, name: str, split: str, wanted: Wanted) -> Predictions:
    """Predictions from the fields that `read` finds; an InputError says which options would do, if any.

    The first values of a file are looked at: it is an error here if they contradict their kind and another one fits.
    """
    made, fields = None, read(wanted)
    try:
        made = assemble(fields, name, split, wanted)
        _look(made)
    except NoRowsError:
        raise
    except InputError as error:
        looked = len(fields) <= MOST_COLUMNS and {split}.issuperset(split_names(fields))
        if looked and (options := _suggested(fields, read, split, wanted)):
            given = {word: getattr(wanted, word) for word in SAID}
            if isinstance(wanted.labels, LabelFile):
                given["labels"] = wanted.labels.name
            given = {word: value for word, value in given.items() if isinstance(value, (str, int, list, dict))}
            raise InputError(error.message, **given | options) from error
        if made is None:
            raise
    return made


def _look(made: Predictions) -> None:
    """Raise where the first values are not what they are said to be."""
    rows = max(2, min(HEAD, 2**20 // made.source.shape[1]))
    for _ in made.blocks(rows, check=not made._checked, most=rows):
        pass


def _suggested(fields: Found, read: Read, split: str, wanted: Wanted) -> Options:
    """The first options, of those that the columns suggest, with which everything can be read."""
    for kind in (*KINDS, PERCENT):  # arrays without names are called by their kind
        asked = replace(wanted, kind=kind)
        if (again := read(asked)).keys() != fields.keys() and _works(again, split, asked):
            return {"kind": kind}
    few = copy(fields)
    few.clear()
    for key, field in fields.items():
        with suppress(InputError):
            if field.nbytes <= LARGEST and len(field.shape) in (1, 2) and field.shape[0]:
                few[key] = ArrayField(field.read()[:HEAD])
                few[key].names = field.names
    for options in islice(_candidates(few, split, wanted), MOST_TRIES):
        asked = replace(wanted, **options)
        if isinstance(wanted.labels, LabelFile) and "labels" in options:
            asked = replace(asked, labels=wanted.labels._replace(column=options["labels"].rpartition("#")[2]))
        for coded in ({}, {"class_names": _from_one(few, split, asked)}):
            told = replace(asked, **coded)
            if _works(few, split, told) and _works(read(asked), split, told):
                return options | coded
    if wanted.require_labels and wanted.labels is None and not _labels_known(fields, split, wanted):
        # what else is missing, beside the labels
        free = replace(wanted, require_labels=False)
        more = _suggested(fields, read, split, free)
        if more or _works(fields, split, free):
            return more | {"labels": "LABELS.csv"}
    return {}


def _works(fields: Found, split: str, wanted: Wanted) -> bool:
    with suppress(InputError):
        _look(assemble(fields, "", split, wanted))
        return True
    return False


def _from_one(fields: Found, split: str, wanted: Wanted) -> Any:
    """Class names for labels that count from 1: as a list where the columns have none."""
    rows = max((field.shape[0] for field in fields.values()), default=0)
    with suppress(InputError):
        made = assemble(fields, "", split, replace(wanted, labels=np.zeros(rows, np.int64)))
        numbers = [str(place + 1) for place in range(made.n_classes)]
        if made.task == "multiclass":
            return numbers if made.class_names is None else dict(zip(numbers, made.class_names, strict=True))
    return wanted.class_names


def _candidates(fields: Found, split: str, wanted: Wanted) -> Iterator[Options]:
    """Sets of options to try, those that change least first; what the names say is not doubted, only its kind."""
    labels = _labels(fields, split, wanted)
    scores: list[Any] = [None]
    if not list(_kinds(fields, split, wanted)):
        known = wanted.labels if isinstance(wanted.labels, str) else first_of(ANY_LABELS, fields)
        scores += _scores(fields, known or next(iter(labels), None))
    for some in scores:
        kinds = _kinds(fields, split, replace(wanted, scores=some or wanted.scores))
        for label, task, kind in product((None, *labels), (None, "multiclass", "pairs", "binary"), (None, *kinds)):
            options = {"scores": some, "kind": kind, "labels": label, "task": task}
            yield {word: value for word, value in options.items() if value is not None}


def _kinds(fields: Found, split: str, wanted: Wanted) -> Iterator[str]:
    """Kinds that name scores in the file, and that their values suggest."""
    for kind in ("probabilities", PERCENT, "logits"):
        with suppress(InputError):
            chosen = choose(fields, "", f"{split}_" if split else "", replace(wanted, kind=kind))[2]
            columns = [fields[word].read() for word in chosen.columns or [chosen.key]]
            columns = [column for column in columns if column.dtype.kind in "fiub"]
            if columns and _kind(columns) == kind:
                yield kind


def _labels(fields: Found, split: str, wanted: Wanted) -> list[str]:
    """Columns that may hold the labels, where names do not tell: first those called like labels."""
    if isinstance(wanted.labels, LabelFile):
        address = wanted.labels.name.rpartition("#")[0] or wanted.labels.name
        return [f"{address}#{word}" for word in wanted.labels.fields]
    if _labels_known(fields, split, wanted):
        return []
    columns = {word: field.read() for word, field in fields.items() if len(field.shape) == 1}
    whole = [word for word, head in columns.items() if head.dtype.kind != "f" or not (head % 1).any()]
    whole = [word for word in whole if word.lower() not in ROW_NAMES]
    return sorted(whole, key=lambda word: not LABEL_NAME.search(word))[:8]


def _labels_known(fields: Found, split: str, wanted: Wanted) -> bool:
    """Do names, or the caller, tell where the labels are?"""
    with suppress(InputError):
        usual = CORRECT in fields or label_key(fields, split) is not None
        return wanted.labels in fields if isinstance(wanted.labels, str) else wanted.labels is not None or usual
    return False


def _scores(fields: Found, label: Any) -> Iterator[str | list[str]]:
    """Arrays and columns that may hold the scores."""
    numbers = {word: field.read() for word, field in fields.items() if field.dtype.kind in "fiu"}
    yield from (word for word, head in numbers.items() if head.ndim == 2)
    other = (*ROW_NAMES, *ANY_LABELS, label)
    rows = (max(map(len, numbers.values()), default=0),)
    names = [word for word, head in numbers.items() if head.shape == rows and {word, word.lower()}.isdisjoint(other)]
    if not names:
        return
    screened = np.column_stack([numbers[word][:SCREENED] for word in names])
    for first in range(len(names)):
        sums = np.cumsum(screened[:, first:], axis=1)[:, 1:, None]
        off = np.abs(sums / (1, 100) - 1).max(axis=0).min(axis=-1)
        yield from (names[first : first + 2 + more] for more in np.flatnonzero(off <= ROUNDING)[::-1])
    values = {class_key(value) for value in fields[label].read().astype(str).tolist()} if label in fields else ()
    stems = defaultdict(list)
    for word in names:
        stems[word.rstrip("0123456789")].append(word)
    named = [word for word in names if class_key(word) in values]
    yield from (some for some in (*stems.values(), named) if len(some) > 1)
    yield from sorted(filter(SCORE_NAME.search, names), key=lambda word: _kind([numbers[word]]) == "logits")


def _kind(columns: list[Array]) -> str:
    """The kind that the values of columns suggest."""
    values = np.nan_to_num(np.column_stack(columns).astype(np.float64), nan=-1, posinf=-1, neginf=-1)
    sums = values.sum(axis=1)
    for kind, whole, above in (("probabilities", 1, -1), (PERCENT, 100, 20)):
        single = above < sums.max() <= whole
        fits = single if values.shape[1] == 1 else np.abs(sums / whole - 1).max() <= ROUNDING
        if fits and values.min() >= 0:
            return kind
    return "logits"
