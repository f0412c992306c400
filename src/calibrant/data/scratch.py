"""Parsed values that wait for their readers: in memory while they are few, in a temporary file beyond that."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path

import numpy as np

from calibrant.data.fields import ArrayField, Field, Header
from calibrant.data.predictions import CHUNK_BYTES
from calibrant.data.raw import RawField

DISK_SHARE = 0.5
"""Of the free disk: a scratch copy of a file that could be mapped takes no more."""


def fits_on_disk(nbytes: int) -> bool:
    """Whether a scratch copy of so many bytes leaves enough of the disk."""
    return nbytes <= DISK_SHARE * shutil.disk_usage(tempfile.gettempdir()).free


class ScratchFile:
    """Collects float64 blocks in order."""

    def __init__(self) -> None:
        self._blocks: list[np.ndarray] = []
        self._size = 0
        self._scratch: Scratch | None = None

    def write(self, block: np.ndarray) -> None:
        """Add rows at the end."""
        self._blocks.append(np.ascontiguousarray(block))
        self._size += block.nbytes
        if self._size > CHUNK_BYTES:
            self._scratch = self._scratch or Scratch()
            with self._scratch.path.open("ab") as file:
                for waiting in self._blocks:
                    file.write(waiting.data)
            self._blocks.clear()

    def field(self, shape: tuple[int, int], path: Path) -> Field:
        """Everything that was written, as one array."""
        if self._scratch is None:
            return ArrayField(np.concatenate(self._blocks) if self._blocks else np.empty(shape))
        header = Header(shape, np.dtype(np.float64))
        return RawField(self._scratch.path, 0, header, str(path), keeps=self._scratch)


class Scratch:
    """A temporary file that is removed with its last reference; a copy sent to another process does not own it."""

    def __init__(self) -> None:
        handle, name = tempfile.mkstemp(prefix="calibrant-")
        os.close(handle)
        self.path = Path(name)
        # unlike `__del__`, also called when the interpreter ends
        weakref.finalize(self, _remove, self.path, os.getpid())

    def __getstate__(self) -> dict[str, object]:
        return {"path": self.path}


def _remove(path: Path, owner: int) -> None:
    if owner == os.getpid():
        path.unlink(missing_ok=True)
