"""Logs of language-model evaluations as plain objects, one per question, as `json_lines` reads them.

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
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.data.source import CONFIDENCE, CORRECT, KNOWN, check_expansion, first_of

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
        made = _options(rows, path)
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


def _options(rows: list[Row], path: Path) -> list[Row]:
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

                raw.seek(member.header_offset + 26)  # the lengths of the name and of the extra field, then these two
                raw.read(int(np.frombuffer(raw.read(4), "<u2").sum()))
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
