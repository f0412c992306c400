"""A table written back as it was, with other scores: every other column, the order of rows and columns stay.

For CSV, wide parquet and JSON lines, whose files hold more than predictions. A column of scores keeps its name, unless
the kind changes and the name says the kind: `logit_cat` becomes `probability_cat`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.core.atomic import atomic_write
from calibrant.core.errors import InputError
from calibrant.data.columns import PREFIXES, canonical
from calibrant.data.delimited import line_blocks, opened_text, row_width
from calibrant.data.fields import SCORES
from calibrant.data.formats import suffix_of
from calibrant.data.json_lines import LOGPROBS, TOP_LOGPROBS, parse_line
from calibrant.data.limits import MAX_TEXT_BYTES
from calibrant.data.predictions import Predictions
from calibrant.data.source import TakenSource
from calibrant.data.write import csv_writer


def can_rewrite(given: Predictions, source: Path, target: Path) -> bool:
    """Is the output a table of the same format, whose rows are those of the input?"""
    work = REWRITERS.get(suffix_of(source))
    same = work is not None and work is REWRITERS.get(suffix_of(target))
    return same and source.is_file() and bool(given.score_columns) and not isinstance(given.source, TakenSource)


def rewrite(given: Predictions, calibrated: Predictions, source: Path, target: Path) -> Path:
    """Write the table of `source` to `target` with the scores of `calibrated`."""
    if not target.parent.is_dir():
        raise InputError(f"cannot write {target}: the folder {target.parent} does not exist; create it first")
    work = REWRITERS[suffix_of(source)]
    renamed = {name: _renamed(name, calibrated.kind) for name in given.score_columns}
    with atomic_write(target) as temporary:
        work(given, calibrated, source, temporary, renamed)
    return target


def _renamed(name: str, kind: str) -> str:
    """The name of a column of scores under another kind."""
    low = name.lower()
    said = SCORES.get(low) or next((PREFIXES[prefix] for prefix in PREFIXES if low.startswith(prefix)), None)
    if said is None or said == kind:
        return name
    if low in SCORES:
        one = {"logits": "logit", "probabilities": "probability"}[kind]
        return kind if low in ("logits", "probabilities", "probs") else one
    prefix = next(prefix for prefix in PREFIXES if low.startswith(prefix))
    return {"logits": "logit_", "probabilities": "probability_"}[kind] + name[len(prefix) :]


def _rows(calibrated: Predictions) -> Iterator[list[float]]:
    for chunk in calibrated.chunks():
        yield from chunk.values.reshape(chunk.n, -1).astype(np.float64).tolist()


def _csv(given: Predictions, calibrated: Predictions, source: Path, temporary: Path, renamed: dict[str, str]) -> None:
    digits = 9 if calibrated.dtype == np.float32 else 17
    scores = _rows(calibrated)
    with opened_text(source) as lines, csv_writer(temporary) as writer:
        header = next(csv.reader([lines.readline(MAX_TEXT_BYTES).decode("utf-8-sig")]))
        known = canonical([name.strip() for name in header])
        places = [known.index(name) for name in given.score_columns]
        writer.writerow([renamed.get(name, own) for name, own in zip(known, header, strict=True)])
        for block in line_blocks(lines, source):
            shift = row_width(block[0]) - len(header)  # R's row names have no name
            for cells in csv.reader(line.decode("utf-8", "replace") for line in block):
                for place, value in zip(places, next(scores), strict=True):
                    cells[place + shift] = f"{value:.{digits}g}"
                writer.writerow(cells)


def _parquet(
    given: Predictions, calibrated: Predictions, source: Path, temporary: Path, renamed: dict[str, str]
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(source) as file:
        original = file.schema_arrow
        known = canonical(original.names)
        places = {known.index(name): place for place, name in enumerate(given.score_columns)}
        types = {place: _score_type(original.field(place).type, calibrated.dtype) for place in places}
        fields = [
            pa.field(renamed.get(name, own.name), types.get(place, own.type))
            for place, (name, own) in enumerate(zip(known, original, strict=True))
        ]
        schema = pa.schema(fields, metadata=original.metadata)
        start = 0
        with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
            for batch in file.iter_batches(batch_size=2**18, use_threads=False):
                values = calibrated[start : start + batch.num_rows].values.reshape(batch.num_rows, -1)
                columns = [
                    _score_column(values, places[place], types[place]) if place in places else batch.column(place)
                    for place in range(batch.num_columns)
                ]
                writer.write_table(pa.Table.from_arrays(columns, schema=schema))
                start += batch.num_rows


def _score_type(arrow_type: Any, dtype: np.dtype[Any]) -> Any:
    import pyarrow as pa

    item = pa.from_numpy_dtype(dtype)
    if pa.types.is_fixed_size_list(arrow_type):
        return pa.list_(item, arrow_type.list_size)
    if pa.types.is_large_list(arrow_type):
        return pa.large_list(item)
    return pa.list_(item) if pa.types.is_list(arrow_type) else item


def _score_column(values: np.ndarray, place: int, arrow_type: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_nested(arrow_type):
        return pa.array(values.tolist(), arrow_type)
    return pa.array(np.ascontiguousarray(values[:, place]), arrow_type)


def _json_lines(
    given: Predictions, calibrated: Predictions, source: Path, temporary: Path, renamed: dict[str, str]
) -> None:
    (key,) = given.score_columns
    scores = _rows(calibrated)
    names = calibrated.class_names
    with source.open("rb") as lines, temporary.open("w", encoding="utf-8") as file:
        for line in lines:
            if not line.strip():
                continue
            row, value = parse_line(line, str(source)), next(scores)
            if key in row:
                old = row[key]
                new: Any = value[0] if calibrated.flat else value
                if isinstance(old, dict):
                    new = dict(zip(old, value, strict=True))
                changed = {renamed[key] if word == key else word: item for word, item in row.items()}
                changed[renamed[key]] = new
            else:  # log-probabilities of options
                changed = {word: item for word, item in row.items() if word not in (LOGPROBS, TOP_LOGPROBS)}
                changed[calibrated.kind] = dict(zip(names or (), value, strict=True))
            file.write(json.dumps(changed, ensure_ascii=False) + "\n")


REWRITERS: dict[str, Any] = {
    ".csv": _csv,
    ".csv.gz": _csv,
    ".parquet": _parquet,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
}
