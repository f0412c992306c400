"""Tables in files, read by pyarrow: `.csv`, `.tsv` (also `.gz`), `.parquet` and `.feather`, and frames in memory.

    label,weight,logit_cat,logit_dog
    0,1.0,2.5,-0.5

A table is its columns by name and a way to stream batches of some of them. Which columns are the scores, the labels and
the weights is decided in `calibrant.data.assemble`; a column that nobody asks for, such as a path, is not converted.
Text is parsed once, into the Arrow format: in memory while it is small, in a temporary file beyond that. The separator
is the one of `,` `;` tab `|` that occurs most often in the header; beside `;`, tab and `|` numbers may have decimal
commas. Parquet columns of lists hold K numbers per row; class names are a JSON list in the schema's metadata.
"""

import codecs
import csv
import gzip
import io
import re
import zipfile
import zlib
from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from calibrant.core import progress
from calibrant.core.arrays import Array, as_array
from calibrant.core.errors import InputError
from calibrant.core.schema import typed
from calibrant.data.arrays import DAMAGE, check_members, names_field
from calibrant.data.scratch import Scratch
from calibrant.data.source import (
    CLASS_NAMES,
    MAX_TEXT_BYTES,
    PARTNERS,
    ROOM_FOR_TEXT,
    SCORES,
    SHARE_PREFIXES,
    WEIGHTS,
    ArrayField,
    Field,
    Fields,
    Wanted,
    canonical,
    check_expansion,
    class_of,
    picked,
    reading,
)

BLOCK_BYTES = MAX_TEXT_BYTES
"""Bytes of text that are parsed at a time; a line must fit into it."""

SMALL_TEXT = 2**24
"""Bytes of a text file up to which its columns are kept in memory; those of larger ones go to a temporary file."""

VECTOR_BATCH = 2**20
SEPARATORS = (",", ";", "\t", "|")
"""Of those that occur equally often, the first one counts."""

TEXTS = ("string", "large_string")
"""Types of columns of texts."""

DECIMAL = re.compile(r"\s*[+-]?(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?\s*")
DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,\d+([eE][+-]?\d+)?\s*%?\s*")


@dataclass(eq=False)
class Table:
    """Columns by name, of which batches of rows can be read; the file is opened for every pass, so that its address can
    be sent to another process. An Arrow file (feather), or parsed text in that format; its groups of rows are record
    batches.

    where : a path, or a buffer in memory.
    called : the path of the file that the columns come from.
    names : of the columns in the file; several may be equal.
    decimal : the decimal mark of a text file, whose columns that are not numbers hold text; None for any other.
    keeps : what must live as long as the table, such as the owner of a scratch file.
    """

    where: Any
    called: str
    names: Sequence[str] = ()
    decimal: str | None = None
    keeps: Any = None

    def __post_init__(self) -> None:
        self.size = self.where.stat().st_size if isinstance(self.where, Path) else self.where.size
        with self._damage():
            schema, self.lengths = self._described()
        self.names, self.types, self.metadata = self.names or schema.names, schema.types, schema.metadata or {}
        self.n_rows = sum(self.lengths)

    @contextmanager
    def _open(self, columns: list[int] | None) -> Iterator[Any]:
        import pyarrow as pa

        options = pa.ipc.IpcReadOptions(included_fields=columns, use_threads=False)
        with (
            # read, not mapped: a map of a file that another process cuts short ends this process
            pa.input_stream(self.where, compression=None) as stream,
            pa.ipc.open_file(stream, options=options) as file,
        ):
            yield file

    def _described(self) -> tuple[Any, list[int]]:
        """The schema, and the rows of the groups that are stored together."""
        with self._open(None) as file, self._open([0]) as first:
            return file.schema, [first.get_batch(group).num_rows for group in range(file.num_record_batches)]

    def _stream(self, columns: list[int], group: int, rows: int) -> Iterator[Any]:
        """Batches of these columns in order, of at most `rows` rows, from a group on."""
        order = np.argsort(np.argsort(columns)).tolist()  # the file keeps its own order of columns
        with self._open(sorted(columns)) as file:
            for place in range(group, len(self.lengths)):
                batch = file.get_batch(place).select(order)
                for offset in range(0, batch.num_rows, rows):
                    yield batch.slice(offset, rows)

    def batches(self, columns: list[int], start: int, rows: int) -> Iterator[tuple[int, Any]]:
        """(number of the first row, batch of these columns in order), from a batch that holds row `start` on."""
        group = bisect(list(accumulate(self.lengths)), start)
        first = sum(self.lengths[:group])
        with self._damage():
            for batch in self._stream(columns, group, rows):
                yield first, batch
                first += batch.num_rows

    @contextmanager
    def _damage(self) -> Iterator[None]:
        """Errors of pyarrow name the file."""
        import pyarrow as pa

        damage = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError)
        with reading(self.where, "table", damage) if isinstance(self.where, Path) else nullcontext():
            yield


class ParquetTable(Table):
    """A parquet file; its groups are row groups."""

    def _file(self) -> Any:
        import pyarrow.parquet as pq

        return pq.ParquetFile(self.where, buffer_size=2**20, pre_buffer=False)

    def _described(self) -> tuple[Any, list[int]]:
        with self._file() as file:
            groups = range(file.metadata.num_row_groups)
            return file.schema_arrow, [file.metadata.row_group(group).num_rows for group in groups]

    def _stream(self, columns: list[int], group: int, rows: int) -> Iterator[Any]:
        names = [self.names[place] for place in columns]
        groups = list(range(group, len(self.lengths)))
        with self._file() as file:
            for batch in file.iter_batches(batch_size=rows, row_groups=groups, columns=names, use_threads=False):
                yield batch.select(names)


class TableField(Field):
    """One column of a table (numbers, texts, or lists of K numbers), or several side by side.

    numbers : shall text be read as numbers: lists such as `[0.1, 0.9]`, or percent such as `93%`?
    """

    def __init__(self, table: Table, columns: list[int], key: str, *, numbers: bool = False) -> None:
        self.table, self.columns = table, columns
        self.called = f"{table.called}: {key}"
        kinds = [table.types[place] for place in columns]
        self.lists = str(kinds[0]).partition("<")[0].endswith("list")  # of a fixed size, large or not
        self.dtype = np.result_type(*map(_dtype, [kinds[0].value_type] if self.lists else kinds))
        self.shape: tuple[int, ...] = (table.n_rows, len(columns)) if len(columns) > 1 else (table.n_rows,)
        first = (batch for _, batch in table.batches(columns, 0, 1))
        for head in islice(first, self.lists or numbers):
            cells = [str(column[0]).strip() for column in head.columns]
            self.percent = any(cell.endswith("%") for cell in cells)
            self.lists = self.lists or (len(cells) == 1 and cells[0].startswith(("[", "tensor([")))
            if self.lists:
                self.shape = (table.n_rows, len(_parsed_lists(head.column(0))[0].as_py() or ()))
        if numbers and self.dtype.kind not in "fiub":
            self.dtype = np.dtype(np.float64)

    def beside(self, others: Sequence[Field], key: str) -> Field:
        """These columns and those of others of the same table as one matrix; one alone as it is, text in numbers."""
        columns = []
        for one in (self, *others):
            if others and len(one.shape) > 1:
                raise InputError(f"{one.called} must hold one real number per row")  # type: ignore[attr-defined]
            columns += one.columns  # type: ignore[attr-defined]
        text = self.table.decimal is not None and self.dtype.kind == "O"
        return TableField(self.table, columns, key, numbers=True) if others or text else self

    def read(self) -> Array:
        """The whole column or matrix; texts become numbers where they all are, whole numbers that miss some objects."""
        import pyarrow as pa

        check_expansion(self.nbytes, self.table.size, self.called)
        if len(self.shape) == 2:
            pieces: list[Any] = list(self.blocks(0, self.shape[0], VECTOR_BATCH))
        else:
            parts = (pa.Table.from_batches([batch]) for _, batch in self.table.batches(self.columns, 0, VECTOR_BATCH))
            pieces = [
                memory_array(column, self.called) for part in parts for column in (frame_columns(part) or {}).values()
            ]
        array = np.concatenate(pieces) if pieces else np.empty(self.shape, self.dtype)
        if array.shape != self.shape:
            raise InputError(f"{self.called} holds {len(array)} rows, but the file claims {self.shape[0]}")
        return typed(np.char.strip(array)) if array.dtype.kind == "U" and self.table.decimal else array

    def blocks(self, start: int, stop: int, rows: int) -> Iterator[Array]:
        """Blocks in order; what lies before `start` is not read where the format allows it."""
        check_expansion(self.nbytes, self.table.size, self.called)
        at = start
        for first, batch in self.table.batches(self.columns, start, rows):
            if at >= stop:
                return
            piece = batch.slice(max(at - first, 0), stop - max(at, first))
            if piece.num_rows:
                numbers = self._lists if self.lists else self._numbers
                columns = zip(piece.columns, self.columns, strict=True)
                block = np.column_stack([numbers(*column, at) for column in columns])
                yield block.astype(np.result_type(block.dtype, self.dtype), copy=False)
                at += piece.num_rows
        if at < stop:
            raise InputError(f"{self.called} ends after {at} of {self.shape[0]} rows")

    def cuts(self, rows: int) -> list[int]:
        """Rows at least `rows` apart at which a group begins."""
        found = [0]
        for first in accumulate(self.table.lengths[:-1]):
            if first - found[-1] >= rows:
                found.append(first)
        return found

    def _lists(self, lists: Any, _place: int, first_row: int) -> Array:
        """A column of lists of numbers, all as long as the first."""
        width, lists = self.shape[1], _parsed_lists(lists)
        lengths = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(lengths != width):
            raise InputError(
                f"{self.called} has {lengths[row]} numbers in row {first_row + row}, but {width} in the first"
            )
        return lists.flatten().to_numpy(zero_copy_only=False).reshape(len(lists), width)

    def _numbers(self, column: Any, place: int, first_row: int) -> Array:
        """A column as numbers; an InputError that names the first cell that is not one."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if str(column.type) in TEXTS:
            cells = pc.replace_substring(pc.utf8_trim_whitespace(column), self.table.decimal or ".", ".")
            percent = self.percent and pc.all(pc.ends_with(cells, "%")).as_py()
            try:
                column = pc.cast(pc.utf8_rtrim(cells, "% ") if percent else cells, pa.float64())
                column = pc.divide(column, 100.0) if percent else column
            except pa.ArrowInvalid:
                for row, cell in enumerate(cells.to_pylist(), first_row):
                    self._refuse_cell(cell, row, place)
        elif pa.types.is_decimal(column.type):
            column = column.cast(pa.float64())
        elif column.null_count and self.table.decimal:
            self._refuse_cell("", first_row + column.is_null().index(True).as_py(), place)
        found = column.to_numpy(zero_copy_only=False)
        if found.dtype.kind not in "fiub":
            raise InputError(f"{self.called} must hold real numbers, got {column.type}")
        return found

    def _refuse_cell(self, cell: str | None, row: int, place: int) -> None:
        try:
            float(cell or "")
        except ValueError:
            raise InputError(
                f"{self.called} in row {row}, column {place} is not a number: {(cell or '')[:40]!r}"
            ) from None


def _parsed_lists(column: Any) -> Any:
    """Lists of numbers, also those that are written as text: `[0.1, 0.9]`, as pandas, numpy, torch and Spark do."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if str(column.type) not in TEXTS:
        return column
    plain = pc.replace_substring_regex(column, r"(np\.float\d+|array|tensor)?\(|[\[\])]", "")
    cells = pc.split_pattern_regex(pc.utf8_trim_whitespace(plain), r"[,;\s]+")
    try:
        return pc.cast(cells, pa.list_(pa.float64()))
    except pa.ArrowInvalid as error:
        raise InputError(f"a list holds what is not a number: {' '.join(str(error).split())[:80]}") from error


def _dtype(arrow_type: Any) -> np.dtype[Any]:
    """The numpy dtype of a column's items; object for everything that is not a number."""
    from pyarrow import types

    if types.is_decimal(arrow_type):
        return np.dtype(np.float64)
    try:
        return np.dtype(arrow_type.to_pandas_dtype())
    except (NotImplementedError, TypeError):
        return np.dtype(object)


def table_fields(path: Path, wanted: Wanted) -> Fields:
    """The columns of a parquet or Arrow file."""
    kind = ParquetTable if path.suffix.lower() == ".parquet" else Table
    return _fields(kind(path, str(path)))


def _fields(table: Table) -> Fields:
    names = canonical(table.names)
    found = Fields()
    for place, name in enumerate(names):
        if name and "struct" in str(table.types[place]):
            cells = [row for _, batch in table.batches([place], 0, VECTOR_BATCH) for row in batch.column(0).to_pylist()]
            if (field := struct_field(cells)) is not None:
                found[name] = field
        elif name:
            found[name] = TableField(table, [place], name)
    if CLASS_NAMES.encode() in table.metadata:
        text = table.metadata[CLASS_NAMES.encode()]
        found[CLASS_NAMES] = names_field(text, f"{table.called}: {CLASS_NAMES}")
    found.twice = [name for name, times in Counter(names).items() if times > 1]
    return found


class TextForm(NamedTuple):
    """How a text file is written: its columns, what separates them, and the decimal mark."""

    names: list[str]
    separator: str
    decimal: str
    encoding: str
    row_names: bool
    """Is there one more column in the rows than in the header?"""
    header: bool
    """Is the first line one? Not if it holds a decimal number, and numbers where the second line does."""


def text_form(path: Path) -> TextForm:
    """What the header and the first line behind it say."""
    with opened_text(path) as lines:
        header, first = (lines.readline(MAX_TEXT_BYTES) for _ in range(2))
    if not header.strip():
        raise InputError(f"{path} is empty: a table needs the header label,logit_0,logit_1,...")
    try:
        text, encoding = header.decode("utf-8-sig"), "utf-8"
    except UnicodeDecodeError:
        text, encoding = header.decode("latin-1"), "latin-1"
    separator = max((*SEPARATORS, *[" "] * (path.suffix.lower() == ".txt")), key=text.count)
    if max(len(header), len(first)) == MAX_TEXT_BYTES:
        raise InputError(f"{path} has a line of over {MAX_TEXT_BYTES} bytes")
    try:
        names, cells, *_ = *csv.reader([text, first.decode("latin-1")], delimiter=separator), []
    except (csv.Error, ValueError) as error:
        raise InputError(f"{path}: the header cannot be cut into columns: {header[:40]!r}") from error
    row_names = len(cells) == len(names) + 1  # R writes row names without a name for their column
    comma = separator != "," and any(DECIMAL_COMMA.fullmatch(cell) for cell in cells)
    data = any(DECIMAL.fullmatch(name) and not name.strip().isdecimal() for name in names)
    data = data and [not DECIMAL.fullmatch(name) for name in names] == [not DECIMAL.fullmatch(cell) for cell in cells]
    names = [str(place) for place in range(len(names))] if data else [""] * row_names + [name.strip() for name in names]
    return TextForm(names, separator, "," if comma else ".", encoding, row_names, not data)


def csv_fields(path: Path, wanted: Wanted) -> Fields:
    """The columns of a text file; those whose names say scores or weights are parsed as numbers, all others as text."""
    form = text_form(path)
    plain = canonical(form.names)
    numeric = {*SCORES, *PARTNERS, *WEIGHTS, str(wanted.weights), *picked(plain, wanted.scores or ())}
    numbers = {
        place
        for place, name in enumerate(plain)
        if name in numeric or class_of(name) or name.lower().startswith(SHARE_PREFIXES)
    }
    found = _fields(text_table(path, form, numbers))
    if not form.header:
        found.notes = (f"{path.name} has no header: its columns are called 0..{len(plain) - 1}",)
    return found


def text_table(path: Path, form: TextForm, numbers: set[int]) -> Table:
    """The columns of a text file, as numbers at these places where they are such, and as text."""
    import pyarrow as pa

    while True:
        try:
            return _parsed(path, form, numbers)
        except pa.ArrowInvalid as error:
            words = " ".join(str(error).split())
            column = re.search(r"column #(\d+)", words)
            ragged = re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", words)
            if ragged is not None:
                row, expected, got = map(int, ragged.groups())
                raise InputError(f"{path} has {got} columns in row {row - 1}, but {expected} in the header") from error
            if "UTF8" in words:
                form = form._replace(encoding="latin-1")
            elif column is not None:
                numbers -= {int(column[1])}  # its cells are looked at when it is asked for
            elif "block" in words:
                raise InputError(f"{path} has a line of over {BLOCK_BYTES} bytes") from error
            else:
                raise InputError(f"{path} cannot be cut into columns: {words[:120]}") from error


def _parsed(path: Path, form: TextForm, numbers: set[int]) -> Table:
    """The text in the Arrow format, in memory or, of a large file, in a scratch file."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    ids = [str(place) for place in range(len(form.names))]  # names in a file may be equal
    types = {name: pa.float64() if int(name) in numbers else pa.string() for name in ids}
    scratch = Scratch() if path.stat().st_size > SMALL_TEXT else None
    sink = pa.BufferOutputStream() if scratch is None else pa.OSFile(str(scratch.path), "wb")
    with pa.ipc.new_file(sink, pa.schema(types.items())) as writer, opened_text(path) as lines:
        lines.readline(MAX_TEXT_BYTES * form.header)
        try:
            batches = arrow_csv.open_csv(
                lines,
                arrow_csv.ReadOptions(
                    column_names=ids, use_threads=False, block_size=BLOCK_BYTES, encoding=form.encoding
                ),
                arrow_csv.ParseOptions(delimiter=form.separator),
                arrow_csv.ConvertOptions(
                    column_types=types, null_values=[""], strings_can_be_null=False, decimal_point=form.decimal
                ),
            )
            rows = 0
            for batch in batches:
                writer.write_batch(batch)
                rows += batch.num_rows
                progress.step(f"parsing {path.name}", rows)
        except pa.ArrowInvalid as error:
            if "Empty CSV file" not in str(error):
                raise
    where = sink.getvalue() if scratch is None else scratch.path
    sink.close()
    return Table(where, str(path), form.names, form.decimal, scratch)


def excel_fields(path: Path, wanted: Wanted) -> Fields:
    """The columns of the first sheet of a workbook."""
    try:
        import openpyxl  # noqa: F401
        import pandas as pd
    except ImportError as error:
        raise InputError(f"{path} is a workbook: save the sheet as .csv, or install pandas and openpyxl") from error
    with reading(path, "workbook", (Exception,)):  # openpyxl raises errors of many kinds
        check_members(path, ROOM_FOR_TEXT)
        return column_fields(frame_columns(pd.read_excel(path)) or {})


@contextmanager
def opened_text(path: Path) -> Iterator[Any]:
    """The bytes of a text file, unpacked where it is gzipped."""
    packed = path.suffix.lower() == ".gz"
    damage = (EOFError, zlib.error, gzip.BadGzipFile)
    with reading(path, "gzip file" if packed else "table", damage), path.open("rb") as raw:
        if raw.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) and not packed:
            raw.seek(0)
            yield io.BytesIO(raw.read().decode("utf-16").encode())
            return
        raw.seek(0)
        yield _Gunzip(fileobj=raw) if packed else raw


def zip_fields(path: Path, wanted: Wanted) -> Fields:
    """The columns of the one table of text in a zip archive."""
    with reading(path, "zip archive", DAMAGE), zipfile.ZipFile(path) as archive:
        check_members(path, ROOM_FOR_TEXT)
        names = [name for name in archive.namelist() if not name.startswith("__MACOSX") and not name.endswith("/")]
        if len(names) != 1 or not names[0].lower().endswith((".csv", ".tsv", ".txt")):
            raise InputError(
                f"{path} must hold one .csv, .tsv or .txt, but holds {', '.join(names)[:100] or 'nothing'}"
            )
        scratch = Scratch()
        scratch.path.write_bytes(archive.read(names[0]))
        return csv_fields(scratch.path, wanted)


class _Gunzip(gzip.GzipFile):
    """A gzip stream that stops when it expands like a bomb."""

    def read(self, size: int | None = -1) -> bytes:
        piece = super().read(size)
        check_expansion(self.tell(), self.fileobj.tell(), self.name, ROOM_FOR_TEXT)  # type: ignore[union-attr]
        return piece


def frame_columns(given: Any) -> dict[str, Any] | None:
    """The columns of a frame in memory (pandas, polars, pyarrow, a DuckDB relation …); None for anything else."""
    import narwhals as nw

    try:
        frame = nw.from_native(given, pass_through=True)
        frame = frame.collect() if isinstance(frame, nw.LazyFrame) else frame
    except nw.exceptions.NarwhalsError as error:  # such as two columns of one name
        raise InputError(f"the frame cannot be read: {' '.join(str(error).split())[:120]}") from error
    if not isinstance(frame, nw.DataFrame):
        return None
    columns = {}
    for given_series in frame.iter_columns():
        series = given_series.cast(nw.Float64) if given_series.dtype == nw.Decimal else given_series
        # numpy would make floats of whole numbers, and pyarrow a category of a missing one
        missing = series.null_count() and not series.dtype.is_float()
        columns[str(series.name)] = np.array(series.to_list(), dtype=object) if missing else series.to_numpy()
    return columns


def column_fields(columns: Mapping[Any, Any]) -> Fields:
    """Columns in memory as fields, under their canonical names; what is not an array is left out."""
    names = canonical(list(map(str, columns)))
    found = Fields()
    for word, column in zip(names, columns.values(), strict=True):
        array = memory_array(column, word)
        cells = column if array is None and isinstance(column, np.ndarray) and column.dtype.kind == "O" else ()
        field = struct_field(list(cells)) if array is None else ArrayField(array)
        if field is not None:
            found[word] = field
    return found


def by_name(value: Any) -> Any:
    """Scores by class from the lists in which pipelines, clouds and Spark write them; other values unchanged.

    >>> by_name([{"label": "cat", "score": 0.9}, {"label": "dog", "score": "0.1"}])
    {'cat': 0.9, 'dog': 0.1}
    >>> by_name({"classes": ["cat", "dog"], "scores": [0.9, 0.1]}), by_name({"type": 1, "values": [0.5, 0.5]})
    ({'cat': 0.9, 'dog': 0.1}, [0.5, 0.5])
    """
    if isinstance(value, list) and all(isinstance(item, dict) and len(item) == 2 for item in value):
        items = [sorted(item.values(), key=_is_number) for item in value]
    elif isinstance(value, dict) and (lists := [part for part in value.values() if isinstance(part, list)]):
        if len(lists) == 1 and len(value) == 2 and "values" in value:
            return lists[0]
        lists.sort(key=lambda part: all(map(_is_number, part)))
        items = list(map(list, zip(*lists, strict=False))) if len(lists) == 2 else []
    else:
        return value
    fits = all(isinstance(name, str) and _is_number(number) for name, number in items)
    made = {name: float(number) for name, number in items} if fits else {}
    return made if len(made) == len(items) > 1 else value


def _is_number(value: Any) -> bool:
    """Return whether a value is a number, or a text that spells one with a decimal point."""
    return type(value) in (int, float) or (isinstance(value, str) and "." in value and bool(DECIMAL.fullmatch(value)))


def struct_field(rows: Sequence[Any]) -> ArrayField | None:
    """A matrix from rows of (class, number) structs that all name the same classes; None for other rows."""
    made = [by_name(list(row) if isinstance(row, (np.ndarray, tuple)) else row) for row in rows]
    if not made or not all(isinstance(row, dict) and row.keys() == made[0].keys() for row in made):
        return None
    found = ArrayField(np.array([[row[name] for name in made[0]] for row in made], float))
    found.names = list(made[0])
    return found


def sample_columns(fields: Mapping[str, Field], rows: int) -> dict[str, Array]:
    """The first rows of columns and arrays: numbers as float64 (n,) or (n, K), texts (n,); others are left out."""
    found: dict[str, Array] = {}
    stored = {key: field for key, field in fields.items() if isinstance(field, TableField) and not field.lists}
    if stored:  # all columns of a table are read at once
        table = next(iter(stored.values())).table
        places = sorted({field.columns[0] for field in stored.values()})
        for _, batch in islice(table.batches(places, 0, rows), 1):
            for key, column in stored.items():
                found[key] = _sampled_cells(column, batch.column(places.index(column.columns[0])).slice(0, rows))
    for key, field in fields.items():
        with suppress(InputError):
            if key in found or len(field.shape) not in (1, 2) or (isinstance(field, TableField) and key in stored):
                continue
            blocks = iter([field.read()[:rows]]) if field.fortran else field.blocks(0, min(rows, field.shape[0]), rows)
            for values in islice(blocks, 1):
                found[key] = _as_float(values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values)
    return found


def _sampled_cells(field: TableField, column: Any) -> Array:
    """Cells of a column as numbers where they all are."""
    probe = copy(field)
    if str(column.type) in TEXTS and len(column):
        probe.percent = str(column[0]).strip().endswith("%")
    with suppress(InputError):
        return np.asarray(probe._numbers(column, 0, 0), float)
    found = memory_array(column.to_numpy(zero_copy_only=False), field.called)
    return _as_float(np.array([""] * len(column)) if found is None else found)


def _as_float(values: Array) -> Array:
    """Numbers, also those that texts spell, as float64; anything else as texts."""
    if values.dtype.kind in "fiub":
        return values.astype(float)
    texts = np.array(["" if one is None else str(one) for one in values.ravel().tolist()]).reshape(values.shape)
    numbers = typed(np.char.strip(texts)) if texts.size else texts
    return numbers.astype(float) if numbers.dtype.kind in "fi" and np.isfinite(numbers).any() else texts


def memory_array(column: Any, name: str) -> Array | None:
    """A column as an array; a column of lists as a matrix; None for what is no array."""
    if isinstance(column, list) and column and isinstance(column[0], (list, tuple)):
        return _stacked(column, name)
    try:
        array = as_array(column, name)
    except InputError:
        if isinstance(column, np.ma.MaskedArray):  # to leave out masked weights would change the answer
            raise
        return None
    if array.dtype.kind == "O" and array.ndim == 1 and len(array):
        if isinstance(array[0], (list, tuple, np.ndarray)):
            return _stacked(array.tolist(), name)
        if all(isinstance(item, str) for item in array):
            return array.astype(str)
    return array if array.ndim else None


def _stacked(rows: list[Any], name: str) -> Array | None:
    """A matrix of rows of equal length; None where they do not hold numbers, of whatever length they are."""
    lengths = [len(row) if isinstance(row, (list, tuple, np.ndarray)) else 0 for row in rows]
    odd = [row for row, length in enumerate(lengths) if length != lengths[0]]
    try:
        matrix = np.array(rows[:1] if odd else rows)
    except ValueError:  # lists inside, of several lengths
        return None
    if matrix.dtype.kind not in "fiub" or not matrix.size:
        return None
    if odd:
        raise InputError(f"{name} has {lengths[odd[0]]} numbers in row {odd[0]}, but {lengths[0]} in the first")
    return matrix
