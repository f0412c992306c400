"""`.csv` and `.csv.gz`: one row per line under a header that says what each column is.

    label,weight,logit_cat,logit_dog
    0,1.0,2.5,-0.5

`label` (or `labels`), perhaps `weight` (`weights`, `sample_weight`), and one column per class, in the order of the
classes: `logit_NAME` or `probability_NAME`; see `calibrant.data.columns` for other layouts. Numbers 0 … K − 1 as names
are no class names. Labels may be the names of the classes. Any other column, such as a file name, is read only when it
is asked for. Values become float64. The text is parsed once: what does not fit into memory goes to an unnamed temporary
file.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from calibrant.core import progress
from calibrant.core.errors import InputError
from calibrant.core.schema import KINDS, typed
from calibrant.data import fields as known
from calibrant.data.columns import LABEL_PREFIXES, PREFIXES, SHARE_PREFIXES, Layout, canonical, layout
from calibrant.data.fields import ArrayField, Field, NotedFields, Wanted
from calibrant.data.limits import MAX_TEXT_BYTES, ROOM_FOR_TEXT, check_expansion
from calibrant.data.scratch import ScratchFile
from calibrant.data.source import PickedSource, Source

BLOCK_BYTES = 2**21

TEXTS = frozenset({*known.LABELS, *known.OTHER_LABELS, *known.GROUPS, *known.CLUSTERS, known.CORRECT})
"""Columns that may hold words."""


@dataclass(frozen=True)
class Table:
    """What the columns of a file are: places in the file of those that hold numbers, and of those that may be words."""

    names: list[str]
    layout: Layout
    numbers: list[int]
    texts: list[int]
    row_names: bool
    """Is there one more column in the rows than in the header?"""

    @property
    def width(self) -> int:
        """Columns of the file."""
        return len(self.names)


def fields(path: Path, wanted: Wanted) -> dict[str, Field]:
    """The columns of the table; those with a role are parsed, all others when they are asked for."""
    with opened_text(path) as lines:
        table = _table(lines.readline(MAX_TEXT_BYTES), _first_row(path), path, wanted)
        texts: dict[int, list[np.ndarray]] = {place: [] for place in table.texts}
        scratch = ScratchFile()
        n_rows = 0
        for block in line_blocks(lines, path):
            numbers, words = _parse(block, table, path, n_rows)
            scratch.write(numbers)
            for place, cells in words.items():
                texts[place].append(cells)
            n_rows += len(block)
            progress.step(f"parsing {path.name}", n_rows)
    return _fields(path, table, scratch, texts, n_rows)


def _fields(
    path: Path, table: Table, scratch: ScratchFile, texts: dict[int, list[np.ndarray]], n_rows: int
) -> dict[str, Field]:
    whole = scratch.field((n_rows, len(table.numbers)), path)
    place_of = {table.names[place]: index for index, place in enumerate(table.numbers)}
    found = NotedFields()
    found.members = table.layout.matrices
    for key, columns in table.layout.matrices.items():
        found[key] = PickedField(whole, [place_of[column] for column in columns])
    inside = table.layout.columns
    for name, place in place_of.items():
        if name not in inside:
            found[name] = PickedField(whole, place)
    for place, blocks in texts.items():
        found[table.names[place]] = ArrayField(_words(blocks))
    for place, name in enumerate(table.names):
        if name and name not in inside and name not in found:
            found[name] = TextField(path, place, n_rows)
    if table.layout.class_names is not None:
        found[known.CLASS_NAMES] = ArrayField(np.array(table.layout.class_names, dtype=str))
    return found


def _first_row(path: Path) -> bytes:
    with opened_text(path) as lines:
        lines.readline(MAX_TEXT_BYTES)
        return lines.readline(MAX_TEXT_BYTES)


def _table(header: bytes, first_row: bytes, path: Path, wanted: Wanted) -> Table:
    if not header.strip():
        raise InputError(f"{path} is empty: a table needs the header label,logit_0,logit_1,...")
    try:
        names = [name.strip() for name in next(csv.reader([header.decode("utf-8-sig")]))]
    except (UnicodeDecodeError, csv.Error, StopIteration) as error:
        raise InputError(f"{path}: the header is not UTF-8 text with commas: {header[:40]!r}") from error
    names = canonical(names)
    row_names = row_width(first_row) == len(names) + 1  # R writes row names without a name for their column
    names = ["", *names] if row_names else names
    arranged = layout(_candidates(names, first_row, wanted), wanted, str(path))
    chosen = {text for text in (wanted.labels, wanted.cluster) if isinstance(text, str)} | {*wanted.by}
    words = {name for name in names if name in TEXTS or name in chosen} - arranged.columns
    singles = {*known.SCORES, *known.PARTNERS, *known.WEIGHTS, str(wanted.scores), str(wanted.weights)} - words
    texts = [place for place, name in enumerate(names) if name in words]
    numbers = [place for place, name in enumerate(names) if name in arranged.columns or name in singles]
    if any(key in KINDS for key in arranged.matrices):
        # single columns beside a matrix of scores are not scores; one that is not numeric must not stop the reader
        keep = {*known.WEIGHTS, str(wanted.weights)}
        numbers = [place for place in numbers if names[place] in arranged.columns or names[place] in keep]
    return Table(names, arranged, numbers, texts, row_names)


def _candidates(names: list[str], first_row: bytes, wanted: Wanted) -> list[str]:
    """Names of the columns; where only the kind is said, those whose first cell is a word are no scores."""
    named = [name for name in names if name]
    if wanted.kind is None or wanted.scores is not None or row_width(first_row) != len(names):
        return named
    (cells,) = csv.reader([first_row.decode("utf-8", "replace")])
    words = {name for name, cell in zip(names, cells, strict=True) if not _is_number(cell)}
    return [name for name in named if name not in words or name in known.KNOWN or _has_prefix(name)]


def _has_prefix(name: str) -> bool:
    return name.lower().startswith((*PREFIXES, *SHARE_PREFIXES, *LABEL_PREFIXES))


def _is_number(cell: str) -> bool:
    try:
        float(cell.strip() or "nan")
    except ValueError:
        return False
    return True


def row_width(row: bytes) -> int:
    """Number of cells of a line."""
    try:
        return len(next(csv.reader([row.decode("latin-1")]), []))
    except csv.Error:
        return 0


class PickedField(Field):
    """Some columns of a parsed table, or one."""

    def __init__(self, whole: Field, places: list[int] | int) -> None:
        self._whole, self._places = whole, places
        rows, width = whole.shape
        self._all = places == list(range(width))
        self.shape = (rows,) if isinstance(places, int) else (rows, len(places))
        self.dtype = whole.dtype

    def read(self) -> np.ndarray:
        """The columns, in memory."""
        return np.ascontiguousarray(self._whole.read()[:, self._places])

    def source(self, name: str) -> Source:
        """Their rows."""
        behind = self._whole.source(name)
        if self._all:
            return behind
        return PickedSource(behind, [self._places] if isinstance(self._places, int) else self._places)


class TextField(Field):
    """A column that has no role: its cells are read from the file again when it is asked for, as texts."""

    def __init__(self, path: Path, place: int, n_rows: int) -> None:
        self.path, self.place = path, place
        self.shape, self.dtype = (n_rows,), np.dtype(object)

    def read(self) -> np.ndarray:
        """The cells, as texts."""
        cells: list[str] = []
        with opened_text(self.path) as lines:
            lines.readline(MAX_TEXT_BYTES)
            for block in line_blocks(lines, self.path):
                cells.extend(row[self.place] for row in csv.reader(line.decode("utf-8", "replace") for line in block))
        return np.array(cells, dtype=str)

    def source(self, name: str) -> Source:
        """Raise: texts are no scores."""
        raise InputError(f"{self.path}: column {self.place} was not read as numbers: name it with --scores")


def line_blocks(lines: IO[bytes], path: Path) -> Iterator[list[bytes]]:
    """Whole lines, a few megabytes at a time."""
    while text := lines.read(BLOCK_BYTES):
        ending = lines.readline(MAX_TEXT_BYTES)
        if len(ending) == MAX_TEXT_BYTES:
            raise InputError(f"{path} has a line of over {MAX_TEXT_BYTES} bytes")
        block = [line for line in (text + ending).splitlines() if line.strip()]
        if block:
            yield block


def _parse(block: list[bytes], table: Table, path: Path, first_row: int) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """The numbers (rows × columns of numbers) and the cells of the columns that may hold words."""
    words: dict[int, np.ndarray] = {}
    texts = [line.decode("latin-1") for line in block]
    if len(table.numbers) < table.width:
        texts, words = _narrowed(block, table, path, first_row)
    try:
        numbers = np.loadtxt(texts, delimiter=",", dtype=np.float64, ndmin=2, comments=None, quotechar='"')
    except (ValueError, OverflowError) as error:
        _explain(texts, table, path, first_row)
        raise InputError(f"{path}: {' '.join(str(error).split())[:120]}") from error
    expected = len(block), len(table.numbers)
    if numbers.shape != expected:
        _explain(texts, table, path, first_row)
        raise InputError(f"{path} has {numbers.shape} cells, but {expected} were expected")
    return numbers, words


def _narrowed(block: list[bytes], table: Table, path: Path, first_row: int) -> tuple[list[str], dict[int, np.ndarray]]:
    """The lines without the columns that are no numbers, and the cells of those that may be words."""
    lines: list[str] = []
    words: dict[int, list[str]] = {place: [] for place in table.texts}
    for row, line in enumerate(block, first_row):
        try:
            (cells,) = csv.reader([line.decode("utf-8", "replace")])
        except (csv.Error, ValueError) as error:
            raise InputError(f"{path} cannot be cut into columns in row {row}: {line[:40]!r}") from error
        if len(cells) != table.width:
            raise InputError(f"{path} has {len(cells)} columns in row {row}, but {table.width} in the header")
        lines.append(",".join([cells[column] for column in table.numbers]))
        for place, column in words.items():
            column.append(cells[place].strip())
    return lines, {place: np.array(column, dtype=str) for place, column in words.items()}


def _explain(texts: list[str], table: Table, path: Path, first_row: int) -> None:
    """Raise the InputError that names the first bad cell."""
    for row, text in enumerate(texts, first_row):
        cells = text.split(",")
        if len(cells) != len(table.numbers):
            raise InputError(f"{path} has {len(cells)} columns in row {row}, but {len(table.numbers)} in the header")
        for place, cell in enumerate(cells):
            try:
                float(cell.strip().strip('"'))
            except ValueError as error:
                column = table.numbers[place]
                name = table.names[column]
                field = next((key for key, members in table.layout.matrices.items() if name in members), name)
                raise InputError(
                    f"{path}: {field} in row {row}, column {column} is not a number: {cell.strip()[:40]!r}"
                ) from error


def _words(blocks: list[np.ndarray]) -> np.ndarray:
    """Whole numbers where every cell is one, other numbers where every cell is one, else the texts."""
    return typed(np.concatenate(blocks) if blocks else np.empty(0, "U1"))


@contextmanager
def opened_text(path: Path) -> Iterator[IO[bytes]]:
    """The lines of a file, unpacked where it is gzipped."""
    with path.open("rb") as raw:
        if path.suffix.lower() != ".gz":
            yield raw
            return
        try:
            yield io.BufferedReader(_Gunzip(raw, path), BLOCK_BYTES // 8)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(f"{path} is not a whole gzip file: {error}") from error


class _Gunzip(io.RawIOBase):
    """A gzip stream that stops when it expands like a bomb."""

    def __init__(self, raw: IO[bytes], path: Path) -> None:
        self._raw, self._path = raw, path
        self._stream = gzip.GzipFile(fileobj=raw)
        self._expanded = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        piece = self._stream.read(len(buffer))
        buffer[: len(piece)] = piece
        self._expanded += len(piece)
        check_expansion(self._expanded, self._raw.tell(), str(self._path), ROOM_FOR_TEXT)
        return len(piece)
