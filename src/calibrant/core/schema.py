"""What the numbers of a set of predictions mean, and the only place where two sources of them meet.

| task | scores | labels |
| --- | --- | --- |
| multiclass | n×K | n class numbers or names, or `label_shares` n×K |
| binary | n, of the positive class | n of 0/1 |
| multilabel | n×L, one sigmoid per label | n×L of 0/1 |
| pairs | n, confidence of the answer given | n, correct or not |

A `Schema` is read from a file, given by the caller, or stored in an artifact. Which column is which class and what a
label stands for is decided here and nowhere else; so is what makes two identifiers (groups, clusters, row ids) equal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from string import ascii_uppercase
from typing import Any, NamedTuple

import numpy as np

from calibrant.core.arrays import Array, as_array, check_label_matrix, check_labels, check_outcomes
from calibrant.core.errors import InputError

KINDS = ("logits", "probabilities")

PERCENT = "percent"
"""How probabilities may be written: from 0 to 100."""
TASKS = ("multiclass", "binary", "multilabel", "pairs")

FLAT = ("binary", "pairs")
"""Tasks with one score per row."""

ONE_SIDE = "class names are known on one side only"
"""The note where columns are matched by position because one side has no names."""

MISSING = "missing"
"""The identifier of a value that is not there."""

_NUMBER = re.compile(r"[+-]?(0|[1-9][0-9]*)(\.[0-9]*)?([eE][+-]?[0-9]{1,2})?")
"""Spellings of numbers as programs write them; "01" and "007" are not numbers but codes."""

OUTCOMES = {
    **dict.fromkeys(("false", "no", "0", "wrong", "incorrect", "negative", "n", "f"), 0),
    **dict.fromkeys(("true", "yes", "1", "right", "correct", "positive", "y", "t"), 1),
}
"""Words for the two outcomes, in lower case."""


def class_key(name: Any) -> str:
    """What makes two spellings of a class name one name: 3, "3.0", "+3" and "3e0" are, and so are True and 1.

    >>> [class_key(name) for name in ("3.0", "+1", "1e0", True, "False", "01", " cat ", -2.0)]
    ['3', '1', '1', '1', '0', '01', 'cat', '-2']
    >>> class_key("121932631112635261"), class_key(0.50)
    ('121932631112635261', '0.5')
    """
    text = _text(name)
    if text.lower() in ("true", "false"):
        return str(int(text.lower() == "true"))
    return _number_text(text) if _NUMBER.fullmatch(text) else text


def _number_text(text: str) -> str:
    """Return one spelling per number, with all its digits: a conversion to float would merge numbers above 2⁵³."""
    value = Decimal(text)
    if value == int(value):
        return str(int(value))
    return f"{value:f}".rstrip("0")


def _text(value: Any) -> str:
    return str(value.decode("utf-8", "replace") if isinstance(value, bytes) else value).strip()


def class_number(name: Any) -> int | None:
    """The whole number that a class name spells, or None."""
    key = class_key(name)
    return int(key) if key.removeprefix("-").isdecimal() and len(key) < 18 and _NUMBER.fullmatch(key) else None


def number_order(names: Sequence[str]) -> list[int] | None:
    """Places of the columns that are named 0 … K − 1, in the order of the numbers; None for any other names.

    >>> number_order(["2", "0.0", "1"]), number_order(["1", "2"])
    ([1, 2, 0], None)
    """
    numbers = [class_number(name) for name in names]
    if set(numbers) != set(range(len(names))) or None in numbers:
        return None
    return [numbers.index(place) for place in range(len(names))]


@dataclass(frozen=True)
class Schema:
    """Task, kind, classes in order, and the names of the columns.

    Parameters
    ----------
    task : {"multiclass", "binary", "multilabel", "pairs"}
    kind : {"logits", "probabilities"}
    n_classes : int
        Number of classes K; 2 for one score per row, the number of labels for multilabel.
    class_names : tuple of str, optional
        Names of the columns in order; None where they are only numbered, 0 … K − 1.
    columns : mapping of str to tuple of str
        Names of the columns of a table behind "scores", "labels", "weights", "groups" and "clusters", where known.

    Examples
    --------
    >>> fitted = Schema("multiclass", "logits", 3, ("a", "b", "c"))
    >>> fitted.align(Schema("multiclass", "logits", 3, ("c", "a", "b"))).order
    [1, 2, 0]
    >>> fitted.labels(["c", "a"]).tolist()
    [2, 0]
    """

    task: str
    kind: str
    n_classes: int
    class_names: tuple[str, ...] | None = None
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def flat(self) -> bool:
        """Is there one score per row?"""
        return self.task in FLAT

    @property
    def keys(self) -> list[str]:
        """What the columns are compared by: their names, or their numbers; the spelling where keys coincide."""
        if self.class_names is None:
            return [str(place) for place in range(self.n_classes)]
        keys = [class_key(name) for name in self.class_names]
        if len(set(keys)) == len(keys):
            return keys
        exact = [str(name).strip() for name in self.class_names]
        twice = [name for name in exact if exact.count(name) > 1]
        if twice:
            raise InputError(f"two classes are called {twice[0]!r}: give each class a name of its own")
        return exact

    def align(self, other: Schema, mine: str = "the first", theirs: str = "the second") -> Alignment:
        """How the columns of `other` become those of this schema.

        The same names in another order are permuted, other names are refused. Where one side has no names, its columns
        are 0 … K − 1: they are matched by number with columns that numbers name, and by position with other names,
        which a note says.
        """
        if self.flat != other.flat or (self.task == "multilabel") != (other.task == "multilabel"):
            raise InputError(f"{mine} is a {self.task} task, but {theirs} is {other.task}: give task=")
        if self.n_classes != other.n_classes:
            message = f"{mine} has {self.n_classes} classes, but {theirs} has {other.n_classes}"
            options = max(self.class_names or (), other.class_names or (), key=len)
            if options and set(options) <= set(ascii_uppercase):  # of questions that differ in their number
                raise InputError(f"{message}: name all options", class_names=list(options))
            raise InputError(f"{message}: give the same classes")
        keys, given = self.keys, other.keys
        if keys == given:
            return Alignment()
        if set(keys) == set(given):
            if self.flat:
                raise InputError(
                    f"{mine} has the positive class {keys[1]!r}, but {theirs} has {given[1]!r}: give the same order"
                )
            return Alignment([given.index(key) for key in keys])
        if self.class_names is None or other.class_names is None:
            return Alignment(note=ONE_SIDE)
        raise InputError(
            f"{mine} has the classes {listed(self.class_names)}, but {theirs} has {listed(other.class_names)}: "
            "rename the columns, or give class_names="
        )

    def labels(self, values: Any, name: str = "labels", against: str = "scores", n_rows: int | None = None) -> Any:
        """Class numbers (n,), or outcomes (n,) or (n, L), int64, from names or numbers.

        Labels are matched to the class names first. Where a class name is itself a number, every label must be a name;
        of the classes yes and no, in any order, 1 is yes. Otherwise labels that are whole numbers are places. No single
        label decides which: parts of a data set that are read one by one are therefore read alike.
        """
        array = as_array(values, name)
        rows = len(array) if n_rows is None else n_rows
        if array.ndim == 1 and self.task == "multilabel" and self.n_classes == 1:
            array = array[:, None]
        texts = array.dtype.kind in "USO" and array.size > 0
        numbered = any(class_number(word) is not None for word in (*self._outcomes, *self._outcome_names))
        if texts or (numbered and array.dtype.kind in "fiub"):
            array = self._by_name(array, name, numbered)
        if self.flat:
            return check_outcomes(array, rows, name, against)
        if self.task == "multilabel":
            return check_label_matrix(array, (rows, self.n_classes), name, against)
        if array.dtype.kind == "b" and self.n_classes == 2:
            array = array.astype(np.int64)
        return check_labels(array, rows, self.n_classes, name, against)

    @property
    def _outcome_names(self) -> tuple[str, ...]:
        """Names that a label may be; the names of many labels are not, since each of them is 0 or 1."""
        return self.class_names if self.class_names is not None and self.task != "multilabel" else ()

    @property
    def _outcomes(self) -> dict[str, int]:
        """The places of outcomes 0 and 1, where the names of two classes are words for them, such as yes and no."""
        words = [str(OUTCOMES.get(name.lower())) for name in self._outcome_names]
        return {} if self.flat or sorted(words) != ["0", "1"] else {word: words.index(word) for word in words}

    def _by_name(self, array: Array, name: str, numbered: bool) -> Array:
        """Places of the names, or the numbers that texts spell where no class name is a number."""
        flat, width = array.reshape(-1), array[:1].size if array.ndim else 1
        found, codes = np.unique(flat, return_inverse=True) if flat.dtype.kind != "O" else _distinct(flat, name)
        places = {key: place for place, key in enumerate(self.keys)} if self._outcome_names else {}
        places |= self._outcomes
        lowered = {key.lower(): place for key, place in places.items()}
        lowered = lowered if len(lowered) == len(places) else {}  # names that differ by case only must match exactly
        if not places and (self.flat or self.task == "multilabel"):
            lowered = OUTCOMES
        keys = [class_key(value) for value in found.tolist()]
        answers = [places.get(key, lowered.get(key.lower())) for key in keys]
        unknown = np.array([answer is None for answer in answers])

        def first(place: int) -> tuple[Any, int]:
            """A value, and the first row that holds it."""
            return found[place], int(np.argmax(codes == place)) // width

        for place in np.flatnonzero(unknown).tolist():
            answers[place] = None if numbered else class_number(keys[place])
            if answers[place] is None:
                raise self._no_such_class(*first(place), name)
        if places and unknown.any() and not unknown.all():
            value, row = first(int(codes[np.argmax(unknown[codes])]))
            raise InputError(f"{name} holds names and numbers: {str(value)[:40]!r} in row {row} is not a class name")
        return np.array(answers, np.int64)[codes].reshape(array.shape)

    def _no_such_class(self, value: Any, row: int, name: str) -> InputError:
        text = _text(value)
        if text == "" or identifier(value) == MISSING:
            return InputError(f"{name} is missing in row {row}: give every row a label, or leave the row out")
        if _NUMBER.fullmatch(class_key(value)) and self.class_names is None:
            return InputError(f"{name} must be whole numbers 0..{self.n_classes - 1}, got {text[:40]} in row {row}")
        known = "to use names, give class_names="
        if self._outcome_names:
            known = f"the names are {listed(self._outcome_names, 6)}"
        elif self.flat or self.task == "multilabel":
            known = "outcomes are 0/1, true/false or yes/no; else give class_names=[NEGATIVE, POSITIVE]"
        return InputError(f"{name} must be class numbers or names, got {text[:40]!r} in row {row}: {known}")


@dataclass(frozen=True)
class Reading(Schema):
    """A schema with the columns it was read from, the evidence for it, and doubts.

    Parameters
    ----------
    options : mapping
        Options of `open_predictions` that read other files in the same way.
    evidence : str
        What the values show, such as "rows sum to 1".
    doubts : tuple of str
        Why the values make the reading suspicious.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    evidence: str = ""
    doubts: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """One line: the columns of the scores, of the labels, and those used in addition."""
        one = {"binary": "probability", "pairs": "confidence"}.get(self.task, self.kind)
        word = (one if self.kind == "probabilities" else "logit") if self.flat else self.kind
        evidence = f"({self.evidence})" if self.evidence else ""
        parts = [" ".join(filter(None, [word, _span(self.columns.get("scores", ())), evidence]))]
        labels = self.columns.get("labels", ())
        if self.task == "pairs" and len(labels) == 2:
            parts.append(f"correct where {labels[0]} equals {labels[1]}")
        elif labels:
            parts.append(f"labels {_span(labels)}")
        coding = self.options.get("class_names")
        if isinstance(coding, Mapping):
            parts[-1] += f" ({listed([f'{label} is {name}' for label, name in coding.items()], 4)})"
        elif self.flat and coding:
            parts[-1] += f" (positive: {list(coding)[-1]})"
        extra = [role for role in ("weights", "clusters", "groups") if role in self.columns]
        parts += [f"{role} {', '.join(self.columns[role])}" for role in extra]
        return ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """The entry `read_as` of a JSON document."""
        return {"sentence": self.sentence, "doubts": list(self.doubts)}


def _span(names: Sequence[str]) -> str:
    """Names of columns, of many the first and the last."""
    return f"{names[0]} … {names[-1]}" if len(names) > 2 else ", ".join(names)


class Alignment(NamedTuple):
    """How columns become those of another schema: their places in the wanted order (None: as they are), and a note."""

    order: list[int] | None = None
    note: str = ""


def check_kind(kind: str | None, *, percent: bool = False) -> None:
    """Raise for a kind that does not exist; only readers know `percent`."""
    known = (*KINDS, *[PERCENT] * percent)
    if kind is not None and kind not in known:
        raise InputError(f"kind must be {' or '.join(map(repr, known))}, got {kind!r}")


def check_task(task: str | None) -> None:
    """Raise for a task that does not exist."""
    if task is not None and task not in TASKS:
        raise InputError(f"task must be one of {', '.join(TASKS)}, got {task!r}")


def resolve_task(
    task: str | None, shape: tuple[int, ...], label_shape: tuple[int, ...] | None, name: str = "scores"
) -> str:
    """The task that the shapes tell, or the caller's where the shapes allow it.

    >>> resolve_task(None, (5,), (5,)), resolve_task(None, (5, 3), (5, 3)), resolve_task(None, (5, 2), (5,))
    ('binary', 'multilabel', 'multiclass')
    """
    check_task(task)
    one = len(shape) == 1 or tuple(shape[1:]) == (1,)
    if task is None:
        if one:
            return "binary"
        labels_too = label_shape is not None and len(label_shape) == 2 and len(shape) == 2 and label_shape[1] > 1
        return "multilabel" if labels_too else "multiclass"
    fits, wanted = {
        "pairs": (one, "pairs have one confidence per row: give (n,)"),
        "binary": (one or tuple(shape[1:]) == (2,), "task binary has one score per row, or two columns"),
        "multiclass": (not one, "task multiclass has one column per class: give (n, K)"),
        "multilabel": (len(shape) == 2, "task multilabel has one column per label: give (n, L)"),
    }[task]
    if not fits:
        raise InputError(f"{name} has shape {shape}, but {wanted}")
    return task


def identifier(value: Any) -> str:
    """The exact text of one identifier; whole numbers have one text, whatever type holds them.

    >>> [identifier(value) for value in (1, 1.0, "1", "01", 1234567890123456789, 0.25, None, float("nan"))]
    ['1', '1', '1', '01', '1234567890123456789', '0.25', 'missing', 'missing']
    """
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (float, np.floating)):
        return MISSING if math.isnan(value) else str(int(value)) if value.is_integer() else str(value)
    if isinstance(value, tuple):
        return joined_identifier(value)
    return MISSING if value is None or str(value) in ("<NA>", "NaT", "") else str(value)


def joined_identifier(values: Sequence[Any]) -> str:
    """The text of several identifiers together; no two different ones share it.

    >>> joined_identifier(("x", 1)), joined_identifier(("x & y", "z")), joined_identifier(("x", "y & z"))
    ('x & 1', 'x && y & z', 'x & y && z')
    """
    return " & ".join(identifier(value).replace("&", "&&") for value in values)


def identifiers(values: Any, n_rows: int | None = None, name: str = "ids") -> tuple[Array, list[str]]:
    """The number of each row's identifier (n,), by first appearance, and the identifiers as exact text.

    values : one entry per row, or a mapping of columns, whose combinations are the identifiers then.

    >>> codes, names = identifiers([2.0, float("nan"), 2.0, 10.0])
    >>> codes.tolist(), names
    ([0, 1, 0, 2], ['2', 'missing', '10'])
    """
    if isinstance(values, Mapping):
        columns = [identifiers(column, n_rows, str(word)) for word, column in values.items()]
        if len(columns) == 1:
            return columns[0]
        codes = np.stack([code for code, _ in columns], axis=1)
        found, code = _by_appearance(codes)
        return code, [
            joined_identifier([names[i] for (_, names), i in zip(columns, row, strict=True)]) for row in found
        ]
    column = _column(values)
    if n_rows is not None and column.shape != (n_rows,):
        raise InputError(f"{name} has shape {column.shape}, but there are {n_rows} rows: give one entry per row")
    if column.dtype.kind == "O":
        column = np.array([identifier(value) for value in column.tolist()], str)
    found, code = _by_appearance(column)
    texts = [identifier(value) for value in found]
    if len(set(texts)) < len(texts):  # such as "" and "missing"
        again, names = identifiers(np.array(texts, str))
        return again[code], names
    return code, texts


def cluster_codes(values: Any, n_rows: int | None = None) -> tuple[Array, int]:
    """Number each row's cluster (n,), by first appearance, and count the rows without a cluster id.

    A row without an id is independent of all others: it forms a cluster.

    >>> codes, n_missing = cluster_codes(["a", None, "b", "", "a"])
    >>> codes.tolist(), n_missing
    ([0, 1, 2, 3, 0], 2)
    """
    codes, names = identifiers(values, n_rows, "clusters")
    if MISSING not in names:
        return codes, 0
    missing = np.flatnonzero(codes == names.index(MISSING))
    codes[missing] = len(names) + np.arange(len(missing))
    return _by_appearance(codes)[1], len(missing)


def missing_clusters_note(n_missing: int, n_rows: int) -> str:
    """State how many rows have no cluster id, and how they are counted."""
    verb = "has" if n_missing == 1 else "have"
    return f"{n_missing:,} of {n_rows:,} rows {verb} no cluster id; each row without one counts as a separate cluster"


def typed(cells: Array) -> Array:
    """Cells of a text file as numbers, where every one that is not empty is a number and none loses a digit.

    >>> typed(np.array(["1", "20"])).dtype.kind, typed(np.array(["1.5", ""])).tolist(), typed(np.array(["01"])).tolist()
    ('i', [1.5, nan], ['01'])
    """
    found, codes = np.unique(cells, return_inverse=True)
    filled = [cell for cell in found.tolist() if cell]
    if not filled or not all(_NUMBER.fullmatch(cell) and cell[0] != "+" for cell in filled):
        return cells
    digits = max(len(cell.removeprefix("-")) for cell in filled)
    if all(cell.removeprefix("-").isdecimal() for cell in filled):
        if len(filled) == len(found):
            return found.astype(np.int64)[codes] if digits <= 18 else cells
        if digits > 15:
            return cells
    return np.array([float(cell or "nan") for cell in found.tolist()])[codes]


def _column(values: Any) -> Array:
    """An array (n,) of a sequence; numpy would make one type of numbers and texts, or a matrix of tuples."""
    if isinstance(values, np.ma.MaskedArray):
        column = np.array(values.data, object)
        column[np.ma.getmaskarray(values)] = None
        return column
    if isinstance(values, (list, tuple)):
        kinds = {type(value) for value in values}
        if len(kinds) > 1 or tuple in kinds:
            column = np.empty(len(values), object)
            column[:] = values
            return column
    return np.asarray(values)


def _by_appearance(rows: Array) -> tuple[Array, Array]:
    """Distinct rows in the order in which they first appear, and the place of each row among them."""
    found, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return found[order], rank[inverse.reshape(-1)]


def _distinct(array: Array, name: str) -> tuple[Array, Array]:
    """Distinct objects by first appearance, and the place of each; an InputError for what is not a label."""
    places: dict[Any, int] = {}
    codes = np.empty(array.size, np.intp)
    for row, value in enumerate(array.ravel().tolist()):
        missing = identifier(value) == MISSING
        if not missing and not isinstance(value, (str, bytes, int, float, np.generic)):
            raise InputError(f"{name} holds {type(value).__name__} ({str(value)[:40]}): give class numbers or names")
        codes[row] = places.setdefault((str, "") if missing else (type(value), value), len(places))
    found = np.empty(len(places), object)
    found[:] = [value for _, value in places]
    return found, codes


def listed(names: Sequence[str], most: int = 12) -> str:
    """The first names, and how many more there are, for error messages."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
