"""A closed unpickler: it builds containers, numbers, texts, arrays and tensors, and can call nothing else.

It is `pickle`'s own machine, written in Python, with three changes: names resolve only to the functions of this module,
instructions outside a list are refused, and reads are counted before they are made, so that a file can neither run code
nor ask for more time or memory than its size justifies. Dictionary keys must be texts: nothing nested is ever hashed.
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
from calibrant.data.npy import PLAIN_DTYPE
from calibrant.data.tensors import STORAGES, Storage, read_legacy, rebuild

MAX_READS = 1_000_000
"""Reads of one pickle, about two per item: lists of more numbers are to be saved as arrays."""

MAX_LINE = 2**26
MAX_SIDE = 2**48
MAX_DEPTH = 50
NOTHING_RUNS = "only arrays are read, nothing is run"


@dataclass
class _DType:
    """A dtype in the making: its name, and the byte order that arrives later."""

    name: str
    order: str = "|"

    def build(self) -> np.dtype[Any]:
        if "O" in self.name:
            raise InputError("it holds an object array: save plain numbers (dtype object)")
        if not PLAIN_DTYPE.fullmatch(self.name):
            raise InputError(f"it holds an array of dtype {self.name[:40]!r}: only plain numbers and texts are read")
        dtype = np.dtype(self.name)
        return dtype.newbyteorder(">" if self.order == ">" else "<") if self.order in ("<", ">") else dtype


@dataclass
class _Made:
    """An array or an object in the making: its state fills it."""

    content: Any = None


def _array(shape: Any, dtype: Any, fortran: Any, data: Any) -> np.ndarray:
    if isinstance(data, list):
        raise InputError("it holds an object array: save plain numbers (dtype object)")
    raw = data.encode("latin-1") if isinstance(data, str) else data  # Python 2 wrote bytes as text
    whole = isinstance(shape, tuple) and all(type(side) is int for side in shape)
    if not isinstance(dtype, _DType) or not whole or not isinstance(raw, (bytes, bytearray)):
        raise InputError("it holds a damaged array")
    built = dtype.build()
    possible = len(shape) <= 32 and all(0 <= side <= MAX_SIDE for side in shape)
    if not possible or math.prod(shape) * built.itemsize != len(raw):
        words = str(shape)[:60] if possible else "of impossible size"
        raise InputError(f"an array of shape {words} and dtype {built} does not fit its {len(raw)} bytes")
    return np.frombuffer(raw, built).copy().reshape(shape, order="F" if fortran else "C")


def _dtype(name: Any, *flags: Any) -> _DType:
    if not isinstance(name, str):
        raise InputError("it holds a damaged dtype")
    return _DType(name)


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or str(encoding)[:10].replace("-", "") != "latin1":
        raise InputError("it holds text in an unusual encoding")
    return text.encode("latin-1")


def _ordered(pairs: Any = ()) -> dict[str, Any]:
    if not isinstance(pairs, (list, tuple)) or not all(isinstance(pair, (list, tuple)) for pair in pairs):
        raise InputError("it holds a damaged dictionary")
    made: dict[str, Any] = {}
    _set_items(made, [item for pair in pairs for item in pair])
    return made


def _prediction_output(*values: Any) -> dict[str, Any]:
    return dict(zip(("predictions", "label_ids"), values, strict=False))


def _load_from_bytes(data: Any) -> Storage:
    if not isinstance(data, bytes):
        raise InputError("it holds a damaged tensor")
    storage = read_legacy(data, load)
    if not isinstance(storage, Storage):
        raise InputError("it holds a damaged tensor")
    return storage


_NUMPY: dict[str, Callable[..., Any]] = {
    "multiarray _reconstruct": lambda *_: _Made(),
    "multiarray scalar": lambda dtype, data: _array((), dtype, False, data).item(),
    "numeric _frombuffer": lambda data, dtype, shape, order: _array(shape, dtype, order == "F", data),
}
_CALLS: dict[str, Callable[..., Any]] = {
    **{f"numpy.{core}.{words}": call for core in ("core", "_core") for words, call in _NUMPY.items()},
    "numpy dtype": _dtype,
    "_codecs encode": _encode,
    "collections OrderedDict": _ordered,
    "torch._utils _rebuild_tensor_v2": rebuild,
    "torch._utils _rebuild_tensor": rebuild,
    "torch._utils _rebuild_parameter": lambda tensor, *_: tensor,
    "torch.storage _load_from_bytes": _load_from_bytes,
    "torch Size": lambda sides=(): sides,
    "transformers.trainer_utils PredictionOutput": _prediction_output,
    "transformers.trainer_utils EvalLoopOutput": _prediction_output,
    "transformers.trainer_utils EvalPrediction": lambda *_: _Made(),
}
"""The only names a pickle may call, and what is done instead of calling them."""

_NAMES = {*_CALLS, *STORAGES, "numpy ndarray"}


@dataclass(frozen=True)
class _Name:
    """A name that the pickle imports; only a word here."""

    words: str


def _set_items(target: Any, items: list[Any]) -> None:
    if not isinstance(target, dict) or len(items) % 2:
        raise InputError("it is damaged")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if type(key) is not str:
            raise InputError(f"it holds a dictionary whose keys are {type(key).__name__}, not texts")
        target[key] = value


class _Instructions(dict[int, Any]):
    def __missing__(self, code: int) -> Any:
        known = pickletools.code2op.get(chr(code))  # type: ignore[attr-defined]
        word = known.name if known else f"{code:#x}"
        raise InputError(f"it uses the instruction {word}: {NOTHING_RUNS}")


_PLAIN = (
    *("PROTO", "STOP", "NONE", "NEWTRUE", "NEWFALSE", "MARK", "POP", "POP_MARK", "DUP", "GLOBAL", "STACK_GLOBAL"),
    *("INT", "LONG", "LONG1", "BININT", "BININT1", "BININT2", "FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE"),
    *("SHORT_BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES"),
    *("BINBYTES8", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "LIST", "EMPTY_DICT"),
    *("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET", "LONG_BINGET", "PERSID", "BINPERSID"),
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

    def find_class(self, module: str, name: str) -> Any:
        """A word for a known name, and nothing for any other."""
        words = f"{module} {name}"
        if words not in _NAMES:
            raise InputError(f"it would call {words.replace(' ', '.')[:80]}: {NOTHING_RUNS}")
        return _Name(words)

    def persistent_load(self, pid: Any) -> Any:
        """A storage of a torch archive."""
        if self._storage is None or not isinstance(pid, tuple) or len(pid) < 5 or not isinstance(pid[1], _Name):
            raise InputError(f"it refers to something outside: {NOTHING_RUNS}")
        return self._storage((pid[0], pid[1].words, *pid[2:]))

    def _reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, _Name) or function.words not in _CALLS or type(arguments) is not tuple:
            raise InputError(f"it would call something that is no array: {NOTHING_RUNS}")
        self.stack.append(_CALLS[function.words](*arguments))

    def _build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, _DType) and isinstance(state, tuple) and len(state) >= 2:
            target.order = str(state[1])[:1]
        elif isinstance(target, _Made) and isinstance(state, tuple) and len(state) == 5:
            target.content = _array(*state[1:])
        elif isinstance(target, _Made) and isinstance(state, dict):
            target.content = state
        elif not (isinstance(target, dict) and isinstance(state, dict)):  # torch hangs notes on dictionaries
            raise InputError("it would set the state of something that is no array")

    def _append_items(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise InputError("it is damaged")
        self.stack[-1].extend(items)

    def _dict(self) -> None:
        items = self.pop_mark()
        self.stack.append({})
        _set_items(self.stack[-1], items)

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        _set_items(self.stack[-1], [key, value])

    def _set_many(self) -> None:
        items = self.pop_mark()
        _set_items(self.stack[-1], items)

    dispatch[_CODES["REDUCE"]] = dispatch[_CODES["NEWOBJ"]] = _reduce
    dispatch[_CODES["BUILD"]] = _build
    dispatch[_CODES["DICT"]] = _dict
    dispatch[_CODES["SETITEM"]] = _set_item
    dispatch[_CODES["SETITEMS"]] = _set_many
    dispatch[_CODES["APPEND"]] = lambda self: self._append_items([self.stack.pop()])
    dispatch[_CODES["APPENDS"]] = lambda self: self._append_items(self.pop_mark())
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


TROUBLE = (
    *(ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError, RecursionError, EOFError),
    *(AttributeError, pickle.UnpicklingError, UnicodeError),
)
"""What a damaged pickle makes the machine raise."""


def load(file: IO[bytes], size: int, storage: Callable[[Any], Storage] | None = None) -> Any:
    """The content of the pickle that begins here, of at most `size` bytes; nothing in it is executed.

    >>> import io
    >>> load(io.BytesIO(pickle.dumps({"labels": [1, 0]})), 100)
    {'labels': [1, 0]}
    """
    return _Finisher(size + 1000).finish(ClosedUnpickler(file, size, storage).load())


class _Finisher:
    """Puts arrays in the place of their placeholders, in time bounded by the size of the file.

    A pickle may refer to one list many times, so a few bytes can describe a tree of any size; `budget` is the number of
    items that a file of this size could spell out.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget

    def finish(self, value: Any, depth: int = 0) -> Any:
        self.budget -= 1
        if self.budget < 0 or depth > MAX_DEPTH:
            raise InputError("it repeats or nests its content without end")
        if isinstance(value, _Made):
            if value.content is None:
                raise InputError("it holds an array without data")
            return self.finish(value.content, depth + 1)
        if isinstance(value, (tuple, list)):
            return type(value)([self.finish(item, depth + 1) for item in value])
        if isinstance(value, dict):
            return {key: self.finish(item, depth + 1) for key, item in value.items()}
        if isinstance(value, (_Name, _DType)):
            return None
        return value
