"""`.jsonl`: one JSON object per line, as language-model evaluations and services write them.

- `{"confidence": 0.9, "correct": true}`: pairs.
- `{"logits": [2.1, 0.3], "label": 0}`, the same with `probabilities`; lists by place, or objects by class name.
- `{"probability": 0.2, "label": 1}`: binary.
- `{"logprobs": {"A": -0.3, "B": -1.6}, "answer": "A"}`: multiple choice; the options are the keys.
- `{"top_logprobs": [{"token": "A", "logprob": -0.3}, …], "answer": "A"}`, or the whole `logprobs` of an OpenAI answer:
  the options are the answers that occur in the file, or `class_names`; white space around a token does not count.

An option that a row does not list gets what is left of the probability, shared among those missing, but no more than
the smallest one listed and no less than 1e-6: a top-20 list says nothing more about it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.core import progress
from calibrant.core.errors import InputError
from calibrant.core.schema import number_order
from calibrant.data.columns import CLASS_NAMES, LABELS, OTHER_LABELS, Wanted, arrange
from calibrant.data.source import ArrayField, Field, Fields
from calibrant.data.tables import memory_array

MAX_LINE = 2**22
MAX_BRACKETS = 20_000
"""Lists and objects of one line: empty ones take twenty times their text in memory."""

LOGPROBS, TOP_LOGPROBS = "logprobs", "top_logprobs"
SMALLEST = 1e-6
"""Least probability of an option that a row does not list."""

CHOICE_LABELS = (*LABELS, "answer", "target", "gold", "correct_answer", *OTHER_LABELS)


def fields(path: Path, wanted: Wanted) -> dict[str, Field]:
    """The keys of the objects as columns."""
    columns: dict[str, list[Any]] = {}
    n_rows = 0
    for n_rows, row in enumerate(json_rows(path), 1):
        for key, value in row.items():
            column = columns.setdefault(key, [])
            if len(column) == n_rows - 1:
                column.append(value)
    if not n_rows:
        raise InputError(f"{path} is empty: give one JSON object per line")
    found = Fields()
    choices = next((key for key in (TOP_LOGPROBS, LOGPROBS) if len(columns.get(key, ())) == n_rows), None)
    scored = {"logits", "probabilities", "confidence", "probability", str(wanted.scores)} & set(columns)
    if choices is not None and not scored:
        _choices(found, path, columns, choices, wanted)
    # scores first: they say in which order objects of labels are read
    for key, column in sorted(columns.items(), key=lambda item: item[0] not in ("logits", "probabilities")):
        if len(column) == n_rows and key not in found:
            field = _column(column, f"{path}: {key}", found)
            if field is not None:
                found[key] = field
    short = {key: len(column) for key, column in columns.items() if len(column) < n_rows}
    for key in {*scored, *LABELS} & set(short):
        raise InputError(f"{path}: {key} is missing in line {short[key] + 1}")
    return arrange(found, list(found), wanted, str(path))


def json_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file, one per line."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE + 1):
            number += 1
            if not line.strip():
                continue
            yield _parsed(line, f"{path}: line {number}")
            if number % 65536 == 0:
                progress.step(f"parsing {path.name}", number)


def _parsed(line: bytes, called: str) -> dict[str, Any]:
    """One JSON object; an InputError for anything else, and for NaN and Infinity, which JSON does not have."""
    if len(line) > MAX_LINE:
        raise InputError(f"{called} has over {MAX_LINE} bytes")
    if line.count(b"[") + line.count(b"{") > MAX_BRACKETS:
        raise InputError(f"{called} holds over {MAX_BRACKETS} lists and objects")

    def refuse(word: str) -> Any:
        raise InputError(f"{called} holds {word}, which is not JSON: every number must be finite")

    try:
        row = json.loads(line, parse_constant=refuse)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{called} is not JSON: {' '.join(str(error).split())[:80]}") from error
    if not isinstance(row, dict):
        raise InputError(f"{called} is a JSON {type(row).__name__}, but an object is needed")
    return row


def _column(column: list[Any], called: str, found: Fields) -> Field | None:
    """A column of numbers, texts, lists of numbers or objects of numbers; None for anything else."""
    if isinstance(column[0], dict):
        return _objects(column, called, found)
    array = memory_array(column, called)
    return None if array is None else ArrayField(array)


def _objects(column: list[Any], called: str, found: Fields) -> Field | None:
    """Numbers by name, the same names in every row."""
    names = list(column[0])
    order = number_order(names)
    names = names if order is None else [names[place] for place in order]
    alike = all(isinstance(item, dict) and set(item) == set(names) for item in column)
    if not alike or not all(type(item[name]) in (int, float) for item in column for name in names):
        return None
    if order is None and called.endswith(": labels") and CLASS_NAMES in found:
        known = list(map(str, found[CLASS_NAMES].read()))
        if set(known) != set(names):
            raise InputError(f"{called} name {', '.join(names)}, but the scores {', '.join(known)}")
        names = known
    if order is None and called.endswith((": logits", ": probabilities")):
        found[CLASS_NAMES] = ArrayField(np.array(names, dtype=str))
    return ArrayField(np.array([[item[name] for name in names] for item in column], dtype=np.float64))


def _choices(found: Fields, path: Path, columns: dict[str, list[Any]], key: str, wanted: Wanted) -> None:
    """Log-probabilities of the options of multiple choice, as logits."""
    given = wanted.labels if isinstance(wanted.labels, str) else None
    label = next((word for word in (given, *CHOICE_LABELS) if word in columns), None)
    rows = [_options(value, f"{path}: {key} in row {row}") for row, value in enumerate(columns[key])]
    listed = all(isinstance(value, dict) and _plain(value) for value in columns[key])
    options = _class_options(rows, columns.get(label or "", []), wanted, listed)
    if len(options) < 2:
        raise InputError(
            f"{path}: {key} names {len(options)} options; name them with class_names= (--class-names A,B,C)"
        )
    logits = np.empty((len(rows), len(options)))
    missing = 0
    for row, have in enumerate(rows):
        own = [have.get(option) for option in options]
        gaps = own.count(None)
        if gaps == len(options):
            raise InputError(f"{path}: {key} in row {row} lists none of the options {', '.join(options)[:60]}")
        if gaps:
            missing += gaps
            floor = _floor([value for value in own if value is not None], gaps)
            own = [floor if value is None else value for value in own]
        logits[row] = own
    found["logits"] = ArrayField(logits)
    found[CLASS_NAMES] = ArrayField(np.array(options, dtype=str))
    if label is not None and label not in LABELS and given is None:
        found["labels"] = ArrayField(np.array([str(item).strip() for item in columns[label]], dtype=str))
    if missing:
        found.notes = (
            f"{missing} options are not listed in their row: each got what is left of the probability, shared among "
            f"those missing, but no more than the smallest listed and no less than {SMALLEST:g}",
        )


def _class_options(rows: list[dict[str, float]], answers: list[Any], wanted: Wanted, listed: bool) -> list[str]:
    """The options: as given, the keys of plain objects, or else the answers that occur."""
    if wanted.class_names is not None:
        return [str(name) for name in wanted.class_names]
    if listed:
        return sorted({option for row in rows for option in row})
    return sorted({str(answer).strip() for answer in answers})


def _plain(value: dict[str, Any]) -> bool:
    return bool(value) and all(type(item) in (int, float) for item in value.values())


def _options(value: Any, called: str) -> dict[str, float]:
    """Log-probability by option of one row; tokens that differ in white space are one option."""
    found: dict[str, float] = {}
    for token, logprob in _pairs(value, called):
        if type(logprob) not in (int, float):
            raise InputError(f"{called}: the log-probability of {token[:20]!r} is no number")
        option = token.strip()
        found[option] = float(np.logaddexp(found[option], logprob)) if option in found else float(logprob)
    return found


def _pairs(value: Any, called: str) -> list[tuple[str, Any]]:
    """(token, log-probability) from any of the shapes in which services give them: those of the first token."""
    for _ in range(4):
        if isinstance(value, dict) and isinstance(value.get("content"), list) and value["content"]:
            value = value["content"][0]
        elif isinstance(value, dict) and isinstance(value.get(TOP_LOGPROBS), (list, dict)):
            value = value[TOP_LOGPROBS]
        elif (isinstance(value, list) and value and isinstance(value[0], list)) or (
            isinstance(value, list) and value and isinstance(value[0], dict) and "token" not in value[0]
        ):
            value = value[0]
        else:
            break
    if isinstance(value, dict) and _plain(value):
        return list(value.items())
    if isinstance(value, list) and value and all(isinstance(item, dict) and "token" in item for item in value):
        return [(str(item["token"]), item.get("logprob")) for item in value]
    raise InputError(f"{called} is neither an object of log-probabilities nor a list of token and logprob")


def _floor(listed: list[float], gaps: int) -> float:
    left = max(1.0 - math.fsum(math.exp(min(value, 0.0)) for value in listed), 0.0)
    return min(math.log(max(left / gaps, SMALLEST)), *listed)
