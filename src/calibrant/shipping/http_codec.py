"""Numbers over HTTP: JSON, npy and Arrow bodies to a matrix, and an answer back; every limit before allocation."""

import contextlib
import io
import math
import re
import struct
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.resources import files
from itertools import chain
from typing import Any

import numpy as np

import calibrant
from calibrant.core.arrays import Array, Json, check_matrix, check_scores, check_values
from calibrant.core.errors import InputError, MissingExtraError
from calibrant.core.schema import KINDS, Schema
from calibrant.core.softmax import log_softmax
from calibrant.data.arrays import npy_header
from calibrant.data.predictions import to_logits, value_check
from calibrant.data.write import arrow_array

try:
    import orjson
except ImportError as error:
    raise MissingExtraError("orjson", "serve") from error
try:
    import pyarrow as pa
    from pyarrow import ipc
except ImportError:  # a small image of the service does without
    pa = None

JSON = "application/json"
NPY = "application/x-npy"
ARROW = "application/vnd.apache.arrow.stream"
FORMATS = (JSON, NPY, ARROW)
NDJSON = "application/x-ndjson"

LARGEST_LOGIT = 1e6
MAX_NPY_HEADER = 4096
MAX_BLOCK_BYTES = 80 << 20
"""Memory that averages of several methods take for a block of rows; large inputs are computed block by block."""
UNCHECKED_JSON_BYTES = 1 << 20
"""Below this size even the worst JSON takes little memory."""
JSON_BLOCK_BYTES = 1 << 20
"""JSON is parsed and written in blocks of about this size: other threads wait for one block at most."""
JSON_ROWS = re.compile(rb'[ \t\n\r]*\{[ \t\n\r]*"(logits|probabilities)"[ \t\n\r]*:[ \t\n\r]*\[(?=[ \t\n\r]*\[)')
JSON_END = re.compile(rb"\][ \t\n\r]*\}[ \t\n\r]*\Z")
JSON_COMMA = re.compile(rb"[ \t\n\r]*,")


class MalformedBodyError(InputError):
    """The bytes are not what their content type says."""


@dataclass(frozen=True)
class Wanted(Schema):
    """What a request must bring: rows of K numbers, or one score per row, and groups for a calibrator per group."""

    max_rows: int = 65_536
    grouped: bool = False

    @property
    def width(self) -> int:
        """Numbers per row."""
        return 1 if self.flat else self.n_classes


def decode_rows(
    body: bytes, content_type: str, wanted: Wanted, kind: str | None = None
) -> tuple[Array, list[Any] | None]:
    """The logits (n×K, or (n,) for a binary calibrator) and groups of a request body.

    Shapes are checked, and every number is finite and at most 1e6 in size. JSON and Arrow bodies name what
    their numbers are; of npy `kind` says it, or else they are what the calibrator was fitted on. Probabilities become
    their logarithms (log-odds for binary scores and for labels that stand by themselves), so that a probability of 0 is
    −inf; logits become log-probabilities for a calibrator that was fitted on probabilities.
    """
    groups = None
    if content_type == NPY:
        kind, matrix = kind or wanted.kind, _from_npy(body)
    else:
        kind, matrix, groups = (_from_json if content_type == JSON else _from_arrow)(body, wanted)
    matrix = (check_scores if wanted.flat else check_matrix)(matrix, kind)
    if matrix.shape[1:] not in ((), (wanted.n_classes,)):
        raise InputError(f"{kind} have {matrix.shape[1]} columns, but the calibrator knows {wanted.n_classes} classes")
    if len(matrix) > wanted.max_rows:
        raise InputError(
            f"{kind} have {len(matrix)} rows, but one request may bring {wanted.max_rows}: split the batch"
        )
    if groups is not None and len(groups) != len(matrix):
        raise InputError(f"there are {len(groups)} groups, but {len(matrix)} rows")
    if kind == "probabilities":
        value_check(wanted.task)(matrix, from_logits=False, name=kind)
        return to_logits(matrix, wanted.task), groups
    largest = float(np.abs(matrix).max())
    if not math.isfinite(largest):
        check_values(matrix.reshape(len(matrix), -1), from_logits=True)
    if largest > LARGEST_LOGIT:
        raise InputError(f"logits reach {largest:.4g} in size, but at most {LARGEST_LOGIT:g} is served")
    in_logs = wanted.kind == "probabilities" and wanted.task == "multiclass"
    return log_softmax(matrix) if in_logs else matrix, groups


def estimate_memory(body: bytes, content_type: str, answer_type: str, width: int) -> int:
    """Return the bytes that decoding, calibrating and encoding a body take at most, before any of them."""
    if content_type == JSON:
        numbers, rows = count_sign(body, b",") + 1, count_sign(body, b"[")
        needed = 64 * numbers + 100 * rows
    else:
        item_size = 1
        if content_type == NPY:
            item_size = _npy_header(bytes(body[: body.find(b"\n", 10, MAX_NPY_HEADER) + 1]))[2].itemsize
        elif pa is not None:
            with contextlib.suppress(pa.ArrowException, OSError, ValueError):  # which decoding reports
                types = [field.type for field in ipc.open_stream(body).schema if field.name in KINDS]
                item_size = max(getattr(one, "value_type", one).bit_width // 8 for one in types)
        numbers = len(body) // max(1, item_size)
        rows = numbers // width
        needed = 32 * numbers + 16 * rows + (answer_type == JSON) * (32 * numbers + 96 * rows)
    return needed + min(400 * numbers, MAX_BLOCK_BYTES)


def encode(values: Array, content_type: str, predictions: Array, kind: str = "probabilities") -> bytes:
    """Probabilities or calibrated logits, (n×K) or (n,), as a response body; JSON and Arrow bring predictions too."""
    if content_type == JSON:
        values, predictions = map(np.ascontiguousarray, (values, predictions))
        # straight from the arrays: twenty times as fast as through lists
        dumps = partial(orjson.dumps, option=orjson.OPT_SERIALIZE_NUMPY)
        n_blocks = 1 + 16 * values.size // JSON_BLOCK_BYTES
        if n_blocks == 1:
            return dumps({kind: values, "predictions": predictions})
        parts = [b'{"%b":[' % kind.encode()]
        for block in np.array_split(values, min(n_blocks, len(values))):
            parts += dumps(block)[1:-1], b","
        return b"".join([*parts[:-1], b'],"predictions":', dumps(predictions), b"}"])
    buffer = io.BytesIO()
    if content_type == NPY:
        np.save(buffer, values)
    else:
        columns = [arrow_array(values), arrow_array(predictions)]
        table = pa.record_batch(columns, names=[kind, "prediction"])
        with ipc.new_stream(buffer, table.schema) as writer:
            writer.write_batch(table)
    return buffer.getvalue()


def parse_json(body: bytes) -> Any:
    """What a JSON body holds."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedBodyError(f"the body is not JSON ({error}); NaN and Infinity are not JSON") from error


def _from_json(body: bytes, wanted: Wanted) -> tuple[str, Array, list[Any] | None]:
    rows, names = wanted.max_rows, wanted.max_rows if wanted.grouped else 0
    if len(body) > UNCHECKED_JSON_BYTES:
        most = {b"{": 1, b'"': 8 + 2 * names, b"[": rows + 2, b",": rows * (wanted.width + 1) + names}
        check_signs(body, most, f"{rows} rows of numbers")
        parsed = _parse_blocks(body)
        if parsed is not None:
            return *parsed, None
    document = parse_json(body)
    document = document if isinstance(document, dict) else {}
    groups = document.pop("groups", None) if wanted.grouped else None
    if groups is not None and not (isinstance(groups, list) and set(map(type, groups)) <= {str, int}):
        raise InputError("groups must be a list of names, one per row")
    if len(document) != 1 or not document.keys() <= set(KINDS):
        raise InputError('the body must be {"logits": [[…], …]} or {"probabilities": [[…], …]} and nothing else')
    ((kind, rows),) = document.items()
    if not isinstance(rows, list):
        raise InputError(f"{kind} must be a list of rows, each a list of numbers")
    return kind, _to_matrix(kind, rows) if rows else np.empty((0, wanted.width)), groups


def _to_matrix(kind: str, rows: list[Any]) -> Array:
    """Return rows of numbers, or a list of numbers, as an array."""
    flat = chain.from_iterable(rows) if all(isinstance(row, list) for row in rows) else rows
    # numpy would take true for 1, "2" for 2 and null for NaN
    if not set(map(type, flat)) <= {int, float}:
        raise InputError(f"{kind} must be numbers, nothing else, in rows of numbers")
    try:
        return np.array(rows, dtype=np.float64)
    except ValueError as error:
        raise InputError(f"{kind} have rows of different lengths: {sorted(set(map(len, rows)))[:4]}") from error


def _parse_blocks(body: bytes) -> tuple[str, Array] | None:
    """Return the kind and the matrix of a long body, parsed in blocks of rows; None if it has another form."""
    head, end = JSON_ROWS.match(body), JSON_END.search(body, max(0, body.rfind(b"]")))
    if head is None or end is None or count_sign(body, b'"') != 2:  # a string could contain brackets
        return None
    kind, start, blocks = head[1].decode(), head.end(), []
    while True:
        stop = body.find(b"]", start + JSON_BLOCK_BYTES, end.start()) + 1 or end.start()
        try:
            blocks.append(_to_matrix(kind, orjson.loads(b"[%b]" % body[start:stop])))
        except (InputError, orjson.JSONDecodeError):
            return None
        if blocks[-1].ndim != 2 or blocks[-1].shape[1] != blocks[0].shape[1]:
            return None
        if not body[stop : end.start()].strip(b" \t\n\r"):
            return kind, np.concatenate(blocks)
        comma = JSON_COMMA.match(body, stop)
        if comma is None:
            return None
        start = comma.end()


def check_signs(body: bytes, most: dict[bytes, int], what: str) -> None:
    """Raise if a body holds a sign more often than so many rows need: lists and objects take far more memory."""
    for sign, limit in most.items():
        found = count_sign(body, sign)
        if found > limit:
            raise InputError(
                f"the body holds {found} times {sign.decode()!r}, but {what} need at most {limit}: send less"
            )


def count_sign(body: bytes, sign: bytes) -> int:
    """Count a byte by blocks that stay in the cache: bytes.count takes five times as long."""
    blocks = np.array_split(np.frombuffer(body, np.uint8), 1 + len(body) // 2**20)
    return sum(int(np.count_nonzero(block == ord(sign))) for block in blocks)


def _from_npy(body: bytes) -> Array:
    shape, fortran, dtype, start = _npy_header(bytes(body[: body.find(b"\n", 10, MAX_NPY_HEADER) + 1]))
    if any(type(size) is not int or size >= 2**48 for size in shape):
        raise MalformedBodyError(f"the npy header claims the shape {str(shape)[:60]}")
    if dtype.kind not in "fiu" or dtype.itemsize > 8:
        raise InputError(f"npy logits must be float or whole numbers of at most 64 bits, got {dtype}")
    expected, present = math.prod(shape) * dtype.itemsize, len(body) - start
    if expected != present:
        raise MalformedBodyError(f"the npy header claims {expected} bytes of data, but {present} follow")
    return np.frombuffer(body, dtype=dtype, offset=start).reshape(shape, order="F" if fortran else "C")


@lru_cache(maxsize=256)
def _npy_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, order, dtype and length; kept, because numpy's reader takes as long as a calibration."""
    stream = io.BytesIO(header)
    try:
        return *npy_header(stream, "the body"), stream.tell()
    except InputError as error:
        raise MalformedBodyError(str(error)) from error


def _from_arrow(body: bytes, wanted: Wanted) -> tuple[str, Array, list[Any] | None]:
    if pa is None:
        raise InputError("Arrow bodies need pyarrow on the server: send JSON or npy")
    try:
        # A few compressed bytes could ask for gigabytes: pyarrow decompresses without a limit and does not say ahead
        # whether it will. Its metadata does: a flatbuffer in which field 2 of the message is a record batch, whose
        # field 3 is `compression`.
        for message in ipc.MessageReader.open_stream(body):
            if message.type == "dictionary":
                raise InputError("dictionary-encoded Arrow columns are not served: send plain lists of numbers")
            data = message.metadata.to_pybytes()
            if message.type == "record batch" and _flatbuffer_field(data, _flatbuffer_field(data, 0, 2), 3):
                raise InputError("compressed Arrow streams are not served: write without compression")
        table = ipc.open_stream(body).read_all()  # views of the body: nothing is allocated for a false claim
        kind = next((kind for kind in KINDS if kind in table.column_names), "")
        if not kind:
            found = [str(name)[:40] for name in table.column_names[:4]]
            raise InputError(f"the Arrow stream has columns {found}, but needs one called 'logits' or 'probabilities'")
        if table.num_rows > wanted.max_rows:
            raise InputError(f"{kind} have more than {wanted.max_rows} rows, the most one request may bring")
        table.validate(full=True)
        named = wanted.grouped and "groups" in table.column_names
        groups = table.column("groups").to_pylist() if named else None
        column = table.column(kind).combine_chunks()
        lists = isinstance(column, (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray))
        values = column.flatten() if lists else column
        if column.null_count or values.null_count:
            raise InputError(f"column {kind!r} holds nulls: every row needs its numbers")
        flat = values.to_numpy(zero_copy_only=False)
        if flat.dtype.kind not in "fiu":
            raise InputError(f"column {kind!r} has type {str(column.type)[:60]}, but needs a list of numbers per row")
        widths = set(column.value_lengths().unique().to_pylist()) if lists else {1}
        if widths - {wanted.width}:
            raise InputError(f"{kind} have {sorted(widths)[:4]} columns, but the calibrator takes {wanted.width}")
        return kind, flat.reshape(-1, wanted.width), groups
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, struct.error, IndexError) as error:
        raise MalformedBodyError(f"the body is not an Arrow stream ({type(error).__name__})") from error


def _flatbuffer_field(data: bytes, place: int, field: int) -> int:
    """Position of a field of the flatbuffer table that the offset at `place` leads to, or 0 where it is absent."""
    table = place + struct.unpack_from("<I", data, place)[0]
    vtable = table - struct.unpack_from("<i", data, table)[0]
    size, slot = struct.unpack_from("<H", data, vtable)[0], 4 + 2 * field
    offset = struct.unpack_from("<H", data, vtable + slot)[0] if slot + 2 <= size else 0
    return table + offset if offset else 0


def openapi(wanted: Wanted) -> Json:
    """The OpenAPI 3.1 document of a service: `schemas/openapi.json` with what depends on the calibrator."""
    document = orjson.loads((files(calibrant) / "schemas" / "openapi.json").read_bytes())
    document["info"]["version"] = calibrant.__version__
    body = document["paths"]["/calibrate"]["post"]["requestBody"]["content"][JSON]
    body["example"] = {wanted.kind: [[1.0] + [0.0] * (wanted.width - 1)]}  # logits and probabilities of any task
    for kind, form in zip(KINDS, body["schema"]["oneOf"], strict=True):
        properties = form["properties"]
        properties[kind]["maxItems"] = wanted.max_rows
        properties[kind]["items"] |= {"minItems": wanted.width, "maxItems": wanted.width}
        if not wanted.grouped:
            del properties["groups"]
        form["required"] = list(properties)
    return document
