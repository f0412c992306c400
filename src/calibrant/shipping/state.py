"""The state of a monitor on disk: one file, and a journal of the answers that are not in it yet."""

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from calibrant.core.atomic import atomic_write, check_target, remove_leftovers
from calibrant.core.errors import InputError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

MAX_JOURNAL_BYTES = 8 << 20
"""Length from which a journal is replaced by a new state."""
LOCKED_BYTE = 1 << 30
"""Byte behind the journal that is locked on Windows, where locked bytes cannot be read."""


class StateFile:
    """A state and its journal, which one monitor at a time may use.

    An entry of the journal is with the operating system when `append` returns, so it survives the process; `sync`
    writes it to the disk, so that it survives a power failure. The first line of the journal is the digest of its
    state, so that no entry counts twice or for another state.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path, self._journal_path = Path(path), f"{os.fspath(path)}.journal"
        self.is_current = False
        """Whether the state and its journal contain everything that was given to them."""
        self._is_synced = True
        check_target(path)
        self._open_journal()
        remove_leftovers(path)

    def _open_journal(self) -> None:
        self._journal = open(self._journal_path, "ab", buffering=0)  # noqa: SIM115
        try:
            if sys.platform == "win32":
                self._journal.seek(LOCKED_BYTE)
                msvcrt.locking(self._journal.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._journal.close()
            message = f"{self.path} is in use by another monitor: give each one a different state"
            raise InputError(message) from error

    def _has_journal(self) -> bool:
        """Return whether the journal can still be found under its name."""
        try:
            present = os.stat(self._journal_path)
        except OSError:
            return False
        return os.path.samestat(present, os.fstat(self._journal.fileno()))

    def read(self) -> str | None:
        """Return the content of the state, or None if there is none."""
        return self.path.read_bytes().decode("utf-8", "replace") if self.path.exists() else None

    def set_aside(self) -> Path:
        """Rename a damaged state, and return its new name."""
        number = 1
        while (target := Path(f"{self.path}.damaged-{number}")).exists():
            number += 1
        return self.path.rename(target)

    def entries(self, text: str | None) -> Iterator[Any]:
        """Yield the entries of the journal after a state; a torn one ends it."""
        with open(self._journal_path, "rb") as file:
            if file.readline() != _digest_line(text or ""):
                return
            for line in file:
                try:
                    yield json.loads(line)
                except ValueError:
                    return

    def write(self, text: str) -> None:
        """Replace the state on the disk, and begin a journal."""
        with atomic_write(self.path) as temporary:
            temporary.write_bytes(text.encode())
        if not self._has_journal():
            self._journal.close()
            self._open_journal()
        self._journal.truncate(0)
        self.is_current = self._append(_digest_line(text))

    def append(self, entry: Any) -> bool:
        """Add an entry to the journal; return whether it is there. After a failure only a new state helps."""
        self.is_current = self.is_current and self._append(json.dumps(entry).encode() + b"\n")
        return self.is_current

    def _append(self, line: bytes) -> bool:
        try:
            is_written = self._journal.write(line) == len(line)
        except (OSError, ValueError):  # ValueError: the file is closed
            return False
        self._is_synced = False
        return is_written

    def sync(self) -> bool:
        """Write the journal to the disk; return whether the state is current and its journal not too long."""
        if not self._is_synced:
            self._is_synced = True
            try:
                os.fsync(self._journal)
                is_too_long = os.fstat(self._journal.fileno()).st_size > MAX_JOURNAL_BYTES
            except OSError:
                is_too_long = True
            if is_too_long or not self._has_journal() or not self.path.exists():
                self.is_current = False
        return self.is_current

    def close(self) -> None:
        """Release the state."""
        self._journal.close()


def _digest_line(text: str) -> bytes:
    return hashlib.sha256(text.encode()).hexdigest().encode() + b"\n"
