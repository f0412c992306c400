"""Pickles of arrays, read in a process of their own: `python unpickling.py FILE TARGET KIND` writes an npz file.

The unpickler is the standard one with a closed `find_class`: it builds containers, numbers, texts, numpy arrays and
torch tensors, and finds nothing else to call. Whatever a file does to the machine behind it, deep nesting, endless
repetition or a crash, ends this process, whose memory and time are bounded by the size of the file, and not its parent.
This file imports little of the package, so that the process starts fast.

Layouts: a dictionary with the names that `.npz` files use, or of such dictionaries by part; a list of dictionaries, one
per batch; `(logits, labels)`; and, as published with many papers, `((val_logits, val_labels), (test_logits,
test_labels))`, whose parts are `#val` and `#test` (three pairs: `#train`, `#val`, `#test`). A tuple or a single array
has no names: by convention it holds logits, unless the caller gives the kind.
"""

import collections
import io
import pickle
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from calibrant.core.arrays import Array, as_array, is_tensor

SPLITS = {1: ("",), 2: ("val", "test"), 3: ("train", "val", "test")}
ROOM_PER_BYTE = 10
"""Bytes of memory that a byte of the file may take: two bytes hold a small integer, which takes eight in an array."""

REFUSED = 3
"""The exit status for a file that is refused; the reason is printed."""

NOTHING_RUNS = "only arrays are read, nothing is run"


class RefusedError(ValueError):
    """The content is not one of the layouts."""


class PredictionOutput(NamedTuple):
    """Stands for the tuples of that name, and of EvalLoopOutput, in transformers."""

    predictions: Any
    label_ids: Any
    metrics: Any = None
    num_samples: Any = None


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """How protocols 0 to 2 write bytes; other codecs of the standard library could unpack without end."""
    if encoding not in ("latin1", "latin-1"):
        raise RefusedError(f"it holds text in the encoding {encoding[:20]!r}")
    return text.encode("latin-1")


_NUMPY = np.array(0.0).__reduce__()[0].__module__.rpartition(".")[0]
_KNOWN: dict[tuple[str, str], Any] = {
    **{
        (f"numpy.{core}.{module}", name): getattr(sys.modules[f"{_NUMPY}.{module}"], name)
        for core in ("core", "_core")
        for module, name in (("multiarray", "_reconstruct"), ("multiarray", "scalar"), ("numeric", "_frombuffer"))
    },
    ("_codecs", "encode"): _encode,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("transformers.trainer_utils", "PredictionOutput"): PredictionOutput,
    ("transformers.trainer_utils", "EvalLoopOutput"): PredictionOutput,
}
"""The only names that a pickle may use, beside those of torch, and what they stand for."""


class ClosedUnpickler(pickle.Unpickler):
    """The standard unpickler, which finds only what builds arrays."""

    def find_class(self, module: str, name: str) -> Any:
        """What stands for a known name; an error for any other."""
        known = _torch_names() if module in ("torch", "torch._utils", "torch.storage") else _KNOWN
        if (module, name) not in known:
            remedy = "; save a table with to_parquet or to_csv" if module.startswith(("pandas", "polars")) else ""
            raise RefusedError(f"it would call {module}.{name}"[:90] + f": {NOTHING_RUNS}{remedy}")
        return known[module, name]


def _torch_names() -> dict[tuple[str, str], Any]:
    import torch

    return {
        ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
        ("torch._utils", "_rebuild_parameter"): torch._utils._rebuild_parameter,
        ("torch.storage", "_load_from_bytes"): lambda data: torch.load(io.BytesIO(data), weights_only=True),
        ("torch", "Size"): torch.Size,
    }


def named_arrays(content: Any, kind: str, room: int) -> dict[str, Array]:
    """The arrays of a container under the names of its layout; what is not an array is left out.

    room : bytes that the content may take, with every reference to a part of it spelled out.
    """
    _refuse_repetition(content, room)
    named = content if isinstance(content, dict) else _name(content, kind)
    found: dict[str, Array] = {}
    for key, value in named.items():
        for word, item in value.items() if isinstance(value, dict) else [("", value)]:
            for name in (key, word):
                if not isinstance(name, str):
                    raise RefusedError(f"it holds a dictionary whose keys are {type(name).__name__}, not texts")
            array = _array(item)
            if array is not None:
                found["_".join(part for part in (key, word) if part)] = array
    return found


def _array(value: Any) -> Array | None:
    """An array of numbers or texts; None for anything else."""
    if not isinstance(value, (list, tuple)) and not _is_array(value):
        return None
    try:
        value = as_array(value, "it")
    except ValueError:
        return None  # ragged or mixed: not an array
    if value.dtype.hasobject or value.dtype.names:
        raise RefusedError(f"it holds an array of dtype {value.dtype} (object, or several fields): save plain numbers")
    return value


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or is_tensor(value)


def _name(content: Any, kind: str) -> dict[str, Any]:
    if isinstance(content, PredictionOutput):
        return content._asdict()
    if _is_array(content):
        return {kind: content}
    if isinstance(content, (tuple, list)) and content:
        if all(isinstance(item, dict) for item in content):
            return _joined(list(content))
        pairs = [content] if _is_array(content[0]) else content
        if len(pairs) in SPLITS and all(isinstance(pair, (tuple, list)) and len(pair) in (2, 3) for pair in pairs):
            return {
                f"{split}_{word}" if split else word: array
                for split, pair in zip(SPLITS[len(pairs)], pairs, strict=True)
                for word, array in zip((kind, "labels", "weights"), pair, strict=False)
            }
    raise RefusedError(
        f"it holds a {type(content).__name__}, but it must hold a dictionary of arrays, (logits, labels) "
        "or ((val_logits, val_labels), (test_logits, test_labels))"
    )


def _joined(batches: list[dict[str, Any]]) -> dict[str, Any]:
    """The arrays of batches, one after another."""
    keys = [key for key, value in batches[0].items() if _is_array(value)]
    try:
        return {key: np.concatenate([np.atleast_1d(_array(batch[key])) for batch in batches]) for key in keys}  # type: ignore[arg-type]
    except (KeyError, ValueError, TypeError) as error:
        raise RefusedError(f"it holds {len(batches)} batches that do not fit together: {error}") from error


def _refuse_repetition(content: Any, room: int) -> None:
    """Raise if the content, with every reference to it spelled out, would take more than `room` bytes."""
    left, waiting = room, [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, (list, tuple, dict)):
            left -= 8 * len(value)
            if left >= 0:  # no more is taken in than there is room for
                waiting.extend(value.values() if isinstance(value, dict) else value)
        elif _is_array(value):
            left -= value.nbytes
        elif isinstance(value, str):
            left -= 4 * len(value)
        if left < 0:
            raise RefusedError(f"it repeats its content to over {room} bytes: save plain arrays")


def _limit(size: int) -> None:
    """Bound memory and time of this process; no limits where the system has none (Windows)."""
    try:
        import resource
    except ImportError:
        return
    memory, seconds = 2**31 + 2 * ROOM_PER_BYTE * size, 20 + size // 2**24
    for what, most in ((resource.RLIMIT_DATA, memory), (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(what, (most, most))


def main(file: str, target: str, kind: str) -> int:
    """Read a pickle and write its arrays; print why where it is refused."""
    size = Path(file).stat().st_size
    _limit(size)
    try:
        with open(file, "rb") as stream:
            content = ClosedUnpickler(stream, encoding="latin-1").load()
        found = named_arrays(content, kind, ROOM_PER_BYTE * size + 2**20)
        with open(target, "wb") as written:
            np.savez(written, **found)  # type: ignore[arg-type]
    except Exception as error:  # whatever a damaged file makes the machine raise
        reason = "it needs too much memory" if isinstance(error, MemoryError) else str(error)
        print(" ".join(reason.split())[:300] or type(error).__name__)
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
