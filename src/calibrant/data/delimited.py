"""`.csv` and `.csv.gz`: one row a line under a header that says what each column is.

    label,weight,logit_cat,logit_dog
    0,1.0,2.5,-0.5

`label` (or `labels`), perhaps `weight` (`weights`, `sample_weight`), and one column a class, in the order of the
classes: `logit_NAME` or `probability_NAME`. Numbers 0 … K − 1 as names are no class names. Any other column, such as
a file name, is left out. Without columns of such a prefix `kind=` makes all but label and weight the values. Values
become float64. The text is parsed once: what does not fit into memory goes to an unnamed temporary file.
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
from calibrant.core.atomic import atomic_write
from calibrant.core.errors import InputError
from calibrant.data.fields import CLASS_NAMES, KINDS, LABELS, WEIGHTS, ArrayField, Field
from calibrant.data.limits import MAX_CLASSES, MAX_TEXT_BYTES, ROOM_FOR_TEXT, check_expansion
from calibrant.data.predictions import Predictions
from calibrant.data.scratch import ScratchFile

PREFIXES = {
    "logit_": "logits",
    "logits_": "logits",
    "probability_": "probabilities",
    "probabilities_": "probabilities",
    "prob_": "probabilities",
}
BLOCK_BYTES = 2**21


@dataclass(frozen=True)
class Layout:
    """What the columns of a table are; `values`, `label` and `weight` are places among the columns that are read."""

    kind: str
    values: list[int]
    class_names: list[str] | None
    label: int | None
    weight: int | None
    columns: list[int]
    """Places in the file of the columns that are read."""
    width: int
    """Columns of the file."""


def fields(path: Path, kind: str | None = None) -> dict[str, Field]:
    """The columns of the table, parsed."""
    with _opened(path) as lines:
        layout = _layout(lines.readline(MAX_TEXT_BYTES), path, kind)
        labels: list[np.ndarray] = []
        weights: list[np.ndarray] = []
        scratch = ScratchFile()
        n_rows = 0
        for block in _blocks(lines, path):
            if len(layout.columns) < layout.width:
                block = _narrowed(block, layout, path, n_rows)  # noqa: PLW2901
            table = _parse(block, layout, path, n_rows)
            scratch.write(table[:, layout.values])
            if layout.label is not None:
                labels.append(_whole_numbers(block, layout.label, path, n_rows))
            if layout.weight is not None:
                weights.append(table[:, layout.weight].copy())
            n_rows += len(table)
            progress.step(f"parsing {path.name}", n_rows)
    found: dict[str, Field] = {layout.kind: scratch.field((n_rows, len(layout.values)), path)}
    if layout.label is not None:
        found["labels"] = ArrayField(np.concatenate(labels) if labels else np.empty(0, np.int64))
    if layout.weight is not None:
        found["weights"] = ArrayField(np.concatenate(weights) if weights else np.empty(0))
    if layout.class_names is not None:
        found[CLASS_NAMES] = ArrayField(np.array(layout.class_names, dtype=str))
    return found


def _layout(header: bytes, path: Path, kind: str | None) -> Layout:
    if not header.strip():
        raise InputError(f"{path} is empty: a table needs the header label,logit_0,logit_1,...")
    try:
        names = [name.strip() for name in next(csv.reader([header.decode("utf-8-sig")]))]
    except (UnicodeDecodeError, csv.Error, StopIteration) as error:
        raise InputError(f"{path}: the header is not UTF-8 text with commas: {header[:40]!r}") from error
    if len(names) > MAX_CLASSES:
        raise InputError(f"{path}: the header has {len(names)} columns, but at most {MAX_CLASSES} are read")
    label = next((index for index, name in enumerate(names) if name in LABELS), None)
    weight = next((index for index, name in enumerate(names) if name in WEIGHTS), None)
    rest = [index for index in range(len(names)) if index not in (label, weight)]
    found: dict[str, list[int]] = {word: [] for word in KINDS}
    stripped: dict[int, str] = {}
    for index in rest:
        prefix = next((prefix for prefix in PREFIXES if names[index].startswith(prefix)), None)
        if prefix is not None:
            found[PREFIXES[prefix]].append(index)
            stripped[index] = names[index][len(prefix) :]
    said = [word for word in KINDS if found[word]]
    if len(said) == 2 and kind is None:
        raise InputError(f"{path} has columns of logits and of probabilities: choose with kind= or --kind")
    if not said and kind is not None:
        return _placed(kind, rest, _class_names([names[index] for index in rest], path), label, weight, len(names))
    chosen = kind or (said[0] if said else "")
    if not found.get(chosen):
        wanted = {"logits": "logit_...", "probabilities": "probability_..."}.get(chosen, "logit_... or probability_...")
        mark = next((mark for mark in ("\t", ";") if len(names) == 1 and mark in names[0]), None)
        if mark is not None:
            raise InputError(f"{path} has one column, {names[0][:60]!r}: part the columns by commas, not by {mark!r}")
        raise InputError(
            f"{path} has no columns {wanted}, only {', '.join(names)[:200]}: rename them, or give kind= (--kind)"
        )
    values = found[chosen]
    return _placed(chosen, values, _class_names([stripped[i] for i in values], path), label, weight, len(names))


def _placed(  # noqa: PLR0917 (what a layout holds)
    kind: str, values: list[int], names: list[str] | None, label: int | None, weight: int | None, width: int
) -> Layout:
    columns = sorted({*values, *(column for column in (label, weight) if column is not None)})
    place = {column: index for index, column in enumerate(columns)}
    return Layout(
        kind,
        [place[column] for column in values],
        names,
        None if label is None else place[label],
        None if weight is None else place[weight],
        columns,
        width,
    )


def _class_names(names: list[str], path: Path) -> list[str] | None:
    if not all(name.isdecimal() and len(name) < 10 for name in names):
        return names
    numbers = [int(name) for name in names]
    if numbers != list(range(len(names))):
        raise InputError(
            f"{path}: the class columns are numbered {str(numbers)[1:60].rstrip(']')}, "
            f"but they must stand in the order 0..{len(names) - 1}"
        )
    return None


def _blocks(lines: IO[bytes], path: Path) -> Iterator[list[bytes]]:
    """Whole lines, a few megabytes at a time."""
    while text := lines.read(BLOCK_BYTES):
        ending = lines.readline(MAX_TEXT_BYTES)
        if len(ending) == MAX_TEXT_BYTES:
            raise InputError(f"{path} has a line of over {MAX_TEXT_BYTES} bytes")
        block = [line for line in (text + ending).splitlines() if line.strip()]
        if block:
            yield block


def _parse(block: list[bytes], layout: Layout, path: Path, first_row: int) -> np.ndarray:
    texts = [line.decode("latin-1") for line in block]
    try:
        table = np.loadtxt(texts, delimiter=",", dtype=np.float64, ndmin=2, comments=None, quotechar='"')
    except (ValueError, OverflowError) as error:
        _explain(texts, layout, path, first_row)
        raise InputError(f"{path}: {' '.join(str(error).split())[:120]}") from error
    expected = len(block), len(layout.columns)
    if table.shape != expected:
        _explain(texts, layout, path, first_row)
        raise InputError(f"{path} has {table.shape} cells, but {expected} were expected")
    return table


def _narrowed(block: list[bytes], layout: Layout, path: Path, first_row: int) -> list[bytes]:
    """The lines without the columns that nobody reads."""
    lines = []
    for row, line in enumerate(block, first_row):
        try:
            (cells,) = csv.reader([line.decode("latin-1")])
        except (csv.Error, ValueError) as error:
            raise InputError(f"{path} cannot be cut into columns in row {row}: {line[:40]!r}") from error
        if len(cells) != layout.width:
            raise InputError(f"{path} has {len(cells)} columns in row {row}, but {layout.width} in the header")
        lines.append(",".join([cells[column] for column in layout.columns]).encode("latin-1"))
    return lines


def _explain(texts: list[str], layout: Layout, path: Path, first_row: int) -> None:
    """Raise the InputError that names the first bad cell."""
    for row, text in enumerate(texts, first_row):
        cells = text.split(",")
        if len(cells) != len(layout.columns):
            raise InputError(f"{path} has {len(cells)} columns in row {row}, but {len(layout.columns)} in the header")
        for place, cell in enumerate(cells):
            try:
                float(cell.strip().strip('"'))
            except ValueError as error:
                field = {layout.label: "label", layout.weight: "weight"}.get(place, layout.kind)
                column = layout.columns[place]
                raise InputError(
                    f"{path}: {field} in row {row}, column {column} is not a number: {cell.strip()[:40]!r}"
                ) from error


def _whole_numbers(block: list[bytes], column: int, path: Path, first_row: int) -> np.ndarray:
    """Labels from their text, because 1.0 and 1 are the same number but only one is a class index."""
    cells = [line.split(b",", column + 1)[column].strip().strip(b'"') for line in block]
    texts = np.array(cells)
    if texts.itemsize <= 18 and np.char.isdigit(texts).all():
        return texts.astype(np.int64)
    for row, cell in enumerate(cells, first_row):
        if not cell.removeprefix(b"-").isdigit() or len(cell) > 18:
            raise InputError(f"{path}: labels must be whole numbers, got {cell[:40].decode('latin-1')!r} in row {row}")
    return np.array([int(cell) for cell in cells], np.int64)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
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


def write(parts: dict[str, Predictions], path: Path) -> list[Path]:
    """Write one part with enough digits to read back the same numbers."""
    (predictions,) = parts.values()
    digits = "%.9g" if predictions.dtype == np.float32 else "%.17g"
    prefix = "logit_" if predictions.kind == "logits" else "probability_"
    names = predictions.class_names or [str(index) for index in range(predictions.n_classes)]
    header = ["label"] * predictions.has_labels + ["weight"] * (predictions.weights is not None)
    with atomic_write(path) as temporary, temporary.open("wb") as raw, _packed(raw, path) as binary:
        text = io.TextIOWrapper(binary, encoding="utf-8", newline="")
        csv.writer(text, lineterminator="\n").writerow([*header, *(prefix + name for name in names)])
        for chunk in predictions.chunks():
            columns = [] if not chunk.has_labels else [chunk.labels]
            columns += [] if chunk.weights is None else [chunk.weights]
            formats = ["%d"] * chunk.has_labels + ["%.17g"] * (chunk.weights is not None)
            table = np.column_stack([*columns, chunk.values.astype(np.float64)])
            np.savetxt(text, table, fmt=[*formats, *[digits] * chunk.n_classes], delimiter=",")
        text.flush()
        text.detach()
    return [path]


@contextmanager
def _packed(raw: IO[bytes], path: Path) -> Iterator[IO[bytes]]:
    if path.suffix.lower() != ".gz":
        yield raw
        return
    with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=3, filename="", mtime=0) as packed:
        yield packed  # type: ignore[misc]
