"""Files that a verb will write: found out before the work whether they can be."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from calibrant.core.errors import InputError


def require_writable(path: str | os.PathLike[str]) -> None:
    """Raise InputError unless a file of this path can be written; nothing is left behind."""
    target = Path(path)
    if target.is_dir():
        raise InputError(f"{path} is a folder: give the path of a file to write")
    folder = target.absolute().parent
    if not folder.is_dir():
        raise InputError(f"cannot write {path}: the folder {folder} does not exist; create it first")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"cannot write {path}: {reason} in {folder}; choose another folder") from error
