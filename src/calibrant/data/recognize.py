"""Which columns are the scores and the labels: rules propose readings of a table, the values judge them.

Options of the caller are never questioned. Columns with documented names are read as named: suspicious values are a
doubt, and the table is rejected only if they contradict the names significantly and another reading fits. Without
documented names a reading needs positive evidence and no rival.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from calibrant.core.arrays import Array
from calibrant.core.errors import InputError
from calibrant.core.schema import KINDS, OUTCOMES, PERCENT, class_key, class_number, listed, resolve_task
from calibrant.core.softmax import sigmoid, softmax
from calibrant.data.judge import Judgement, judge, promises_probabilities
from calibrant.data.source import (
    ANSWER,
    ANSWER_WORDS,
    ANY_LABELS,
    CLASS_NAMES,
    CONFIDENCE,
    CORRECT,
    CORRECT_WORDS,
    ID_WORDS,
    KNOWN,
    LABEL_IDS,
    LABEL_PREFIXES,
    LABEL_SHARES,
    LABELS,
    NO_RISKS,
    OTHER_LABELS,
    PERCENT_WORDS,
    PREDICTIONS,
    PROBABILITY_WORDS,
    ROW_NAMES,
    SCORE_WORDS,
    SCORES,
    SHARE_PREFIXES,
    STACK_WORDS,
    TRUTH_WORDS,
    BrokenField,
    Fields,
    Found,
    Wanted,
    class_names_of,
    class_of,
    first_of,
    picked,
    score_kind,
    split_names,
)
from calibrant.data.tables import sample_columns

SAMPLED = 2**20
"""Values by which a table is judged: its first rows."""

EVIDENCE, PAIR_EVIDENCE, DOUBT = 4.0, 2.0, 2.0
"""Standard errors of the association between scores and labels that a guess needs, that the correctness of answers
needs, and below which documented names are doubted."""

REORDERED, REORDERED_MANY = 4.0, 6.0
"""Standard errors by which another order of the classes fits better: of a few classes, and of 20 or more."""

MAX_GUESSED_COLUMNS = 20_000
"""Columns of a table up to which undocumented names are considered."""

FEWEST_ROWS = 30
"""Rows below which no judgement rejects a label."""

MOST_DISTINCT = 2000
"""Distinct labels of a column that is considered."""

BOUNDARY = re.compile(
    r"(?<=[^A-Za-z0-9])|(?=[^A-Za-z0-9])|(?<=[a-z])(?=[A-Z])|(?<=[A-Za-z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])"
)
"""Where a name can be divided into a common part and a class."""


def words_of(name: str) -> set[str]:
    """The words of a column's name in lower case.

    >>> sorted(words_of("P_BAD1")), sorted(words_of("yProba.cat"))
    (['1', 'bad', 'p'], ['cat', 'proba', 'y'])
    """
    return {part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_]+", name)}


@dataclass
class Scores:
    """Columns that may be the scores, and their first rows."""

    columns: list[str]
    kind: str
    values: Array
    """Probabilities (n, K); (n, 1) for one score per row."""
    names: list[str] | None = None
    """The classes in order; None for 0 … K − 1."""
    named: bool = False
    """Are the names documented, or given by the caller?"""
    words: bool = False
    """Do the names suggest probabilities?"""
    key: str = ""
    """The array, or the pattern that the caller gave."""
    many: bool = False
    """Do the rows not sum to one, so that they can only be scores of many labels?"""

    @property
    def flat(self) -> bool:
        """Is it one score per row?"""
        return self.values.shape[1] == 1

    @property
    def option(self) -> Any:
        """The option `scores` that chooses them."""
        return self.key or (self.columns[0] if len(self.columns) == 1 else self.columns)

    def two_columns(self) -> Array:
        """Probabilities of all classes."""
        return np.column_stack([1 - self.values, self.values]) if self.flat else self.values


@dataclass
class Candidate:
    """A reading of a table: scores, labels and what they mean, with the judgement of the values."""

    scores: Scores
    labels: Any
    task: str
    codes: Array
    coding: Any = None
    """`class_names` by which the labels become classes."""
    by_name: bool = False
    named: bool = False
    """Is the label documented or given by the caller?"""
    judgement: Judgement = field(default_factory=lambda: Judgement(0.0, 0.0, None, 0.0, echoed=False))
    unknown: float = 0.0
    """Share of the rows without a class."""
    label_names: Mapping[int, str] = field(default_factory=dict)
    """Labels by class number."""
    n_answers: int = 2
    """Different answers, of which a confidence is at least the chance to guess right."""

    @property
    def is_truth(self) -> bool:
        """Does the name of the label suggest the truth?"""
        return self.named or bool(words_of(str(self.labels)) & TRUTH_WORDS)

    @property
    def options(self) -> dict[str, Any]:
        """Options of `open_predictions` that read the table in this way."""
        found = {"scores": self.scores.option, "kind": self.scores.kind, "labels": self.labels, "task": self.task}
        if self.coding is not None:
            found["class_names"] = self.coding
        elif (
            self.scores.names is not None
            and not self.scores.flat
            and self.scores.names != class_names_of(self.scores.columns, str(self.scores.option))
        ):
            found["class_names"] = self.scores.names
        return {word: value for word, value in found.items() if value is not None}

    @property
    def reordered(self) -> bool:
        """Does another order of the classes fit significantly better?"""
        many = self.scores.values.shape[1] >= 20
        return self.judgement.order is not None and self.judgement.gain >= (REORDERED_MANY if many else REORDERED)


class Table:
    """The columns or arrays of one part of a file, with the first rows of each."""

    def __init__(self, fields: Found, wanted: Wanted) -> None:
        self.fields, self.wanted, self.prefix = fields, wanted, wanted.prefix
        self.called = wanted.called
        widths = [1 if isinstance(one, BrokenField) else (*one.shape[1:2], 1)[0] for one in fields.values()]
        self.rows = max(300, SAMPLED // max(sum(widths), 1))
        self.named_only = wanted.strict or len(fields) > MAX_GUESSED_COLUMNS

    @cached_property
    def sample(self) -> dict[str, Array]:
        """The first rows of each array of the part, as numbers or texts."""
        others = tuple(f"{one}_" for one in split_names(self.fields) if one not in ("", self.wanted.split))
        own = {key: one for key, one in self.fields.items() if key.startswith(self.prefix)}
        if self.prefix or not isinstance(self.fields, Fields):
            own = {key: one for key, one in own.items() if not key.startswith(others)}
        if self.named_only:
            own = {key: one for key, one in own.items() if self._is_named(key)}
        return sample_columns(own, self.rows)

    def _is_named(self, key: str) -> bool:
        """Return whether a name is documented or given by the caller."""
        name = key.removeprefix(self.prefix)
        return (
            name in KNOWN
            or key in (ANSWER, self.wanted.split, self.wanted.labels)
            or class_of(name) is not None
            or (self.wanted.scores is not None)
        )

    @cached_property
    def numeric(self) -> list[str]:
        """Columns of one number per row that may be scores."""
        found = []
        for key, values in self.sample.items():
            name = key.removeprefix(self.prefix)
            if values.dtype.kind == "f" and values.ndim == 1 and name.lower() not in ROW_NAMES:
                found.append(key)
        return found

    def distinct(self, key: str) -> tuple[list[Any], Array] | None:
        """Distinct labels of a column, and the number of the label in each row or −1; None for other columns."""
        head = self.sample.get(key)
        if head is None or head.ndim > 1 or (head.dtype.kind == "f" and (head[np.isfinite(head)] % 1).any()):
            return None
        if len(np.unique(head[:MOST_DISTINCT])) > min(MOST_DISTINCT, max(20, 0.9 * len(head))):
            return None
        values = self.fields[key].read()
        if values.ndim > 1:
            values = values.reshape(-1)
        texts = np.array([class_key(one) for one in values.tolist()]) if values.dtype.kind == "O" else values
        found, codes = np.unique(texts, return_inverse=True)
        blank = np.array([class_key(one).lower() in ("", "nan", "none", "<na>") for one in found.tolist()], bool)
        if blank.any():
            places = np.cumsum(~blank) - 1
            codes, found = np.where(blank[codes], -1, places[codes]), found[~blank]
        return (found.tolist(), codes) if 0 < len(found) <= MOST_DISTINCT else None

    def matrix(self, columns: Sequence[str]) -> Array | None:
        """The first rows of columns side by side; None if they have several lengths or a cell is no number."""
        parts = [self.sample[key] for key in columns if key in self.sample]
        if len(parts) < len(columns) or len({len(part) for part in parts}) > 1:
            return None
        if any(part.dtype.kind != "f" or part.ndim > (1 if len(parts) > 1 else 2) for part in parts):
            return None
        values = parts[0] if parts[0].ndim == 2 else np.column_stack(parts)
        return values if len(values) and np.isfinite(values).any() else None

    def scores(self, columns: Sequence[str], kind: str | None = None, **about: Any) -> Scores | None:
        """Columns as scores of a kind, or of the kind that their values show; None if they are neither."""
        values = self.matrix(columns)
        if values is None:
            return None
        shown = value_kind(values) if kind != "logits" else None
        if kind is None and shown is None:
            return None
        kind = shown if kind is None or (shown == PERCENT and about.get("named") and not self.wanted.kind) else kind
        if kind == "logits":
            with np.errstate(over="ignore", invalid="ignore"):
                values = softmax(values) if values.shape[1] > 1 else sigmoid(values)
        values = np.clip(np.nan_to_num(values / (100 if kind == PERCENT and shown != "probabilities" else 1)), 0, 1)
        if len(columns) == 1 and values.shape[1] > 1:
            own = self.fields[columns[0]].names or self.class_names
            about["names"] = names_in_order(list(own)) if own and len(own) == values.shape[1] else None
        return Scores(list(columns), str(kind), values, **about)

    @cached_property
    def class_names(self) -> list[str] | None:
        """The names that a file gives its columns."""
        key = first_of((self.prefix + CLASS_NAMES, CLASS_NAMES), self.fields)
        field = None if key is None else self.fields[key]
        if field is None or field.dtype.kind not in "US" or len(field.shape) != 1:
            return None
        return [
            name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in field.read().tolist()
        ]

    @cached_property
    def label_columns(self) -> dict[str, tuple[list[Any], Array]]:
        """Columns that may be labels, with their distinct values."""
        found = {}
        for key in self.sample:
            if key.removeprefix(self.prefix).lower() not in ROW_NAMES and (values := self.distinct(key)) is not None:
                found[key] = values
        return found


def value_kind(values: Array) -> str | None:
    """The kind that values show: probabilities, percent, or logarithms of probabilities; None if they show no kind."""
    if not len(values):
        return None
    if not np.isfinite(values).all():
        with np.errstate(invalid="ignore"):
            return "logits" if values.shape[1] > 1 and promises_probabilities(np.exp(values), 1.0) else None
    if values.shape[1] == 1:
        low, high = values.min(), values.max()
        return None if low < 0 or high > 100 or 1 < high <= 50 else PERCENT if high > 1 else "probabilities"
    for kind, whole in (("probabilities", 1.0), (PERCENT, 100.0)):
        if promises_probabilities(values, whole):
            return kind
    return "logits" if values.max() <= 0 and promises_probabilities(np.exp(values), 1.0) else None


def remainders(columns: Sequence[str]) -> list[str]:
    """What distinguishes names: the rest without their common beginning and end, cut at word boundaries.

    >>> remainders(["P(cat)", "P(dog)"]), remainders(["p_10", "p_12"]), remainders(["species_a_P", "species_b_P"])
    (['cat', 'dog'], ['10', '12'], ['a', 'b'])
    """
    if len(columns) < 2:
        return list(columns)
    cuts = [[0, *(match.start() for match in BOUNDARY.finditer(name)), len(name)] for name in columns]
    first, shortest = columns[0], min(map(len, columns))
    each = list(zip(columns, cuts, strict=True))
    heads = [cut for cut in cuts[0] if cut < shortest]
    head = max(cut for cut in heads if all(name.startswith(first[:cut]) and cut in own for name, own in each))
    tails = [size for size in (len(first) - cut for cut in cuts[0]) if size < shortest - head]
    tail = max(
        size
        for size in tails
        if all(name.endswith(first[len(first) - size :]) and len(name) - size in own for name, own in each)
    )
    found = [name[head : len(name) - tail].strip(" _.:-=()[]") for name in columns]
    return found if all(found) and len(set(found)) == len(found) else list(columns)


def documented_scores(table: Table, wanted: Wanted) -> list[Scores]:
    """Scores under documented names, or those that the caller names."""
    fields, prefix, kind = table.fields, wanted.prefix, wanted.kind
    if wanted.scores is not None:
        return [given_scores(table, wanted)]
    found: list[Scores] = []

    def add(columns: Sequence[str], said: str, names: list[str] | None = None) -> None:
        """Add the columns; those that cannot be read are reported when they are joined."""
        made = table.scores(columns, kind or said, named=True, names=names)
        width = len(columns) if len(columns) > 1 else (*fields[columns[0]].shape[1:2], 1)[0]
        found.append(made or Scores(list(columns), kind or said, np.empty((0, width)), names, named=True))

    known = {word: said for word, said in SCORES.items() if prefix + word in fields}
    paired = {word: one for word, one in {CONFIDENCE: "probabilities", PREDICTIONS: "logits"}.items()
              if prefix + word in fields and word not in known}  # fmt: skip
    if PREDICTIONS in paired and prefix + LABEL_IDS not in fields:
        del paired[PREDICTIONS]
    answered = prefix + CORRECT in fields or any(key == ANSWER or words_of(key) & ANSWER_WORDS for key in fields)
    if CONFIDENCE in paired and wanted.require_labels and wanted.task is None and not answered:
        del paired[CONFIDENCE]
    if wanted.split and wanted.split in fields and kind:  # a matrix under a bare name, such as shift_noise_3
        add([wanted.split], kind)
    for word, said in {**known, **paired}.items():
        if kind is None or (said == "logits") == (kind == "logits"):
            add([prefix + word], said)
    marked: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for column in fields if isinstance(fields, Fields) else ():
        mark = None if column in KNOWN else class_of(column)
        if mark and (kind is None or (mark[0] == "logits") == (kind == "logits")):
            head, _, tail = column.rpartition(mark[1])
            marked[mark[0], f"{head}*{tail}"][column] = mark[1]
    for (said, _), classes in marked.items():
        columns = in_order(classes) if len(classes) > 1 else list(classes)
        names = [classes[column] for column in columns]
        add(columns, said, names_in_order(names) if len(names) > 1 else names)
    return found


def in_order(classes: Mapping[str, str]) -> list[str]:
    """Columns in the order of their classes if these are the numbers 0 … K − 1, otherwise as they are."""
    numbers = {column: class_number(name) for column, name in classes.items()}
    if set(numbers.values()) == set(range(len(classes))):
        return sorted(classes, key=lambda column: numbers[column] or 0)
    return list(classes)


def names_in_order(names: Sequence[str]) -> list[str] | None:
    """The names, or None for 0 … K − 1 in order."""
    return None if [class_number(name) for name in names] == list(range(len(names))) else list(names)


def given_scores(table: Table, wanted: Wanted) -> Scores:
    """The array or the columns that the caller names."""
    given, called = wanted.scores, wanted.called
    word = given if isinstance(given, str) else ",".join(map(str, given))
    key = first_of((wanted.prefix + word, word), table.fields)
    columns = [key] if key else picked(list(table.fields), given, "scores", called)
    kind = wanted.kind or score_kind(word)
    names = None
    if key is None or len(columns) > 1:
        classes = dict(zip(columns, class_names_of(columns, word), strict=True))
        columns = in_order(classes) if len(columns) > 1 else columns
        names = [classes[column] for column in columns]
        names = names_in_order(names) if len(columns) > 1 else names
    found = table.scores(columns, kind, named=True, names=names)
    if found is None and kind is not None:  # the error is raised when the columns are joined
        width = len(columns) if len(columns) > 1 else (*table.fields[columns[0]].shape[1:2], 1)[0]
        found = Scores(columns, kind, np.empty((0, width)), names, named=True)
    if found is None or (kind is None and found.flat):
        kinds = [one for one in (None if found is None else found.kind, "logits") if one]
        raise InputError(
            f'{called}: {word} does not say what it holds: give kind="logits", kind="probabilities" or kind="percent"',
            *({"kind": one} for one in kinds),
        )
    if key is not None:
        found.key = word
    return found


def guessed_scores(table: Table, known: Sequence[Scores]) -> Iterator[Scores]:
    """Scores without documented names: matrices and columns that sum to one, and columns between 0 and 1."""
    kind = table.wanted.kind
    used = {frozenset(one.columns) for one in known}
    whole = [set(one.columns) for one in known if one.flat or one.kind == "logits" or value_kind(one.values)]
    taken = {column for one in whole for column in one}
    for key, values in table.sample.items():
        if values.dtype.kind == "f" and values.ndim == 2 and key not in taken:
            found = table.scores([key], kind, words=bool(words_of(key) & SCORE_WORDS))
            if found is not None:
                yield found
    for columns, by_label in column_groups(table):
        plain = all(name.isdecimal() for name in columns)
        if frozenset(columns) in used or any(set(columns) <= one for one in whole):
            continue
        if kind and not by_label and not plain:  # with a kind alone, columns are classes if labels or numbers name them
            continue
        used.add(frozenset(columns))
        rest = by_label or dict(zip(columns, remainders(columns), strict=True))
        ordered = in_order(rest)
        common = words_of(" ".join(columns)) - words_of(" ".join(rest.values()))
        logits = kind is None and common & {"logit", "logits"}
        found = table.scores(
            ordered, "logits" if logits else kind, names=names_in_order([rest[one] for one in ordered])
        )
        if found is None:
            matrix = table.matrix(ordered)
            if matrix is not None and matrix.min() >= 0 and matrix.max() <= 1 and not kind:
                names = [rest[one] for one in ordered]
                yield Scores(ordered, "probabilities", matrix, names, words=bool(common & SCORE_WORDS), many=True)
            continue
        found.words = bool(logits or common & {*SCORE_WORDS, "class"}) or plain
        taken |= set(columns)
        yield found
    for key in table.numeric:
        if key not in taken and len(np.unique(table.sample[key][:1000])) > 2:
            own = words_of(key)  # a fraction called target is no label
            words = (own & SCORE_WORDS and "value" not in own) or key in ANY_LABELS
            found = table.scores([key], kind, words=bool(words))
            if found is not None:
                yield found


def column_groups(table: Table) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Columns that may form one matrix: those named like the values of a label, with these, and names alike."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in table.numeric:
        cuts = sorted({0, len(name), *(match.start() for match in BOUNDARY.finditer(name))})
        for first, last in ((i, j) for i in cuts for j in cuts if i < j):
            if (first, last) != (0, len(name)) or name.isdecimal():
                groups[name[:first], name[last:]].append(name)
    for values, _ in table.label_columns.values():
        texts = [str(one) for one in values]
        if not 2 <= len(texts) <= len(table.numeric) or all(text.isdecimal() for text in texts):
            continue
        parts: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
        for name in table.numeric:
            for text in texts:
                place = name.lower().find(text.lower())
                if place >= 0:
                    parts[name[:place].lower(), name[place + len(text) :].lower()].setdefault(text, name)
        for (head, tail), named in parts.items():
            if len(named) == len(texts):
                classes = {name: text for text, name in named.items()}
                yield [name for name in table.numeric if name in classes], classes
                for one in _extended(table, list(classes)):
                    yield one, {name: name[len(head) : len(name) - len(tail)] for name in one}
    distinct = {tuple(members) for members in groups.values() if len(members) > 1}
    yield from ((list(one), {}) for one in sorted(distinct, key=len, reverse=True))


def _extended(table: Table, columns: Sequence[str]) -> Iterator[list[str]]:
    """The columns with up to three neighbors on either side: classes that no row has."""
    places = sorted(table.numeric.index(column) for column in columns)
    for first in range(max(0, places[0] - 3), places[0] + 1):
        for last in range(places[-1], min(len(table.numeric), places[-1] + 4)):
            if last - first + 1 > len(columns):
                yield table.numeric[first : last + 1]


def propose_labels(table: Table, scores: Scores, wanted: Wanted) -> Iterator[Candidate]:
    """Readings with these scores: each column that may be their label, and pairs of columns that may be answers."""
    prefix, given = wanted.prefix, wanted.labels
    chosen = first_of((prefix + given, given), table.fields) if isinstance(given, str) else None
    if isinstance(given, str) and chosen is None:
        return
    n = len(scores.values)
    columns = {key: (values, codes[:n]) for key, (values, codes) in table.label_columns.items()
               if key not in scores.columns and len(codes) >= n}  # fmt: skip
    documented = chosen or documented_label(table.fields, wanted)
    for key, (values, codes) in () if scores.many else columns.items():
        if chosen not in (None, key):
            continue
        task = wanted.task or ("multiclass" if not scores.flat else "binary")
        has_outcomes = len(values) <= 2 or all(class_key(one).lower() in OUTCOMES for one in values)
        right = words_of(key) & CORRECT_WORDS and has_outcomes
        if scores.flat and wanted.task is None and right and key != documented:
            task = "pairs"
        found = code_labels(values, scores, task, wanted.class_names)
        if found is None or task == "multilabel":
            continue
        numbers, coding, by_name = found
        made = np.append(numbers, -1)[codes]
        candidate = Candidate(scores, key, task, made, coding, by_name, named=key in (documented, chosen))
        candidate.named |= task == "pairs" and key == prefix + CORRECT
        if (
            task == "multiclass"
            and isinstance(coding, list)
            and scores.names is None
            and None in map(class_number, values)
        ):
            candidate.named = False  # the order of the classes is a guess
        candidate.unknown = float(((made < 0) & (codes >= 0)).mean())
        candidate.label_names = {int(number): class_key(value) for number, value in zip(numbers, values, strict=True)}
        yield candidate
    if scores.flat and wanted.task in (None, "pairs"):
        answers = propose_answers(scores, columns, documented)
        yield from (one for one in answers if chosen is None or chosen in one.labels.split(","))
    if not scores.flat and wanted.task in (None, "multilabel", "multiclass"):
        yield from propose_label_matrices(table, scores, wanted)


def documented_label(fields: Found, wanted: Wanted) -> str | None:
    """`val_labels` for `val`; for `shift_noise_3` also `shift_noise_labels` and `shift_labels`."""
    split = wanted.split
    families = list(accumulate(f"{word}_" for word in split.split("_")))[::-1] if split else [""]
    choices = [[family + word for word in LABELS] for family in families]
    for keys in (*choices, [families[0] + word for word in OTHER_LABELS]):
        there = [key for key in keys if key in fields]
        if len(there) > 1 and keys in choices:
            raise InputError(f"{' and '.join(there)} may both be the labels: choose one with labels=")
        if there:
            return there[0] if len(there) == 1 else None
    return None


def code_labels(  # noqa: PLR0911
    values: Sequence[Any], scores: Scores, task: str, given: Any
) -> tuple[Array, Any, bool] | None:
    """Class numbers of distinct labels (−1 for none), `class_names` that read them so, and whether names matched."""
    keys = [class_key(one) for one in values]
    numbers = [class_number(key) for key in keys]
    if scores.flat:
        return _code_outcomes(keys, numbers, scores, task, given)
    width = scores.values.shape[1]
    if isinstance(given, Mapping):
        targets = {class_key(code): place for place, code in enumerate(given)}
        return np.array([targets.get(key, -1) for key in keys]), None, False
    names = given or scores.names or [str(place) for place in range(width)]
    partial = None
    for spell in (str, str.lower):
        places = {spell(class_key(name)): place for place, name in enumerate(names)}
        found = np.array([places.get(spell(key), -1) for key in keys])
        by_name = scores.names is not None or given is not None
        if (found >= 0).all():
            return found, None, by_name
        if by_name and partial is None and (found >= 0).sum() >= max(2, 0.5 * len(keys)):
            partial = found, None, True
    outcomes = [OUTCOMES.get(name.lower()) for name in names]
    meant = [OUTCOMES.get(key.lower()) for key in keys]
    if width == 2 and sorted(map(str, outcomes)) == ["0", "1"] and None not in meant:
        return np.array([outcomes.index(one) for one in meant]), None, True
    if None not in numbers:
        whole = np.array([int(number or 0) for number in numbers])
        if whole.min() >= 0 and whole.max() < width:
            return whole, None, False
        if whole.min() >= 1 and whole.max() == width:
            coded = {str(place + 1): str(name) for place, name in enumerate(names)}
            return whole - 1, coded if scores.names is not None else list(coded), False
    elif len(keys) == width and scores.names is None and not any(one is not None for one in numbers):
        return np.arange(width), keys, False
    return partial


def _code_outcomes(
    keys: list[str], numbers: list[int | None], scores: Scores, task: str, given: Any
) -> tuple[Array, Any, bool] | None:
    """The same for labels of one score: 0 and 1, words for them (also mixed), or two values in order."""
    meant = [OUTCOMES.get(key.lower()) for key in keys]
    if len(keys) > 2:
        return None if None in meant else (np.array([int(one or 0) for one in meant]), None, False)
    if given is not None and not isinstance(given, Mapping):
        places = {class_key(name): place for place, name in enumerate(given)}
        return np.array([places.get(key, -1) for key in keys]), None, False
    if None not in meant and len(set(meant)) == len(keys):
        return np.array([int(one or 0) for one in meant]), None, False
    if len(keys) < 2 or task == "pairs":
        return None
    order = np.argsort([float(one) for one in numbers if one is not None] if None not in numbers else keys)
    if scores.names and class_key(scores.names[0]) in keys:
        order = np.argsort([key == class_key(scores.names[0]) for key in keys])
    return np.argsort(order), [keys[place] for place in order], False


def propose_answers(
    scores: Scores, columns: Mapping[str, tuple[list[Any], Array]], documented: str | None
) -> Iterator[Candidate]:
    """Pairs: one column holds the answers that the score is the confidence of, another one the true labels."""
    keys = list(columns)
    for place, first in enumerate(keys):
        for second in keys[place + 1 :]:
            words = [key == ANSWER or words_of(key) & ANSWER_WORDS for key in (first, second)]
            truths = [words_of(key) & TRUTH_WORDS or key == documented for key in (first, second)]
            one, other = ([class_key(value) for value in columns[key][0]] for key in (first, second))
            named = documented in (first, second) and any(words)
            told = named and scores.named
            if not told and (not (any(words) or any(truths)) or len(set(one) & set(other)) < 2):
                continue
            place_of = {key: number for number, key in enumerate(one)}
            twins = np.array([place_of.get(key, -2) for key in other] + [-3])[columns[second][1]]
            right = (columns[first][1] == twins).astype(int)
            right[(columns[first][1] < 0) | (columns[second][1] < 0)] = -1
            answer, truth = (second, first) if words[1] and not words[0] else (first, second)
            both = len({*one, *other})
            yield Candidate(scores, f"{answer},{truth}", "pairs", right, named=named, n_answers=both)


def propose_label_matrices(table: Table, scores: Scores, wanted: Wanted) -> Iterator[Candidate]:
    """Labels in several columns or in a matrix: many labels per row, or one-hot classes."""
    n, width = scores.values.shape
    names = [class_key(name) for name in scores.names or map(str, range(width))]
    found: dict[str, tuple[Array, bool]] = {}
    for key, values in table.sample.items():
        if values.ndim == 2 and values.shape == (n, width) and [key] != scores.columns:
            found[key] = (values, True)
    zero_one = [
        key for key in table.numeric if key not in scores.columns and set(np.unique(table.sample[key])) <= {0, 1}
    ]
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for key in zero_one:
        for name in names:
            place = key.lower().rfind(name.lower())
            if place >= 0:
                groups[key[:place], key[place + len(name) :]].append(key)
    for (head, tail), members in groups.items():
        by_name = {class_key(key[len(head) : len(key) - len(tail)]).lower(): key for key in members}
        if by_name.keys() == {name.lower() for name in names}:
            columns = [by_name[name.lower()] for name in names]
            matrix = table.matrix(columns)
            if matrix is not None:
                key = ",".join(f'"{one}"' if "," in one else one for one in columns)
                found[key] = (matrix, head.lower() in LABEL_PREFIXES)
    for key, (values, named) in found.items():
        if not np.isin(values, (0, 1)).all():
            continue
        one_hot = bool((values.sum(axis=1) == 1).all())
        sums = scores.kind != "logits" and not scores.many and value_kind(scores.values) is not None
        if wanted.task is None and one_hot and not sums:
            raise InputError(
                f"{key} has one 1 in each of its {n} rows, but rows of {scores.columns[0]} … do not sum to 1: say "
                'task="multiclass" for one-hot labels, task="multilabel" for many labels'
            )
        task = wanted.task or ("multiclass" if one_hot else "multilabel")
        codes = values.argmax(axis=1) if task == "multiclass" else values
        yield Candidate(scores, key, task, codes, by_name=True, named=named)


def recognize(fields: Found, wanted: Wanted) -> Choice:  # noqa: PLR0911
    """The one reading of a table that is documented or plausible; an InputError lists the others."""
    table = Table(fields, wanted)
    try:
        known = documented_scores(table, wanted)
    except InputError as error:  # the caller names scores that are not there
        others = [] if error.remedies else plausible_readings(Table(fields, replace(wanted, scores=None)))
        raise InputError(error.message, *(error.remedies or [one.options for one in others])) from None
    unfit = [one for one in known if wanted.scores is None and is_unfit(one)]
    check_choice([one for one in known if one not in unfit], wanted)
    unread = known and not len(known[0].values)
    if unread or wanted.require_labels is None or not isinstance(wanted.labels, str | None):
        return read_scores(table, known)
    explicit = wanted.scores is not None and wanted.labels is not None
    guesses = (
        [] if wanted.scores is not None or table.named_only or wanted.trusted else list(guessed_scores(table, known))
    )
    candidates = [one for scores in (*known, *guesses) for one in propose_labels(table, scores, wanted)]
    for one in () if wanted.trusted else candidates:
        one.judgement = judge_candidate(table, one)
    plausible = [] if wanted.trusted else [one for one in candidates if is_plausible(one)]
    many = {column for one in plausible if one.task == "multilabel" for column in one.scores.columns}
    plausible = [one for one in plausible if one.task == "multilabel" or not many.issuperset(one.scores.columns)]
    fit = [one for one in known if one not in unfit]
    named = [one for one in candidates if one.scores.named and one.named and fits_names(one)
             and (one.task == "multilabel" or one.scores not in unfit)]  # fmt: skip
    if unfit and wanted.task not in (None, "multilabel"):
        resolve_task(wanted.task, unfit[0].values.shape, None, f"{wanted.called}: {unfit[0].kind}")
        return read_scores(table, known)
    if unfit and not named and plausible:
        parts = {column for one in unfit for column in one.columns}
        if any(one.scores.flat and parts.issuperset(one.scores.columns) for one in plausible):
            raise rejected(table, f"{describe(unfit[0].columns)} do not sum to 1 per row: choose one with scores=", [])
        return accept_guess(table, fit, [one for one in candidates if one.scores not in unfit], plausible)
    if named:
        best = next((one for one in named if one.task == "pairs"), named[0])
        if wanted.trusted:
            return make_choice(best, [])
        return accept_named(table, best, plausible, explicit=explicit)
    labeled = wanted.labels is not None or documented_label(fields, wanted) is not None
    shares = share_keys(fields, wanted)
    if known and (shares or (labeled and (wanted.strict or len(plausible) != 1)) or not (labeled or plausible)):
        several = [wanted.prefix + word for word in OTHER_LABELS if wanted.prefix + word in fields]
        if len(several) > 1 and not labeled and wanted.require_labels:
            problem = f"{' and '.join(several)} may both be the labels: choose one with labels="
            raise InputError(problem, *({"labels": one} for one in several))
        if not (labeled or shares) and wanted.require_labels:
            return accept_guess(table, known, candidates, [])
        return replace(read_scores(table, known), remedies=tuple(one.options for one in plausible))
    return accept_guess(table, known, candidates, plausible)


def judge_candidate(table: Table, candidate: Candidate) -> Judgement:
    """The judgement of a candidate; of many labels, that of the one with the weakest association."""
    if candidate.task != "multilabel":
        return judge(candidate.scores.two_columns(), candidate.codes)
    raw = table.matrix(candidate.scores.columns)
    values = candidate.scores.values if candidate.scores.kind != "logits" or raw is None else sigmoid(raw)
    each = [
        judge(np.column_stack([1 - column, column]), outcomes.astype(int))
        for column, outcomes in zip(values.T, candidate.codes.T, strict=True)
        if 0 < outcomes.sum() < len(outcomes)
    ]
    total = sum(one.association for one in each) / max(len(each), 1) ** 0.5
    return Judgement(float(total), float("inf"), None, 0.0, echoed=False)


def plausible_readings(table: Table) -> list[Candidate]:
    """Readings that the values support, the caller's options aside."""
    known = documented_scores(table, table.wanted)
    found = [one for scores in (*known, *guessed_scores(table, known))
             for one in propose_labels(table, scores, table.wanted)]  # fmt: skip
    for one in found:
        one.judgement = judge_candidate(table, one)
    return [one for one in found if is_plausible(one)]


def check_choice(known: Sequence[Scores], wanted: Wanted) -> None:
    """Raise if several documented names may be the scores."""
    prefix = wanted.prefix
    if len({one.kind == "logits" for one in known}) == 2:
        raise InputError(
            f"{wanted.called} has both {prefix}logits and {prefix}probabilities: choose one with kind=",
            *({"kind": kind} for kind in KINDS[::-1]),
        )
    whole = [one for one in known if one.columns == [prefix + one.kind]]
    if len(known) > 1 and not (whole and all(len(one.columns) == 1 for one in known)):
        names = [describe(one.columns) for one in known]
        raise InputError(f"{wanted.called} has {', '.join(names)}: choose one with scores=",
                         *({"scores": one.option} for one in known))  # fmt: skip


def is_unfit(scores: Scores) -> bool:
    """Return whether columns that are called probabilities of classes do not sum to one in the first rows."""
    if scores.kind == "logits" or scores.flat:
        return False
    return bool((np.abs(scores.values.sum(axis=1) - 1) > 0.02 * scores.values.shape[1]).mean() > 0.5)


def share_keys(fields: Found, wanted: Wanted) -> list[str]:
    """Arrays or columns that hold shares of annotators."""
    return [key for key in fields if key == wanted.prefix + LABEL_SHARES or key.lower().startswith(SHARE_PREFIXES)]


def fits_names(one: Candidate) -> bool:
    """Return whether the names of scores and labels belong together: a confidence needs answers."""
    if one.task == "pairs":
        return "," not in str(one.labels) or is_confidence(one)
    return one.scores.columns[0].rpartition("_")[2] != CONFIDENCE or one.scores.key != ""


def is_confidence(one: Candidate) -> bool:
    """Return whether a score can be the confidence of answers: it is at least that of a guess in nearly all rows."""
    values = one.scores.values[:, 0]
    return CONFIDENCE in one.scores.columns[0].lower() or bool((values >= 1 / one.n_answers - 0.01).mean() >= 0.99)


def is_plausible(one: Candidate) -> bool:  # noqa: PLR0911
    """Return whether the values are evidence for a reading, and nothing contradicts it."""
    scores, judgement, label = one.scores, one.judgement, words_of(str(one.labels))
    if one.unknown or judgement.echoed or one.reordered:
        return False
    if one.task == "pairs":
        return judgement.association >= PAIR_EVIDENCE and ("," not in str(one.labels) or is_confidence(one))
    if not one.named and label & ANSWER_WORDS:
        return False
    texts = scores.names is not None and not all(name.isdecimal() for name in scores.names)
    if not (scores.named or scores.words or (one.by_name and texts)):
        return False
    name = words_of(scores.columns[0])
    if scores.flat and not scores.key and (name & NO_RISKS or (not scores.named and is_rescaled(scores.values))):
        return False
    if scores.flat and not scores.named and scores.kind == PERCENT and not name & PERCENT_WORDS:
        return False  # points up to 100, such as those of a credit score
    if one.task == "multilabel" or scores.flat:
        return judgement.association >= EVIDENCE
    if one.by_name and texts:
        return judgement.association > -DOUBT
    everywhere = len(np.unique(one.codes[one.codes >= 0])) == scores.values.shape[1]
    return judgement.association >= EVIDENCE and (everywhere or not texts)


def is_rescaled(values: Array) -> bool:
    """Return whether one score per row is a rank or was stretched to [0, 1]."""
    found = np.unique(values)
    steps = np.diff(found)
    ranks = len(found) > 20 and bool(np.ptp(steps) < 1e-6) and len(found) >= 0.9 * len(values)
    return ranks or (found[0] == 0 and found[-1] == 1 and (values == 0).sum() == 1 and (values == 1).sum() == 1)


def same_labels(one: Candidate, other: Candidate) -> bool:
    """Return whether two readings give the rows the same classes, whatever these are called."""
    if one.codes.shape != other.codes.shape:
        return False
    if one.codes.ndim > 1:
        return bool((one.codes == other.codes).all())
    pairs = np.unique(np.stack([one.codes, other.codes]), axis=1)
    return all(len(np.unique(side)) == pairs.shape[1] for side in pairs)


def same_scores(one: Scores, other: Scores) -> bool:
    """Return whether scores contain the same numbers: one is the other, one of its columns, or its largest value."""
    if len(one.values) != len(other.values):
        return False
    wide, narrow = (one, other) if one.values.shape[1] >= other.values.shape[1] else (other, one)
    columns = [*wide.values.T, wide.values.max(axis=1)]
    return all(any(np.abs(column - own).max() < 0.011 for own in columns) for column in narrow.values.T)


def rivals_of(best: Candidate, plausible: Sequence[Candidate]) -> list[Candidate]:
    """Other readings that fit as well: other labels of the same scores, or other scores of the same labels."""
    found = []
    for one in plausible:
        if one is best or (one.task == "multilabel") != (best.task == "multilabel"):
            continue
        alike = same_scores(one.scores, best.scores)
        if alike and one.task == best.task and not same_labels(one, best):
            stronger = one.judgement.association > best.judgement.association
            many = best.task == "pairs" or best.scores.values.shape[1] > 2
            if many or stronger or not best.named:
                found.append(one)
        widths = one.scores.values.shape[1], best.scores.values.shape[1]
        comparable = one.scores.flat == best.scores.flat or 2 in widths
        if not alike and comparable and (one.labels == best.labels or same_labels(one, best)):
            found.append(one)
    return found


def accept_named(table: Table, best: Candidate, plausible: Sequence[Candidate], *, explicit: bool) -> Choice:
    """The reading of documented names, with doubts; an InputError if the values contradict them and another fits."""
    judgement, doubts = best.judgement, [] if explicit else check_rows(table, best)
    scores, label = describe(best.scores.columns), str(best.labels)
    rivals = [] if explicit else rivals_of(best, plausible)
    if rivals:
        both = rivals[0].labels if same_scores(rivals[0].scores, best.scores) else describe(rivals[0].scores.columns)
        mine = label if same_scores(rivals[0].scores, best.scores) else scores
        ordered = [best, *rivals]
        if same_scores(rivals[0].scores, best.scores):  # of several labels the one that goes with the scores most
            ordered.sort(key=lambda one: -one.judgement.association)
        raise rejected(table, f"both {mine} and {both} fit: choose one", ordered)
    turned = turned_around(best)
    if turned is not None:
        problem = (
            "the labels seem reversed"
            if best.scores.values.shape[1] <= 2
            else "the classes seem to be in another order"
        )
        sentence = f"{problem}: {scores} {'fall' if best.scores.flat else 'fit better'} under other values of {label}"
        if not explicit:
            raise rejected(table, sentence, [turned, best])
        doubts.append(sentence)
    elif judgement.echoed:
        doubts.append(f"{label} equals the predictions in all rows: are these the answers of the model?")
    elif judgement.association < DOUBT and judgement.expected > EVIDENCE:
        doubts.append(f"{scores} and {label} go together no more than by chance")
    return make_choice(best, doubts)


def check_rows(table: Table, best: Candidate) -> list[str]:
    """Doubts about rows that are copies of others; an InputError if a column distinguishes the copies."""
    parts = [part for part in split_names(table.fields) if part.startswith(("train", "fit"))]
    if parts and not table.wanted.split and not isinstance(table.fields, Fields):
        raise rejected(table, f"the file also holds the rows of {', '.join(parts)}: give scores= and labels=", [])
    doubts, n, used = [], len(best.codes), {*best.scores.columns, *str(best.labels).split(",")}
    stacks = {key: codes[:n] for key, (values, codes) in table.label_columns.items()
              if key not in used and len(values) > 1 and words_of(key) & STACK_WORDS}  # fmt: skip
    for key, codes in stacks.items():
        values = [str(one).lower() for one in table.label_columns[key][0]]
        if any(one.startswith("train") for one in values) or "train" in words_of(key):
            raise rejected(table, f"{key} distinguishes training rows from others: keep the others", [])
        groups = [best.codes[codes == code] for code in np.unique(codes)]
        if not words_of(key) & {"fold"} and all(np.array_equal(one, groups[0]) for one in groups[1:]):
            raise rejected(table, f"the rows repeat for each value of {key}: keep the rows of one", [])
    truth = str(best.labels).rpartition(",")[2]
    labels = table.label_columns[truth][1][:n] if truth in table.label_columns else best.codes
    for key in [key for key, values in table.sample.items() if values.ndim == 1 and words_of(key) & ID_WORDS]:
        if key in used or len(table.sample[key]) < n or labels.ndim > 1:
            continue
        ids = np.unique(table.sample[key][:n], return_inverse=True)[1]
        count = ids.max() + 1
        if n < 1.5 * count or len(np.unique(np.stack([ids, labels]), axis=1).T) > count:
            continue
        for other, codes in stacks.items():
            if len(np.unique(np.stack([ids, codes]), axis=1).T) == n:
                raise rejected(table, f"{key} repeats for each value of {other}: keep the rows of one", [])
        doubts.append(f"{n / count:.2g} rows per {key} on average: are they independent (cluster={key!r})?")
    return doubts


def turned_around(one: Candidate) -> Candidate | None:
    """The reading with reversed labels or reordered classes, where it fits significantly better."""
    if one.task == "multilabel" or one.unknown:
        return None
    names = one.label_names
    if one.scores.flat or one.scores.values.shape[1] == 2:
        if one.judgement.association > -EVIDENCE or len(names) != 2:
            return None
        order: tuple[int, ...] = (1, 0)
    elif one.reordered and one.judgement.order is not None:
        order = one.judgement.order
    else:
        return None
    if one.scores.flat:
        return replace(one, coding=[names[1], names[0]])
    classes = one.scores.names or [str(place) for place in range(len(order))]
    return replace(one, coding={names[place]: classes[target] for place, target in enumerate(order) if place in names})


def accept_guess(
    table: Table, known: Sequence[Scores], candidates: Sequence[Candidate], plausible: Sequence[Candidate]
) -> Choice:
    """The one reading that has evidence and no rival; an InputError that lists the plausible ones."""
    ordered = sorted(plausible, key=lambda one: (-one.scores.named, -one.named, one.scores.flat, -one.is_truth,
                                                 -one.judgement.association))  # fmt: skip
    if ordered:
        best = ordered[0]
        unnamed = [one for one in candidates if one not in plausible and is_evidence(one)]
        rivals = rivals_of(best, ordered) + ([] if best.scores.named else rivals_of(best, unnamed))
        others = [one for one in ordered if one is not best and not same_scores(one.scores, best.scores)]
        others = [one for one in others if best.scores.named <= one.scores.named]
        name = best.scores.columns[0]
        if best.task == "binary" and not best.scores.named and not words_of(name) & PROBABILITY_WORDS:
            raise rejected(table, f"{name} may be a probability of {best.labels} or another score", [best])
        others += [one for one in candidates if has_similar_name(one.scores, best.scores)]
        if not rivals and not others:
            doubts = check_rows(table, best)
            if best.judgement.association < DOUBT:
                doubts.append(f"{describe(best.scores.columns)} and {best.labels} go together no more than by chance")
            return make_choice(best, doubts)
        raise rejected(table, "several readings fit: choose one", [*ordered])
    turned = [one for one in map(turned_around, candidates) if one is not None and one.scores.named and not one.unknown]
    if turned:
        one = turned[0]
        raise rejected(
            table, f"{describe(one.scores.columns)} fall where {one.labels} rises: are the labels reversed?", turned
        )
    error = missing(table, known, candidates)
    unclear = [
        one
        for one in candidates
        if one.scores.named and not one.unknown and (one.judgement.expected < EVIDENCE or len(one.codes) < FEWEST_ROWS)
    ]
    if len({str(one.labels) for one in unclear}) == 1:  # too few rows to judge the only column that may be the label
        error.remedies.append(unclear[0].options)
    rest = [key for key in table.numeric if key not in table.label_columns]
    if not known and table.prefix + CORRECT in table.label_columns and len(rest) == 1:  # any number of an answer
        error.remedies.append({"scores": rest[0], "kind": "logits"})
    raise error


def has_similar_name(one: Scores, other: Scores) -> bool:
    """Return whether other scores have a name that differs by a word, such as those of two models or two sites."""
    if not (one.flat and other.flat and one.words and other.words) or one.columns == other.columns:
        return False
    names = words_of(one.columns[0]), words_of(other.columns[0])
    similar = len(names[0]) == len(names[1]) == len(names[0] & names[1]) + 1
    return similar and bool(names[0] & names[1] & SCORE_WORDS) and not same_scores(one, other)


def is_evidence(one: Candidate) -> bool:
    """Return whether scores and labels go together, whatever their names and in whatever direction."""
    strength = one.judgement.association
    alike = abs(strength) if one.scores.values.shape[1] <= 2 else strength
    return alike >= EVIDENCE and not one.unknown and not one.judgement.echoed


def describe(columns: Sequence[str]) -> str:
    """Names of columns for a sentence."""
    return columns[0] if len(columns) == 1 else f"{columns[0]} … {columns[-1]}"


@dataclass(frozen=True)
class Choice:
    """The chosen columns, what they mean, and how sure that is."""

    columns: Sequence[str]
    kind: str
    key: str = ""
    names: Sequence[str] | None = None
    labels: Any = None
    task: str | None = None
    class_names: Any = None
    evidence: str = ""
    doubts: tuple[str, ...] = ()
    remedies: tuple[dict[str, Any], ...] = ()
    """Options to suggest if the table cannot be read."""

    @property
    def word(self) -> str:
        """The name under which the scores are joined: that of the array, or the kind of columns of classes."""
        one = len(self.columns) == 1 and len(self.names or ()) != 1
        return self.key or (self.columns[0] if one else self.kind)


def make_choice(best: Candidate, doubts: Sequence[str]) -> Choice:
    """The choice of one candidate."""
    made, notes = choose(best.scores), []
    if best.scores.values.shape[1] > 1 and best.task == "multiclass":
        predicted = np.unique(best.scores.values.argmax(axis=1))
        never = [place for place in predicted.tolist() if not (best.codes == place).any()]
        names = best.scores.names or [str(place) for place in range(best.scores.values.shape[1])]
        notes = [f"no row is labeled {listed([names[place] for place in never], 3)}"] * bool(never)
    evidence = "; ".join(filter(None, [made.evidence, *notes]))
    return replace(made, labels=best.labels, task=best.task, class_names=best.coding, doubts=tuple(doubts),
                   evidence=evidence)  # fmt: skip


def choose(scores: Scores) -> Choice:
    """The choice of scores whose labels are not read, or not judged."""
    whole = {"probabilities": 1, PERCENT: 100}.get(scores.kind)
    evidence = f"rows sum to {whole}" if whole and not scores.flat and value_kind(scores.values) else ""
    return Choice(scores.columns, scores.kind, scores.key, scores.names, evidence=evidence)


def read_scores(table: Table, known: Sequence[Scores]) -> Choice:
    """The scores of a table whose labels are not judged: those of documented names, or the only plausible ones."""
    if known:
        confidence = [one for one in known if one.columns[0].endswith(CONFIDENCE)]
        task = "pairs" if confidence and known[0] is confidence[0] and table.wanted.task is None else None
        return replace(choose(known[0]), task=task)
    guesses = [one for one in guessed_scores(table, known) if one.words]
    matrices = [one for one in guesses if not one.flat]
    if len(matrices or guesses) != 1:
        raise missing(table, known, [])
    return choose((matrices or guesses)[0])


def rejected(table: Table, sentence: str, readings: Sequence[Candidate]) -> InputError:
    """The error for a table of which several readings are plausible, with the options of each."""
    return InputError(f"{table.called}: {sentence}", *(one.options for one in readings))


def missing(table: Table, known: Sequence[Scores], candidates: Sequence[Candidate]) -> InputError:
    """The error for a table without a plausible reading: what is missing, or why the likeliest reading is none."""
    fields, wanted = table.fields, table.wanted
    prefix, names = wanted.prefix, listed(sorted(fields)) or "nothing"
    parts = [word for word in split_names(fields) if word and word != wanted.split]
    if known:
        problem = f"has no {prefix}labels, only {names}: add them, or give labels= a column or a file of labels"
    elif parts and not isinstance(fields, Fields):
        problem = f"has no {prefix}logits or {prefix}probabilities, only {names}: pick a part with "
        problem += f"{wanted.called.partition('#')[0]}#{parts[0]}"
        problem += f" (parts: {', '.join(parts)})" if len(parts) > 1 else ""
    elif wanted.split in fields:
        problem = f'has {wanted.split}, which does not say what it holds: give kind="logits" or kind="probabilities"'
    else:
        kind = f"{prefix}{wanted.kind}" if wanted.kind else f"{prefix}logits or {prefix}probabilities"
        problem = f"has no {kind}, only {names}: name them with scores=, and say their kind="
    likeliest = max(candidates, key=lambda one: (one.scores.named, one.named, one.judgement.association), default=None)
    if likeliest is not None:
        scores, label = describe(likeliest.scores.columns), likeliest.labels
        if likeliest.unknown:
            reason = f"{100 * likeliest.unknown:.2g}% of the labels in {label} name no class of {scores}"
        elif likeliest.judgement.echoed:
            reason = f"{label} equals the predictions of {scores} in all rows, so it holds answers rather than labels"
        elif likeliest.judgement.association < EVIDENCE:
            reason = f"{scores} and {label} go together no more than by chance"
        else:
            reason = f"the names do not show that {scores} are probabilities of {label}"
        problem += f"; {reason}"
    return InputError(f"{table.called} {problem}")
