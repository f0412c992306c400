"""Reading a log that others write, rotate, truncate and copy: every line once."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO

from calibrant.core.errors import InputError

BATCH_BYTES = 8 << 20
MAX_LINE_BYTES = 4 << 20
SAMPLE_BYTES = 1024
MAX_PAST = 8


@dataclass
class Place:
    """How far a file has been read, and how to know it again: its first bytes and a digest of the last ones read."""

    offset: int = 0
    inode: int = 0
    head: str = ""
    tail: str = ""

    def fits(self, file: BinaryIO, size: int) -> bool:
        """Whether this is the file that was read up to `offset`, or a copy of it that goes at least as far."""
        return size >= self.offset and _head(file, self.offset) == self.head and _tail(file, self.offset) == self.tail

    def may_be_copy(self, file: BinaryIO, size: int) -> bool:
        """Whether the file holds no more than what was read: it is shorter and begins as the file that was read."""
        return 0 < size < self.offset and self.head.startswith(_head(file, size))

    def reach(self, file: BinaryIO, offset: int) -> None:
        """Remember that the file has been read up to `offset`."""
        self.offset, self.inode = offset, os.fstat(file.fileno()).st_ino
        self.head, self.tail = _head(file, offset), _tail(file, offset)


@dataclass
class LogFile:
    """The new lines of a log.

    A file is known by its content, not by its name: a rotated log is read to its end under its new name, a log that was
    copied back goes on where it was left, and a log with a new beginning is read from its start. A missing file is
    waited for once it has been seen. A line above 4 MiB is passed over and reported as None.
    """

    path: str
    place: Place | None = None
    past: list[Place] = field(default_factory=list)
    skipping: bool = False
    note: str | None = None

    def blocks(self) -> Iterator[list[bytes | None]]:
        """Lists of whole lines that have not been read before."""
        try:
            kind = os.stat(self.path).st_mode
        except FileNotFoundError as error:
            if self.place is None:
                raise InputError(f"{self.path}: there is no such file") from error
            yield from self._renamed()
            return
        if not stat.S_ISREG(kind):
            what = "a folder" if stat.S_ISDIR(kind) else "a device or a pipe"
            raise InputError(f"{self.path}: {what}; give a log file with one JSON answer per line")
        with open(self.path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            # offset 0 fits every file: an emptied log may be new, or an old one on its way back
            if self.place is not None and (not self.place.offset or not self.place.fits(file, size)):
                if os.fstat(file.fileno()).st_ino != self.place.inode:
                    yield from self._renamed()
                self._change(file, size)
            self.place = self.place or Place()
            if size >= self.place.offset:
                yield from self._read(file, self.place)

    def _read(self, file: BinaryIO, place: Place) -> Iterator[list[bytes | None]]:
        start = offset = place.offset
        file.seek(offset)
        while chunk := file.read(BATCH_BYTES):
            lines: list[bytes | None] = []
            whole, newline, rest = chunk.rpartition(b"\n")
            if newline:
                found = whole.split(b"\n")
                lines += [None if len(line) > MAX_LINE_BYTES else line for line in found]
                if self.skipping:
                    lines[0], self.skipping = None, False
            used = len(whole) + len(newline)
            if len(rest) >= MAX_LINE_BYTES or (self.skipping and not newline):
                self.skipping, used = True, len(chunk)
            if not used:
                break
            offset += used
            place.reach(file, offset)
            file.seek(offset)
            if lines:
                yield lines
        if offset == start:
            place.reach(file, offset)

    def _renamed(self) -> Iterator[list[bytes | None]]:
        """What the last file gained before it was renamed beside the log."""
        place = self.place
        if place is None:
            return
        folder, name = os.path.split(os.path.abspath(self.path))
        for entry in os.scandir(folder):
            if not entry.name.startswith(name) or entry.name == name or not entry.is_file(follow_symlinks=False):
                continue
            if entry.stat(follow_symlinks=False).st_ino != place.inode:
                continue
            with open(entry.path, "rb") as file:
                if place.fits(file, os.fstat(file.fileno()).st_size):
                    yield from self._read(file, place)
            return

    def _change(self, file: BinaryIO, size: int) -> None:
        """Find where another file of the same name was left, or start at its beginning."""
        known = [place for place in (self.place, *self.past) if place is not None and place.offset]
        self.skipping = False
        for place in known:
            if place.fits(file, size):
                self._remember(known, place)
                return
        for place in known:
            if place.may_be_copy(file, size):
                self.note = (
                    f"{self.path} has {size} bytes, but {place.offset} were read before and it begins alike: "
                    f"it is taken for a copy, and its lines count from byte {place.offset} on"
                )
                self._remember(known, place)
                return
        self._remember(known, Place())

    def _remember(self, known: list[Place], current: Place) -> None:
        self.place = current
        self.past = [place for place in known if place is not current][:MAX_PAST]

    def state(self) -> dict[str, Any]:
        """The places as plain values for JSON."""
        return {
            "place": None if self.place is None else asdict(self.place),
            "past": [asdict(place) for place in self.past],
            "skipping": self.skipping,
        }

    @classmethod
    def from_state(cls, path: str, state: Any) -> LogFile:
        """The file that `state` described."""
        place = None if state["place"] is None else _place(state["place"])
        return cls(path, place, [_place(past) for past in state["past"]][:MAX_PAST], bool(state["skipping"]))


def _place(state: Any) -> Place:
    place = Place(**state)
    if any(type(number) is not int or number < 0 for number in (place.offset, place.inode)):
        raise InputError(f"the state of a watch holds a position that is no whole number: {place.offset!r}")
    if not all(isinstance(text, str) for text in (place.head, place.tail)):
        raise InputError("the state of a watch holds a position without its digests")
    return place


def _head(file: BinaryIO, offset: int) -> str:
    """The first bytes, at most SAMPLE_BYTES and none beyond `offset`, as text that JSON can hold."""
    return os.pread(file.fileno(), min(offset, SAMPLE_BYTES), 0).hex()


def _tail(file: BinaryIO, offset: int) -> str:
    """A digest of the last bytes before `offset`."""
    length = min(offset, SAMPLE_BYTES)
    return hashlib.blake2b(os.pread(file.fileno(), length, offset - length), digest_size=16).hexdigest()
