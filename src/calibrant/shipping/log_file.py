"""Following a log that others write, rotate, truncate and copy: every line once, its answers into a monitor."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO

from calibrant.core.errors import InputError
from calibrant.shipping.feed import Answer, Feed, parse_record

BATCH_BYTES = 8 << 20
MAX_LINE_BYTES = 4 << 20
SAMPLE_BYTES = 1024
MAX_PLACES = 9


@dataclass
class Place:
    """How far a file has been read, and how to know it again: its first bytes and a digest of the last ones read."""

    offset: int = 0
    inode: int = 0
    head: str = ""
    tail: str = ""

    def fits(self, file: BinaryIO, size: int) -> bool:
        """Whether this is the file that was read up to `offset`, or a copy of it that goes at least as far."""
        return size >= self.offset and _samples(file, self.offset) == (self.head, self.tail)

    def may_be_copy(self, file: BinaryIO, size: int) -> bool:
        """Whether the file holds no more than what was read: it is shorter and begins as the file that was read."""
        return 0 < size < self.offset and self.head.startswith(_samples(file, size)[0])

    def reach(self, file: BinaryIO, offset: int) -> None:
        """Remember that the file has been read up to `offset`."""
        self.offset, self.inode = offset, os.fstat(file.fileno()).st_ino
        self.head, self.tail = _samples(file, offset)


@dataclass
class LogFile:
    """The new lines of a log.

    A file is known by its content, not by its name: a rotated log is read to its end under its new name, a log that was
    copied back goes on where it was left, and a log with a new beginning is read from its start. A missing file is
    waited for once it has been seen. A line above 4 MiB is passed over and reported as None.
    """

    path: str
    places: list[Place] = field(default_factory=list)
    """That of the present file, then those of earlier ones."""
    skipping: bool = False
    note: str | None = None

    def blocks(self) -> Iterator[list[bytes | None]]:
        """Lists of whole lines that have not been read before."""
        try:
            kind = os.stat(self.path).st_mode
        except FileNotFoundError as error:
            if not self.places:
                raise InputError(f"{self.path}: there is no such file") from error
            yield from self._renamed()
            return
        if not stat.S_ISREG(kind):
            what = "a folder" if stat.S_ISDIR(kind) else "a device or a pipe"
            raise InputError(f"{self.path}: {what}; give a log file with one JSON answer per line")
        with open(self.path, "rb") as file:
            about = os.fstat(file.fileno())
            # offset 0 fits every file: an emptied log may be new, or an old one on its way back
            if self.places and (not self.places[0].offset or not self.places[0].fits(file, about.st_size)):
                if about.st_ino != self.places[0].inode:
                    yield from self._renamed()
                self._change(file, about.st_size)
            self.places = self.places or [Place()]
            if about.st_size >= self.places[0].offset:
                yield from self._read(file, self.places[0])

    def _read(self, file: BinaryIO, place: Place) -> Iterator[list[bytes | None]]:
        start = offset = place.offset
        file.seek(offset)
        while chunk := file.read(BATCH_BYTES):
            lines: list[bytes | None] = []
            whole, newline, rest = chunk.rpartition(b"\n")
            if newline:
                lines += [None if len(line) > MAX_LINE_BYTES else line for line in whole.split(b"\n")]
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
        place = self.places[0]
        folder, name = os.path.split(os.path.abspath(self.path))
        for entry in os.scandir(folder):
            if not entry.name.startswith(name) or entry.name == name or not entry.is_file(follow_symlinks=False):
                continue
            if entry.stat(follow_symlinks=False).st_ino == place.inode:
                with open(entry.path, "rb") as file:
                    if place.fits(file, os.fstat(file.fileno()).st_size):
                        yield from self._read(file, place)
                return

    def _change(self, file: BinaryIO, size: int) -> None:
        """Find where another file of the same name was left, or start at its beginning."""
        known = [place for place in self.places if place.offset]
        found = next((place for place in known if place.fits(file, size)), None)
        if found is None:
            found = next((place for place in known if place.may_be_copy(file, size)), None)
            if found is not None:
                self.note = (
                    f"{self.path} has {size} bytes, but {found.offset} were read before and it begins alike: "
                    f"it is taken for a copy, and its lines count from byte {found.offset} on"
                )
        current = found or Place()
        self.skipping = False
        self.places = [current, *(place for place in known if place is not current)][:MAX_PLACES]


def _samples(file: BinaryIO, offset: int) -> tuple[str, str]:
    """The first bytes as text that JSON can hold, and a digest of the last ones before `offset`; SAMPLE_BYTES each."""
    length = min(offset, SAMPLE_BYTES)
    head, tail = (os.pread(file.fileno(), length, start) for start in (0, offset - length))
    return head.hex(), hashlib.blake2b(tail, digest_size=16).hexdigest()


class LogFollower(Feed):
    """Reads what a log has gained since the last time, and feeds it to a monitor; takes the parameters of `Feed`.

    A last line without its newline waits until it is whole. Lines that are not answers are counted and skipped. See
    `LogFile` for rotated, missing and copied logs.
    """

    def __init__(self, path: str, **choices: Any) -> None:
        self.log = LogFile(path)
        self.n_lines = self.n_bad = 0
        self.first_problem: str | None = None
        super().__init__(**choices)

    def read(self) -> int:
        """Feed everything new to the monitor; returns how many answers there were."""
        return sum(self.count(self._answers(lines)) for lines in self.log.blocks())

    def _answers(self, lines: list[bytes | None]) -> Iterator[tuple[Answer, str | None]]:
        for line in lines:
            self.n_lines += 1
            try:
                if line is None:
                    raise InputError(f"longer than {MAX_LINE_BYTES} bytes")
                if line.strip():
                    yield self.check(parse_record(line))
            except InputError as error:
                self.n_bad += 1
                self.first_problem = self.first_problem or f"line {self.n_lines}: {error}"[:300]

    def state(self) -> dict[str, Any]:
        """Monitor and position as plain values for JSON, to continue after a restart."""
        counts = {"n_lines": self.n_lines, "n_bad": self.n_bad, "first_problem": self.first_problem}
        places = [asdict(place) for place in self.log.places]
        return {"feed": super().state(), "places": places, "skipping": self.log.skipping, **counts}

    def restore(self, state: Any) -> None:
        """Go on where `state` was taken."""
        super().restore(state["feed"])
        self.log.places = [Place(**place) for place in state["places"]]
        self.log.skipping = bool(state["skipping"])
        self.n_lines, self.n_bad = int(state["n_lines"]), int(state["n_bad"])
        self.first_problem = state["first_problem"]
