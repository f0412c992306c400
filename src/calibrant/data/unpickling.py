"""A closed unpickler: it builds containers, numbers, texts, arrays and tensors, and can call nothing else.

It is `pickle`'s own machine, written in Python, with three changes: names resolve only to the functions of this module,
instructions outside a list are refused, and reads are counted before they are made, so that a file can neither run code
nor ask for more time or memory than its size justifies. A pickle may refer to one list many times, so a few bytes can
describe a tree of any size: nothing nested is hashed, printed or walked here, and dictionary keys must be texts.
"""

from __future__ import annotations

import math
import pickle
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, ClassVar

import numpy as np

from calibrant.core.errors import InputError
from calibrant.data.npy import plain_dtype
from calibrant.data.tensors import STORAGES, Storage, read_legacy, rebuild

MAX_READS = 1_000_000
"""Reads of one pickle, about two per item: lists of more numbers are to be saved as arrays."""

MAX_LINE = 2**26
NOTHING_RUNS = "only arrays are read, nothing is run"

TROUBLE = (
    *(ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError, RecursionError, EOFError),
    *(AttributeError, pickle.UnpicklingError, UnicodeError),
)
"""What a damaged pickle makes the machine raise."""


@dataclass
class _DType:
    """A dtype in the making: its name, and the byte order that arrives later."""

    name: Any
    order: Any = "|"

    def build(self) -> np.dtype[Any]:
        dtype = plain_dtype(self.name, "an array in it")
        return dtype.newbyteorder(self.order) if self.order in ("<", ">") else dtype


class _Attributes(dict[str, Any]):
    """An object of which only the attributes are read."""


def _fill(array: np.ndarray, shape: Any, dtype: Any, fortran: Any, data: Any) -> np.ndarray:
    """Give an array its content, in place: other parts of the pickle may refer to it already."""
    raw = data.encode("latin-1") if isinstance(data, str) else data  # Python 2 wrote bytes as text
    whole = isinstance(shape, tuple) and len(shape) <= 32 and all(type(side) is int for side in shape)
    built = dtype.build() if isinstance(dtype, _DType) else None
    if built is None or not whole or not isinstance(raw, (bytes, bytearray)):
        raise InputError("it holds a damaged array")
    # an item of 0 bytes (an empty text) counts as one: else a shape of any size would need no data
    if min(shape, default=0) < 0 or math.prod(shape) * max(built.itemsize, 1) != len(raw):
        raise InputError(f"an array of shape {str(shape)[:60]} and dtype {built} does not fit its {len(raw)} bytes")
    array.__setstate__((1, shape, built, bool(fortran), bytes(raw)))  # type: ignore[arg-type]
    return array


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise InputError("it holds text in an unusual encoding")
    return text.encode("latin-1")


def _ordered(pairs: Any = ()) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        _set_items(made, [key, value])
    return made


def _set_items(target: Any, items: list[Any]) -> None:
    if not isinstance(target, dict) or len(items) % 2:
        raise InputError("it holds a damaged dictionary")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if type(key) is not str:
            raise InputError(f"it holds a dictionary whose keys are {type(key).__name__}, not texts")
        target[key] = value


def _prediction_output(*values: Any) -> dict[str, Any]:
    return dict(zip(("predictions", "label_ids"), values, strict=False))


_NUMPY: dict[str, Any] = {
    "multiarray _reconstruct": lambda *_: np.empty(0),
    "multiarray scalar": lambda dtype, data: _fill(np.empty(0), (), dtype, False, data).item(),
    "numeric _frombuffer": lambda data, dtype, shape, order: _fill(np.empty(0), shape, dtype, order == "F", data),
}
_NAMES: dict[str, Any] = {
    **{f"numpy.{core}.{words}": call for core in ("core", "_core") for words, call in _NUMPY.items()},
    **STORAGES,
    "numpy ndarray": None,
    "numpy dtype": lambda name, *_: _DType(name),
    "_codecs encode": _encode,
    "collections OrderedDict": _ordered,
    "torch._utils _rebuild_tensor_v2": rebuild,
    "torch._utils _rebuild_tensor": rebuild,
    "torch._utils _rebuild_parameter": lambda tensor, *_: tensor,
    "torch Size": lambda sides=(): sides,
    "transformers.trainer_utils PredictionOutput": _prediction_output,
    "transformers.trainer_utils EvalLoopOutput": _prediction_output,
    "transformers.trainer_utils EvalPrediction": lambda *_: _Attributes(),
}
"""The only names a pickle may use, and what stands for them; nothing else that it can build can be called."""


class _Instructions(dict[int, Any]):
    def __missing__(self, code: int) -> Any:
        known = pickletools.code2op.get(chr(code))  # type: ignore[attr-defined]
        word = known.name if known else f"{code:#x}"
        raise InputError(f"it uses the instruction {word}: {NOTHING_RUNS}")


_PLAIN = (
    *("PROTO", "STOP", "NONE", "NEWTRUE", "NEWFALSE", "MARK", "POP", "POP_MARK", "DUP", "GLOBAL", "STACK_GLOBAL"),
    *("INT", "LONG", "LONG1", "BININT", "BININT1", "BININT2", "FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE"),
    *("SHORT_BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES"),
    *("BINBYTES8", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "LIST", "APPEND", "APPENDS"),
    *("EMPTY_DICT", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET", "LONG_BINGET", "PERSID", "BINPERSID"),
)
"""Instructions that pickle's own machine carries out: they build plain values, or ask `find_class`."""

_CODES = {opcode.name: ord(opcode.code) for opcode in pickletools.opcodes}


class ClosedUnpickler(pickle._Unpickler):
    """Pickle's machine without any way out; `storage(identifier)` answers what a torch archive refers to."""

    stack: list[Any]
    pop_mark: Any
    read: Any
    append: Any
    dispatch: ClassVar[dict[int, Any]] = _Instructions(
        {_CODES[name]: pickle._Unpickler.dispatch[_CODES[name]] for name in _PLAIN}
    )

    def __init__(self, file: IO[bytes], left: int, storage: Callable[[Any], Storage] | None = None) -> None:
        super().__init__(_Bounded(file, left), encoding="latin-1")
        self._storage = storage
        self._loaded: dict[bytes, Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        """What stands for a known name; an InputError for any other."""
        words = f"{module} {name}"
        if words == "torch.storage _load_from_bytes":
            return self._load_from_bytes
        if words not in _NAMES:
            raise InputError(f"it would call {'.'.join(words.split())[:80]}: {NOTHING_RUNS}")
        return _NAMES[words]

    def persistent_load(self, pid: Any) -> Any:
        """A storage of a torch archive."""
        if self._storage is None or not isinstance(pid, tuple) or len(pid) < 5:
            raise InputError(f"it refers to something outside: {NOTHING_RUNS}")
        return self._storage(pid)

    def _load_from_bytes(self, data: Any) -> Storage:
        if isinstance(data, bytes) and data not in self._loaded:  # read once, however often the pickle refers to it
            self._loaded[data] = read_legacy(data, load)
        if not isinstance(data, bytes) or not isinstance(self._loaded[data], Storage):
            raise InputError("it holds a damaged tensor")
        return self._loaded[data]

    def _call(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not callable(function) or type(arguments) is not tuple:
            raise InputError(f"it would call something that is no array: {NOTHING_RUNS}")
        self.append(function(*arguments))

    def _build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, _DType) and isinstance(state, tuple) and len(state) >= 2:
            target.order = state[1]
        elif isinstance(target, np.ndarray) and isinstance(state, tuple) and len(state) == 5:
            _fill(target, *state[1:])
        elif isinstance(target, _Attributes) and isinstance(state, dict):
            target.update(state)
        elif not (isinstance(target, dict) and isinstance(state, dict)):  # torch hangs notes on dictionaries
            raise InputError("it would set the state of something that is no array")

    def _dict(self) -> None:
        items = self.pop_mark()
        self.append({})
        _set_items(self.stack[-1], items)

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        _set_items(self.stack[-1], [key, value])

    def _set_many(self) -> None:
        items = self.pop_mark()
        _set_items(self.stack[-1], items)

    dispatch[_CODES["REDUCE"]] = dispatch[_CODES["NEWOBJ"]] = _call
    dispatch[_CODES["BUILD"]] = _build
    dispatch[_CODES["DICT"]] = _dict
    dispatch[_CODES["SETITEM"]] = _set_item
    dispatch[_CODES["SETITEMS"]] = _set_many
    dispatch[_CODES["FRAME"]] = lambda self: self.read(8)  # read on without a copy of the frame
    dispatch[_CODES["BYTEARRAY8"]] = lambda self: self.append(
        bytearray(self.read(int.from_bytes(self.read(8), "little")))
    )


class _Bounded:
    """A file that counts its reads and refuses one beyond its end, so that a false length allocates nothing."""

    def __init__(self, file: IO[bytes], left: int) -> None:
        self._file, self._left, self._reads = file, left, 0

    def read(self, count: int) -> bytes:
        self._reads += 1
        if self._reads > MAX_READS:
            raise InputError(f"it has over {MAX_READS // 2:,} items: save numbers as an array")
        self._left -= count
        if self._left < 0:
            raise InputError(f"an instruction claims {count} bytes, but {self._left + count} are left: it is truncated")
        return self._file.read(count)

    def readline(self) -> bytes:
        self._reads += 1
        line = self._file.readline(min(MAX_LINE, max(self._left, 0)))
        self._left -= len(line)
        return line


def load(file: IO[bytes], size: int, storage: Callable[[Any], Storage] | None = None) -> Any:
    """The content of the pickle that begins here, of at most `size` bytes; nothing in it is executed.

    >>> import io
    >>> load(io.BytesIO(pickle.dumps({"labels": [1, 0]})), 100)
    {'labels': [1, 0]}
    """
    return ClosedUnpickler(file, size, storage).load()
