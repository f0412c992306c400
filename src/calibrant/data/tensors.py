"""Tensors as torch saves them, read without torch: views of storages that lie in a file or in memory."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.data.fields import ArrayField, Field, Header
from calibrant.data.raw import BFLOAT16, RawField, decode

STORAGES: dict[str, np.dtype[Any]] = {
    "torch DoubleStorage": np.dtype("<f8"),
    "torch FloatStorage": np.dtype("<f4"),
    "torch HalfStorage": np.dtype("<f2"),
    "torch BFloat16Storage": BFLOAT16,
    "torch LongStorage": np.dtype("<i8"),
    "torch IntStorage": np.dtype("<i4"),
    "torch ShortStorage": np.dtype("<i2"),
    "torch CharStorage": np.dtype("i1"),
    "torch ByteStorage": np.dtype("u1"),
    "torch BoolStorage": np.dtype("?"),
}
"""Names of torch's storages, and what they hold."""

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
LARGEST = 2**48


@dataclass
class Storage:
    """A flat run of numbers: `count` of a dtype, in memory (`data`) or at `offset` of a file."""

    dtype: np.dtype[Any]
    count: int
    path: Path | None = None
    offset: int = 0
    data: bytes | None = None
    check: Callable[[], None] | None = None
    """Compares a checksum before the first read, where the file has one."""

    def compare_checksum(self) -> None:
        """Once, however many tensors share the storage."""
        check, self.check = self.check, None
        if check is not None:
            check()

    def read(self) -> np.ndarray:
        """All numbers, still of the stored dtype."""
        if self.data is not None:
            return np.frombuffer(self.data, self.dtype, self.count)
        self.compare_checksum()
        return np.fromfile(str(self.path), dtype=self.dtype, count=self.count, offset=self.offset)


@dataclass
class Tensor:
    """A view of a storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that its numbers take."""
        return math.prod(self.shape) * self.storage.dtype.itemsize

    @property
    def contiguous(self) -> bool:
        """Do its numbers lie one after another in row-major order?"""
        expected = 1
        for side, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if side != 1 and stride != expected:
                return False
            expected *= side
        return True

    def field(self, called: str) -> Field:
        """The array, mapped where it lies contiguously in a file."""
        storage = self.storage
        if storage.path is not None and self.contiguous and len(self.shape) <= 2:
            storage.compare_checksum()
            begins = storage.offset + self.offset * storage.dtype.itemsize
            return RawField(storage.path, begins, Header(self.shape, storage.dtype), called)
        return ArrayField(self.read())

    def read(self) -> np.ndarray:
        """The array, in memory."""
        flat = self.storage.read()
        if len(flat) < self.storage.count:
            raise InputError(f"a tensor promises {self.storage.count} numbers, but {len(flat)} are there")
        flat = decode(flat)[self.offset :]
        strides = tuple(stride * flat.itemsize for stride in self.strides)
        return np.lib.stride_tricks.as_strided(flat, self.shape, strides).copy()


def rebuild(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> Tensor:
    """A tensor from what its pickle says, checked against the size of its storage."""
    numbers = (offset, *shape, *strides) if isinstance(shape, tuple) and isinstance(strides, tuple) else (-1,)
    if not isinstance(storage, Storage) or any(type(n) is not int or not 0 <= n <= LARGEST for n in numbers):
        raise InputError("it holds a damaged tensor")
    if len(shape) != len(strides) or len(shape) > 32:
        raise InputError("it holds a damaged tensor")
    count = math.prod(shape)
    last = offset + sum((side - 1) * stride for side, stride in zip(shape, strides, strict=True))
    if count and (last >= storage.count or count > storage.count):
        raise InputError(f"a tensor of shape {str(shape)[:60]} does not fit its storage of {storage.count} numbers")
    return Tensor(storage, offset, shape, strides)


def storage_facts(identifier: tuple[Any, ...]) -> tuple[np.dtype[Any], str, int]:
    """dtype, key and count of the storage that a pickle refers to."""
    kind, dtype, key, _, count, *_ = identifier
    typed = isinstance(dtype, np.dtype) and isinstance(key, str) and type(count) is int
    if not typed or kind != "storage" or count < 0:
        raise InputError("it holds a damaged tensor")
    return dtype, key, count


def read_legacy(data: bytes | Path, load: Callable[..., Any]) -> Any:
    """The content of a file of torch before 1.6, or of what `pickle` makes of a tensor."""
    size = len(data) if isinstance(data, bytes) else data.stat().st_size
    with io.BytesIO(data) if isinstance(data, bytes) else data.open("rb") as file:
        stored: dict[str, Storage] = {}

        def storage(identifier: tuple[Any, ...]) -> Storage:
            dtype, key, count = storage_facts(identifier)
            view = identifier[5:]
            if count > size:
                raise InputError("it holds a damaged tensor")
            if view and view[0] is not None:
                raise InputError("it holds a view of another storage: save it again with a newer torch")
            return stored.setdefault(key, Storage(dtype, count))

        if load(file, size - file.tell()) != LEGACY_MAGIC:
            raise InputError("it is not a file of torch")
        load(file, size - file.tell())  # the version of the protocol
        facts = load(file, size - file.tell())
        if not isinstance(facts, dict) or facts.get("little_endian") is not True:
            raise InputError("it was written on a machine of another byte order")
        content = load(file, size - file.tell(), storage)
        keys = load(file, size - file.tell())
        for key in keys if isinstance(keys, list) else ():
            _place(stored.get(key) if isinstance(key, str) else None, file, data, size)
    return content


def _place(storage: Storage | None, file: IO[bytes], data: bytes | Path, size: int) -> None:
    """Where the numbers of the next storage lie: their count, then the numbers."""
    count = int.from_bytes(file.read(8), "little")
    nbytes = 0 if storage is None else count * storage.dtype.itemsize
    if storage is None or count != storage.count or nbytes > size - file.tell():
        raise InputError("it is truncated, or its storages do not fit its tensors")
    if isinstance(data, bytes):
        storage.data = file.read(nbytes)
    else:
        storage.path, storage.offset = data, file.tell()
        file.seek(nbytes, 1)
