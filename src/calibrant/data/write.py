"""`write_predictions`: predictions into a file of any format that can be written, whole or not at all."""

import csv
import gzip
import io
import json
import math
import os
import re
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from calibrant.core.arrays import Array
from calibrant.core.atomic import atomic_write
from calibrant.core.errors import InputError
from calibrant.core.schema import OUTCOMES, class_key, class_number
from calibrant.data.arrays import DTYPES, LOCAL_HEADER, METADATA, kind_word
from calibrant.data.json_lines import LOGPROBS, TOP_LOGPROBS, records
from calibrant.data.opening import HOLDS_PARTS, reader_of, suffix_of
from calibrant.data.predictions import Predictions
from calibrant.data.source import (
    CLASS_NAMES,
    CORRECT,
    LABEL_SHARES,
    SCORES,
    SINGLE,
    TakenSource,
    canonical,
    class_of,
)
from calibrant.data.tables import ParquetTable, text_form, text_table

ONE = {"logits": "logit", "probabilities": "probability"}
"""What one score of a kind is called."""

FORMULA = re.compile(r"[=+@\t\r]|-(?![\d.]+(e[+-]?\d+)?$|inf$)")
"""Start of a cell that a spreadsheet computes; negative numbers are left as they are."""

Part = tuple[list[str], list[Any]]
"""Names and columns of some rows of a table, arrays of numpy or Arrow."""

ALIGNMENT = 64
ZIP64_EXTRA = 20
"""Bytes of the extra field that holds 64-bit sizes in a local header."""


def write_predictions(
    predictions: Predictions | Mapping[str, Predictions],
    path: str | os.PathLike[str],
    *,
    spreadsheet_safe: bool = False,
) -> list[Path]:
    """Write predictions to `path`, in the format of its suffix; return the files written.

    Values stream from the source chunk by chunk, checked on the way. A mapping of several parts, such as
    `{"val": …, "test": …}`, needs `.npz` or `.safetensors`. `.npy` writes a pair: `val.npy` becomes `val_logits.npy`
    and `val_labels.npy`. Pickles are never written. `spreadsheet_safe` puts an apostrophe before cells of text tables
    that a spreadsheet would compute, such as a class called `=1+1`.

    >>> import numpy as np, tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> two = Predictions.from_arrays(logits=np.array([[2.0, 1.0]]), labels=np.array([0]))
    >>> [file.name for file in write_predictions(two, folder / "two.npy")]
    ['two_logits.npy', 'two_labels.npy']
    """
    target = Path(path)
    parts = {"": predictions} if isinstance(predictions, Predictions) else dict(predictions)
    if not parts:
        raise InputError(f"there is nothing to write to {target}")
    suffix = suffix_of(target)
    if suffix not in WRITERS:
        reader_of(target)  # a suffix that nobody knows
        raise InputError(f"{target}: {suffix} files are only read, never written: use {', '.join(WRITERS)}")
    if len(parts) > 1 and suffix not in HOLDS_PARTS:
        raise InputError(
            f"{target} can hold one part, but there are {len(parts)} ({', '.join(parts)}): "
            f"pick one with #{next(iter(parts))}, or write .npz or .safetensors"
        )
    given: Any = parts if suffix in HOLDS_PARTS else next(iter(parts.values()))
    if suffix == ".npy":
        return _write_npy(given, target)
    options = {"spreadsheet_safe": True} if spreadsheet_safe else {}
    if options and suffix not in SEPARATED:
        raise InputError(
            f"{target} is no table for spreadsheets: write {', '.join(SEPARATED)}, or leave the option out"
        )
    with atomic_write(target) as temporary:
        WRITERS[suffix](given, temporary, **options)
    return [target]


def written_labels(predictions: Predictions, *, texts: bool = True) -> Array | None:
    """Labels as readers understand them: labels are matched to names first, and 1 is the class called yes.

    Names are written where one of them is a number or a word for an outcome; without `texts`, numbers that mean
    the same.
    """
    labels, names = predictions._labels, predictions.class_names or ()
    if labels is None or predictions.task == "multilabel" or not names:
        return labels
    numbers = [class_number(name) for name in names]
    outcomes = [OUTCOMES.get(name.lower()) for name in names]
    if set(numbers) - {None}:
        return np.array(names if None in numbers else numbers)[labels]
    if set(outcomes) - {None} and not predictions.flat:
        coded = len(names) == 2 and set(outcomes) == {0, 1}
        return np.array(names if texts else outcomes if coded else range(len(names)))[labels]
    return labels


def columns_of(predictions: Predictions, *, texts: bool = True) -> dict[str, Array]:
    """Everything with an entry per row but the scores, by the names that files use."""
    labels = written_labels(predictions, texts=texts)
    own = {
        LABEL_SHARES: predictions.label_shares,
        CORRECT if predictions.task == "pairs" else "labels": labels,
        "weights": predictions.weights,
        "clusters": predictions.clusters,
    }
    found = {name: column for name, column in own.items() if column is not None}
    own_rows = {name: field.read() for name, field in predictions.extras.items() if field.shape[0] == predictions.n}
    for name, column in {**predictions.groups, **own_rows}.items():
        if name not in (predictions.kind, *found) and column.dtype.kind != "O":
            found[name] = column
    return found


def score_word(predictions: Predictions, one: bool = False) -> str:
    """What files call the scores: the word for one score per row, else their kind, or what `one` score of it is."""
    kind = predictions.kind
    return SINGLE.get((predictions.task, kind), ONE[kind] if one else kind)


class _Stored(NamedTuple):
    """An array to be written block by block."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    blocks: Iterable[Array]

    def write(self, file: IO[bytes]) -> None:
        """The array in the npy format."""
        descr = np.lib.format.dtype_to_descr(self.dtype)
        np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": self.shape})
        file.writelines(block.tobytes() for block in self.blocks)


def _stored(parts: Mapping[str, Predictions], *, names: bool = True) -> dict[str, _Stored]:
    """The arrays of all parts, each under its prefix; class names as one of them, or not."""
    found = {}
    for split, predictions in parts.items():
        columns = columns_of(predictions, texts=names)
        if names and predictions.class_names is not None:
            columns[CLASS_NAMES] = np.array(predictions.class_names)
        shape = (predictions.n,) if predictions.flat else predictions.source.shape
        blocks: Iterable[Array] = (chunk.values for chunk in predictions.chunks())
        if predictions.dense is not None:  # in the shape in which they came
            places, axis = predictions.dense
            whole = predictions.values.reshape(*places, *shape[1:])
            whole = np.moveaxis(whole, -1, axis) if shape[1:] else whole
            blocks, shape = [whole], whole.shape
            for name, array in columns.items():
                columns[name] = array.reshape(places) if len(array) == predictions.n else array
            columns |= {name: field.read() for name, field in predictions.extras.items()}
        prefix = f"{split}_" if split else ""
        found[prefix + score_word(predictions)] = _Stored(shape, predictions.dtype, blocks)
        found |= {prefix + name: _Stored(array.shape, array.dtype, [array]) for name, array in columns.items()}
    return found


def _write_npy(predictions: Predictions, path: Path) -> list[Path]:
    """The matrix and, beside it, its labels, weights and class names."""
    word, own = kind_word(path.stem), score_word(predictions)
    prefix = path.stem.removesuffix(word) if word else f"{path.stem}_"
    if word not in (None, own, predictions.kind):
        raise InputError(f"{path} says {word}, but {predictions.name or 'the input'} holds {predictions.kind}")
    arrays = _stored({"": predictions})
    files = [path.with_name(f"{prefix}{(word or own) if name == own else name}.npy") for name in arrays]
    with ExitStack() as stack:
        # all names appear together, after every byte is on disk
        for file, array in zip(files, arrays.values(), strict=True):
            with stack.enter_context(atomic_write(file)).open("wb") as stream:
                array.write(stream)
    return files


def _write_npz(parts: dict[str, Predictions], path: Path) -> None:
    """All parts, each under its prefix, uncompressed and aligned so that they can be mapped."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in _stored(parts).items():
            info = zipfile.ZipInfo(f"{name}.npy")
            # an extra field of private type pads the local header until the data begin on a 64-byte border
            begins = archive.start_dir + LOCAL_HEADER + len(info.filename.encode()) + 4 + ZIP64_EXTRA
            padding = -begins % ALIGNMENT
            info.extra = struct.pack(f"<HH{padding}x", 0xCA1B, padding)
            with archive.open(info, "w", force_zip64=True) as stream:
                array.write(stream)


def _write_safetensors(parts: dict[str, Predictions], path: Path) -> None:
    """All parts, each under its prefix; class names are a JSON list in the metadata."""
    words = {dtype: word for word, dtype in DTYPES.items()}
    header: dict[str, Any] = {}
    for predictions in parts.values():
        if predictions.class_names is not None:
            header[METADATA] = {CLASS_NAMES: json.dumps(predictions.class_names)}
    arrays, end = _stored(parts, names=False), 0
    for name, array in arrays.items():
        if array.dtype not in words:
            raise InputError(f"{name} holds texts, which safetensors cannot: write .npz, .parquet or .csv")
        first, end = end, end + math.prod(array.shape) * array.dtype.itemsize
        header[name] = {"dtype": words[array.dtype], "shape": array.shape, "data_offsets": [first, end]}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            file.writelines(block.tobytes() for block in array.blocks)


def _write_table(predictions: Predictions, path: Path, *, spreadsheet_safe: bool = False) -> None:
    """A column per array; in text one per class, with the fewest digits that read back as the same numbers."""
    text, names = path.suffix != ".parquet", predictions.class_names
    word, classes = score_word(predictions, text), names or range(predictions.n_classes)
    singular = {"labels": "label", "weights": "weight", LABEL_SHARES: "label_share"} if text else {}
    own = {singular.get(name, name): array for name, array in columns_of(predictions).items() if array.ndim < 3}

    def parts() -> Iterator[Part]:
        for chunk in predictions.like(groups=own).chunks():  # groups are cut with the rows, whatever they hold
            columns = {**chunk.groups, word: chunk.values.astype(str) if text else chunk.values}
            for name, array in list(columns.items()) if text else ():
                if array.ndim == 2:
                    inner = classes if array.shape[1] == len(classes) else range(array.shape[1])
                    columns |= {f"{name}_{end}": array[:, place] for place, end in enumerate(inner)}
                    del columns[name]
            yield list(columns), list(columns.values())

    if text:
        _save_text(parts(), path, "\t" if ".tsv" in path.suffixes else ",", spreadsheet_safe=spreadsheet_safe)
    else:
        _save_parquet(parts(), path, None if names is None else {CLASS_NAMES: json.dumps(names)})


def _save_parquet(parts: Iterator[Part], path: Path, metadata: Any) -> None:
    """A row group per part."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = (pa.table(list(map(arrow_array, columns)), names, metadata=metadata) for names, columns in parts)
    first = next(tables)
    with pq.ParquetWriter(path, first.schema, compression="zstd") as writer:
        for table in chain([first], tables):
            writer.write_table(table)


def arrow_array(array: Any) -> Any:
    """A column of numbers or texts, or of lists of as many numbers as the matrix has columns."""
    import pyarrow as pa

    if isinstance(array, pa.Array):
        return array
    flat = pa.array(np.ascontiguousarray(array).reshape(-1), pa.string() if array.dtype.kind in "US" else None)
    return flat if array.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, array.shape[1])


def _quote_formula(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and FORMULA.match(cell) else cell


def _save_text(
    parts: Iterator[Part],
    path: Path,
    separator: str,
    *,
    header: bool = True,
    unnamed: int = 0,
    spreadsheet_safe: bool = False,
) -> None:
    """Lines of text, packed where the name of the file says so; the header leaves out the first `unnamed` columns."""
    with path.open("wb") as raw:
        stream = gzip.GzipFile("", "wb", 3, raw, mtime=0) if path.suffix.lower() == ".gz" else raw
        with io.TextIOWrapper(stream, encoding="utf-8", newline="") as text:  # which closes the stream, too
            writer = csv.writer(text, delimiter=separator, lineterminator="\n")
            for names, columns in parts:
                rows: Iterable[Iterable[Any]] = zip(*(column.tolist() for column in columns), strict=True)
                if header:
                    rows = chain([names[unnamed:]], rows)
                header = False
                writer.writerows(map(_quote_formula, row) for row in rows) if spreadsheet_safe else writer.writerows(
                    rows
                )


def _write_jsonl(predictions: Predictions, path: Path) -> None:
    """An object per row: scores by class if there are names, the label, and all other columns."""
    key, names = score_word(predictions, predictions.flat), None if predictions.flat else predictions.class_names
    label = {"pairs": CORRECT, "multilabel": "labels"}.get(predictions.task, "label")
    singular = {"labels": label, "weights": "weight", "clusters": "cluster"}
    own = {singular.get(name, name): array for name, array in columns_of(predictions).items()}
    if names is not None and predictions.task == "multiclass" and label in own:
        own[label] = np.array(names)[predictions.labels]
    with path.open("w", encoding="utf-8") as file:
        for chunk in predictions.like(groups=own).chunks():  # groups are cut with the rows
            scores = _shortest(chunk).tolist()
            columns = {name: column.tolist() for name, column in chunk.groups.items()}
            if CORRECT in columns:
                columns[CORRECT] = list(map(bool, columns[CORRECT]))
            for place, values in enumerate(scores):
                row = {key: values if names is None else dict(zip(names, values, strict=True))}
                cells = {name: column[place] for name, column in columns.items()}
                row |= {name: None if cell != cell else cell for name, cell in cells.items()}  # noqa: PLR0124 (NaN)
                file.write(json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n")


def _shortest(chunk: Predictions) -> Array:
    """The values as float64, through text: the float64 of a float32 would show digits that it never had."""
    return chunk.values.astype(str).astype(np.float64)


def rewrite(
    given: Predictions, calibrated: Predictions, source: Path, target: Path, *, spreadsheet_safe: bool = False
) -> list[Path]:
    """Write the table of `source` to `target` with the scores of `calibrated`: everything else stays as it was.

    A column of scores keeps its name, unless the kind changes and the name says the kind: `logit_cat` becomes
    `probability_cat`. Nothing is written unless both are tables of one format, and `given` has all rows of the source.
    """
    both = {suffix_of(source), suffix_of(target)}
    same = both <= {*SEPARATED} or (not spreadsheet_safe and (both <= {".parquet"} or both <= {*LINES}))
    if not same or not source.is_file() or not given.score_columns or isinstance(given.source, TakenSource):
        return []
    renamed = {name: _renamed(name, calibrated.kind) for name in given.score_columns}
    with atomic_write(target) as temporary:
        if both <= {*LINES}:
            _rewrite_jsonl(calibrated, source, temporary, renamed)
        else:
            _rewrite_table(calibrated, source, temporary, renamed, spreadsheet_safe)
    return [target]


def _renamed(name: str, kind: str) -> str:
    """The name of a column of scores under another kind."""
    low = name.lower()
    said, word = class_of(name) or (SCORES.get(low), "")
    if said in (None, kind):
        return name
    if low in ("logits", "probabilities", "probs"):
        return kind
    return ONE[kind] if low in SCORES else f"{ONE[kind]}_{word}"


def _rewrite_table(
    calibrated: Predictions, source: Path, temporary: Path, renamed: dict[str, str], spreadsheet_safe: bool
) -> None:
    form = text_form(source) if suffix_of(source) in SEPARATED else None
    table = ParquetTable(source, str(source)) if form is None else text_table(source, form, set())
    names = canonical(table.names)
    header = [renamed.get(name, own) for name, own in zip(names, table.names, strict=True)]

    def changed() -> Iterator[Part]:
        for start, batch in table.batches(list(range(len(names))), 0, 2**18):
            values = calibrated[start : start + batch.num_rows].values.reshape(batch.num_rows, -1)
            matrix = len(renamed) < values.shape[1]
            if form is not None:
                values = values.astype(str)
                lists = [f"[{', '.join(row)}]" for row in values.tolist()] if matrix else []
                values = np.array(lists or np.char.replace(values, ".", form.decimal))
            columns = batch.columns
            for own, name in enumerate(renamed):
                columns[names.index(name)] = values if matrix else values[:, own]
            yield header, columns

    if form is None:
        _save_parquet(changed(), temporary, table.metadata)
    else:
        layout = {"header": form.header, "unnamed": form.row_names, "spreadsheet_safe": spreadsheet_safe}
        _save_text(changed(), temporary, form.separator, **layout)


def _rewrite_jsonl(calibrated: Predictions, source: Path, temporary: Path, renamed: dict[str, str]) -> None:
    key, keys = next(iter(renamed)), calibrated.schema.keys
    with temporary.open("w", encoding="utf-8") as file:
        scores = (value for chunk in calibrated.chunks() for value in _shortest(chunk).reshape(chunk.n, -1).tolist())
        for row, value in zip(records(source)[0], scores, strict=True):
            changed = {renamed.get(word, word): item for word, item in row.items()}
            if len(renamed) > 1:  # a key per class
                changed |= dict(zip(renamed.values(), value, strict=True))
            elif isinstance(row.get(key), dict):  # each row has an order of its own
                named = dict(zip(keys, value, strict=True))
                own = {word: named[class_key(word)] for word in row[key]}
                if calibrated.kind == "probabilities" and len(own) < len(keys):
                    # what options that the row does not have got in place of zero belongs to the others
                    own = {word: float(f"{share / sum(own.values()):.7g}") for word, share in own.items()}
                changed[renamed[key]] = own
            elif key in row:
                changed[renamed[key]] = value[0] if calibrated.flat else value
            else:  # log-probabilities of options
                for word in (LOGPROBS, TOP_LOGPROBS):
                    changed.pop(word, None)
                changed[calibrated.kind] = dict(zip(calibrated.class_names or (), value, strict=True))
            file.write(json.dumps(changed, ensure_ascii=False) + "\n")


SEPARATED = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
LINES = (".jsonl", ".ndjson")
TEXT = SEPARATED + LINES
"""Formats in which people read the numbers."""

WRITERS: dict[str, Callable[[Any, Path], Any]] = {
    ".npz": _write_npz,
    ".npy": _write_npy,
    ".parquet": _write_table,
    ".safetensors": _write_safetensors,
    **dict.fromkeys(SEPARATED, _write_table),
    **dict.fromkeys(LINES, _write_jsonl),
}
"""Suffix to the function that writes predictions, or all parts where the format holds several, to a path. Formats that
can run code in other readers are never written."""
