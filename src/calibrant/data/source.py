"""Fields of files: what they are called, and how their rows are read.

Every format is read by a function that returns the named arrays of a file as `Field`s. One column per class carries a
prefix that says the kind: `logit_cat`, `probability_cat`, `prob_cat`. Outcomes of several labels are `label_cat`,
shares of annotators `label_share_cat`. `scores` and `labels` may name columns themselves: one name, several with commas
between, or a pattern such as `prob_*`. Columns named 0 … K − 1 are those classes, in whatever order they stand.

A `Source` is all that `Predictions` knows about storage: it tells its shape, hands out blocks of consecutive rows, and
says which file and row a row came from. Fields and sources hold addresses, not open files, so they can be sent to other
processes, and two threads may read one source at the same time. What a file may claim is bounded before anything is
allocated for it.
"""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from calibrant.core.arrays import Array, check_values, look_like_probabilities, probabilities_error, widen
from calibrant.core.errors import InputError
from calibrant.core.schema import KINDS
from calibrant.core.softmax import log_stored

LABELS = ("labels", "label")
"""Names of labels that win over any other."""

OTHER_LABELS = (
    "label_ids", "targets", "target", "y_true", "y", "y_test", "true_label", "true_class", "truth", "true",
    "ground_truth", "gold", "gold_label", "expected", "actual", "answer", "outcome",
)  # fmt: skip
"""Names that libraries use; read where exactly one of them is there."""

ANY_LABELS = (*LABELS, *OTHER_LABELS)

SCORES = {
    "logits": "logits",
    "logit": "logits",
    "probabilities": "probabilities",
    "probability": "probabilities",
    "probs": "probabilities",
    "prob": "probabilities",
    "proba": "probabilities",
    "y_prob": "probabilities",
    "y_proba": "probabilities",
    "pred_proba": "probabilities",
    "log_probs": "logits",
}
"""Names of scores, and the kind that they say."""

CONFIDENCE, CORRECT = "confidence", "correct"
PREDICTIONS, LABEL_IDS = "predictions", "label_ids"
"""What Hugging Face's Trainer calls the logits and the labels."""

WEIGHTS = ("weights", "weight", "sample_weight")
GROUPS = ("groups", "group")
CLUSTERS = ("clusters", "cluster")
LABEL_SHARES = "label_shares"
CLASS_NAMES = "class_names"

PARTNERS = {CONFIDENCE: CORRECT, PREDICTIONS: LABEL_IDS}
"""Names of scores that only count beside the labels that belong to them."""

ANSWER = "answer given"
"""What the label of a file is called where the true labels come from another one."""

KNOWN = frozenset({*ANY_LABELS, *SCORES, *WEIGHTS, *GROUPS, *CLUSTERS, *PARTNERS, *PARTNERS.values()})
"""All names above that columns of a table may have."""


SINGLE = {("binary", "probabilities"): "probability", ("pairs", "probabilities"): "confidence"}
"""What files call one score per row, by task and kind; logits keep their name."""

MARKS = (
    re.compile(
        r"(?:(?P<logits>logits?)|prob(?:s|a|ability|abilities)?|(?!\.pred_class$)\.pred)[_.](?P<name>.+)",
        re.IGNORECASE,
    ),
    re.compile(r"(?:p|confidence) ?\((?:.*=)?(?P<name>.+)\)", re.IGNORECASE),
)
"""Names of the scores of one class: `prob_cat`, R's `prob.cat` and `.pred_cat`, KNIME's `P (pet=cat)`, RapidMiner's
`confidence(cat)`."""

SCORE_WORDS = frozenset(
    [
        "p",
        "pr",
        "prob",
        "probs",
        "proba",
        "probas",
        "probability",
        "probabilities",
        "pred",
        "preds",
        "predict",
        "prediction",
        "predictions",
        "score",
        "scores",
        "conf",
        "confidence",
        "risk",
        "phat",
        "yhat",
        "likelihood",
        "posterior",
        "softmax",
        "output",
        "outputs",
        "cats",
        "options",
    ]
)
"""Words in the names of columns that may be scores: such columns are read if the values are evidence for it."""

PERCENT_WORDS = frozenset(
    ["prob", "probs", "proba", "probability", "percent", "pct", "conf", "confidence", "likelihood"]
)
"""Words in the names of one score per row that may be a percentage."""

PROBABILITY_WORDS = PERCENT_WORDS | frozenset(
    ["p", "pr", "pred", "preds", "prediction", "predictions", "risk", "phat", "yhat", "posterior", "softmax", "target"]
)
"""Words in the names of one score per row that mean a probability; others may as well be points or similarities."""

ANSWER_WORDS = frozenset(
    [
        "pred",
        "preds",
        "predict",
        "predicted",
        "prediction",
        "predictions",
        "response",
        "decision",
        "detected",
        "guess",
        "output",
        "answered",
        "suggestion",
        "yhat",
    ]
)
"""Words in the names of columns that hold the answers of a model: they are never labels."""

TRUTH_WORDS = frozenset(
    [
        "label",
        "labels",
        "class",
        "true",
        "truth",
        "target",
        "targets",
        "actual",
        "gold",
        "outcome",
        "species",
        "obs",
        "observed",
        "expected",
        "event",
        "died",
        "diagnosis",
        "targs",
        "y",
        "key",
        "reference",
        "correct",
    ]
)
"""Words in the names of columns of labels: they decide the order in which readings are suggested."""

CORRECT_WORDS = frozenset(
    "correct right hit hits tp match matched accepted".split()  # noqa: SIM905
)
"""Words in the names of columns that hold whether an answer is right."""

STACK_WORDS = frozenset(
    "split subset partition epoch step iteration model run seed checkpoint fold train".split()  # noqa: SIM905
)
"""Words in the names of columns that tell copies of rows apart: of several models, epochs, or parts of the data."""

ID_WORDS = frozenset(
    "id ids uid uuid qid".split()  # noqa: SIM905
)
"""Words in the names of columns that identify what a row is about."""

NO_RISKS = frozenset(
    "conf confidence certainty margin".split()  # noqa: SIM905
)
"""Words in the names of scores that belong to an answer, not to the positive class."""

SHARE_PREFIXES = ("label_share_", "label_shares_", "share_")
LABEL_PREFIXES = ("label_", "labels_")

ROW_NAMES = frozenset({"", "unnamed: 0", "index", "id", "row", "row_id", "rownames", "__index_level_0__"})
"""Names of columns that number the rows; they are never scores."""


@dataclass(frozen=True)
class Wanted:
    """What the caller says about a file: names of arrays or columns, or arrays in their place."""

    kind: str | None = None
    task: str | None = None
    scores: Any = None
    labels: Any = None
    weights: Any = None
    by: Any = ()
    cluster: Any = None
    class_names: Any = None
    """Names in order, or a mapping from what labels say to names."""
    require_labels: bool | None = True
    """False where there may be none; None where they are not read."""
    ignore_index: int | None = None
    guard: int = 2
    """Rows from which on logits that look like probabilities are an error; 0 where they are only transformed."""
    name: str = ""
    """What messages call the file."""
    split: str = ""
    """The part of the file: `val` of `file#val`."""
    strict: bool = False
    """Are only documented names and options of the caller read?"""
    trusted: bool = False
    """Did the caller pass arrays under documented names, so that their values are not judged?"""

    @property
    def called(self) -> str:
        """The file, or the table that has no name."""
        return self.name or "the table"

    @property
    def prefix(self) -> str:
        """What the names of the arrays of the part begin with."""
        return f"{self.split}_" if self.split else ""

    @property
    def word(self) -> str:
        """What scores without a name are called: logits, unless the caller says otherwise."""
        return "logits" if self.kind in (None, "logits") else "probabilities"

    @property
    def columns(self) -> set[str]:
        """Names of columns that are read for what they are called, or because the caller names them."""
        return {*KNOWN, *self.by, *map(str, (self.labels, self.weights, self.cluster))}


class LabelFile(NamedTuple):
    """Labels in a file of their own: its name as given, its columns, and the one to take, where that was said."""

    name: str
    fields: Found
    column: str = ""


def first_of(words: Iterable[Any], found: Container[Any]) -> Any:
    """The first of some names that is among those found, or None."""
    return next((word for word in words if word in found), None)


def class_names_of(columns: Sequence[str], text: str) -> Sequence[str]:
    """What distinguishes columns: the part that `*` stands for, or the names without a documented prefix."""
    head, star, tail = text.partition("*")
    if star and "," not in text:
        return [column.removeprefix(head).removesuffix(tail) for column in columns]
    marks = [class_of(column) for column in columns]
    return [mark[1] for mark in marks if mark] if all(marks) else list(columns)


def score_kind(word: str) -> str | None:
    """The kind that a name of scores says, if it says one.

    >>> score_kind("prob_cat"), score_kind("risk"), score_kind("score")
    ('probabilities', 'probabilities', None)
    """
    low = word.lower()
    if "logit" in low:
        return "logits"
    return "probabilities" if "prob" in low or low.startswith(("risk", CONFIDENCE)) else None


def split_names(fields: Found) -> list[str]:
    """The prefixes that `file#prefix` can pick, and "" if the file has scores without one."""
    found = set()
    for key in fields:
        for word in (key,) if key in SCORES else (*SCORES, *PARTNERS):
            if key == word or key.endswith("_" + word):
                prefix = key[: -len(word)]
                if word not in PARTNERS or prefix + PARTNERS[word] in fields:
                    found.add(prefix.removesuffix("_"))
    return sorted(found)


def canonical(names: Sequence[str]) -> list[str]:
    """Column names with known words in lower case (`Label` is `label`), where that is no clash.

    >>> canonical(["Label", "Prob_A", "Age"])
    ['label', 'Prob_A', 'Age']
    """
    taken = set(names)
    return [name.lower() if name.lower() in KNOWN and name.lower() not in taken else name for name in names]


def picked(names: Sequence[str], given: str | Sequence[str], option: str = "", called: str = "") -> list[str]:
    """The columns that a name, several names, in one text with commas too, or a pattern stands for; an InputError for
    one of an option that stands for none.

    >>> picked(["cat", "dog, small", "label"], 'cat,"dog, small"')
    ['cat', 'dog, small']
    """
    columns: list[str] = []
    if isinstance(given, str):
        given = [given] if given in names else next(csv.reader([given], skipinitialspace=True), [])
    for word in map(str.strip, map(str, given)):
        hits = [word] if word in names else [name for name in names if fnmatchcase(name, word)]
        if not hits and option:
            raise InputError(f"{called} has no {word} for the {option}, only {', '.join(map(str, names))[:200]}")
        columns += hits
    return list(dict.fromkeys(columns))


def class_of(name: str, marks: Iterable[re.Pattern[str]] = MARKS) -> tuple[str, str] | None:
    """The kind and the class of which a column holds the scores, if its name says so.

    >>> class_of("prob_cat"), class_of("P (pet=cat)"), class_of("cat")
    (('probabilities', 'cat'), ('probabilities', 'cat'), None)
    """
    for mark in marks:
        if found := mark.fullmatch(name.strip()):
            return KINDS[not found.groupdict().get("logits")], found["name"]
    return None


MAX_ROWS = 2**32
"""Rows of one file; labels of that many would need 32 GiB."""

MAX_CLASSES = 2**22
"""Columns of one matrix; the largest vocabularies have a tenth of that."""

MAX_TEXT_BYTES = 2**24
"""Bytes of a text header, of class names, or of one line of text."""

MAX_EXPANSION = 200
"""Times its compressed size that data may expand to, once it is larger than `ROOM_TO_EXPAND`."""

ROOM_TO_EXPAND = 2**28
"""Bytes that any file may expand to: constant labels shrink a thousandfold and are no attack while small."""


def check_counts(shape: tuple[int, ...], name: str) -> None:
    """Raise if a matrix claims more rows or classes than any real one has."""
    for count, most, what in zip(shape, (MAX_ROWS, MAX_CLASSES), ("rows", "classes"), strict=False):
        if not 0 <= count <= most:
            raise InputError(f"{name} claims {count} {what}, but at most {most} are read from one file")


ROOM_FOR_TEXT = 2**25
"""The same for text, which takes longer to parse and, being digits, never shrinks as much as arrays can."""


def check_expansion(expanded: int, compressed: int, name: str, room: int = ROOM_TO_EXPAND) -> None:
    """Raise if `compressed` bytes unpack to so many that this looks like a decompression bomb."""
    asked = os.environ.get("CALIBRANT_MAX_EXPANDED_BYTES", "")
    room = int(asked) if asked.isdigit() else room
    if expanded > room and expanded > MAX_EXPANSION * max(compressed, 1):
        raise InputError(
            f"{name} unpacks {compressed} bytes to {expanded} or more, over {MAX_EXPANSION} times as many: "
            f"if you trust the file, store it uncompressed or set CALIBRANT_MAX_EXPANDED_BYTES above {room}"
        )


@contextmanager
def reading(path: Path, what: str, damage: tuple[type[Exception], ...]) -> Iterator[None]:
    """Errors name the file: bad input as it is, and `damage` as that of a file that is not whole."""
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty (0 bytes): it is not a whole {what}")
    try:
        yield
    except InputError as error:
        if str(path) in str(error):
            raise
        raise InputError(f"{path} cannot be read as a {what}: {error}") from error
    except damage as error:
        raise InputError(
            f"{path} is not a whole {what}: {' '.join(str(error).split())[:200] or type(error).__name__}"
        ) from error


CHUNK_BYTES = 64 * 2**20
"""Bytes of values in one chunk at most (one row, where a row is larger)."""

BFLOAT16 = np.dtype([("bfloat16", "<u2")])
"""numpy has no bfloat16: the upper half of a float32, marked by this dtype until it is widened."""


class Source:
    """Rows that are read block by block: an array of a file as it is stored, or rows that are made from others.

    Attributes
    ----------
    name : str
        What error messages call it, usually the file.
    shape, dtype
        Those of all rows; the rows of predictions are n×K of float32 or float64.
    behind : Source, optional
        What the rows are made from, one from one, unless a method says otherwise.
    """

    name: str = ""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    behind: Any = None

    def blocks(self, start: int, stop: int, rows: int) -> Iterator[Array]:
        """Consecutive blocks of at most `rows` rows that cover start … stop − 1."""
        raise NotImplementedError

    def whole(self) -> Array | None:
        """All rows as one array where that costs no copy, otherwise None."""
        return None

    def check_unchanged(self) -> None:
        """Raise InputError where the file behind is no longer the one that was opened; memory never changes."""
        if self.behind is not None:
            self.behind.check_unchanged()

    def cuts(self, rows: int) -> list[int]:
        """Rows about `rows` apart, 0 among them, at which reading may begin without reading what lies before."""
        return list(range(0, self.shape[0], rows)) if self.behind is None else self.behind.cuts(rows)

    def locate(self, row: int) -> tuple[str, int]:
        """The file a row came from, and its number there."""
        return self.name, row

    def pieces(self) -> list[Source]:
        """The sources behind, one after another, each of which can be sent to another process by itself."""
        return [self]

    def refuse_probabilities(self, called: str, fewest: int = 2) -> None:
        """Raise if two or more rows (`fewest`) of what is called logits all lie in [0, 1] and sum to one."""
        rows, width = self.shape
        if rows < fewest or width < 2:
            return
        # real logits fail in the first small block, so that the rest need not be read; a last block may hold one row
        blocks = self.blocks(0, rows, max(64, 2**16 // width))
        if all(look_like_probabilities(np.vstack([block, block[:1]])) for block in blocks):
            raise probabilities_error(rows, called, 'give kind="probabilities"')


class PartsSource(Source):
    """Several sources one after another, or some consecutive rows of them; no block spans two of them."""

    def __init__(self, parts: list[Source], name: str = "", rows: range | None = None) -> None:
        pieces = [piece for part in parts for piece in part.pieces()]
        self.spans = [(piece, range(piece.shape[0])) for piece in pieces]
        if rows is not None:
            self.spans = list(self._within(rows.start, rows.stop))
        self.name, self.dtype = name or parts[0].name, np.result_type(*(part.dtype for part in parts))
        self.shape = (sum(len(own) for _, own in self.spans), parts[0].shape[1])
        self.behind = self.spans[0][0] if len(self.spans) == 1 else None

    def _within(self, start: int, stop: int) -> Iterator[tuple[Source, range]]:
        """The sources that hold rows start … stop − 1, and the numbers of these rows in each."""
        for source, rows in self.spans:
            own = rows[max(start, 0) : max(stop, 0)]
            if own:
                yield source, own
            start, stop = start - len(rows), stop - len(rows)

    def blocks(self, start: int, stop: int, rows: int) -> Iterator[Array]:
        """Blocks of the sources in turn, in their common dtype."""
        for source, own in self._within(start, stop):
            for block in source.blocks(own.start, own.stop, rows):
                yield block.astype(self.dtype, copy=False)

    def whole(self) -> Array | None:
        """A view of the whole of a single source."""
        source, own = self.spans[0]
        whole = source.whole() if self.behind is source else None
        return None if whole is None else whole[own.start : own.stop]

    def locate(self, row: int) -> tuple[str, int]:
        """The place in the source that holds the row."""
        source, own = next(self._within(row, row + 1))
        return source.locate(own.start)

    def pieces(self) -> list[Source]:
        """The rows of each source."""
        return [PartsSource([source], rows=own) for source, own in self.spans]

    def cuts(self, rows: int) -> list[int]:
        """Those of all sources."""
        found, first = [], 0
        for source, own in self.spans:
            found += [first, *(first + cut - own.start for cut in source.cuts(rows) if cut in own[1:])]
            first += len(own)
        return found


class ViewSource(Source):
    """Rows made from those of another source, one from one.

    made : function of a block, of the file that its first row came from, and of the number of that row there; a
        subclass may read its blocks otherwise.
    """

    def __init__(self, source: Source, made: Any = None, width: int | None = None) -> None:
        self.name, self.dtype, self.behind, self._made = source.name, source.dtype, source, made
        self.shape = source.shape if width is None else (source.shape[0], width)

    def blocks(self, start: int, stop: int, rows: int) -> Iterator[Array]:
        """What is made of the blocks of the source behind."""
        for block in self.behind.blocks(start, stop, rows):
            yield self._made(block, *self.locate(start))
            start += len(block)

    def locate(self, row: int) -> tuple[str, int]:
        """The place in the source behind."""
        return self.behind.locate(row)


def difference(block: Array, name: str, row: int, *, kind: str) -> Array:
    """The log odds (n×1) of the second of two columns: z₁ − z₀, or log p₁ − log p₀ of probabilities."""
    if kind == "probabilities":
        called = f"{name}: probabilities" if name else "probabilities"
        check_values(block, from_logits=False, name=called, first_row=row)
        block = log_stored(block)
    return block[:, 1:] - block[:, :1]


def fractions(block: Array, *_where: Any, classes: bool) -> Array:
    """Probabilities that are written from 0 to 100; of `classes`, rows that rounding keeps from 100 are divided by
    their sum."""
    sums = block.sum(axis=1, keepdims=True)
    rounded = classes & (np.abs(sums - 100) <= 0.5 * block.shape[1])
    return block / np.where(rounded, sums, 100).astype(block.dtype)


def picked_columns(block: Array, *_where: Any, places: list[int]) -> Array:
    """Some columns, in this order."""
    return np.take(block, places, axis=1)


class TakenSource(ViewSource):
    """Rows of another source in ascending order, some of them several times or not at all."""

    def __init__(self, source: Source, rows: Array) -> None:
        super().__init__(source)
        self.rows, self.shape = rows, (len(rows), *source.shape[1:])

    def blocks(self, start: int, stop: int, rows: int) -> Iterator[Array]:
        """Rows gathered from the span of the source that holds them."""
        for first in range(start, stop, rows):
            own = self.rows[first : min(first + rows, stop)]
            lowest, highest = int(own[0]), int(own[-1]) + 1
            yield np.concatenate(list(self.behind.blocks(lowest, highest, len(own))))[own - lowest]

    def read(self) -> Array:
        """These rows of an array that may hold anything, such as texts."""
        return self.behind.read()[self.rows]

    def locate(self, row: int) -> tuple[str, int]:
        """The place in the source behind."""
        return self.behind.locate(int(self.rows[row]))

    def cuts(self, rows: int) -> list[int]:
        """Anywhere: each block reads the span that holds its rows."""
        return list(range(0, self.shape[0], rows))


class Field(Source):
    """One named array of a file, not yet read, of any shape.

    fortran : is it column-major? Its rows lie apart then, so that it is read as a whole.
    names : of its columns, where it has some of its own.
    percent : do its cells say percent, so that they are read as fractions whatever the caller calls them?
    """

    fortran: bool = False
    percent: bool = False
    names: Sequence[str] | None = None

    def read(self) -> Array:
        """The whole array."""
        rows = (*self.shape, 1)[0]  # a single number is one row
        values = next(self.blocks(0, rows, max(rows, 1)), np.empty(0, self.dtype))
        return values.ravel().reshape(self.shape, order="F") if self.fortran else values.reshape(self.shape)

    def source(self, name: str) -> Source:
        """Its rows as a matrix of float32 or float64, to be read in blocks; one score per row is one column."""
        if self.fortran:
            return ArraySource(np.ascontiguousarray(self.read()), name)
        made = copy(self)
        made.name, made.shape, made.dtype = name, (*self.shape, 1)[:2], widen(np.empty(0, self.dtype)).dtype
        return made

    def beside(self, others: Sequence[Field], key: str) -> Field:
        """This column and others side by side, as one matrix that is called `key`; alone as it is, in numbers."""
        try:
            return ArrayField(np.column_stack([one.read() for one in (self, *others)])) if others else self
        except (TypeError, ValueError) as error:  # such as dates and numbers
            raise InputError(f"{key} must hold one real number per row and column: {error}") from error

    @property
    def nbytes(self) -> int:
        """Bytes the array will take; whole-number arithmetic, since a file may claim anything."""
        return math.prod(self.shape) * self.dtype.itemsize


Found = dict[str, Field]
"""The named arrays of a file, or the columns of a table."""


class ArrayField(Field):
    """An array that is already in memory."""

    def __init__(self, array: Array) -> None:
        self._array, self.shape, self.dtype = array, array.shape, array.dtype

    def blocks(self, start: int, stop: int, rows: int) -> Iterator[Array]:
        """Views of the array."""
        for first in range(start, stop, rows):
            yield self._array[first : min(first + rows, stop)]

    def whole(self) -> Array:
        """The array itself."""
        return self._array

    def source(self, name: str) -> Source:
        """The matrix in memory."""
        return ArraySource(self._array, name)


class ArraySource(ArrayField):
    """A matrix in memory."""

    def __init__(self, array: Array, name: str = "") -> None:
        super().__init__(widen(array).reshape((*array.shape, 1)[:2]))
        self.name = name


class BrokenField(Field):
    """An array that cannot be read; its error comes up when the array is needed, and not before.

    A file may hold more than predictions: an array that is not asked for need not be readable.
    """

    def __init__(self, error: InputError) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "dtype"):
            raise self._error
        raise AttributeError(name)


class Fields(dict[str, Field]):
    """Columns of a table by name, with what the reader had to decide."""

    notes: tuple[str, ...] = ()
    twice: Collection[str] = ()
    """Names that several columns of the file have."""


@dataclass(eq=False)
class RawField(Field):
    """An array of a shape and a dtype that begins `offset` bytes into a file.

    Blocks are read, not mapped: a map of a file that another process cuts short ends this process with SIGBUS. Before
    and after each block the file must have the size and the time of change that it had when it was opened.

    keeps : what must live as long as the field or its rows are used, such as the owner of a scratch file.
    """

    path: Path
    offset: int
    shape: tuple[int, ...]
    stored: np.dtype[Any]
    called: str
    fortran: bool = False
    keeps: Any = None

    def __post_init__(self) -> None:
        self.dtype = np.dtype(np.float32) if self.stored == BFLOAT16 else self.stored
        self.opened = self.path.stat()
        needed, held = math.prod(self.shape) * self.stored.itemsize, self.opened.st_size - self.offset
        if needed > held:
            raise InputError(
                f"{self.called} promises {needed} bytes of data (shape {self.shape}, {self.dtype}), "
                f"but {max(held, 0)} are there: the file is truncated"
            )

    def blocks(self, start: int, stop: int, rows: int) -> Iterator[Array]:
        """Consecutive rows in memory; bfloat16 as float32."""
        width = math.prod(self.shape[1:])
        for first in range(start, stop, rows):
            count = min(rows, stop - first)
            begins = self.offset + first * width * self.stored.itemsize
            self.check_unchanged()
            found = np.fromfile(self.path, self.stored, count * width, offset=begins)
            self.check_unchanged()
            if self.stored == BFLOAT16:
                found = (found["bfloat16"].astype(np.uint32) << 16).view(np.float32)
            yield found.astype(self.dtype, copy=False).reshape(count, *self.shape[1:])

    def check_unchanged(self) -> None:
        """Raise InputError where the file has another size or time of change than when it was first looked at."""
        before, now = self.opened, self.path.stat()
        if (before.st_size, before.st_mtime_ns) != (now.st_size, now.st_mtime_ns):
            raise InputError(
                f"{self.called} changed while it was read ({before.st_size} bytes before, {now.st_size} now): "
                "another process writes to it; read a copy, or wait until it is finished"
            )

    def whole(self) -> Array | None:
        """One map of the array, if no other user may write to the file.

        It is private: writable like any array, so that compiled kernels need no second version for read-only arrays,
        and no write ever reaches the file.
        """
        found = self.path.stat()
        others_write = found.st_mode & 0o022 or (os.name == "posix" and found.st_uid != os.geteuid())
        if others_write or self.stored != self.dtype or self.offset % self.stored.itemsize:
            return None
        self.check_unchanged()
        return np.asarray(np.memmap(self.path, self.stored, "c", self.offset, self.shape))
