"""Temporary files, removed with their last reference."""

import os
import shutil
import tempfile
import weakref
from pathlib import Path

DISK_SHARE = 0.5
"""Of the free disk: a scratch copy of a file that could be mapped takes no more."""


def fits_on_disk(nbytes: int) -> bool:
    """Whether a scratch copy of so many bytes leaves enough of the disk."""
    return nbytes <= DISK_SHARE * shutil.disk_usage(tempfile.gettempdir()).free


class Scratch:
    """A temporary file that is removed with its last reference; a copy sent to another process does not own it."""

    def __init__(self) -> None:
        handle, name = tempfile.mkstemp(prefix="calibrant-")
        os.close(handle)
        self.path = Path(name)
        # unlike `__del__`, also called when the interpreter ends
        weakref.finalize(self, _remove, self.path, os.getpid())


def _remove(path: Path, owner: int) -> None:
    if owner == os.getpid():
        path.unlink(missing_ok=True)
