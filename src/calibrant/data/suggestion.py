"""What to say where predictions cannot be read: the whole set of options with which they can, made from what they show.

Meaning is never taken from values alone. A suggestion may look at them, since it is the caller who says it then. Every
set of options is tried before it is suggested.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
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
    CORRECT,
    LABELS,
    OTHER_LABELS,
    ROW_NAMES,
    ArrayField,
    Field,
    Fields,
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
Read = Callable[[Wanted], Mapping[str, Field]]
Heads = Mapping[str, Array]


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
        parts = [part for part in split_names(fields) if part != split]
        looked = len(fields) <= MOST_COLUMNS and not parts
        options = _suggested(fields, read, split, wanted) if looked else {}
        unlabelled = wanted.require_labels and wanted.labels is None and not _labels_known(fields, split, wanted)
        if looked and unlabelled and not options:
            # what else is missing, beside the labels
            free = replace(wanted, require_labels=False)
            more = _suggested(fields, read, split, free)
            options = more | {"labels": "LABELS.csv"} if more or _works(fields, split, free) else {}
        if options:
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


def _suggested(fields: Mapping[str, Field], read: Read, split: str, wanted: Wanted) -> Options:
    """The first options, of those that the columns suggest, with which everything can be read."""
    for kind in (*KINDS, PERCENT):  # arrays without names are called by their kind
        asked = replace(wanted, kind=kind)
        if (again := read(asked)).keys() != fields.keys() and _works(again, split, asked):
            return {"kind": kind}
    small = Fields()
    for key, field in fields.items():
        with suppress(InputError):
            if field.nbytes <= LARGEST and len(field.shape) in (1, 2) and field.shape[0]:
                small[key] = ArrayField(field.read()[:HEAD])
                small[key].names = field.names
    few = dict(small)
    if isinstance(fields, Fields):
        small.twice = fields.twice
        few = small
    heads = {key: field.read() for key, field in few.items()}
    for options in islice(_candidates(heads, few, split, wanted), MOST_TRIES):
        asked = replace(wanted, **options)
        if isinstance(wanted.labels, LabelFile) and "labels" in options:
            asked = replace(asked, labels=wanted.labels._replace(column=options["labels"].rpartition("#")[2]))
        for coded in ({}, {"class_names": _from_one(few, split, asked)}):
            if _works(few, split, replace(asked, **coded)) and _works(read(asked), split, replace(asked, **coded)):
                return options | coded
    return {}


def _works(fields: Mapping[str, Field], split: str, wanted: Wanted) -> bool:
    with suppress(InputError):
        _look(assemble(fields, "", split, wanted))
        return True
    return False


def _from_one(fields: Mapping[str, Field], split: str, wanted: Wanted) -> Any:
    """Class names for labels that count from 1: as a list where the columns have none."""
    rows = max((field.shape[0] for field in fields.values()), default=0)
    with suppress(InputError):
        made = assemble(fields, "", split, replace(wanted, labels=np.zeros(rows, np.int64)))
        numbers = [str(place + 1) for place in range(made.n_classes)]
        if made.task == "multiclass":
            return numbers if made.class_names is None else dict(zip(numbers, made.class_names, strict=True))
    return wanted.class_names


def _candidates(heads: Heads, fields: Mapping[str, Field], split: str, wanted: Wanted) -> Iterator[Options]:
    """Sets of options to try, those that change least first; what the names say is not doubted, only its kind."""
    labels = list(_label_options(heads, split, wanted))
    known = wanted.labels if isinstance(wanted.labels, str) else first_of((*LABELS, *OTHER_LABELS), heads)
    scores: list[Options] = [{}]
    if not list(_kinds(heads, fields, split, wanted)):
        scores += _score_options(heads, known or next((one["labels"] for one in labels[1:]), None))
    for some in scores:
        kinds = [{"kind": kind} for kind in _kinds(heads, fields, split, replace(wanted, **some))]
        tasks = [{"task": task} for task in ("multiclass", "pairs", "binary")]
        yield from (some | kind | one | task for one, task, kind in product(labels, [{}, *tasks], [{}, *kinds]))


def _kinds(heads: Heads, fields: Mapping[str, Field], split: str, wanted: Wanted) -> Iterator[str]:
    """Kinds that name scores in the file, and that their values suggest."""
    for kind in ("probabilities", PERCENT, "logits"):
        with suppress(InputError):
            chosen = choose(fields, "", f"{split}_" if split else "", replace(wanted, kind=kind))[2]
            columns = [heads[word] for word in chosen.columns or [chosen.key] if heads[word].dtype.kind in "fiub"]
            if columns and _kind(columns) == kind:
                yield kind


def _label_options(heads: Heads, split: str, wanted: Wanted) -> Iterator[Options]:
    """Nothing, then columns that may hold the labels, where names do not tell: first those called like labels."""
    yield {}
    if isinstance(wanted.labels, LabelFile):
        address = wanted.labels.name.rpartition("#")[0] or wanted.labels.name
        yield from ({"labels": f"{address}#{word}"} for word in wanted.labels.fields)
    elif not _labels_known(heads, split, wanted):
        columns = [word for word, head in heads.items() if head.ndim == 1 and word.lower() not in ROW_NAMES]
        columns = [word for word in columns if heads[word].dtype.kind != "f" or not (heads[word] % 1).any()]
        yield from ({"labels": word} for word in sorted(columns, key=lambda word: not LABEL_NAME.search(word))[:8])


def _labels_known(fields: Mapping[str, Any], split: str, wanted: Wanted) -> bool:
    """Do names, or the caller, tell where the labels are?"""
    with suppress(InputError):
        usual = CORRECT in fields or label_key(fields, split) is not None
        return wanted.labels in fields if isinstance(wanted.labels, str) else wanted.labels is not None or usual
    return False


def _score_options(heads: Heads, label: str | None) -> Iterator[Options]:
    """Arrays and columns that may hold the scores."""
    yield from ({"scores": word} for word, head in heads.items() if head.ndim == 2 and head.dtype.kind in "fiu")
    other = (*ROW_NAMES, *LABELS, *OTHER_LABELS, label)
    numbers = [word for word, head in heads.items() if head.ndim == 1 and head.dtype.kind in "fiu"]
    numbers = [word for word in numbers if word not in other and word.lower() not in other]
    if not numbers:
        return
    sums = np.cumsum(
        np.column_stack([heads[numbers[0]][:SCREENED] * 0, *(heads[word][:SCREENED] for word in numbers)]), axis=1
    )
    for first in range(len(numbers)):
        off = np.abs((sums[:, first + 2 :] - sums[:, [first]])[:, :, None] / (1, 100) - 1).max(axis=0).min(axis=-1)
        yield from ({"scores": numbers[first : first + 2 + more]} for more in np.flatnonzero(off <= ROUNDING)[::-1])
    stems = dict.fromkeys(word.rstrip("0123456789") for word in numbers)
    sets = [[word for word in numbers if word.rstrip("0123456789") == stem] for stem in stems]
    if label is not None and label in heads:
        values = {class_key(value) for value in heads[label].astype(str).tolist()}
        sets.append([word for word in numbers if class_key(word) in values])
    yield from ({"scores": some} for some in sets if len(some) > 1)
    singles = sorted(numbers, key=lambda word: _kind([heads[word]]) == "logits")
    yield from ({"scores": word} for word in singles if SCORE_NAME.search(word))


def _kind(columns: list[Array]) -> str:
    """The kind that the values of columns suggest."""
    values = np.nan_to_num(np.column_stack(columns).astype(np.float64), nan=-1, posinf=-1, neginf=-1)
    sums = values.sum(axis=1)
    if values.shape[1] == 1:
        fits = {"probabilities": sums.max() <= 1, PERCENT: 20 < sums.max() <= 100}
    else:
        fits = {
            kind: np.abs(sums / whole - 1).max() <= ROUNDING for kind, whole in (("probabilities", 1), (PERCENT, 100))
        }
    return next((kind for kind, fit in fits.items() if fit and values.min() >= 0), "logits")
