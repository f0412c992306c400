"""Files behind any address that fsspec knows (s3://, gs://, hf://, https://, memory:// …).

A part is fetched whole when its rows are read, into a folder of this user's cache that is kept below a bound. The
process that reads a part fetches it: on a cluster that is the worker.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from calibrant.core.arrays import Array
from calibrant.core.errors import InputError, MissingExtraError
from calibrant.data.arrays import companions
from calibrant.data.columns import Wanted
from calibrant.data.files import READERS, holds_rows, open_file
from calibrant.data.predictions import Predictions
from calibrant.data.source import DifferenceSource, Source, TakenSource

CACHE_BYTES = 8 * 2**30
"""What fetched parts may take on disk, unless CALIBRANT_CACHE_BYTES says otherwise."""

IN_USE_SECONDS = 120.0
"""A part that was read from so recently is never removed."""


def expand(text: str) -> tuple[list[str], str]:
    """The addresses of all parts (a file, the files of a folder, those that match a pattern), and the part behind #."""
    address, mark, split = text.rpartition("#")
    if not mark:
        address, split = text, ""
    system, path = _system(address)
    try:
        if any(sign in path for sign in "*?["):
            found = system.glob(path)
        elif system.isdir(path):
            found = system.ls(path, detail=False)
        else:
            return [address], split
    except Exception as error:
        raise _unreachable(address, error) from error
    parts = [name for name in sorted(map(str, found)) if holds_rows(Path(name))]
    if not parts:
        raise InputError(f"{address} holds no prediction files ({', '.join(sorted(READERS))})")
    return [system.unstrip_protocol(name) for name in parts], split


def open_remote(address: str, split: str, wanted: Wanted) -> Predictions:
    """Open one file: it is fetched for its header, labels and weights; its values are read when asked for."""
    found = _open_local(address, split, wanted)
    if not isinstance(found.source, (DifferenceSource, TakenSource)):
        return found.with_source(FetchedSource(address, found, split, wanted))
    return found  # rows that are made from others of the file: the local copy is read


class FetchedSource(Source):
    """Rows of a remote file."""

    def __init__(self, address: str, opened: Predictions, split: str, wanted: Wanted) -> None:
        self.name = address + (f"#{split}" if split else "")
        self.shape = opened.source.shape
        self.dtype = opened.dtype
        self._address, self._split = address, split
        self._wanted = Wanted(wanted.kind, opened.task, wanted.scores, require_labels=False)

    def blocks(self, start: int, stop: int, rows: int) -> Iterator[Array]:
        """Blocks of the fetched file."""
        local = _open_local(self._address, self._split, self._wanted).source
        if local.shape != self.shape:
            raise InputError(f"{self.name} had {self.shape[0]} rows when it was opened, and now {local.shape[0]}")
        for block in local.blocks(start, stop, rows):
            yield block
            _touch(Path(local.name.partition("#")[0]).parent)

    def cuts(self, rows: int) -> list[int]:
        """Only the first row: a file is fetched as a whole, by one worker."""
        return [0]


def _open_local(address: str, split: str, wanted: Wanted) -> Predictions:
    local = fetch(address)
    try:
        return open_file(local, split, wanted)
    except InputError as error:
        raise InputError(str(error).replace(str(local), address)) from error


def fetch(address: str) -> Path:
    """A local copy of a remote file, with the companions of an `.npy` matrix beside it."""
    system, path = _system(address)
    file = Path(path)
    try:
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
    except Exception as error:
        raise _unreachable(address, error) from error
    _touch(folder)
    return folder / file.name


def _system(address: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise MissingExtraError("fsspec", "dask") from error
    try:
        return url_to_fs(address)
    except (ValueError, ImportError) as error:
        raise InputError(f"{address} cannot be opened: {' '.join(str(error).split())}") from error


def _unreachable(address: str, error: Exception) -> InputError:
    # every file system raises its own errors: missing file, no credentials, no route
    reason = "there is no such file" if isinstance(error, FileNotFoundError) else " ".join(str(error).split())[:200]
    return InputError(f"{address} cannot be read: {reason or type(error).__name__}")


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
