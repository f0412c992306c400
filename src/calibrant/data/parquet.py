"""`.parquet`: a column `logits` or `probabilities` of lists of K numbers, and a column `labels`; or wide columns.

Fixed-size lists are best; lists of varying type are read too when every row has the same length. Wide tables follow the
same names as CSV (`calibrant.data.columns`). Class names are a JSON list in the schema's metadata under `class_names`.
Values are streamed batch by batch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.core.arrays import widen
from calibrant.core.errors import InputError
from calibrant.core.schema import KINDS
from calibrant.data.arrays import names_field
from calibrant.data.columns import canonical, is_wide, layout
from calibrant.data.fields import CLASS_NAMES, ArrayField, Field, NotedFields, Wanted
from calibrant.data.limits import check_counts, check_expansion, reading
from calibrant.data.parquet_footer import check_footer
from calibrant.data.source import FieldSource, Source

VECTOR_BATCH = 2**20


def fields(path: Path, wanted: Wanted) -> dict[str, Field]:
    """Every column that holds numbers, or lists of numbers, unread."""
    check_footer(path)
    found = NotedFields()
    with _opened(path) as file:
        n_rows = file.metadata.num_rows
        check_counts((n_rows,), str(path))
        schema = file.schema_arrow
        columns = [ColumnField(path, column.name, column.type, n_rows) for column in schema]
        text = (schema.metadata or {}).get(CLASS_NAMES.encode())
    names = canonical([name for column in columns for name in column.columns])
    for name, column in zip(names, columns, strict=True):
        column.measure_lists()
        found[name] = column
    if text is not None:
        found[CLASS_NAMES] = names_field(text, f"{path}: {CLASS_NAMES}")
    parts = _parts_of(names)
    if parts or not is_wide(names, wanted):
        return found  # lists under plain names, or with a prefix such as val_logits
    arranged = layout(names, wanted, str(path))
    for key, members in arranged.matrices.items():
        found[key] = WideField(path, key, [found[member] for member in members])
    if arranged.class_names is not None and CLASS_NAMES not in found:
        found[CLASS_NAMES] = ArrayField(np.array(arranged.class_names, dtype=str))
    found.members = arranged.matrices
    for key in arranged.columns - set(arranged.matrices):
        del found[key]
    return found


def _parts_of(names: list[str]) -> bool:
    return any(name.endswith(tuple(f"_{kind}" for kind in KINDS)) for name in names)


class WideField(Field):
    """Several columns side by side as one matrix."""

    def __init__(self, path: Path, key: str, members: list[Any]) -> None:
        self.path, self.called = path, f"{path}: {key}"
        self.columns = [name for member in members for name in member.columns]
        bad = next((member for member in members if member.dtype.kind not in "fiub" or len(member.shape) > 1), None)
        if bad is not None:
            raise InputError(f"{bad.called} must hold one real number per row, got dtype {bad.dtype}")
        self.shape = (members[0].shape[0], len(members))
        self.dtype = np.result_type(*(member.dtype for member in members))

    def read(self) -> np.ndarray:
        """The matrix, in memory."""
        check_expansion(self.nbytes, self.path.stat().st_size, self.called)
        return np.concatenate(list(WideSource(self, "").blocks(0, self.shape[0], VECTOR_BATCH)))

    def source(self, name: str) -> Source:
        """Its rows."""
        return WideSource(self, name)


class BatchSource(FieldSource):
    """Rows of one or several columns, read in batches."""

    def __init__(self, field: WideField | ColumnField, name: str) -> None:
        super().__init__(field, name)
        self._path, self._columns, self._called = field.path, field.columns, field.called

    def blocks(self, start: int, stop: int, rows: int) -> Iterator[np.ndarray]:
        """Blocks in order; row groups before `start` are not read."""
        at = start
        for first, batch in _numbered_batches(self._path, self._columns, start, rows):
            if at >= stop:
                return
            piece = batch.slice(max(at - first, 0), stop - max(at, first))
            if piece.num_rows:
                yield self._matrix(piece, at)
                at += piece.num_rows
        if at < stop:
            raise InputError(f"{self._called} ends after {at} of {self.shape[0]} rows")

    def cuts(self, rows: int) -> list[int]:
        """The first rows of row groups, at least `rows` apart."""
        found, first = [0], 0
        with _opened(self._path) as file:
            for group in range(file.metadata.num_row_groups - 1):
                first += file.metadata.row_group(group).num_rows
                if first - found[-1] >= rows:
                    found.append(first)
        return found

    @abstractmethod
    def _matrix(self, piece: Any, first_row: int) -> np.ndarray:
        """The values of a batch; its first row is number `first_row`."""


class WideSource(BatchSource):
    """Rows of several columns."""

    def _matrix(self, piece: Any, first_row: int) -> np.ndarray:
        block = np.empty((piece.num_rows, len(self._columns)), self.dtype)
        for place, column in enumerate(self._columns):
            block[:, place] = _numbers(piece.column(column), f"{self._called}, {column} near row {first_row}")
        return block


class ColumnField(Field):
    """One column: numbers, or lists of K numbers each."""

    def __init__(self, path: Path, column: str, arrow_type: Any, n_rows: int) -> None:
        from pyarrow import types

        self.path, self.columns = path, [column]
        self.called = f"{path}: {column}"
        if types.is_fixed_size_list(arrow_type):
            self.shape, item = (n_rows, arrow_type.list_size), arrow_type.value_type
        elif types.is_list(arrow_type) or types.is_large_list(arrow_type):
            self.shape, item = (n_rows, -1), arrow_type.value_type
        else:
            self.shape, item = (n_rows,), arrow_type
        self.dtype = _numpy_dtype(item)

    def read(self) -> np.ndarray:
        """The whole column of numbers."""
        check_expansion(self.nbytes, self.path.stat().st_size, self.called)
        if len(self.shape) == 2:
            return np.concatenate(list(ColumnSource(self, "").blocks(0, self.shape[0], VECTOR_BATCH)))
        batches = _numbered_batches(self.path, self.columns, 0, VECTOR_BATCH)
        pieces = [_numbers(batch.column(0), self.called) for _, batch in batches]
        column = np.concatenate(pieces) if pieces else np.empty(0, self.dtype)
        if column.dtype.kind == "O" and all(isinstance(item, str) for item in column):
            column = column.astype(str)
        if column.shape != self.shape:
            raise InputError(f"{self.called} holds {len(column)} rows, but the file claims {self.shape[0]}")
        return column

    def source(self, name: str) -> Source:
        """The lists as rows."""
        return ColumnSource(self, name)

    def measure_lists(self) -> None:
        """Find K of a column of lists from its first row."""
        if self.shape[1:] == (-1,) and self.shape[0] > 0:
            first = next(_numbered_batches(self.path, self.columns, 0, 1), None)
            length = None if first is None else first[1].column(0)[0].as_py()
            self.shape = (self.shape[0], 0 if length is None else len(length))


class ColumnSource(BatchSource):
    """Rows of a column of numbers or lists."""

    def __init__(self, field: ColumnField, name: str) -> None:
        super().__init__(field, name)
        check_expansion(field.nbytes, field.path.stat().st_size, field.called)

    def _matrix(self, piece: Any, first_row: int) -> np.ndarray:
        import pyarrow as pa

        lists = piece.column(0)
        n_classes = self.shape[1]
        if not (pa.types.is_fixed_size_list(lists.type) or hasattr(lists, "offsets")):
            values = widen(_numbers(lists, f"{self._called} near row {first_row}")).reshape(len(lists), 1)
            return values if values.flags.writeable else values.copy()
        if lists.null_count:
            row = first_row + int(np.flatnonzero(lists.is_null().to_numpy(zero_copy_only=False))[0])
            raise InputError(f"{self._called} is missing in row {row}: every row needs {n_classes} numbers")
        if not pa.types.is_fixed_size_list(lists.type):
            lengths = np.diff(lists.offsets.to_numpy())
            if (lengths != n_classes).any():
                row = int(np.flatnonzero(lengths != n_classes)[0])
                raise InputError(
                    f"{self._called} has {lengths[row]} numbers in row {first_row + row}, but {n_classes} in the first"
                )
        numbers = _numbers(lists.flatten(), f"{self._called} near row {first_row}")
        values = widen(numbers).reshape(len(lists), n_classes)
        return values if values.flags.writeable else values.copy()  # arrow's own buffers are read-only


def _numbers(column: Any, called: str) -> np.ndarray:
    if column.null_count:
        place = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise InputError(f"{called} is missing {column.null_count} numbers, the first at place {place}")
    return column.to_numpy(zero_copy_only=False)


def _numpy_dtype(arrow_type: Any) -> np.dtype[Any]:
    """The numpy dtype of a column's items; object for everything that is not a number."""
    try:
        return np.dtype(arrow_type.to_pandas_dtype())
    except (NotImplementedError, TypeError):
        return np.dtype(object)


def _numbered_batches(path: Path, columns: list[str], start: int, rows: int) -> Iterator[tuple[int, Any]]:
    """(number of the first row, batch) from the row group that holds row `start` on."""
    with _opened(path) as file:
        first = 0
        groups: list[int] = []
        for group in range(file.metadata.num_row_groups):
            count = file.metadata.row_group(group).num_rows
            if not groups and first + count <= start:
                first += count
            else:
                groups.append(group)
        for batch in file.iter_batches(batch_size=rows, row_groups=groups, columns=columns, use_threads=False):
            if batch.num_columns != len(columns):
                raise InputError(f"{path}: {', '.join(columns)[:80]} was found in {batch.num_columns} columns")
            yield first, batch
            first += batch.num_rows


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    damage = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError)
    with reading(path, "parquet file", damage), pq.ParquetFile(path, buffer_size=2**20, pre_buffer=False) as file:
        yield file
