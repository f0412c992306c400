"""Files of arrays: `.npy`, `.npz`, `.safetensors`, `.pt` and pickles, each as named fields that are not yet read.

`.npy` is a matrix and what lies beside it: `val_logits.npy` (or `val_probabilities.npy`) finds `val_labels.npy` and,
where they exist, `val_weights.npy` and `val_class_names.npy`; `logits.npy` finds `labels.npy`. `val.npy` stands for
such a pair when no file of that name exists. A matrix of another name needs `kind=`, and its labels are
`NAME_labels.npy` beside it or `labels=`. In the other formats `file#val` picks `val_logits`, `val_labels` and so on.

Members of archives are never unpacked to disk: stored ones are read where they lie, deflated ones are streamed. A
safetensors file is a length, a JSON header and raw bytes; its own package maps the file, which ends the process when
another one cuts the file short, so the header is read here.
"""

import json
import math
import operator
import os
import pickle
import re
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from calibrant.core.arrays import Array
from calibrant.core.errors import InputError, MissingExtraError
from calibrant.core.schema import KINDS
from calibrant.data import unpickling
from calibrant.data.scratch import Scratch
from calibrant.data.source import (
    BFLOAT16,
    CHUNK_BYTES,
    CLASS_NAMES,
    CORRECT,
    LABEL_SHARES,
    LABELS,
    MAX_TEXT_BYTES,
    SCORES,
    SINGLE,
    WEIGHTS,
    ArrayField,
    BrokenField,
    Field,
    Found,
    RawField,
    Source,
    Wanted,
    check_expansion,
    reading,
)

COMPANIONS = (*LABELS, "targets", "y_true", *WEIGHTS, CLASS_NAMES, CORRECT, LABEL_SHARES, "clusters", "group")
"""Files beside a matrix that belong to it."""

KIND_WORDS = (*KINDS, *SINGLE.values())
"""Last words of the names of files of scores that are written."""

READ_WORDS = (*KIND_WORDS, *SCORES)
"""Last words of the names of files of scores that are read."""

MAX_HEADER = 10_000
DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError, KeyError, OverflowError)
"""What zipfile raises for damaged, encrypted or exotic archives."""

LOCAL_HEADER = 30

DTYPES: dict[str, np.dtype[Any]] = {
    **{f"{kind}{8 * size}": np.dtype(f"<{kind.lower()}{size}") for kind in "FIU" for size in (8, 4, 2)},
    "BF16": BFLOAT16,
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
"""Types of safetensors."""

METADATA = "__metadata__"

NUMPY_GLOBALS: list[Any] = [
    np.array(0.0).__reduce__()[0],
    np.ndarray,
    np.dtype,
    *(type(np.dtype(word)) for word in ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u1", "?", "U1", "S1")),
]
"""What torch may call to build arrays of numpy in a dictionary of tensors."""


def npy_fields(path: Path, wanted: Wanted) -> Found:
    """The matrix at `path` and the files beside it that belong to it."""
    path = matrix_path(path)
    word = kind_word(path.stem, READ_WORDS)
    if is_companion(path):
        raise InputError(f"{path} is the companion of a matrix: open the file of the logits or probabilities")
    if word is None and wanted.kind is None:
        raise InputError(
            f'{path} does not say what it holds: give kind="logits" or kind="probabilities", '
            f"or call the file {path.stem}_logits.npy"
        )
    names = {word or wanted.word: path.name, **companions(path.stem)}
    return {name: array_field(path.with_name(file)) for name, file in names.items() if path.with_name(file).is_file()}


def companions(stem: str) -> dict[str, str]:
    """What may lie beside a matrix whose file has this name without `.npy`, and the names of those files."""
    word = kind_word(stem, READ_WORDS)
    prefix = stem.removesuffix(word) if word else f"{stem}_"
    return {companion: f"{prefix}{companion}.npy" for companion in COMPANIONS}


def matrix_path(path: Path) -> Path:
    """The file itself, or the one of a pair that `NAME.npy` stands for."""
    pairs = [path, *(path.with_name(f"{path.stem}_{word}.npy") for word in KIND_WORDS)]
    return next((file for file in pairs if file.exists()), path)


def is_companion(path: Path) -> bool:
    """Is this the labels, weights or class names of another file?"""
    return kind_word(path.stem) is None and kind_word(path.stem, COMPANIONS) is not None


def kind_word(stem: str, words: Sequence[str] = KIND_WORDS) -> str | None:
    """The word at the end of a file's name that says what it holds."""
    return next((word for word in words if stem == word or stem.endswith(f"_{word}")), None)


def array_field(path: Path) -> RawField:
    """The array of one `.npy` file, unread."""
    with path.open("rb") as file:
        shape, fortran, dtype = npy_header(file, str(path))
        return RawField(path, file.tell(), shape, dtype, str(path), fortran)


def npy_header(file: IO[bytes], called: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and dtype of an array in the npy format; leaves the file at the first byte of the data."""
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file, max_header_size=MAX_HEADER)
    except (zipfile.BadZipFile, zlib.error):
        raise
    except Exception as error:  # numpy parses the header as a Python literal, which fails in many ways
        raise InputError(
            f"{called} is empty, is not an npy array, or its header is damaged: {' '.join(str(error).split())[:100]}"
        ) from error
    if dtype.kind not in "fiubUS" or not dtype.itemsize:  # objects can run code when they are read
        raise InputError(f"{called} has dtype {str(dtype)[:60]}, but only plain numbers and texts are read")
    if min(shape, default=0) < 0:
        raise InputError(f"{called}: the npy header claims the shape {str(shape)[:60]}")
    return shape, fortran, dtype


def npz_fields(path: Path, wanted: Wanted, keeps: Any = None) -> Found:
    """Every array of the archive, unread, by its name without `.npy`; `keeps` lives as long as they do."""
    with reading(path, "npz archive", DAMAGE), zipfile.ZipFile(path) as archive:
        members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
        return {member.filename[:-4]: _or_broken(MemberField, path, archive, member, keeps) for member in members}


def _or_broken(make: Callable[..., Field], *about: Any) -> Field:
    """A field, or one that tells what is wrong when it is asked for."""
    try:
        return make(*about)
    except InputError as error:
        return BrokenField(error)


class MemberField(Field):
    """An array in an archive; one that is stored uncompressed is read where it lies, after a small one's checksum."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo, keeps: Any) -> None:
        self.path, self.member, self.keeps = path, member, keeps
        self.called = called = f"{path}: {member.filename}"
        if member.flag_bits & 0x1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise InputError(
                f"{called} is encrypted, or uses zip method {member.compress_type}: only arrays that are stored (0) or "
                "deflated (8) without a password are read"
            )
        check_expansion(member.file_size, member.compress_size, called)
        with archive.open(member) as stream:
            self.shape, self.fortran, self.stored = npy_header(stream, called)
            self.begins = stream.tell()
        self.dtype = self.stored
        if self.nbytes != member.file_size - self.begins:
            raise InputError(
                f"{called} promises {self.nbytes} bytes of data (shape {self.shape}, {self.dtype}), "
                f"but {member.file_size - self.begins} are there"
            )

    def source(self, name: str) -> Source:
        """Its rows in blocks; a column-major one that is compressed has to be unpacked as a whole."""
        if self.member.compress_type == zipfile.ZIP_DEFLATED:
            return super().source(name)
        if self.nbytes <= CHUNK_BYTES:
            self.read()
        with self.path.open("rb") as file:
            offset = seek_data(file, self.member) + self.begins
        return RawField(self.path, offset, self.shape, self.stored, self.called, self.fortran, self.keeps).source(name)

    def blocks(self, start: int, stop: int, rows: int) -> Iterator[Array]:
        """Blocks in order; the rows before `start` are unpacked and dropped."""
        each = math.prod(self.shape[1:]) * self.stored.itemsize
        with (
            reading(self.path, "npz archive", DAMAGE),
            zipfile.ZipFile(self.path) as archive,
            archive.open(self.member.filename) as stream,
        ):
            stream.seek(self.begins + start * each)
            for first in range(start, stop, rows):
                count = min(rows, stop - first)
                raw = bytearray(stream.read(count * each))
                if len(raw) < count * each:
                    raise InputError(f"{self.called} ends after {len(raw)} of {count * each} bytes: it is truncated")
                if stream.tell() == self.member.file_size:
                    stream.read(1)  # reaching the end is what makes zipfile compare the checksum
                yield np.frombuffer(raw, self.stored).astype(self.dtype, copy=False).reshape(count, *self.shape[1:])

    def cuts(self, rows: int) -> list[int]:
        """Only the first row: what is deflated must be unpacked from its beginning."""
        return [0]


def seek_data(file: IO[bytes], member: zipfile.ZipInfo) -> int:
    """Go to the first byte of a member of an archive, behind its local header, and tell where that is."""
    file.seek(member.header_offset + LOCAL_HEADER - 4)
    # the lengths of the name and of the extra field, then these two
    return file.seek(int(np.frombuffer(file.read(4), "<u2").sum()), os.SEEK_CUR)


def safetensors_fields(path: Path, wanted: Wanted) -> Found:
    """Every tensor of the file, unread."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(MAX_TEXT_BYTES, size - 8):
            raise InputError(
                f"{path} has {size} bytes, and its safetensors header claims {length} (at most {MAX_TEXT_BYTES} are "
                "read): the file is empty, truncated or of another format"
            )
        text = file.read(length)
    header = _json(text)
    if not isinstance(header, dict):
        raise InputError(f"{path}: the safetensors header is not a JSON object: {text[:40]!r}")
    metadata = header.pop(METADATA, {})
    found = {name: _or_broken(_tensor_field, path, name, entry, 8 + length) for name, entry in header.items()}
    if isinstance(metadata, dict) and CLASS_NAMES in metadata:
        found[CLASS_NAMES] = names_field(metadata[CLASS_NAMES], f"{path}: {CLASS_NAMES}")
    return found


def _json(text: Any) -> Any:
    """What a text says, or None where it is not JSON."""
    with suppress(ValueError, TypeError, RecursionError):
        return json.loads(text)


def names_field(text: Any, called: str) -> ArrayField:
    """Class names from a JSON list of texts."""
    names = _json(text)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{called} is not a JSON list of texts")
    return ArrayField(np.array(names, dtype=str))


def _tensor_field(path: Path, name: str, entry: Any, start: int) -> RawField:
    called = f"{path}: {name}"
    try:
        dtype, shape = DTYPES[entry["dtype"]], tuple(map(operator.index, entry["shape"]))
        first, last = map(operator.index, entry["data_offsets"])
        sound = last - first == math.prod(shape) * dtype.itemsize and min(*shape, first, last) >= 0 and len(shape) <= 32
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise InputError(f"{called} has no dtype, shape and data_offsets that fit in the header: {str(entry)[:100]}")
    return RawField(path, start + first, shape, dtype, called)


def torch_fields(path: Path, wanted: Wanted) -> Found:
    """The tensors of what `torch.save` wrote, read into memory by torch without running code."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("torch", "torch") from error
    with reading(path, "file of torch", (Exception,)):  # torch raises errors of many kinds
        if zipfile.is_zipfile(path):
            for member in check_members(path, 2**20):  # one may describe too many objects
                if member.filename.endswith("data.pkl") and member.file_size > MAX_TEXT_BYTES:
                    raise InputError(f"{path}: data.pkl has {member.file_size} bytes, over {MAX_TEXT_BYTES}")
        try:
            with torch.serialization.safe_globals(NUMPY_GLOBALS):
                content = torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:  # several lines of advice for code
            call = re.search(r"GLOBAL (\S+)", str(error))
            if call is None:
                raise
            raise InputError(f"it would call {call[1]}: {unpickling.NOTHING_RUNS}") from error
        found = unpickling.named_arrays(content, wanted.word, 2 * path.stat().st_size + 2**20)
    return {name: ArrayField(array) for name, array in found.items()}


def check_members(path: Path, room: int) -> list[zipfile.ZipInfo]:
    """The members of an archive; an InputError for one that unpacks to much more than it is."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    for member in members:
        check_expansion(member.file_size, member.compress_size, f"{path}: {member.filename[:60]}", room)
    return members


def pickle_fields(path: Path, wanted: Wanted) -> Found:
    """The arrays of a pickle, which a process of its own copies to a temporary archive."""
    with reading(path, "pickle of arrays", DAMAGE):
        scratch = Scratch()
        searched = os.pathsep.join(part for part in sys.path if part)
        done = subprocess.run(  # noqa: S603 (this package's own file)
            [sys.executable, "-P", unpickling.__file__, str(path), str(scratch.path), wanted.word],
            env={**os.environ, "PYTHONPATH": searched, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode == unpickling.REFUSED:
            raise InputError(done.stdout.strip())
        if done.returncode:
            raise InputError(f"{path} is not a whole pickle of arrays: reading it ended with status {done.returncode}")
        return npz_fields(scratch.path, wanted, keeps=scratch)
