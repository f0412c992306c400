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

from calibrant.core.errors import InputError, NoRowsError
from calibrant.core.schema import KINDS, MISSING, OUTCOMES, PERCENT, class_key, identifier, listed, number_order
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


def assemble(fields: Found, wanted: Wanted) -> Predictions:
    """Check the arrays that belong together and join them; `wanted` names them, or replaces those of the file."""
    fields, wanted = _completed(fields, wanted)
    chosen = _choose(fields, wanted)
    notes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    prefix = wanted.prefix
    if isinstance(fields, Fields):
        notes = fields.notes
        fields, columns = _arranged(fields, chosen, wanted)
    scores = fields[chosen.key]
    percent = wanted.kind == PERCENT and not scores.percent
    task = wanted.task or _task(fields, chosen.key, wanted)
    given, groups = _beside(fields, task, wanted)
    own = {word: fields[key].read() if isinstance(key, str) else key for word, key in given.items()}
    naming = first_of((prefix + CLASS_NAMES, CLASS_NAMES), fields)
    names = scores.names if naming is None else _class_names(fields[naming], f"{wanted.called}: {naming}")
    said = wanted.class_names
    if isinstance(said, Mapping):  # labels are matched to what they say, and columns are called what that stands for
        codes = {str(name): str(code) for code, name in said.items()}
        names = list(codes) if names is None or set(names) != set(codes) else names
        said = [codes[name] for name in names]
    elif said is not None:
        names = said
    words = {word: key for word, key in given.items() if isinstance(key, str)}
    found = join(
        scores,
        own,
        {word: fields[key].read() for key, word in groups.items()},
        {"scores": chosen.key, **words},
        replace(wanted, kind=PERCENT if percent else chosen.kind, task=task, class_names=said or names),
    ).named(names)
    if found.flat and wanted.scores is None and len(chosen.columns) == 1:
        (name,) = _classes(chosen.columns, chosen.key)
        negative = [word for word, outcome in OUTCOMES.items() if outcome == 0] + list(wanted.class_names or ())[:1]
        if first_of((name, class_key(name).lower()), negative) is not None:
            raise InputError(
                f"{wanted.called} has the scores of {name} alone, the negative class: give those of the other one, or "
                "name them with scores= if they are those of the positive class"
            )
    used = {chosen.key, naming, *words.values(), *groups}
    others = tuple(f"{other}_" for other in split_names(fields) if other not in ("", wanted.split))
    found.extras = {
        key.removeprefix(prefix): field
        for key, field in fields.items()
        if key.startswith(prefix) and not key.startswith(others) and key not in used
        if not isinstance(field, BrokenField) and field.shape[:1] == scores.shape[:1]
    }
    if wanted.ignore_index is not None and own["labels"] is not None:
        labels = np.asarray(own["labels"])
        kept = np.flatnonzero(labels != wanted.ignore_index)
        # of places in images nothing else has an entry per row
        found.extras = {word: TakenSource(one, kept) for word, one in found.extras.items() if labels.ndim == 1}
    found.notes = notes
    if not percent:  # a column that is written back would hold fractions
        found.score_columns = columns
    if task == "pairs" and chosen.kind == "logits" and score_kind(chosen.key) is None:
        found.notes += (f"{chosen.key} is read as a logit: if it is not one, only figures after calibration count",)
    return found


def _beside(fields: Found, task: str | None, wanted: Wanted) -> tuple[dict[str, Any], dict[str, str]]:
    """Names of the arrays, or arrays that the caller gives, of labels, shares, weights and clusters; and of groups."""
    prefix = wanted.prefix

    def find(option: str, given: Any, *usual: str) -> Any:
        if given is None:
            return first_of((prefix + word for word in usual), fields)
        key = first_of((prefix + given, given), fields) if isinstance(given, str) else given
        if key is None:
            raise InputError(f"{wanted.called} has no {prefix}{given} for the {option}, only {listing(fields)}")
        return key

    labels = shares = None
    if wanted.require_labels is not None:
        labels = find("labels", wanted.labels, *[CORRECT] * (task == "pairs"))
        labels = label_key(fields, wanted.split) if labels is None else labels
        shares = find("labels", None, LABEL_SHARES) if labels is None else None
    if labels is None and shares is None and wanted.require_labels:
        raise InputError(
            f"{wanted.called} has no {prefix}{CORRECT if task == 'pairs' else 'labels'}, only {listing(fields)}: add "
            "them, or give labels= a column or a file of labels"
        )
    groups = {find("groups", word): word for word in wanted.by}
    groups.setdefault(find("groups", None, *GROUPS), "group")
    groups.pop(None, None)
    weights, clusters = find("weights", wanted.weights, *WEIGHTS), find("clusters", wanted.cluster, *CLUSTERS)
    return {"labels": labels, "label_shares": shares, "weights": weights, "clusters": clusters}, groups


def _class_names(field: Field, called: str) -> list[str]:
    """The names of the classes, from an array of texts."""
    if field.dtype.kind not in "US" or len(field.shape) != 1:
        raise InputError(f"{called} must be a list of texts, got dtype {field.dtype} of shape {field.shape}")
    names = field.read()
    return (np.char.decode(names, "utf-8", "replace") if names.dtype.kind == "S" else names).tolist()


def _task(fields: Found, key: str, wanted: Wanted) -> str | None:
    """The task of one score per row, as far as names tell it; that of a matrix follows from its shape."""
    if len(fields[key].shape) > 1:
        return None
    confidence = key == wanted.prefix + CONFIDENCE
    if wanted.prefix + CORRECT in fields:
        # labels that are an array, or those of another column, are no verdicts
        verdicts = isinstance(wanted.labels, str | None) and wanted.labels in (None, CORRECT)
        alone = confidence or label_key(fields, wanted.split) is None
        if (verdicts and alone) or (confidence and wanted.scores is None):
            return "pairs"
    if ANSWER in fields:
        raise InputError(
            f'say task="pairs" if {key} is the confidence in the label beside it, which is right where it '
            'equals the true one, or task="binary" if it is the score of the positive class'
        )
    return None


class _Choice(NamedTuple):
    """The array of the scores and its kind; in a table also the columns that it is made of."""

    key: str
    kind: str
    columns: Sequence[str] = ()


def _choose(fields: Found, wanted: Wanted) -> _Choice:
    """Which array or columns hold the scores: those that the caller names, or that have a usual name."""
    if wanted.scores is not None:
        return _named_scores(fields, wanted)
    kind, prefix, split = wanted.kind and wanted.word, wanted.prefix, wanted.split
    found = {word: _Choice(prefix + word, said) for word, said in SCORES.items() if prefix + word in fields}
    found |= _marked(fields, MARKS)
    if kind is None and len({choice.kind for choice in found.values()}) == 2:
        raise InputError(f"{wanted.called} has both {prefix}logits and {prefix}probabilities: choose one with kind=")
    found = {word: choice for word, choice in found.items() if kind in (None, choice.kind)}
    whole = first_of(KINDS, found)
    if len(found) > 1 and (whole is None or any("*" in word for word in found)):
        raise InputError(f"{wanted.called} has {', '.join(found)}: choose one with scores=")
    choices = [found[whole]] if whole else list(found.values())
    paired = [word for word, labels in PARTNERS.items() if {prefix + word, prefix + labels} <= fields.keys()]
    if CONFIDENCE in paired and kind != "logits":
        choices.append(_Choice(prefix + CONFIDENCE, "probabilities"))
    if PREDICTIONS in paired:
        choices.append(_Choice(prefix + PREDICTIONS, kind or "logits"))
    behind = list(_marked(fields, [MARKS_BEHIND]).values())
    if len(behind) == 1 and behind[0].kind == (kind or "probabilities") and len(behind[0].columns) > 1:
        choices += behind
    if split in fields and kind:  # a matrix under a bare name, such as shift_noise_3: the caller must say what it holds
        choices.append(_Choice(split, kind))
    return choices[0] if choices else _unnamed(fields, kind, wanted)


def _unnamed(fields: Found, kind: str | None, wanted: Wanted) -> _Choice:
    """Scores that no usual name tells: columns that the labels name; an InputError that says what to do without them.

    A column that no label names may as well be an age or a loss: it is not a class unless the caller says so.
    """
    name, split, prefix = wanted.called, wanted.split, wanted.prefix
    parts = [word for word in split_names(fields) if word and word != split]
    remedy = "name them with scores=, and say their kind="
    if parts:
        remedy = f"pick a part with {name.partition('#')[0]}#{parts[0]}"
        remedy += f" (parts: {', '.join(parts)})" if len(parts) > 1 else ""
    elif split in fields:
        raise InputError(f'{name}: {split} does not say what it holds: give kind="logits" or kind="probabilities"')
    elif isinstance(fields, Fields) and kind:
        rest = [
            word
            for word, field in fields.items()
            if word not in wanted.columns and word.lower() not in ROW_NAMES
            if len(field.shape) == 1 and field.read().dtype.kind in "fiu"
        ]
        label = first_of((str(wanted.labels), *ANY_LABELS), fields)
        labels = [] if label is None else np.unique(fields[label].read().astype(str)).tolist()
        labelled = set(map(class_key, labels))
        strange = [word for word in rest if class_key(word) not in labelled]
        if len(rest) > 1 and not strange:
            return _Choice(kind, kind, rest)
        remedy = f"no label names {', '.join(strange)[:100] or 'a column'}: choose the scores"
    missing = prefix + kind if kind else f"{prefix}logits or {prefix}probabilities"
    raise InputError(f"{name} has no {missing}, only {listing(fields)}: {remedy}")


def _named_scores(fields: Found, wanted: Wanted) -> _Choice:
    """The array or the columns that the caller names."""
    name, given = wanted.called, wanted.scores
    word = given if isinstance(given, str) else ",".join(map(str, given))
    key = first_of((wanted.prefix + word, word), fields)
    columns = picked(list(fields), given, "scores", name) if key is None and isinstance(fields, Fields) else []
    if key is None and not columns:
        raise InputError(f"{name} has no {wanted.prefix}{word} for the scores, only {listing(fields)}")
    kind = wanted.word if wanted.kind else score_kind(word)
    if kind is None:
        raise InputError(
            f'{name}: {word} does not say what it holds: give kind="logits", kind="probabilities" or kind="percent"'
        )
    return _Choice(key or word, kind, columns)


def _classes(columns: Sequence[str], text: str) -> Sequence[str]:
    """What distinguishes the columns: the part that `*` stands for, or the names without a known prefix."""
    head, star, tail = text.partition("*")
    if star and "," not in text:
        return [column.removeprefix(head).removesuffix(tail) for column in columns]
    marks = [class_of(column, [*MARKS, MARKS_BEHIND]) for column in columns]
    return [mark[1] for mark in marks if mark] if all(marks) else columns


def _marked(fields: Found, marks: Iterable[Any]) -> dict[str, _Choice]:
    """The columns of a table whose names say a class, together by the kind that they say, under a pattern of them."""
    said = {column: class_of(column, marks) for column in fields if column not in KNOWN}
    found = {}
    for kind in KINDS if isinstance(fields, Fields) else ():
        classes = {column: mark[1] for column, mark in said.items() if mark and mark[0] == kind}
        for column, name in islice(classes.items(), 1):
            found[column.replace(name, "*")] = _Choice(kind, kind, list(classes))
    return found


def _arranged(found: Fields, chosen: _Choice, wanted: Wanted) -> tuple[Found, tuple[str, ...]]:
    """The fields of a table with those columns joined that stand side by side for one matrix; and those of the scores.

    Columns that numbers name stand in the order of the numbers.
    """
    labels, columns = wanted.labels, chosen.columns
    classes = _classes(columns, chosen.key)
    order = number_order(classes)
    places = range(len(columns)) if order is None else order
    columns, keys = [columns[place] for place in places], [class_key(classes[place]) for place in places]
    matrices = {chosen.key: columns} if columns else {}
    wide: dict[str, dict[str, str]] = {}
    if isinstance(labels, str) and labels not in found and wanted.require_labels is not None:
        given = picked(list(found), labels, "labels", wanted.called)
        wide[labels] = dict(zip(_classes(given, labels), given, strict=True))
    parts: dict[str, Sequence[str]] = {LABEL_SHARES: SHARE_PREFIXES}
    if labels is None and len(keys) > 1 and first_of(LABELS, found) is None:
        parts["labels"] = LABEL_PREFIXES
    for key, prefixes in parts.items():
        wide[key] = {name[len(one) :]: name for name in found for one in prefixes if name.lower().startswith(one)}
    for key, named in wide.items():  # by what their names end on: in the order of the classes if there is one for each
        by_class = {class_key(ending): column for ending, column in named.items()}
        if keys and by_class.keys() == set(keys):
            matrices[key] = [by_class[one] for one in keys]
        elif key == labels:
            matrices[key] = list(named.values())
    members = {column for group in matrices.values() for column in group}
    for name in wanted.columns.union(members, [chosen.key]).intersection(found.twice):
        raise InputError(f"{wanted.called} has two columns called {name!r}: rename one of them")
    made: Found = {name: field for name, field in found.items() if name not in members}
    for key, (first, *rest) in matrices.items():
        made[key] = found[first].beside([found[one] for one in rest], key)
    if not columns:
        made[chosen.key] = found[chosen.key].beside((), chosen.key)
    elif len(keys) > 1:
        made[chosen.key].names = classes if order is None else None
    return made, tuple(columns or [chosen.key])


def _completed(fields: Found, wanted: Wanted) -> tuple[Found, Wanted]:
    """The fields with the labels of another file, and with what is correct.

    Where a table gives a confidence, the answer and the true label, an answer is correct if it is the label.
    """
    if isinstance(wanted.labels, LabelFile):
        fields, wanted = _with_labels(fields, wanted, wanted.labels), replace(wanted, labels=None)
    predicted = first_of((ANSWER, *(word for word in PREDICTED if word != wanted.scores)), fields)
    label = first_of((wanted.labels, *ANY_LABELS), fields) if isinstance(wanted.labels, str | None) else None
    asked = wanted.task == "pairs" or (CONFIDENCE in fields and wanted.task is None)
    if not isinstance(fields, Fields) or not asked or CORRECT in fields or predicted is None or label is None:
        return fields, wanted
    if fields[predicted].shape != fields[label].shape:
        raise InputError(f"{predicted} has shape {fields[predicted].shape}, but {label} {fields[label].shape}")
    answers, truth = (fields[word].read().tolist() for word in (predicted, label))
    for row, value in enumerate(truth):
        if identifier(value) == MISSING != str(value):
            raise InputError(f"{label} is missing in row {row}: give every row a label, or leave the row out")
    same = [class_key(one) == class_key(other) for one, other in zip(answers, truth, strict=True)]
    made = copy(fields)
    del made[label]
    made[CORRECT] = ArrayField(np.array(same))
    spelling = "" if any(same) else ": in no row; are they spelled alike?"
    made.notes += (f"correct is where {predicted} equals {label}{spelling}",)
    return made, replace(wanted, labels=None)


def _with_labels(fields: Found, wanted: Wanted, file: LabelFile) -> Found:
    """The fields of a file with the labels of another one, joined by the identifiers that both hold, or in order.

    The key is a column of both whose values differ in every row of the labels. Without one the rows must stand in the
    same order, which other columns that both hold must confirm. Labels of the file itself are answers that it gives.
    """
    theirs, answered = file.fields, first_of(ANY_LABELS, fields)
    lowered = {word.lower(): word for word in fields if word != answered}
    rest = [word for word in theirs if len(theirs) == 1 or word.lower() not in {*lowered, *ROW_NAMES}]
    single = file.column or label_key(theirs, "") or (rest[0] if len(rest) == 1 else None)
    if single is not None and single not in theirs:
        raise InputError(f"{file.name} has no column {single}, only {listing(theirs)}")
    shared = {word: lowered[word.lower()] for word in theirs if word != single and word.lower() in lowered}
    ids = {word: _identifiers(theirs[word]) for word in shared}
    key = next((word for word in shared if len(set(ids[word])) == len(ids[word])), None)
    order: Any = slice(None)
    for word, mine in shared.items():
        if key is None and theirs[word].dtype.kind in "USOiu" and _identifiers(fields[mine]) != ids[word]:
            raise InputError(
                f"{file.name} and {wanted.called} differ in {word}, and no column of both tells their rows apart"
            )
    if key is not None:
        places = {value: place for place, value in enumerate(ids[key])}
        own = _identifiers(fields[shared[key]])
        for row, value in enumerate(own):
            if value not in places:
                raise InputError(
                    f"{file.name} has no row with {key} {value[:40]!r}, which is row {row} of {wanted.called}"
                )
        order = [places[value] for value in own]
    columns = {"labels": single} if single else {f"label_{word}": word for word in theirs if word != key}
    made = copy(fields)
    if answered:
        made[ANSWER] = made.pop(answered)
    for word, column in columns.items():
        labels = theirs[column].read()[order]
        rows = {field.shape[0] for field in fields.values() if field.shape}
        if len(theirs) == 1 and len(labels) not in rows and len(labels) + 1 in rows:
            # a list of labels without a header: its first line is one of them
            labels = np.array([column, *labels.astype(str).tolist()])
        made[wanted.prefix + word] = ArrayField(labels)
    if isinstance(made, Fields):
        made.notes += (f"labels of {file.name} are joined {f'by {key}' if key else 'in the order of rows'}",)
    return made


def _identifiers(field: Field) -> list[str]:
    return [identifier(value) for value in field.read().tolist()]


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


def listing(fields: Found) -> str:
    """The names of the arrays, for error messages."""
    return listed(sorted(fields)) or "nothing"


def assembled(read: Read, wanted: Wanted) -> Predictions:
    """Predictions from the fields that `read` finds; an InputError says which options would do, if any.

    The first values of a file are looked at: it is an error here if they contradict their kind and another one fits.
    """
    made, fields = None, read(wanted)
    try:
        made = assemble(fields, wanted)
        _look(made)
    except NoRowsError:
        raise
    except InputError as error:
        looked = len(fields) <= MOST_COLUMNS and {wanted.split}.issuperset(split_names(fields))
        if looked and (options := _suggested(fields, read, wanted)):
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
    next(made.chunks(max(2, min(HEAD, 2**20 // made.source.shape[1]))))


def _suggested(fields: Found, read: Read, wanted: Wanted) -> Options:
    """The first options, of those that the columns suggest, with which everything can be read."""
    for kind in (*KINDS, PERCENT):  # arrays without names are called by their kind
        asked = replace(wanted, kind=kind)
        if (again := read(asked)).keys() != fields.keys() and _tried(again, asked) is not None:
            return {"kind": kind}
    few = type(fields)()
    for key, field in fields.items():
        with suppress(InputError):
            if field.nbytes <= LARGEST and len(field.shape) in (1, 2) and field.shape[0]:
                few[key] = ArrayField(field.read()[:HEAD])
                few[key].names = field.names
    for options in islice(_candidates(few, wanted), MOST_TRIES):
        asked = replace(wanted, **options)
        if isinstance(wanted.labels, LabelFile) and "labels" in options:
            asked = replace(asked, labels=wanted.labels._replace(column=options["labels"].rpartition("#")[2]))
        for coded in ({}, _from_one(few, asked)):
            told = replace(asked, **coded)
            if _tried(few, told) is not None and _tried(read(asked), told) is not None:
                return options | coded
    return {}


def _tried(fields: Found, wanted: Wanted) -> Predictions | None:
    """Predictions, or None where they cannot be read so."""
    with suppress(InputError), np.errstate(all="ignore"):
        made = assemble(fields, wanted)
        _look(made)
        return made
    return None


def _from_one(fields: Found, wanted: Wanted) -> Options:
    """Class names for labels that count from 1: as a list where the columns have none."""
    made = _tried(fields, replace(wanted, require_labels=None))
    if made is None or made.task != "multiclass":
        return {}
    numbers, names = [str(place + 1) for place in range(made.n_classes)], made.class_names
    return {"class_names": numbers if names is None else dict(zip(numbers, names, strict=True))}


def _candidates(fields: Found, wanted: Wanted) -> Iterator[Options]:
    """Sets of options to try, those that change least first; what the names say is not doubted, only its kind."""
    labels = _labels(fields, wanted)
    scores: list[Any] = [None]
    if not _kinds(fields, wanted):
        known = wanted.labels if isinstance(wanted.labels, str) else first_of(ANY_LABELS, fields)
        scores += _scores(fields, known or next(iter(labels), None))
    for some in scores:
        kinds = _kinds(fields, replace(wanted, scores=some or wanted.scores))
        for label, task, kind in product((None, *labels), (None, "multiclass", "pairs", "binary"), (None, *kinds)):
            options = {"scores": some, "kind": kind, "labels": label, "task": task}
            yield {word: value for word, value in options.items() if value is not None}


def _kinds(fields: Found, wanted: Wanted) -> list[str]:
    """Kinds of which the scores can be, whatever the labels are."""
    kinds = ("probabilities", PERCENT, "logits")
    tried = {kind: _tried(fields, replace(wanted, kind=kind, require_labels=None)) for kind in kinds}
    # scores that are all below 20 are rather logits than percent
    return [kind for kind, one in tried.items() if one is not None and (kind != PERCENT or one.values.max() > 0.2)]


def _labels(fields: Found, wanted: Wanted) -> list[str]:
    """Columns that may hold the labels, where neither names nor the caller tell: first those called like labels."""
    if isinstance(wanted.labels, LabelFile):
        address = wanted.labels.name.rpartition("#")[0] or wanted.labels.name
        return [f"{address}#{word}" for word in wanted.labels.fields]
    with suppress(InputError):
        usual = CORRECT in fields or label_key(fields, wanted.split) is not None
        if wanted.labels in fields if isinstance(wanted.labels, str) else wanted.labels is not None or usual:
            return []
    named = [word for word, field in fields.items() if len(field.shape) == 1 and word.lower() not in ROW_NAMES]
    columns = {word: fields[word].read() for word in named}
    whole = [word for word, head in columns.items() if head.dtype.kind != "f" or not (head % 1).any()]
    return sorted(whole, key=lambda word: not LABEL_NAME.search(word))[:8]


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
    values = {class_key(value) for value in fields[label].read().tolist()} if label in fields else ()
    stems = defaultdict(list)
    for word in names:
        stems[word.rstrip("0123456789")].append(word)
    named = [word for word in names if class_key(word) in values]
    yield from (some for some in (*stems.values(), named) if len(some) > 1)
    yield from sorted(filter(SCORE_NAME.search, names), key=lambda word: numbers[word].max() > 1)
