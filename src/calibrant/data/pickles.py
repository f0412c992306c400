"""Pickles of arrays (`.p`, `.pkl`, `.pickle`), read without ever running what they name.

The pickle is not loaded by `pickle`: its instructions are decoded with `pickletools`, which executes nothing, and
carried out here by a small machine that knows containers, numbers, texts and the four spellings of a numpy array. An
instruction that would call anything else is an InputError before it has an effect.

Layouts: a dictionary with the names that `.npz` files use; `(logits, labels)`; and, as published with many papers,
`((val_logits, val_labels), (test_logits, test_labels))`, whose parts are `#val` and `#test` (three pairs: `#train`,
`#val`, `#test`). A tuple has no names: by convention it holds logits, unless `kind=` says otherwise.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.data.fields import ArrayField, Field, Wanted
from calibrant.data.npy import PLAIN_DTYPE

SPLITS = {1: ("",), 2: ("val", "test"), 3: ("train", "val", "test")}
MAX_DEPTH = 50
ROOM_PER_BYTE = 8
"""Bytes of array that a byte of the file may become: two bytes hold a small integer, which takes eight in an array."""


def fields(path: Path, wanted: Wanted) -> dict[str, Field]:
    """The arrays of the pickle under the names of their layout."""
    content = load_arrays(path)
    named = content if isinstance(content, dict) else _name_tuple(content, wanted.kind or "logits", path)
    room = ROOM_PER_BYTE * path.stat().st_size + 2**20
    found = {name: _field(value, f"{path}: {name}", room) for name, value in named.items()}
    return {name: value for name, value in found.items() if value is not None}


def _name_tuple(content: Any, kind: str, path: Path) -> dict[str, Any]:
    if isinstance(content, (tuple, list)):
        if len(content) in (2, 3) and isinstance(content[0], np.ndarray):
            return dict(zip((kind, "labels", "weights"), content, strict=False))
        pairs = [pair for pair in content if isinstance(pair, (tuple, list)) and len(pair) in (2, 3)]
        if len(pairs) == len(content) and len(pairs) in SPLITS:
            return {
                f"{split}_{word}" if split else word: array
                for split, pair in zip(SPLITS[len(pairs)], pairs, strict=True)
                for word, array in zip((kind, "labels", "weights"), pair, strict=False)
            }
    raise InputError(
        f"{path} holds {_describe(content)}, but a pickle must hold a dictionary of arrays, (logits, labels) "
        "or ((val_logits, val_labels), (test_logits, test_labels))"
    )


def _describe(content: Any, depth: int = 0) -> str:
    if isinstance(content, np.ndarray):
        return f"an array of shape {content.shape}"
    if isinstance(content, (tuple, list)) and depth < 2:
        inside = ", ".join(_describe(item, depth + 1) for item in content[:4])
        return f"a {type(content).__name__} of {len(content)} ({inside}{', ...' if len(content) > 4 else ''})"
    return f"a {type(content).__name__}"


def _field(value: Any, called: str, room: int) -> Field | None:
    if isinstance(value, (list, tuple)):
        if _expanded_bytes(value) > room:
            raise InputError(f"{called} repeats itself to over {room} bytes: save it as an array")
        try:
            value = np.array(value)
        except (ValueError, OverflowError, TypeError):
            return None  # ragged or mixed: not an array, so not a field
    return ArrayField(value) if isinstance(value, np.ndarray) else None


def _expanded_bytes(value: Any) -> int:
    if isinstance(value, (list, tuple)):
        return sum(map(_expanded_bytes, value))
    return value.nbytes if isinstance(value, np.ndarray) else 8 + (4 * len(value) if isinstance(value, str) else 0)


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
class _Array:
    """An array in the making: `_reconstruct` makes it, its state fills it."""

    array: np.ndarray | None = None


def _array(shape: Any, dtype: Any, fortran: Any, data: Any) -> np.ndarray:
    if not isinstance(dtype, _DType) or not isinstance(shape, tuple) or not all(type(side) is int for side in shape):
        raise InputError("it holds a damaged array")
    if isinstance(data, list):
        raise InputError("it holds an object array: save plain numbers (dtype object)")
    raw = data.encode("latin-1") if isinstance(data, str) else data  # Python 2 wrote bytes as text
    if not isinstance(raw, (bytes, bytearray)):
        raise InputError("it holds a damaged array")
    built = dtype.build()
    count = 1
    for side in shape:
        count *= side
    if count * built.itemsize != len(raw) or min(shape, default=0) < 0 or len(shape) > 32:
        raise InputError(f"an array of shape {shape} and dtype {built} does not fit its {len(raw)} bytes")
    return np.frombuffer(raw, built).copy().reshape(shape, order="F" if fortran else "C")


def _reconstruct(*arguments: Any) -> _Array:
    return _Array()


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray:
    return _array(shape, dtype, order == "F", data)


def _scalar(dtype: Any, data: Any) -> Any:
    return _array((), dtype, False, data).item()


def _dtype(name: Any, *flags: Any) -> _DType:
    if not isinstance(name, str):
        raise InputError("it holds a damaged dtype")
    return _DType(name)


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or str(encoding).replace("-", "") != "latin1":
        raise InputError("it holds text in an unusual encoding")
    return text.encode("latin-1")


def _ordered(*arguments: Any) -> dict[Any, Any]:
    return dict(*arguments)


_CALLS: dict[str, Callable[..., Any]] = {
    "numpy.core.multiarray _reconstruct": _reconstruct,
    "numpy._core.multiarray _reconstruct": _reconstruct,
    "numpy.core.numeric _frombuffer": _from_buffer,
    "numpy._core.numeric _frombuffer": _from_buffer,
    "numpy.core.multiarray scalar": _scalar,
    "numpy._core.multiarray scalar": _scalar,
    "numpy dtype": _dtype,
    "_codecs encode": _encode,
    "collections OrderedDict": _ordered,
}
"""The only names a pickle may call, and what is done instead of calling them."""

_NAMES = {*_CALLS, "numpy ndarray"}


@dataclass(frozen=True)
class _Name:
    """A name that the pickle imports; only a word here."""

    words: str


_MARK = object()


class _Machine:
    """The stack and the memo of a pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def pop_to_mark(self) -> list[Any]:
        place = len(self.stack) - 1
        while self.stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise IndexError("no mark")
        items = self.stack[place + 1 :]
        del self.stack[place:]
        return items

    def name(self, words: str) -> None:
        if words not in _NAMES:
            raise InputError(f"it would call {words.replace(' ', '.')[:80]}: only arrays are read, nothing is run")
        self.stack.append(_Name(words))

    def call(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, _Name) or function.words not in _CALLS or not isinstance(arguments, tuple):
            raise InputError("it would call something that is no array: only arrays are read, nothing is run")
        self.stack.append(_CALLS[function.words](*arguments))

    def build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, _DType) and isinstance(state, tuple) and len(state) >= 2:
            target.order = str(state[1])
        elif isinstance(target, _Array) and isinstance(state, tuple) and len(state) == 5:
            target.array = _array(*state[1:])
        else:
            raise InputError("it would set the state of something that is no array")

    def set_items(self, target: Any, items: list[Any]) -> None:
        if not isinstance(target, dict) or len(items) % 2:
            raise InputError("it is damaged")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str):
                raise InputError(f"it holds a dictionary whose keys are {type(key).__name__}, not texts")
            target[key] = value


def _step(machine: _Machine, code: str, argument: Any) -> None:
    """One instruction."""
    stack = machine.stack
    if code in _PUSH:
        stack.append(argument)
    elif code in _CONSTANTS:
        stack.append(_CONSTANTS[code]() if callable(_CONSTANTS[code]) else _CONSTANTS[code])
    elif code in _ACTIONS:
        _ACTIONS[code](machine, argument)
    elif code not in ("PROTO", "FRAME"):
        raise InputError(f"it uses the instruction {code}: only arrays are read, nothing is run")


def _tuple_of(count: int) -> Callable[[_Machine, Any], None]:
    def act(machine: _Machine, _: Any) -> None:
        if len(machine.stack) < count:
            raise IndexError("stack is too short")
        items = tuple(machine.stack[-count:])
        del machine.stack[-count:]
        machine.stack.append(items)

    return act


def _append(machine: _Machine, items: list[Any]) -> None:
    if not isinstance(machine.stack[-1], list):
        raise InputError("it is damaged")
    machine.stack[-1].extend(items)


def _put(machine: _Machine, place: Any) -> None:
    machine.memo[len(machine.memo) if place is None else place] = machine.stack[-1]


def _stack_global(machine: _Machine, _: Any) -> None:
    word, module = machine.stack.pop(), machine.stack.pop()
    machine.name(f"{module} {word}")


def _set_item(machine: _Machine, _: Any) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    machine.set_items(machine.stack[-1], [key, value])


_PUSH = {
    *("INT", "LONG", "LONG1", "LONG4", "BININT", "BININT1", "BININT2", "FLOAT", "BINFLOAT"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
_CONSTANTS: dict[str, Any] = {
    "NONE": None,
    "NEWTRUE": True,
    "NEWFALSE": False,
    "MARK": _MARK,
    "EMPTY_TUPLE": (),
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
}
_ACTIONS: dict[str, Callable[[_Machine, Any], Any]] = {
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.pop_to_mark())),
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "LIST": lambda machine, _: machine.stack.append(machine.pop_to_mark()),
    "DICT": lambda machine, _: _dict(machine),
    "APPEND": lambda machine, _: _append(machine, [machine.stack.pop()]),
    "APPENDS": lambda machine, _: _append(machine, machine.pop_to_mark()),
    "SETITEM": _set_item,
    "SETITEMS": lambda machine, _: _set_many(machine),
    "PUT": _put,
    "BINPUT": _put,
    "LONG_BINPUT": _put,
    "MEMOIZE": _put,
    "GET": lambda machine, place: machine.stack.append(machine.memo[place]),
    "BINGET": lambda machine, place: machine.stack.append(machine.memo[place]),
    "LONG_BINGET": lambda machine, place: machine.stack.append(machine.memo[place]),
    "GLOBAL": lambda machine, words: machine.name(words),
    "STACK_GLOBAL": _stack_global,
    "REDUCE": lambda machine, _: machine.call(),
    "BUILD": lambda machine, _: machine.build(),
    "POP": lambda machine, _: machine.stack.pop(),
    "POP_MARK": lambda machine, _: machine.pop_to_mark(),
    "DUP": lambda machine, _: machine.stack.append(machine.stack[-1]),
}


def _dict(machine: _Machine) -> None:
    items = machine.pop_to_mark()
    machine.stack.append({})
    machine.set_items(machine.stack[-1], items)


def _set_many(machine: _Machine) -> None:
    items = machine.pop_to_mark()
    machine.set_items(machine.stack[-1], items)


class _Bounded:
    """A file that refuses to read more than it holds, so that a false length allocates nothing."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._size = file, size
        self.readline = file.readline
        self.tell = file.tell

    def read(self, count: int) -> bytes:
        left = self._size - self._file.tell()
        if count > left:
            raise InputError(f"an instruction claims {count} bytes, but {left} are left: the file is truncated")
        return self._file.read(count)


def load_arrays(path: Path) -> Any:
    """The arrays, tuples, lists and dictionaries of a pickle; nothing in it is executed.

    >>> import pickle, tempfile
    >>> file = Path(tempfile.mkdtemp()) / "two.p"
    >>> _ = file.write_bytes(pickle.dumps((np.array([[2.0, 1.0]]), np.array([0]))))
    >>> load_arrays(file)
    (array([[2., 1.]]), array([0]))
    """
    size = path.stat().st_size
    if size == 0:
        raise InputError(f"{path} is empty (0 bytes): it is not a pickle")
    machine = _Machine()
    try:
        with path.open("rb") as file:
            for opcode, argument, _ in pickletools.genops(_Bounded(file, size)):  # type: ignore[arg-type]
                if opcode.name == "STOP":
                    break
                _step(machine, opcode.name, argument)
        return _Finisher(size + 1000).finish(machine.stack.pop())
    except InputError as error:
        raise InputError(f"{path} cannot be read as arrays: {error}") from error
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError, RecursionError) as error:
        words = " ".join(str(error).split())[:120] or type(error).__name__
        raise InputError(f"{path} is not a whole pickle of arrays: {words}") from error


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
        if isinstance(value, _Array):
            if value.array is None:
                raise InputError("it holds an array without data")
            return value.array
        if isinstance(value, (tuple, list)):
            return type(value)([self.finish(item, depth + 1) for item in value])
        if isinstance(value, dict):
            return {key: self.finish(item, depth + 1) for key, item in value.items()}
        return value
