"""`.npz`: the arrays `logits` or `probabilities`, `labels`, perhaps `weights` and `class_names`.

`file.npz#val` picks `val_logits`, `val_labels` and so on. Members are never unpacked to disk: stored ones are mapped
where they lie, deflated ones are streamed.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from calibrant.core.arrays import widen
from calibrant.core.atomic import atomic_write
from calibrant.core.errors import InputError
from calibrant.data.fields import BrokenField, Field, Header, Wanted
from calibrant.data.limits import check_expansion, reading
from calibrant.data.npy import header_bytes, read_header, score_word, vectors, write_matrix
from calibrant.data.predictions import CHUNK_BYTES, Predictions
from calibrant.data.raw import RawField
from calibrant.data.source import ArraySource, FieldSource, Source

ARCHIVE = "npz archive"
DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, ValueError, KeyError),
    *(OverflowError, UnicodeError),
)
"""What zipfile raises for damaged, encrypted or exotic archives."""

LOCAL_HEADER = 30
ALIGNMENT = 64


def fields(path: Path, wanted: Wanted) -> dict[str, Field]:
    """Every array of the archive, unread, by its name without `.npy`."""
    found: dict[str, Field] = {}
    with reading(path, ARCHIVE, DAMAGE), zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.filename.endswith(".npy"):
                try:
                    found[member.filename[:-4]] = _field(path, archive, member)
                except InputError as error:
                    found[member.filename[:-4]] = BrokenField(error)
    return found


def _field(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Field:
    called = f"{path}: {member.filename}"
    if member.flag_bits & 0x1:
        raise InputError(f"{called} is encrypted: store it without a password")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InputError(
            f"{called} uses zip method {member.compress_type}, but only stored (0) and deflate (8) are read"
        )
    check_expansion(member.file_size, member.compress_size, called)
    with archive.open(member) as stream:
        header = read_header(stream, called)
        begins = stream.tell()
    if header.nbytes != member.file_size - begins:
        raise InputError(
            f"{called} promises {header.nbytes} bytes of data (shape {header.shape}, {header.dtype}), "
            f"but {member.file_size - begins} are there"
        )
    if member.compress_type == zipfile.ZIP_DEFLATED:
        return DeflatedField(path, member.filename, begins, header)
    return StoredField(path, data_offset(path, member) + begins, header, called, member)


def data_offset(path: Path, member: zipfile.ZipInfo) -> int:
    """First byte of a member: its local header repeats the name and has its own extra field."""
    with path.open("rb") as file:
        file.seek(member.header_offset)
        local = file.read(LOCAL_HEADER)
    name_length, extra_length = struct.unpack("<HH", local[26:30])
    return member.header_offset + LOCAL_HEADER + name_length + extra_length


class StoredField(RawField):
    """An uncompressed member of an archive; the checksum of a small one is compared before it is mapped."""

    def __init__(self, path: Path, offset: int, header: Header, called: str, member: zipfile.ZipInfo) -> None:
        super().__init__(path, offset, header, called)
        self._member = member

    def read(self) -> np.ndarray:
        """The whole array, in memory."""
        self._check()
        return super().read()

    def source(self, name: str) -> Source:
        """Its rows, mapped a window at a time."""
        self._check()
        return super().source(name)

    def _check(self) -> None:
        if self.nbytes <= CHUNK_BYTES:
            with reading(self.path, ARCHIVE, DAMAGE):
                compare_checksum(self.path, self._member)


def compare_checksum(path: Path, member: zipfile.ZipInfo) -> None:
    """Read a member to its end, which makes zipfile compare the checksum."""
    with zipfile.ZipFile(path) as archive, archive.open(member) as stream:
        while stream.read(2**20):
            pass


class DeflatedField(Field):
    """A compressed member of an archive."""

    def __init__(self, path: Path, member: str, begins: int, header: Header) -> None:
        self.path, self.member, self.begins, self.header = path, member, begins, header
        self.shape, self.dtype = header.shape, header.dtype

    def read(self) -> np.ndarray:
        """The whole array; its checksum is compared on the way."""
        with reading(self.path, ARCHIVE, DAMAGE), self.open() as stream:
            raw = read_exactly(stream, self.nbytes, f"{self.path}: {self.member}")
            stream.read(1)  # reaching the end is what makes zipfile compare the checksum
        return raw.view(self.dtype).reshape(self.shape, order=self.header.order)

    def source(self, name: str) -> Source:
        """Its rows, unpacked in blocks; a column-major one has to be unpacked as a whole."""
        if self.header.fortran:
            return ArraySource(np.ascontiguousarray(self.read()), name)
        return DeflatedSource(self, name)

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The data as a stream, past the npy header."""
        with zipfile.ZipFile(self.path) as archive, archive.open(self.member) as stream:
            stream.read(self.begins)
            yield stream


class DeflatedSource(FieldSource):
    """Rows of a compressed matrix, unpacked as they are needed."""

    def __init__(self, field: DeflatedField, name: str) -> None:
        super().__init__(field, name)
        self._field = field

    def blocks(self, start: int, stop: int, rows: int) -> Iterator[np.ndarray]:
        """Blocks in order; the rows before `start` are unpacked and dropped."""
        field = self._field
        called = f"{field.path}: {field.member}"
        row_bytes = self.shape[1] * field.dtype.itemsize
        with reading(field.path, ARCHIVE, DAMAGE), field.open() as stream:
            skip = start * row_bytes
            while skip > 0:
                skip -= len(read_exactly(stream, min(skip, 2**20), called))
            for first in range(start, stop, rows):
                count = min(rows, stop - first)
                raw = read_exactly(stream, count * row_bytes, called)
                if first + count == self.shape[0]:
                    stream.read(1)  # reaching the end is what makes zipfile compare the checksum
                yield widen(raw.view(field.dtype)).reshape(count, self.shape[1])

    def cuts(self, rows: int) -> list[int]:
        """Only the first row: what is deflated must be unpacked from its beginning."""
        return [0]


def read_exactly(stream: IO[bytes], size: int, called: str) -> np.ndarray:
    """`size` bytes of a stream, or an InputError that says how many there were."""
    raw = np.empty(size, np.uint8)
    view, done = memoryview(raw.data), 0
    while done < size:
        # in small bites: zipfile unpacks each into a copy of its own
        got = stream.readinto(view[done : done + 2**20])  # type: ignore[attr-defined]
        if not got:
            raise InputError(f"{called} ends after {done} of {size} bytes: the file is truncated")
        done += got
    return raw


def write(parts: dict[str, Predictions], path: Path) -> list[Path]:
    """Write all parts, each under its prefix, uncompressed and aligned so that they can be mapped."""
    with atomic_write(path) as temporary, zipfile.ZipFile(temporary, "w", allowZip64=True) as archive:
        for split, predictions in parts.items():
            prefix = f"{split}_" if split else ""
            nbytes = predictions.n * predictions.source.shape[1] * predictions.dtype.itemsize
            with _member(archive, f"{prefix}{score_word(predictions)}", nbytes) as stream:
                write_matrix(predictions, stream)
            for name, array in vectors(predictions).items():
                with _member(archive, f"{prefix}{name}", array.nbytes) as stream:
                    stream.write(header_bytes(array.shape, array.dtype) + array.tobytes())
    return [path]


@contextmanager
def _member(archive: zipfile.ZipFile, name: str, nbytes: int) -> Iterator[IO[bytes]]:
    info = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
    large = nbytes > 2**31 - 2**20
    position = archive.fp.tell() if archive.fp else 0
    # an extra field of private type pads the local header until the data begin on a 64-byte border
    begins = position + LOCAL_HEADER + len(info.filename.encode()) + 4 + (20 if large else 0)
    padding = -begins % ALIGNMENT
    info.extra = struct.pack("<HH", 0xCA1B, padding) + bytes(padding)
    with archive.open(info, "w", force_zip64=large) as stream:
        yield stream
