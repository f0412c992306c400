"""`.jsonl`: one JSON object per line, as language-model evaluations and services write them; `.json`: a list of them.

- `{"confidence": 0.9, "correct": true}`: pairs.
- `{"logits": [2.1, 0.3], "label": 0}`, the same with `probabilities`; lists by place, or objects by class name.
- `{"probability": 0.2, "label": 1}`: binary.
- `{"logprobs": {"A": -0.3, "B": -1.6}, "answer": "A"}`: multiple choice; the options are the keys.
- `{"top_logprobs": [{"token": "A", "logprob": -0.3}, …], "answer": "A"}`, or the whole `logprobs` of an OpenAI answer:
  the options are the answers that occur in the file, or `class_names`; white space around a token does not count.
- the logs of lm-evaluation-harness and Inspect: see `evaluation_logs`.

Objects of logits or probabilities may name some of the options only: a row has probability 0 for the others.

An option that a row does not list gets what is left of the probability, shared among those missing, but no more than
the smallest one listed and no less than 1e-6: a top-20 list says nothing more about it.
"""

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.core import progress
from calibrant.core.errors import InputError
from calibrant.core.schema import KINDS, number_order
from calibrant.data.evaluation_logs import PER_CHARACTER, RESPONSES, Read, harness_rows, read_eval, read_log
from calibrant.data.source import (
    CLASS_NAMES,
    LABELS,
    OTHER_LABELS,
    ArrayField,
    Field,
    Fields,
    Wanted,
    first_of,
    reading,
)
from calibrant.data.tables import memory_array

MAX_LINE = 2**22
MAX_BRACKETS = 20_000
"""Lists and objects of one line: empty ones take twenty times their text in memory."""

LOGPROBS, TOP_LOGPROBS = "logprobs", "top_logprobs"
SMALLEST = 1e-6
"""Least probability of an option that a row does not list."""

DAMAGE = (
    AttributeError, LookupError, TypeError, ValueError, RecursionError, OSError, EOFError, zipfile.BadZipFile,
)  # fmt: skip
"""What logs that are cut short or that others wrote raise."""

CHOICE_LABELS = (*LABELS, "answer", "target", "gold", "correct_answer", *OTHER_LABELS)


def fields(path: Path, wanted: Wanted) -> dict[str, Field]:
    """The keys of the objects as columns."""
    rows, notes = records(path)
    keys = dict.fromkeys(key for row in rows for key in row)
    scored = {*KINDS, "confidence", "probability", str(wanted.scores)} & set(keys)
    columns = {}
    # scores first: they say in which order objects of labels are read
    for key in sorted(keys, key=lambda key: key not in KINDS):
        missing = [line for line, row in enumerate(rows, 1) if key not in row]
        if not missing:
            columns[key] = [row[key] if key in (LOGPROBS, TOP_LOGPROBS) else _by_name(row[key]) for row in rows]
        elif key in scored or key in LABELS:
            raise InputError(f"{path}: {key} is missing in line {missing[0]}")
    found = Fields()
    found.notes = notes
    choices = first_of((TOP_LOGPROBS, LOGPROBS), columns)
    if choices is not None and not scored:
        _choices(found, path, columns, choices, wanted)
    for key, column in columns.items():
        if key in found:
            continue
        if isinstance(column[0], dict):
            _objects(found, path, column, key, wanted)
        elif (array := memory_array(column, f"{path}: {key}")) is not None:
            found[key] = ArrayField(array)
    return found


def _by_name(value: Any) -> Any:
    """Scores by class from the lists in which pipelines and clouds write them; anything else as it is.

    >>> _by_name([{"label": "cat", "score": 0.9}, {"label": "dog", "score": 0.1}])
    {'cat': 0.9, 'dog': 0.1}
    >>> _by_name({"classes": ["cat", "dog"], "scores": [0.9, 0.1]})
    {'cat': 0.9, 'dog': 0.1}
    """
    if isinstance(value, list) and all(isinstance(item, dict) and len(item) == 2 for item in value):
        items = [sorted(item.values(), key=lambda part: not isinstance(part, str)) for item in value]
    elif isinstance(value, dict) and len(value) == 2 and all(isinstance(part, list) for part in value.values()):
        items = list(map(list, zip(*value.values(), strict=False)))
    else:
        return value
    fits = all(isinstance(name, str) and type(number) in (int, float) for name, number in items)
    made = dict(items) if fits else {}
    return made if len(made) == len(items) > 1 else value


def records(path: Path) -> Read:
    """The objects of a file, and notes on them; questions of a log of evaluations as plain objects."""
    suffix = path.suffix.lower()
    with reading(path, "log or list of JSON objects", DAMAGE):
        if suffix == ".eval":
            return read_eval(path)
        rows, notes = read_log(path) if suffix == ".json" else (list(json_rows(path)), ())
        if not rows:
            raise InputError(f"{path} is empty: give one JSON object per line")
        # scores beside the responses win, such as those that `apply` wrote
        return harness_rows(rows, path) if RESPONSES in rows[0] and {*KINDS}.isdisjoint(rows[0]) else (rows, notes)


def json_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file, one per line; an InputError for anything else, and for NaN and Infinity, which JSON does
    not have."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE + 1):
            number += 1
            if not line.strip():
                continue
            called = f"{path}: line {number}"
            if len(line) > MAX_LINE:
                raise InputError(f"{called} has over {MAX_LINE} bytes")
            if line.count(b"[") + line.count(b"{") > MAX_BRACKETS:
                raise InputError(f"{called} holds over {MAX_BRACKETS} lists and objects")
            try:
                row = json.loads(line, parse_constant=_refuse)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{called} is not JSON: {' '.join(str(error).split())[:80]}") from error
            row = {"scores": row} if isinstance(row, list) else row
            if not isinstance(row, dict):
                raise InputError(f"{called} is a JSON {type(row).__name__}, but an object is needed")
            yield row
            if number % 65536 == 0:
                progress.step(f"parsing {path.name}", number)


def _refuse(word: str) -> Any:
    raise ValueError(f"it holds {word}, but every number must be finite")


def _objects(found: Fields, path: Path, column: list[Any], key: str, wanted: Wanted) -> None:
    """Numbers by name, where that is what it holds; of scores, an option that a row does not name has probability 0."""
    names = list(dict.fromkeys(name for item in column if isinstance(item, dict) for name in item))
    order = number_order(names)
    names = names if order is None else [names[place] for place in order]
    scores = key in (*KINDS, PER_CHARACTER)
    if not all(map(_plain, column)) or (not scores and any(len(item) < len(names) for item in column)):
        return
    if order is None and key == "labels" and CLASS_NAMES in found:
        known = list(map(str, found[CLASS_NAMES].read()))
        if set(known) != set(names):
            raise InputError(f"{path}: {key} name {', '.join(names)}, but the scores {', '.join(known)}")
        names = known
    given = list(wanted.class_names or ())
    if scores and set(names) <= set(given):
        names = given
    fewer = sum(len(item) < len(names) for item in column)
    if fewer and key in KINDS:
        found.notes += (f"{fewer} of {len(column)} rows have fewer than {len(names)} options: 0 for the others",)
    if order is None and key in KINDS:
        found[CLASS_NAMES] = ArrayField(np.array(names))
    missing = 0.0 if key == "probabilities" else -np.inf
    found[key] = ArrayField(np.array([[item.get(name, missing) for name in names] for item in column], float))
    found[key].names = None if order else names


def _choices(found: Fields, path: Path, columns: dict[str, list[Any]], key: str, wanted: Wanted) -> None:
    """Log-probabilities of the options of multiple choice, as logits."""
    given = wanted.labels if isinstance(wanted.labels, str) else None
    label = first_of((given, *CHOICE_LABELS), columns)
    rows = [_options(value, f"{path}: {key} in row {row}") for row, value in enumerate(columns[key])]
    if wanted.class_names is not None:
        options = list(wanted.class_names)
    elif all(map(_plain, columns[key])):
        options = sorted({option for row in rows for option in row})
    else:
        options = sorted({str(answer).strip() for answer in columns.get(label, [])})
    if len(options) < 2:
        raise InputError(
            f"{path}: {key} names {len(options)} options; name them with class_names= (--class-names A,B,C)"
        )
    logits = np.array([[row.get(option, np.nan) for option in options] for row in rows])
    gaps = np.isnan(logits)
    for bare in np.flatnonzero(gaps.all(axis=1)):
        raise InputError(f"{path}: {key} in row {bare} lists none of the options {', '.join(options)[:60]}")
    left = 1 - np.nansum(np.exp(np.minimum(logits, 0)), axis=1, keepdims=True)
    share = left / np.maximum(gaps.sum(axis=1, keepdims=True), 1)
    floor = np.minimum(np.log(np.maximum(share, SMALLEST)), np.nanmin(logits, axis=1, keepdims=True))
    found["logits"] = ArrayField(np.where(gaps, floor, logits))
    found[CLASS_NAMES] = ArrayField(np.array(options))
    if label is not None and label not in LABELS and given is None:
        found["labels"] = ArrayField(np.array([str(item).strip() for item in columns[label]]))
    if gaps.any():
        found.notes += (
            f"{gaps.sum()} options are not listed in their row: each got what is left of the probability, shared among "
            f"those missing, but no more than the smallest listed and no less than {SMALLEST:g}",
        )


def _plain(value: Any) -> bool:
    """Is it an object of numbers by name?"""
    return isinstance(value, dict) and bool(value) and all(type(item) in (int, float) for item in value.values())


def _options(value: Any, called: str) -> dict[str, float]:
    """Log-probability by option of one row, from any of the shapes in which services give them: those of the first
    token; tokens that differ in white space are one option."""
    for _ in range(4):
        match value:
            case {"content": [first, *_]}:
                value = first
            case {"top_logprobs": list() | dict() as listed}:
                value = listed
            case [{"token": _}, *_]:
                break
            case [first, *_]:
                value = first
    if _plain(value):
        pairs = value.items()
    elif isinstance(value, list) and value and all(isinstance(item, dict) and "token" in item for item in value):
        pairs = [(str(item["token"]), item.get("logprob")) for item in value]
    else:
        raise InputError(f"{called} is neither an object of log-probabilities nor a list of token and logprob")
    found: dict[str, float] = {}
    for token, logprob in pairs:
        if type(logprob) not in (int, float):
            raise InputError(f"{called}: the log-probability of {token[:20]!r} is not a number")
        option = token.strip()
        found[option] = float(np.logaddexp(found.get(option, -np.inf), float(logprob)))
    return found
