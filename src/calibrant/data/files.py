"""Files: where they lie, which function reads one, and one file opened.

An address is a path, the name of an embedded data set, or anything that fsspec knows (s3://, gs://, hf://, https://,
memory:// …); a folder or a pattern stands for all its files. A remote file is fetched whole when its rows are read,
into a folder of this user's cache that is kept below a bound. The process that reads it fetches it: on a cluster that
is the worker.
"""

import glob
import hashlib
import importlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from calibrant.core.arrays import Array
from calibrant.core.errors import InputError, MissingExtraError
from calibrant.data.arrays import companions, is_companion, matrix_path
from calibrant.data.predictions import Predictions
from calibrant.data.source import Source, ViewSource, Wanted
from calibrant.data.suggestion import assembled

EMBEDDED = Path(__file__).parent / "embedded"
"""Where the data sets of the package are."""

PATTERN = re.compile(r"[*?\[]")
REMOTE = re.compile(r"[a-z][a-z0-9+.-]+(::|://)")
"""How addresses begin that are no paths."""

CACHE_BYTES = 8 * 2**30
"""What fetched parts may take on disk, unless CALIBRANT_CACHE_BYTES says otherwise."""

IN_USE_SECONDS = 120.0
"""A part that was read from so recently is never removed."""

READERS = {
    ".npz": "arrays.npz_fields",
    ".npy": "arrays.npy_fields",
    ".parquet": "tables.table_fields",
    ".feather": "tables.table_fields",
    ".arrow": "tables.table_fields",
    ".safetensors": "arrays.safetensors_fields",
    ".csv": "tables.csv_fields",
    ".csv.gz": "tables.csv_fields",
    ".tsv": "tables.csv_fields",
    ".tsv.gz": "tables.csv_fields",
    ".txt": "tables.csv_fields",
    ".xlsx": "tables.excel_fields",
    ".p": "arrays.pickle_fields",
    ".pkl": "arrays.pickle_fields",
    ".pickle": "arrays.pickle_fields",
    ".pt": "arrays.torch_fields",
    ".pth": "arrays.torch_fields",
    ".json": "json_lines.fields",
    ".eval": "json_lines.fields",
    ".jsonl": "json_lines.fields",
    ".ndjson": "json_lines.fields",
}
"""Suffix to the function `fields(path, wanted)` that returns the named arrays of a file, unread."""

HOLDS_PARTS = (".npz", ".safetensors", ".p", ".pkl", ".pickle", ".pt", ".pth")
"""Formats in which one file can hold several parts (`#val`, `#test`)."""


def suffix_of(path: Path) -> str:
    """The suffix that decides the format: `.csv.gz` is one."""
    return next((suffix for suffix in READERS if path.name.lower().endswith(suffix)), path.suffix.lower())


def reader_of(path: Path) -> Callable[..., Any]:
    """The function that reads a path; an InputError that lists the known suffixes for any other."""
    suffix = suffix_of(path)
    if suffix not in READERS:
        raise InputError(f"{path} has the suffix {suffix or '(none)'}, but the known ones are {', '.join(READERS)}")
    module, name = READERS[suffix].split(".")
    return getattr(importlib.import_module(f"calibrant.data.{module}"), name)


def embedded_names() -> list[str]:
    """Names of the data sets that come with the package."""
    return sorted(path.stem for path in EMBEDDED.glob("*.npz"))


def find_files(text: str) -> tuple[list[Any], str, str]:
    """The files behind an address, the part behind `#`, and what messages call a folder or pattern; "" for one file."""
    if REMOTE.match(text):
        address, mark, split = text.rpartition("#")
        if not mark:
            address, split = text, ""
        system, path = _system(address)
        with naming(address, Exception):
            if PATTERN.search(path):
                found = system.glob(path)
            elif system.isdir(path):
                found = system.ls(path, detail=False)
            else:
                return [address], split, ""
        parts = [system.unstrip_protocol(name) for name in sorted(map(str, found)) if _holds_rows(Path(name))]
    else:
        file, split = _locate(text)
        address = str(file)
        if file.is_dir():
            files = list(file.iterdir())
        elif _is_pattern(address):
            files = [Path(name) for name in glob.glob(address, recursive=True)]
        else:
            return [file], split, ""
        parts = [path for path in sorted(files, key=str) if _holds_rows(path) and path.is_file()]
    if not parts:
        raise InputError(f"{address} holds no prediction files ({', '.join(sorted(READERS))})")
    return parts, split, address


def _holds_rows(path: Path) -> bool:
    """Does the name say so? Hidden files and the companions of `.npy` matrices hold none."""
    hidden = path.name.startswith((".", "_"))
    return not hidden and suffix_of(path) in READERS and not (path.suffix == ".npy" and is_companion(path))


def _is_pattern(address: str) -> bool:
    """Does it hold `*`, `?` or `[`, and no file of that very name exists?"""
    return PATTERN.search(address) is not None and not Path(address).exists()


def _locate(text: str) -> tuple[Path, str]:
    """The local file or folder and the part behind `#`; an InputError if there is no such file."""
    if not text:
        raise InputError("the path is empty: give a file, a folder or an embedded data set")
    with naming(Path(text)):
        address, mark, split = text.rpartition("#")
        if not mark or Path(text).exists():
            address, split = text, ""
        file = Path(address)
        if _is_pattern(address):
            return file, split
        if not file.exists() and address in embedded_names():
            file = EMBEDDED / f"{address}.npz"
        if suffix_of(file) == ".npy":
            file = matrix_path(file)
        if not file.exists():
            hint = "" if file.suffix else f", and no embedded data set ({', '.join(embedded_names())})"
            raise InputError(f"{address} does not exist: there is no such file{hint}")
        if not file.is_dir() and not file.is_file():
            raise InputError(f"{address} is neither a file nor a folder")
        return file, split


def display_name(file: Path, split: str) -> str:
    """What messages call a file or a part of it: its path, or the name of an embedded data set."""
    return (file.stem if file.parent == EMBEDDED else str(file)) + (f"#{split}" if split else "")


def open_file(address: Any, split: str, wanted: Wanted) -> Predictions:
    """Open one file, local or remote: that is fetched for its header, labels and weights, its values when asked for."""
    if isinstance(address, Path):
        with naming(address):
            return assembled(partial(reader_of(address), address), display_name(address, split), split, wanted)
    found = _open_fetched(address, split, wanted)
    if isinstance(found.source, ViewSource):
        return found  # rows that are made from others of the file: the local copy is read
    return found.like(source=FetchedSource(address, found, split, wanted), _checked=False)


@contextmanager
def naming(file: object, errors: type[Exception] = OSError) -> Iterator[None]:
    """Errors of the file system (no permission, a broken disk, no route) are bad input too; each has its own kinds."""
    try:
        yield
    except errors as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else str(error) or type(error).__name__
        raise InputError(f"{file} cannot be read: {' '.join(reason.split())[:200]}") from error


class FetchedSource(Source):
    """Rows of a remote file."""

    def __init__(self, address: str, opened: Predictions, split: str, wanted: Wanted) -> None:
        self.name = address + (f"#{split}" if split else "")
        self.shape, self.dtype = opened.source.shape, opened.dtype
        scores = Wanted(wanted.kind, opened.task, wanted.scores, require_labels=False)
        self._open = partial(_open_fetched, address, split, scores)

    def blocks(self, start: int, stop: int, rows: int) -> Iterator[Array]:
        """Blocks of the fetched file."""
        local = self._open().source
        if local.shape != self.shape:
            raise InputError(f"{self.name} had {self.shape[0]} rows when it was opened, and now {local.shape[0]}")
        for block in local.blocks(start, stop, rows):
            yield block
            _touch(Path(local.name.partition("#")[0]).parent)

    def cuts(self, rows: int) -> list[int]:
        """Only the first row: a file is fetched as a whole, by one worker."""
        return [0]


def _open_fetched(address: str, split: str, wanted: Wanted) -> Predictions:
    local = fetch(address)
    try:
        return open_file(local, split, wanted)
    except InputError as error:
        raise InputError(error.message.replace(str(local), address), **error.remedy) from error


def fetch(address: str) -> Path:
    """A local copy of a remote file, with the companions of an `.npy` matrix beside it."""
    system, path = _system(address)
    file = Path(path)
    with naming(address, Exception):
        key = hashlib.sha256(f"{address} {system.ukey(path)}".encode()).hexdigest()[:24]
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        folder = Path(base) / "calibrant" / "parts" / key
        if not folder.is_dir():
            fresh = folder.with_name(f"{key}.{os.getpid()}.{time.monotonic_ns()}")
            fresh.mkdir(parents=True)
            system.get_file(path, str(fresh / file.name))
            for name in companions(file.stem).values() if file.suffix == ".npy" else ():
                beside = path.removesuffix(file.name) + name
                if system.exists(beside):
                    system.get_file(beside, str(fresh / name))
            try:
                fresh.rename(folder)
            except OSError:  # another process was first
                shutil.rmtree(fresh)
            _shrink(folder)
    _touch(folder)
    return folder / file.name


def _system(address: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise MissingExtraError("fsspec", "dask") from error
    with naming(address, Exception):
        return url_to_fs(address)


def _touch(folder: Path) -> None:
    if folder.is_dir():
        os.utime(folder)


def _shrink(newest: Path) -> None:
    """Remove the parts that were not read from for longest, until the rest stays below the bound."""
    asked = os.environ.get("CALIBRANT_CACHE_BYTES", "")
    room = int(asked) if asked.isdigit() else CACHE_BYTES
    folders = sorted((f for f in newest.parent.iterdir() if f.is_dir()), key=lambda f: f.stat().st_mtime, reverse=True)
    for folder in folders:
        room -= sum(file.stat().st_size for file in folder.iterdir())
        if room < 0 and folder != newest and time.time() - folder.stat().st_mtime > IN_USE_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)
