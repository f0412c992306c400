"""From the named arrays of a file or frame to `Predictions`, once `calibrant.data.recognize` chose which is what.

In a table, columns side by side that form one matrix are joined: those of the scores, of several labels, and of the
shares of annotators. Labels of another file are joined by an identifier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from calibrant.core.errors import InputError, NoRowsError
from calibrant.core.schema import MISSING, OUTCOMES, PERCENT, Reading, class_key, identifier, listed
from calibrant.data.predictions import Predictions, join
from calibrant.data.recognize import Choice, documented_label, recognize
from calibrant.data.source import (
    ANSWER,
    ANY_LABELS,
    CLASS_NAMES,
    CLUSTERS,
    CORRECT,
    GROUPS,
    LABEL_SHARES,
    ROW_NAMES,
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
    first_of,
    picked,
    score_kind,
    split_names,
)

HEAD = 1000
"""Rows at the beginning that are checked at once."""

SAID = ("scores", "kind", "labels", "task", "weights", "class_names", "ignore_index")
"""Options that say what a file holds."""

Options = dict[str, Any]
Read = Callable[[Wanted], Found]


def assembled(read: Read, wanted: Wanted) -> Predictions:
    """Predictions from the fields that `read` finds, with the reading that was chosen; an InputError lists others.

    The first values of a file are checked here: an error suggests the kind that they have.
    """
    fields = read(wanted)
    given = {word: getattr(wanted, word) for word in SAID}
    if isinstance(wanted.labels, LabelFile):
        given["labels"] = wanted.labels.name
        fields = _with_labels(fields, wanted, wanted.labels)
        wanted = replace(wanted, labels=None)
    given = {word: value for word, value in given.items() if isinstance(value, (str, int, list, dict))}
    choice, made = None, None
    try:
        choice = recognize(fields, wanted)
        made = assemble(fields, choice, wanted)
        next(made.chunks(max(2, min(HEAD, 2**20 // made.source.shape[1]))))
    except NoRowsError:
        raise
    except InputError as error:
        remedies = error.remedies or list(choice.remedies if choice else ()) or _other_kinds(fields, choice, wanted)
        merged = [given | {word: one for word, one in remedy.items() if word != "labels" or "labels" not in given}
                  for remedy in remedies]  # fmt: skip
        if made is None or merged:
            raise InputError(error.message, *merged) from error
    return made


def _other_kinds(fields: Found, choice: Choice | None, wanted: Wanted) -> list[Options]:
    """Kinds with which a choice can be read that contradicts its kind."""
    found: list[Options] = []
    if choice is None:
        return found
    for kind in ("probabilities", PERCENT) if choice.kind == "logits" else (PERCENT,):
        with suppress(InputError), np.errstate(all="ignore"):
            made = assemble(fields, replace(choice, kind=kind), wanted)
            block = next(made.chunks(HEAD)).values
            if kind != choice.kind and (kind != PERCENT or block.max() > 0.2):
                found.append({"kind": kind})
    return found[:1]


def assemble(fields: Found, choice: Choice, wanted: Wanted) -> Predictions:
    """Check the arrays that belong together and join them; options of the caller replace those of the file."""
    prefix, columns = wanted.prefix, tuple(choice.columns)
    notes: tuple[str, ...] = ()
    wanted = replace(
        wanted,
        labels=choice.labels if choice.labels is not None else wanted.labels,
        class_names=choice.class_names if wanted.class_names is None else wanted.class_names,
        task=wanted.task or choice.task,
    )
    answers: tuple[str, ...] = ()
    if wanted.task == "pairs" and isinstance(wanted.labels, str) and wanted.labels not in fields:
        answers = tuple(picked(list(fields), wanted.labels, "labels", wanted.called))
        fields, wanted = _compared(fields, answers), replace(wanted, labels=CORRECT)
    is_table = isinstance(fields, Fields)
    if isinstance(fields, Fields):
        notes = fields.notes
        fields = _arranged(fields, choice, wanted)
    key = choice.word
    scores = fields[key]
    percent = choice.kind == PERCENT and not scores.percent
    task = wanted.task
    given, groups = _beside(fields, task, wanted)
    own = {word: fields[key].read() if isinstance(key, str) else key for word, key in given.items()}
    naming = first_of((prefix + CLASS_NAMES, CLASS_NAMES), fields)
    names = scores.names if naming is None else _class_names(fields[naming], f"{wanted.called}: {naming}")
    said = wanted.class_names
    if isinstance(said, Mapping):  # labels are matched to the keys, and columns are called what these stand for
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
        {"scores": key, **words},
        replace(wanted, kind=PERCENT if percent else "probabilities" if choice.kind == PERCENT else choice.kind,
                task=task, class_names=said or names),
    ).named(names)  # fmt: skip
    if found.flat and wanted.scores is None and choice.names:
        (name,) = choice.names
        negative = [word for word, outcome in OUTCOMES.items() if outcome == 0] + list(wanted.class_names or ())[:1]
        if first_of((name, class_key(name).lower()), negative) is not None:
            raise InputError(
                f"{wanted.called} has the scores of {name} alone, the negative class: give those of the other one, or "
                "name them with scores= if they are those of the positive class"
            )
    used = {key, naming, *words.values(), *groups}
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
    found.notes = (*choice.doubts, *notes)
    if not percent and is_table:  # a column that is written back would hold fractions
        found.score_columns = columns
    if task == "pairs" and choice.kind == "logits" and score_kind(key) is None:
        found.notes += (f"{key} is read as a logit: if it is not one, only figures after calibration count",)
    roles = {"scores": columns, "labels": answers or ((words["labels"],) if "labels" in words else ()),
             "weights": (words["weights"],) if "weights" in words else (),
             "clusters": (words["clusters"],) if "clusters" in words else (), "groups": tuple(groups)}  # fmt: skip
    schema = found.schema
    options = {"scores": list(columns), "kind": choice.kind, "labels": choice.labels, "task": found.task,
               "class_names": choice.class_names}  # fmt: skip
    found.reading = Reading(
        schema.task, schema.kind, schema.n_classes, schema.class_names,
        {role: names for role, names in roles.items() if names},
        {word: value for word, value in options.items() if value is not None and is_table},
        choice.evidence, choice.doubts,
    )  # fmt: skip
    return found


def _compared(fields: Found, columns: Sequence[str]) -> Found:
    """The fields with what is correct in place of the true label: where the answer equals it."""
    if len(columns) != 2:
        raise InputError(f"pairs need one column of what is correct, or those of answers and labels, got {columns}")
    answer, label = columns
    answers, truth = (fields[word].read().tolist() for word in columns)
    for row, value in enumerate(truth):
        if identifier(value) == MISSING != str(value):
            raise InputError(f"{label} is missing in row {row}: give every row a label, or leave the row out")
    same = [class_key(one) == class_key(other) for one, other in zip(answers, truth, strict=True)]
    made = copy(fields)
    del made[label]
    made[CORRECT] = ArrayField(np.array(same))
    if isinstance(made, Fields):
        spelling = "" if any(same) else ": in no row; are they spelled alike?"
        made.notes += (f"correct is where {answer} equals {label}{spelling}",)
    return made


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
        labels = documented_label(fields, wanted) if labels is None else labels
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


def _arranged(found: Fields, choice: Choice, wanted: Wanted) -> Found:
    """The fields of a table with those columns joined that form one matrix: scores, labels, shares of annotators."""
    labels, columns = wanted.labels, list(choice.columns)
    keys = [class_key(name) for name in choice.names or map(str, range(len(columns)))]
    matrices: dict[str, list[str]] = {choice.word: columns}
    if isinstance(labels, str) and labels not in found and wanted.require_labels is not None:
        matrices[labels] = picked(list(found), labels, "labels", wanted.called)
    named = {name[len(one) :]: name for name in found for one in SHARE_PREFIXES if name.lower().startswith(one)}
    by_class = {class_key(ending): column for ending, column in named.items()}
    if by_class.keys() == set(keys):
        matrices[LABEL_SHARES] = [by_class[one] for one in keys]
    members = {column for group in matrices.values() for column in group}
    for name in wanted.columns.union(members).intersection(found.twice):
        raise InputError(f"{wanted.called} has two columns called {name!r}: rename one of them")
    made: Found = {name: field for name, field in found.items() if name not in members}
    for key, (first, *rest) in matrices.items():
        made[key] = found[first].beside([found[one] for one in rest], key)
    if len(columns) > 1:
        made[choice.word].names = choice.names
    return made


def _with_labels(fields: Found, wanted: Wanted, file: LabelFile) -> Found:
    """The fields of a file with the labels of another one, joined by the identifiers that both hold, or in order.

    The key is a column of both whose values differ in every row of the labels. Without one the rows must stand in the
    same order, which other columns that both hold must confirm. Labels of the file itself are answers that it gives.
    """
    theirs, answered = file.fields, first_of(ANY_LABELS, fields)
    lowered = {word.lower(): word for word in fields if word != answered}
    rest = [word for word in theirs if len(theirs) == 1 or word.lower() not in {*lowered, *ROW_NAMES}]
    single = file.column or documented_label(theirs, Wanted()) or (rest[0] if len(rest) == 1 else None)
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


def listing(fields: Found) -> str:
    """The names of the arrays, for error messages."""
    return listed(sorted(fields)) or "nothing"
