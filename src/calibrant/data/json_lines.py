"""`.jsonl`: one JSON object per line, as language-model evaluations and services write them; `.json`: a list of them.

- `{"confidence": 0.9, "correct": true}`: pairs.
- `{"logits": [2.1, 0.3], "label": 0}`, the same with `probabilities`; lists by place, or objects by class name.
- `{"probability": 0.2, "label": 1}`: binary.
- `{"logprobs": {"A": -0.3, "B": -1.6}, "answer": "A"}`: multiple choice; the options are the keys.
- `{"top_logprobs": [{"token": "A", "logprob": -0.3}, …], "answer": "A"}`, or the whole `logprobs` of an OpenAI answer:
  the options are the answers that occur in the file, or `class_names`; white space around a token does not count.
- the logs of lm-evaluation-harness and Inspect, as below.

Objects of logits or probabilities may name some of the options only: a row has probability 0 for the others.

An option that a row does not list gets what is left of the probability, shared among those missing, but no more than
the smallest one listed and no less than 1e-6: a top-20 list says nothing more about it.

**lm-evaluation-harness**, `samples_TASK_DATE.jsonl` (`--log_samples`):

    {"doc_id": 0, "doc": {…}, "target": "2", "arguments": {"gen_args_0": {"arg_0": QUESTION, "arg_1": " an option"}, …},
     "filtered_resps": [["-3.1", "False"], …], "filter": "none", "acc": 1.0}

The log-likelihoods of the options are logits; divided by the characters of the options (the harness's `acc_norm`) they
are `logits-per-character`. The target is the number, the text or the letter of the right option, whichever agrees with
`acc` in all rows. Generated answers need a `confidence` that was added to each object.

**Inspect**, `.json` and `.eval` logs: a scorer says whether a sample is correct. The confidence is that of the score's
or the sample's metadata, of the store, or of a scorer called `confidence`; options of multiple choice have the
log-probabilities of the token that is the answer.
"""

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np

from calibrant.core import progress
from calibrant.core.errors import InputError
from calibrant.core.schema import KINDS, number_order
from calibrant.data.arrays import seek_data
from calibrant.data.source import (
    CLUSTERS,
    CONFIDENCE,
    CORRECT,
    GROUPS,
    KNOWN,
    LABELS,
    OTHER_LABELS,
    WEIGHTS,
    ArrayField,
    Fields,
    Found,
    Wanted,
    check_expansion,
    first_of,
    reading,
)
from calibrant.data.tables import by_name, memory_array

Row = dict[str, Any]
Read = tuple[list[Row], tuple[str, ...]]
"""Plain objects, and notes on what was decided."""

RESPONSES = "filtered_resps"
PER_CHARACTER = "logits-per-character"
RIGHT = (CORRECT, "exact_match", "acc", "em", "is_correct")
"""What the harness or its user may call the metric that says whether an answer is right."""

VERDICTS = {"C": True, "I": False, "N": False, 1: True, 0: False}
"""Values of a score that say right or wrong; N is no answer."""

ZSTANDARD = 93
"""The zip method in which Inspect stores its samples; zipfile reads it from Python 3.14 on."""

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


def fields(path: Path, wanted: Wanted) -> Found:
    """The keys of the objects as columns."""
    rows, notes = records(path)
    keys = dict.fromkeys(key for row in rows for key in row)
    scored = {*KINDS, "confidence", "probability", str(wanted.scores)} & set(keys)
    columns = {}
    # scores first: they say in which order objects of labels are read
    for key in sorted(keys, key=lambda key: key not in KINDS):
        missing = [line for line, row in enumerate(rows, 1) if key not in row]
        if not missing:
            columns[key] = [row[key] if key in (LOGPROBS, TOP_LOGPROBS) else by_name(row[key]) for row in rows]
        elif key in scored.union(LABELS, WEIGHTS, GROUPS, CLUSTERS):
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
    """The objects of a file, one per line; an InputError for anything else."""
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
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{called} is not JSON: {' '.join(str(error).split())[:80]}") from error
            row = {"scores": row} if isinstance(row, list) else row
            if not isinstance(row, dict):
                raise InputError(f"{called} is a JSON {type(row).__name__}, but an object is needed")
            yield row
            if number % 65536 == 0:
                progress.step(f"parsing {path.name}", number)


def _objects(found: Fields, path: Path, column: list[Any], key: str, wanted: Wanted) -> None:
    """Numbers by name, where that is what it holds; of scores, an option that a row does not name has probability 0."""
    names = list(dict.fromkeys(name for item in column if isinstance(item, dict) for name in item))
    order = number_order(names)
    names = names if order is None else [names[place] for place in order]
    scores = key in (*KINDS, PER_CHARACTER)
    if not all(map(_plain, column)) or (not scores and any(len(item) < len(names) for item in column)):
        return
    known = next((found[kind].names for kind in KINDS if kind in found), None)
    if order is None and key == "labels" and known:
        if set(known) != set(names):
            raise InputError(f"{path}: {key} name {', '.join(names)}, but the scores {', '.join(known)}")
        names = list(known)
    given = list(wanted.class_names or ())
    if scores and set(names) <= set(given):
        names = given
    fewer = sum(len(item) < len(names) for item in column)
    if fewer and key in KINDS:
        found.notes += (f"{fewer} of {len(column)} rows have fewer than {len(names)} options: 0 for the others",)
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
    found["logits"].names = options
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


def harness_rows(rows: list[Row], path: Path) -> Read:
    """Questions with the logits of their options, or answers with confidence and correctness."""
    notes = []
    first, *others = dict.fromkeys(row.get("filter") for row in rows)
    if others:
        rows = [row for row in rows if row.get("filter") == first]
        notes.append(
            f"the answers are those of the filter {first}; for those of {others[0]}: "
            f'grep \'"filter": "{others[0]}"\' {path.name} > {path.stem}_{others[0]}.jsonl'
        )
    # is every response a log-likelihood and whether its tokens are the most likely ones?
    responses = (item for row in rows for item in row[RESPONSES] or [None])
    if all(isinstance(item, list) and str(item[-1]) in ("True", "False") for item in responses):
        made = _question_options(rows, path)
        if "acc_norm" in rows[0] and PER_CHARACTER in made[0]:
            notes.append(f"logits are log-likelihoods of the options (acc); the scores of acc_norm are {PER_CHARACTER}")
    else:
        made = [_pair(row, row.get(first_of(RIGHT, row)), path) for row in rows]
    return [_scalars(row.get("doc")) | _scalars(row) | own for row, own in zip(rows, made, strict=True)], tuple(notes)


def _scalars(values: Any) -> Row:
    """What may be a column: numbers and texts by name; not under a name that stands for scores or labels."""
    items = values.items() if isinstance(values, dict) else ()
    return {word: item for word, item in items if isinstance(item, (str, int, float)) and word not in KNOWN}


def _pair(values: Row, verdict: Any, path: Path) -> Row:
    """Confidence and correctness of an answer."""
    if values.get(CONFIDENCE) is None:
        raise InputError(
            f'{path} holds answers without a confidence: add "{CONFIDENCE}", from 0 to 1, to each line (of Inspect: to '
            "the metadata of each score)"
        )
    if isinstance(verdict, (dict, list)) or verdict not in VERDICTS:
        raise InputError(f"{path}: an answer is scored {verdict!r:.40}, but 1 or 0, true or false, C or I are needed")
    return {CONFIDENCE: values[CONFIDENCE], CORRECT: VERDICTS[verdict]}


def _items(values: Any) -> Any:
    """A list, also where it is written as an object by number or name."""
    return list(values.values()) if isinstance(values, dict) else values


def _question_options(rows: list[Row], path: Path) -> list[Row]:
    """The logits of the options, and the right one, of each question."""
    scores, texts = [], []
    for row in rows:
        found = [float(item[0]) for item in row[RESPONSES]]
        # log-likelihoods without the question stand behind those given the question
        scores.append(found[: len(found) // 2] if "acc_mutual_info" in row else found)
        pairs = _items(row.get("arguments") or [])[: len(scores[-1])]
        texts.append([_items(pair)[1].strip() for pair in pairs])
    most = max(map(len, scores))
    if most < 2:
        raise InputError(
            f"{path} holds the likelihood of one continuation per question, which is not the confidence in an answer: "
            "use a multiple-choice task"
        )
    names = texts[0]  # the letters or words that all questions share
    if len(set(names)) < most or any(one != names for one in texts):
        names = [*ascii_uppercase, *map(str, range(most))]
    made = []
    for one, words, place in zip(scores, texts, _targets(rows, scores, texts, path), strict=True):
        made.append({"logits": dict(zip(names, one, strict=False)), "label": names[place]})
        if all(words) and len(words) == len(one):
            made[-1][PER_CHARACTER] = {name: z / len(word) for name, z, word in zip(names, one, words, strict=False)}
    return made


def _targets(rows: list[Row], scores: list[list[float]], texts: list[list[str]], path: Path) -> list[int]:
    """The place of the right option: targets are numbers, texts or letters, whichever alone fits all rows and acc."""
    given = [str(row.get("target")).strip("[] \n") for row in rows]
    sizes = list(map(len, scores))
    numbers = [list(map(str, range(size))) for size in sizes]
    readings: list[list[int]] = []
    for keys in (numbers, texts, [list(ascii_uppercase[:size]) for size in sizes]):
        found = [own.index(target) if target in own else -1 for own, target in zip(keys, given, strict=True)]
        hits = np.equal(found, list(map(np.argmax, scores)))
        fits = -1 not in found and all(row.get("acc", hit) == hit for row, hit in zip(rows, hits, strict=True))
        if fits and found not in readings:
            readings.append(found)
    if len(readings) == 1:
        return readings[0]
    raise InputError(
        f"{path}: the targets ({given[0][:40]!r}, …) do not say the one right option of each question, or acc says "
        "otherwise: take a task with one right option, such as truthfulqa_mc1 in place of truthfulqa_mc2"
    )


def read_log(path: Path) -> Read:
    """The rows of a JSON document: a list of objects, or the log of an Inspect task."""
    found = json.loads(path.read_bytes())
    samples = found.get("samples", found) if isinstance(found, dict) else found
    if isinstance(found, dict) and "data" in found and {"columns", "schema"} & set(found):  # pandas: split, or table
        names = found.get("columns")
        samples = found["data"] if names is None else [dict(zip(names, row, strict=True)) for row in found["data"]]
    if isinstance(samples, dict):  # columns, as pandas writes them: lists, or objects by row
        columns = list(map(_items, samples.values()))
        whole = all(isinstance(one, list) and len(one) == len(columns[0]) for one in columns)
        samples = [dict(zip(samples, row, strict=True)) for row in zip(*columns, strict=True)] if whole else None
    rows = samples if isinstance(samples, list) else [None]
    samples = [{"scores": row} if isinstance(row, list) else row for row in rows]
    if not all(isinstance(row, dict) for row in samples):
        raise InputError(
            f"{path} holds no list of objects: give the samples of an evaluation, such as samples_TASK_DATE.jsonl of "
            "lm_eval --log_samples, not its averages"
        )
    return inspect_rows(samples, path) if "eval" in found else (samples, ())


def read_eval(path: Path) -> Read:
    """The samples of Inspect's `.eval` archive."""
    samples = []
    with zipfile.ZipFile(path) as archive, path.open("rb") as raw:
        for member in archive.infolist():
            if member.filename.rpartition("/")[0] != "samples":
                continue
            check_expansion(member.file_size, member.compress_size, f"{path}: {member.filename}")
            if member.compress_type == ZSTANDARD:
                import pyarrow as pa

                seek_data(raw, member)
                text = pa.decompress(raw.read(member.compress_size), member.file_size, codec="zstd", asbytes=True)
            else:
                text = archive.read(member)
            samples.append(json.loads(text))
    return inspect_rows(samples, path)


def inspect_rows(samples: list[Row], path: Path) -> Read:
    """Samples of an Inspect log as rows; one that ended in an error has no score and is left out."""
    scored = [sample for sample in samples if sample.get("scores")]
    if not scored:
        raise InputError(f"{path} holds no scored samples: score them with `inspect score {path.name}`")
    scorer, *others = (word for word in scored[0]["scores"] if word != CONFIDENCE)
    notes = [f"{len(samples) - len(scored)} samples without a score are left out"] * (len(scored) < len(samples))
    notes += [f"correct is what the scorer {scorer} says, not {', '.join(others)}"] * bool(others)
    options = [_top_logprobs(sample, sample["scores"][scorer].get("answer")) for sample in scored]
    repeated = len({sample.get("id") for sample in scored}) < len(scored)
    made = []
    for sample, option in zip(scored, options, strict=True):
        score, metadata = sample["scores"][scorer], sample.get("metadata")
        row = {"id": sample.get("id"), **_scalars(metadata)}
        if repeated:  # answers to one question are not independent
            row["cluster"] = row["id"]
        values = {CONFIDENCE: sample["scores"].get(CONFIDENCE, {}).get("value")}
        for place in (sample.get("store"), metadata, score.get("metadata")):
            values |= place or {}
        if values[CONFIDENCE] is None and all(options):
            row |= {"top_logprobs": option, "answer": "".join(sample["target"])}
        else:
            row |= _pair(values, score.get("value"), path)
        made.append(row)
    return made, tuple(notes)


def _top_logprobs(sample: Row, answer: Any) -> Any:
    """The most likely tokens where the letter of an option was given as the answer; None where they were not logged."""
    outputs = (sample.get("output") or {}).get("choices") or [{}]
    tokens = (outputs[0].get("logprobs") or {}).get("content") or ()
    given = [one.get("top_logprobs") for one in tokens if one["token"].strip() == answer]
    return given[-1] if given and sample.get("choices") and len("".join(sample["target"])) == 1 else None
