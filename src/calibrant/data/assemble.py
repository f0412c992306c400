"""From the named arrays of a file or frame to `Predictions`: which is what, by one set of names for all formats.

In a table, columns that stand side by side for one matrix are joined: those of the scores, of several labels, and of
the shares of annotators.

Where predictions cannot be read, the error says the whole set of options with which they can, made from what they show.
Meaning is never taken from values alone. A suggestion may look at them, since it is the caller who says it then. Every
set of options is tried before it is suggested.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from itertools import accumulate, islice, product
from typing import Any, NamedTuple

import numpy as np

from calibrant.core.arrays import Array, as_array
from calibrant.core.errors import InputError, NoRowsError
from calibrant.core.schema import KINDS, MISSING, OUTCOMES, PERCENT, class_key, identifier, number_order
from calibrant.data.predictions import Predictions, join
from calibrant.data.source import (
    ANSWER,
    ANY_LABELS,
    CLASS_NAMES,
    CLUSTERS,
    CONFIDENCE,
    CORRECT,
    GROUPS,
    KNOWN,
    LABEL_PREFIXES,
    LABEL_SHARES,
    LABELS,
    MARKS,
    MARKS_BEHIND,
    MAX_TEXT_BYTES,
    OTHER_LABELS,
    PARTNERS,
    PREDICTED,
    PREDICTIONS,
    ROW_NAMES,
    SCORES,
    SHARE_PREFIXES,
    WEIGHTS,
    ArrayField,
    BrokenField,
    Field,
    Fields,
    Found,
    LabelFile,
    TakenSource,
    Wanted,
    class_of,
    first_of,
    picked,
    score_kind,
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


def assemble(fields: Found, name: str, split: str, wanted: Wanted) -> Predictions:
    """Check the arrays that belong together and join them; `wanted` names them, or replaces those of the file."""
    called, prefix, kind = name or "the table", f"{split}_" if split else "", wanted.kind
    fields, wanted, chosen = choose(fields, called, prefix, wanted)
    order = number_order(chosen.classes)
    if order:  # columns that numbers name stand in the order of the numbers
        chosen = chosen._replace(
            columns=[chosen.columns[place] for place in order], classes=list(map(str, range(len(order))))
        )
    fields = _arranged(fields, chosen, wanted, called) if isinstance(fields, Fields) else fields
    percent = kind == PERCENT and not fields[chosen.key].percent
    scores, task = fields[chosen.key], wanted.task or chosen.task or _task(fields, chosen.key, split, wanted)

    def find(given: Any, option: str, usual: Iterable[str] = ()) -> Any:
        """An array as given, or the name of the one that the caller names, or that has a usual name."""
        if given is not None and not isinstance(given, str):
            return given
        key = first_of((prefix + word for word in usual) if given is None else (prefix + given, given), fields)
        if given is not None and key is None:
            raise InputError(f"{called} has no {prefix}{given} for the {option}, only {listing(fields)}")
        return key

    labels = find(wanted.labels, "labels", [CORRECT] * (task == "pairs"))
    if labels is None and chosen.task != "pairs":
        labels = label_key(fields, split)
    labels = None if wanted.require_labels is None else labels
    shares = find(None, "", [LABEL_SHARES] if labels is None else ())
    if labels is None and shares is None and wanted.require_labels:
        missing = prefix + CORRECT if task == "pairs" else f"{prefix}labels"
        raise InputError(
            f"{called} has no {missing}, only {listing(fields)}: add them, or give labels= a column or a file of labels"
        )
    keys = {
        "labels": labels,
        "label_shares": shares,
        "weights": find(wanted.weights, "weights", WEIGHTS),
        "clusters": find(wanted.cluster, "clusters", CLUSTERS),
    }
    groups = {word: find(word, "groups") for word in wanted.by}
    group = find(None, "", GROUPS)
    if group not in (None, *groups.values()):
        groups["group"] = group
    words = {word: key for word, key in {"scores": chosen.key, **keys}.items() if isinstance(key, str)}
    for key in (*words.values(), *groups.values()):  # read only after the length is known to fit
        if fields[key].shape[:1] != scores.shape[:1]:
            rows = [(*fields[one].shape, 1)[0] for one in (key, chosen.key)]
            raise InputError(f"{called}: {key} has {rows[0]} rows, but {chosen.key} has {rows[1]}")
    own = {word: fields[key].read() if word in words else key for word, key in keys.items()}
    if "weights" in words and own["weights"].shape[1:] == (1,):
        own["weights"] = own["weights"][:, 0]
    naming = first_of((prefix + CLASS_NAMES, CLASS_NAMES), fields)
    known = scores.names if naming is None else _class_names(fields[naming], f"{called}: {naming}")
    own["labels"], class_names = _named(own["labels"], wanted.class_names, known)
    found = join(
        scores,
        own,
        {word: fields[key].read() for word, key in groups.items()},
        PERCENT if percent else chosen.kind,
        task,
        name,
        words,
        class_names=class_names,
        ignore_index=wanted.ignore_index,
        guard=wanted.guard,
    )
    if found.flat and wanted.scores is None and len(chosen.columns) == 1:
        _refuse_negative(chosen.classes[0], wanted, called)
    found.extras = _extras(fields, split, {naming, *words.values(), *groups.values()}, scores.shape[0])
    if wanted.ignore_index is not None and labels is not None:
        found.extras = {
            word: TakenSource(one, np.flatnonzero(own["labels"] != wanted.ignore_index))
            for word, one in found.extras.items()
        }
    if isinstance(fields, Fields):
        found.notes = fields.notes
        if not percent:  # a column that is written back would hold fractions
            found.score_columns = tuple(chosen.columns or (chosen.key,))
    if task == "pairs" and chosen.kind == "logits" and score_kind(chosen.key) is None:
        found.notes += (f"{chosen.key} is read as a logit: if it is not one, only figures after calibration count",)
    return found


def _extras(fields: Found, split: str, used: set[str | None], n_rows: int) -> Found:
    """What else of this part has an entry per row."""
    prefix = f"{split}_" if split else ""
    others = tuple(f"{other}_" for other in split_names(fields) if other not in ("", split))
    return {
        key[len(prefix) :]: field
        for key, field in fields.items()
        if key.startswith(prefix) and not key.startswith(others) and key not in used
        if not isinstance(field, BrokenField) and field.shape[:1] == (n_rows,)
    }


def _refuse_negative(name: str, wanted: Wanted, called: str) -> None:
    """Raise where the class that the one column of scores names is the negative one."""
    negative = [word for word, outcome in OUTCOMES.items() if outcome == 0] + list(wanted.class_names or ())[:1]
    if first_of((name, class_key(name).lower()), negative) is not None:
        raise InputError(
            f"{called} has the scores of {name} alone, the negative class: give those of the other one, or name them "
            "with scores= if they are those of the positive class"
        )


def _class_names(field: Field, called: str) -> list[str]:
    """The names of the classes, from an array of texts."""
    if field.dtype.kind not in "US" or len(field.shape) != 1:
        raise InputError(f"{called} must be a list of texts, got dtype {field.dtype} of shape {field.shape}")
    if field.nbytes > MAX_TEXT_BYTES:
        raise InputError(f"{called} takes {field.nbytes} bytes, but at most {MAX_TEXT_BYTES} are read")
    try:
        names = field.read()
        return (np.char.decode(names, "utf-8") if names.dtype.kind == "S" else names).tolist()
    except UnicodeDecodeError as error:
        raise InputError(f"{called} is not UTF-8 text: {error}") from error


def _task(fields: Found, key: str, split: str, wanted: Wanted) -> str | None:
    """The task of one score per row, as far as names tell it; that of a matrix follows from its shape."""
    if len(fields[key].shape) < 2:
        if ANSWER in fields:
            raise InputError(
                f'say task="pairs" if {key} is the confidence in the label beside it, which is right where it '
                'equals the true one, or task="binary" if it is the score of the positive class'
            )
        if f"{split}_{CORRECT}".lstrip("_") in fields and _verdicts(wanted) and label_key(fields, split) is None:
            return "pairs"
    return None


def _verdicts(wanted: Wanted) -> bool:
    """May the labels be whether answers are correct?"""
    return isinstance(wanted.labels, str | None) and wanted.labels in (None, CORRECT)


class _Choice(NamedTuple):
    """The array of the scores, its kind, the task as far as names tell it; and its columns in a table, by class."""

    key: str
    kind: str
    task: str | None = None
    columns: Sequence[str] = ()
    classes: Sequence[str] = ()


def choose(fields: Found, name: str, prefix: str, wanted: Wanted) -> tuple[Found, Wanted, _Choice]:
    """Which array or columns hold the scores; and the fields with labels of another file and what is correct."""
    if wanted.kind == PERCENT:
        wanted = replace(wanted, kind="probabilities")
    if isinstance(wanted.labels, LabelFile):
        fields = _with_labels(fields, prefix, wanted.labels, name)
        wanted = replace(wanted, labels=None)
    if isinstance(fields, Fields):
        fields, wanted = _with_correct(fields, wanted)
    return fields, wanted, _choose(fields, name, prefix, wanted)


def _choose(fields: Found, name: str, prefix: str, wanted: Wanted) -> _Choice:
    if wanted.scores is not None:
        return _named_scores(fields, name, prefix, wanted)
    found = {word: _Choice(prefix + word, kind) for word, kind in SCORES.items() if prefix + word in fields}
    for choice in _marked(fields, MARKS).values():
        found[choice.columns[0].replace(choice.classes[0], "*")] = choice
    kinds = {choice.kind for choice in found.values()}
    if wanted.kind is None and len(kinds) == 2:
        raise InputError(f"{name} has both {prefix}logits and {prefix}probabilities: choose one with kind=")
    choices = {word: choice for word, choice in found.items() if wanted.kind in (None, choice.kind)}
    word = first_of((*KINDS, *choices), choices)
    if len(choices) > 1 and (word not in KINDS or any("*" in one for one in choices)):
        raise InputError(f"{name} has {', '.join(choices)}: choose one with scores=")
    return choices[word] if choices else _unmarked(fields, name, prefix, wanted, named=bool(kinds))


def _unmarked(fields: Found, name: str, prefix: str, wanted: Wanted, *, named: bool) -> _Choice:
    """Scores whose names do not say their kind; `named`: there are others that say another kind."""
    split = prefix[:-1]
    paired = [word for word, labels in PARTNERS.items() if {prefix + word, prefix + labels} <= fields.keys()]
    if CONFIDENCE in paired and wanted.kind != "logits":
        return _Choice(prefix + CONFIDENCE, "probabilities", "pairs")
    if PREDICTIONS in paired:
        return _Choice(prefix + PREDICTIONS, wanted.kind or "logits")
    behind = _marked(fields, [MARKS_BEHIND])
    kind = wanted.kind or "probabilities"
    if not named and behind.keys() == {kind} and len(behind[kind].columns) > 1:
        return behind[kind]
    if split in fields:  # a matrix under a bare name, such as shift_noise_3: the caller must say what it holds
        if wanted.kind is None:
            raise InputError(f'{name}: {split} does not say what it holds: give kind="logits" or kind="probabilities"')
        return _Choice(split, wanted.kind)
    splits = [word for word in split_names(fields) if word and word != split]
    if isinstance(fields, Fields) and wanted.kind and not named and not splits:
        return _named_by_labels(fields, name, wanted)
    missing = f"{prefix}{wanted.kind}" if wanted.kind else f"{prefix}logits or {prefix}probabilities"
    remedy = "name them with scores=, and say their kind="
    if splits:
        remedy = f"pick a part with {name.partition('#')[0]}#{splits[0]}"
        remedy += f" (parts: {', '.join(splits)})" if len(splits) > 1 else ""
    raise InputError(f"{name} has no {missing}, only {listing(fields)}: {remedy}")


def _named_scores(fields: Found, name: str, prefix: str, wanted: Wanted) -> _Choice:
    """The array or the columns that the caller names."""
    given = wanted.scores
    word = given if isinstance(given, str) else ",".join(map(str, given))
    key = first_of((prefix + word, word), fields) if isinstance(given, str) else None
    columns = picked(list(fields), given, "scores", name) if key is None and isinstance(fields, Fields) else []
    if key is None and not columns:
        raise InputError(f"{name} has no {prefix}{word} for the scores, only {listing(fields)}")
    kind = wanted.kind or score_kind(word)
    if kind is None:
        raise InputError(
            f'{name}: {word} does not say what it holds: give kind="logits", kind="probabilities" or kind="percent"'
        )
    pairs = word == CONFIDENCE and prefix + CORRECT in fields and _verdicts(wanted)
    return _Choice(key or word, kind, "pairs" if pairs else None, columns, _endings(columns, word))


def _named_by_labels(found: Found, called: str, wanted: Wanted) -> _Choice:
    """With `kind` alone: the columns of numbers, if the labels name every one of them.

    A column that no label names may as well be an age or a loss: it is not a class unless the caller says so.
    """
    rest = [name for name in found if name not in wanted.columns and name.lower() not in ROW_NAMES]
    rest = [name for name in rest if len(found[name].shape) == 1 and found[name].read().dtype.kind in "fiu"]
    words = (str(wanted.labels), *ANY_LABELS)
    label = next((found[word].read() for word in words if word in found), np.empty(0))
    labelled = {class_key(value) for value in np.unique(label.astype(str)).tolist()}
    strange = [name for name in rest if class_key(name) not in labelled]
    if strange or len(rest) < 2:
        raise InputError(
            f"{called} has no columns logit_... or probability_..., and no label names "
            f"{', '.join(strange)[:100] or 'a column'}: choose the scores among {', '.join(found)[:200]}"
        )
    return _Choice(str(wanted.kind), str(wanted.kind), None, rest, rest)


def _endings(columns: list[str], text: str) -> list[str]:
    """What distinguishes the columns: the part that `*` stands for, or the names without a known prefix."""
    head, star, tail = text.partition("*")
    if star and "," not in text:
        return [column[len(head) : len(column) - len(tail)] for column in columns]
    marks = [class_of(column, [*MARKS, MARKS_BEHIND]) for column in columns]
    return [mark[1] for mark in marks if mark] if all(marks) else columns


def _marked(fields: Found, marks: Iterable[Any]) -> dict[str, _Choice]:
    """The columns of a table whose names say a class, by the kind that they say."""
    found: dict[str, dict[str, str]] = {}
    for column in fields if isinstance(fields, Fields) else ():
        if column not in KNOWN and (mark := class_of(column, marks)):
            found.setdefault(mark[0], {})[column] = mark[1]
    return {kind: _Choice(kind, kind, None, list(words), list(words.values())) for kind, words in found.items()}


def _arranged(found: Fields, chosen: _Choice, wanted: Wanted, called: str) -> Fields:
    """The fields of a table with those columns joined that stand side by side for one matrix."""
    matrices = {chosen.key: chosen.columns} if chosen.columns else {}
    keys = [class_key(word) for word in chosen.classes]
    labels = wanted.labels
    if isinstance(labels, str) and labels not in found:
        named = picked(list(found), labels, "labels", called)
        matrices[labels] = _by_class(dict(zip(_endings(named, labels), named, strict=True)), keys) or named
    parts: dict[str, Sequence[str]] = {LABEL_SHARES: SHARE_PREFIXES}
    if labels is None and len(keys) > 1 and first_of(LABELS, found) is None:
        parts["labels"] = LABEL_PREFIXES
    for key, prefixes in parts.items():
        ends = {name[len(one) :]: name for name in found for one in prefixes if name.lower().startswith(one)}
        if whole := _by_class(ends, keys):
            matrices[key] = whole
    members = [column for group in matrices.values() for column in group]
    for name in wanted.columns.union(members, [chosen.key]).intersection(found.twice):
        raise InputError(f"{called} has two columns called {name!r}: rename one of them")
    joined = {key: found[first].beside([found[one] for one in rest], key) for key, (first, *rest) in matrices.items()}
    if not chosen.columns:
        joined[chosen.key] = found[chosen.key].numeric()
    made = Fields({name: field for name, field in found.items() if name not in members} | joined)
    made.notes = found.notes
    if len(keys) > 1 and number_order(keys) is None and CLASS_NAMES not in made:
        made[CLASS_NAMES] = ArrayField(np.array(chosen.classes))
    return made


def _by_class(columns: Mapping[str, str], keys: list[str]) -> list[str]:
    """Columns by what their names end on, in the order of the classes; nothing unless there is one for each class."""
    places = {class_key(ending): column for ending, column in columns.items()}
    return [places[key] for key in keys] if set(places) == set(keys) else []


def _with_correct(found: Fields, wanted: Wanted) -> tuple[Fields, Wanted]:
    """Where a table gives a confidence, the answer and the true label: an answer is correct if it is the label."""
    predicted = first_of((ANSWER, *(word for word in PREDICTED if word != wanted.scores)), found)
    label = first_of((wanted.labels, *ANY_LABELS), found) if isinstance(wanted.labels, str | None) else None
    asked = wanted.task == "pairs" or (CONFIDENCE in found and wanted.task is None)
    if not asked or CORRECT in found or predicted is None or label is None:
        return found, wanted
    if found[predicted].shape != found[label].shape:
        raise InputError(f"{predicted} has shape {found[predicted].shape}, but {label} {found[label].shape}")
    answers, truth = (found[word].read().tolist() for word in (predicted, label))
    for row, value in enumerate(truth):
        if identifier(value) == MISSING != str(value):
            raise InputError(f"{label} is missing in row {row}: give every row a label, or leave the row out")
    same = [class_key(one) == class_key(other) for one, other in zip(answers, truth, strict=True)]
    made = copy(found)
    del made[label]
    made[CORRECT] = ArrayField(np.array(same))
    spelling = "" if any(same) else ": in no row; are they spelled alike?"
    made.notes += (f"correct is where {predicted} equals {label}{spelling}",)
    return made, replace(wanted, labels=None)


def _with_labels(fields: Found, prefix: str, file: LabelFile, called: str) -> Found:
    """The fields of a file with the labels of another one, joined by the identifiers that both hold, or in order.

    The key is a column of both whose values differ in every row of the labels. Without one the rows must stand in the
    same order, which other columns that both hold must confirm. Labels of the file itself are answers that it gives.
    """
    theirs, answered = file.fields, first_of(ANY_LABELS, fields)
    single = file.column or label_key(theirs, "") or (next(iter(theirs)) if len(theirs) == 1 else None)
    lowered = {word.lower(): word for word in fields if word != answered}
    shared = {word: lowered[word.lower()] for word in theirs if word != single and word.lower() in lowered}
    ids = {word: _identifiers(theirs[word]) for word in shared}
    key = next((word for word in shared if len(set(ids[word])) == len(ids[word])), None)
    order: Any = slice(None)
    if key is None:
        for word, mine in shared.items():
            if theirs[word].dtype.kind in "USOiu" and _identifiers(fields[mine]) != ids[word]:
                raise InputError(
                    f"{file.name} and {called} differ in {word}, and no column of both tells their rows apart"
                )
    else:
        places = {value: place for place, value in enumerate(ids[key])}
        own = _identifiers(fields[shared[key]])
        for row, value in enumerate(own):
            if value not in places:
                raise InputError(f"{file.name} has no row with {key} {value[:40]!r}, which is row {row} of {called}")
        order = [places[value] for value in own]
    rest = [word for word in theirs if word not in shared and word.lower() not in ROW_NAMES]
    if single is None and len(rest) == 1:
        single = rest[0]
    if single is not None and single not in theirs:
        raise InputError(f"{file.name} has no column {single}, only {listing(theirs)}")
    columns = {"labels": single} if single else {f"label_{word}": word for word in theirs if word != key}
    rows = {field.shape[0] for field in fields.values() if field.shape}
    made = copy(fields)
    if answered:
        made[ANSWER] = made.pop(answered)
    for word, column in columns.items():
        made[prefix + word] = ArrayField(theirs[column].read()[order])
    if len(theirs) == 1 and single and theirs[single].shape[0] not in rows and theirs[single].shape[0] + 1 in rows:
        # a list of labels without a header: its first line is one of them
        made[prefix + "labels"] = ArrayField(np.array([single, *theirs[single].read().astype(str).tolist()]))
    if isinstance(made, Fields):
        made.notes += (f"labels of {file.name} are joined {f'by {key}' if key else 'in the order of rows'}",)
    return made


def _identifiers(field: Field) -> list[str]:
    return [identifier(value) for value in field.read().tolist()]


def _named(labels: Any, names: Any, known: Sequence[str] | None) -> tuple[Any, Sequence[str] | None]:
    """Labels, and the names of the columns in order; a mapping gives a name to what labels say."""
    if not isinstance(names, Mapping):
        return labels, known if names is None else names
    codes = {class_key(code): str(name) for code, name in names.items()}
    if labels is not None:
        given = as_array(labels, "labels")
        if given.ndim != 1:
            raise InputError(f"class_names= gives names to labels, but these have shape {given.shape}: give a list")
        labels = np.array([codes.get(class_key(value), value) for value in given.astype(str).tolist()])
    return labels, list(known if known is not None and set(known) == set(codes.values()) else codes.values())


def label_key(fields: Found, split: str) -> str | None:
    """`val_labels` for `val`; for `shift_noise_3` also `shift_noise_labels` and `shift_labels`."""
    # labels without the prefix belong to the arrays without it
    families = list(accumulate(f"{word}_" for word in split.split("_")))[::-1] if split else [""]
    choices = [[family + word for word in LABELS] for family in families]
    for keys in (*choices, [families[0] + word for word in OTHER_LABELS]):
        there = [key for key in keys if key in fields]
        if len(there) > 1:
            raise InputError(f"{' and '.join(there)} may both be the labels: choose one with labels=")
        if there:
            return there[0]
    return None


def listing(fields: Mapping[str, Any]) -> str:
    """The names of the arrays, for error messages."""
    keys = sorted(fields)
    return (", ".join(keys[:12]) or "nothing") + (f" and {len(keys) - 12} more" if len(keys) > 12 else "")


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
    few = type(fields)()
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
