"""Logits over HTTP: JSON, npy and Arrow bodies to a matrix, and probabilities back; every limit before allocation."""

from __future__ import annotations

import io
import json
import math
import struct
from typing import Any

import numpy as np

from calibrant.core.arrays import check_matrix, check_values
from calibrant.core.errors import InputError

orjson: Any
try:
    import orjson
except ImportError:
    orjson = None

JSON = "application/json"
NPY = "application/x-npy"
ARROW = "application/vnd.apache.arrow.stream"
FORMATS = (JSON, NPY, ARROW)

LARGEST_LOGIT = 1e6
MAX_NPY_HEADER = 4096


class MalformedBodyError(InputError):
    """The bytes are not what their content type says."""


def decode(body: bytes, content_type: str, *, n_classes: int, max_rows: int) -> np.ndarray:
    """The logits (n×K) of a request body, checked: shape, finite, none above 1e6 in size."""
    if content_type == JSON:
        matrix = _from_json(body, max_rows)
    elif content_type == NPY:
        matrix = _from_npy(body)
    else:
        matrix = _from_arrow(body, n_classes, max_rows)
    matrix = check_matrix(matrix)
    if matrix.shape[1] != n_classes:
        raise InputError(f"logits have {matrix.shape[1]} columns, but the calibrator knows {n_classes} classes")
    if len(matrix) > max_rows:
        raise InputError(f"logits have {len(matrix)} rows, but one request may bring {max_rows}: split the batch")
    check_values(matrix, from_logits=True)
    largest = max(float(matrix.max()), -float(matrix.min()))
    if largest > LARGEST_LOGIT:
        raise InputError(f"logits reach {largest:.4g} in size, but at most {LARGEST_LOGIT:g} is served")
    return matrix


def encode(probabilities: np.ndarray, content_type: str) -> bytes:
    """Probabilities (n×K) as a response body."""
    if content_type == NPY:
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.ascontiguousarray(probabilities), allow_pickle=False)
        return buffer.getvalue()
    if content_type == ARROW:
        return _to_arrow(probabilities)
    predictions = probabilities.argmax(axis=1)
    if orjson is not None:
        # straight from the arrays: twenty times as fast as through lists
        answer = {"probabilities": np.ascontiguousarray(probabilities), "predictions": predictions}
        return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    lists = {"probabilities": probabilities.tolist(), "predictions": predictions.tolist()}
    return json.dumps(lists, allow_nan=False, separators=(",", ":")).encode()


def _from_json(body: bytes, max_rows: int) -> np.ndarray:
    document = _parse_json(body)
    if not isinstance(document, dict) or set(document) != {"logits"}:
        raise InputError('the body must be {"logits": [[…], …]} and nothing else')
    rows = document["logits"]
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise InputError("logits must be a list of rows, each a list of numbers")
    if len(rows) > max_rows:
        raise InputError(f"logits have {len(rows)} rows, but one request may bring {max_rows}: split the batch")
    if len({len(row) for row in rows}) > 1:
        raise InputError(f"logits have rows of different lengths: {sorted({len(row) for row in rows})[:4]}")
    # asarray would take true for 1 and "2" for 2
    if not {type(number) for row in rows for number in row} <= {int, float}:
        raise InputError("logits must be numbers, nothing else")
    try:
        return np.array(rows, dtype=np.float64).reshape(len(rows), -1 if rows else 0)
    except OverflowError as error:
        raise InputError("logits hold a number too large for a double") from error


def _parse_json(body: bytes) -> Any:
    if orjson is not None:
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError:
            pass  # the standard parser says what is wrong in the words our clients know
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise MalformedBodyError(f"the body is not JSON ({error})") from error


def _from_npy(body: bytes) -> np.ndarray:
    stream = io.BytesIO(body)
    try:
        version = np.lib.format.read_magic(stream)
        reader = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = reader(stream, max_header_size=MAX_NPY_HEADER)
    except Exception as error:
        # numpy parses the header as a Python literal: bytes that are none raise whatever its tokenizer raises
        raise MalformedBodyError(f"the body is not an npy array ({type(error).__name__})") from error
    if dtype.hasobject or dtype.kind not in "fiu" or dtype.itemsize > 8:
        raise InputError(f"npy logits must be float or whole numbers of at most 64 bits, got {dtype}")
    expected, present = math.prod(shape) * dtype.itemsize, len(body) - stream.tell()
    if expected != present:
        raise MalformedBodyError(f"the npy header claims {expected} bytes of data, but {present} follow")
    array = np.frombuffer(body, dtype=dtype, offset=stream.tell())
    return array.reshape(shape, order="F" if fortran else "C")


def _from_arrow(body: bytes, n_classes: int, max_rows: int) -> np.ndarray:
    try:
        import pyarrow as pa
        from pyarrow import ipc
    except ImportError as error:
        raise InputError("Arrow bodies need pyarrow on the server: send JSON or npy") from error
    try:
        _refuse_compressed(body)
        reader = ipc.open_stream(body)
        if "logits" not in reader.schema.names:
            raise InputError(f"the Arrow stream has columns {reader.schema.names[:4]}, but needs one called 'logits'")
        parts, n_rows = [], 0
        for batch in reader:
            n_rows += batch.num_rows
            if n_rows > max_rows:
                raise InputError(f"logits have more than {max_rows} rows, the most one request may bring")
            batch.validate(full=True)
            parts.append(_column_matrix(batch.column(batch.schema.get_field_index("logits")), n_classes))
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, struct.error, IndexError) as error:
        raise MalformedBodyError(f"the body is not an Arrow stream ({type(error).__name__})") from error
    return np.concatenate(parts) if parts else np.empty((0, n_classes))


def _column_matrix(column: Any, n_classes: int) -> np.ndarray:
    import pyarrow as pa

    kind = column.type
    is_list = pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not is_list or not (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)):
        raise InputError(f"column 'logits' has type {kind}, but needs a list of numbers a row")
    flat = column.flatten()
    if column.null_count or flat.null_count:
        raise InputError("column 'logits' holds nulls: every row needs its numbers")
    widths = {int(width) for width in np.unique(column.value_lengths().to_numpy(zero_copy_only=False))}
    if widths - {n_classes}:
        raise InputError(f"logits have {sorted(widths)[:4]} columns, but the calibrator knows {n_classes} classes")
    return flat.to_numpy(zero_copy_only=False).reshape(-1, n_classes)


def _refuse_compressed(body: bytes) -> None:
    """Raise if any message of the stream is compressed: a few bytes could then ask for gigabytes.

    Reads the tables of the Arrow metadata: Message.header (field 2) is a RecordBatch, whose field 3 is `compression`.
    """
    from pyarrow import BufferReader, ipc

    stream = BufferReader(body)
    while True:
        try:
            message = ipc.read_message(stream)
        except EOFError:
            return
        if message.type == "dictionary":
            raise InputError("dictionary-encoded Arrow columns are not served: send plain lists of numbers")
        if message.type != "record batch":
            continue
        data = message.metadata.to_pybytes()
        batch = _flatbuffer_field(data, struct.unpack_from("<I", data, 0)[0], 2)
        batch += struct.unpack_from("<I", data, batch)[0]
        if _flatbuffer_field(data, batch, 3):
            raise InputError("compressed Arrow streams are not served: write without compression")


def _flatbuffer_field(data: bytes, table: int, field: int) -> int:
    """Position of a field of a flatbuffer table, or 0 where it is absent."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    size = struct.unpack_from("<H", data, vtable)[0]
    slot = 4 + 2 * field
    if slot + 2 > size:
        return 0
    offset = struct.unpack_from("<H", data, vtable + slot)[0]
    return table + offset if offset else 0


def _to_arrow(probabilities: np.ndarray) -> bytes:
    import pyarrow as pa
    from pyarrow import ipc

    flat = pa.array(np.ascontiguousarray(probabilities).ravel())
    column = pa.FixedSizeListArray.from_arrays(flat, probabilities.shape[1])
    table = pa.record_batch({"probabilities": column, "prediction": pa.array(probabilities.argmax(axis=1))})
    sink = io.BytesIO()
    with ipc.new_stream(sink, table.schema) as writer:
        writer.write_batch(table)
    return sink.getvalue()


def _refuse_constant(word: str) -> float:
    raise InputError(f"logits hold {word}, but every value must be finite")
