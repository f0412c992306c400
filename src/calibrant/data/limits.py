"""What a file may claim before anything is allocated for it: bounds on counts and on decompression."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from calibrant.core.errors import InputError

MAX_ROWS = 2**32
"""Rows of one file; labels of that many would need 32 GiB."""

MAX_CLASSES = 2**22
"""Columns of one matrix; the largest vocabularies have a tenth of that."""

MAX_TEXT_BYTES = 2**24
"""Bytes of a text header, of class names, or of one line of text."""

MAX_EXPANSION = 200
"""Times its compressed size that data may expand to, once it is larger than `ROOM_TO_EXPAND`."""

ROOM_TO_EXPAND = 2**28
"""Bytes that any file may expand to: constant labels shrink a thousandfold and are no attack while small."""


def check_counts(shape: tuple[int, ...], name: str) -> None:
    """Raise if a matrix claims more rows or classes than any real one has."""
    for count, most, what in zip(shape, (MAX_ROWS, MAX_CLASSES), ("rows", "classes"), strict=False):
        if not 0 <= count <= most:
            raise InputError(f"{name} claims {count} {what}, but at most {most} are read from one file")


ROOM_FOR_TEXT = 2**25
"""The same for text, which takes longer to parse and, being digits, never shrinks as much as arrays can."""


def check_expansion(expanded: int, compressed: int, name: str, room: int = ROOM_TO_EXPAND) -> None:
    """Raise if `compressed` bytes unpack to so many that this looks like a decompression bomb."""
    asked = os.environ.get("CALIBRANT_MAX_EXPANDED_BYTES", "")
    room = int(asked) if asked.isdigit() else room
    if expanded > room and expanded > MAX_EXPANSION * max(compressed, 1):
        raise InputError(
            f"{name} unpacks {compressed} bytes to {expanded} or more, over {MAX_EXPANSION} times as many: "
            f"if you trust the file, store it uncompressed or set CALIBRANT_MAX_EXPANDED_BYTES above {room}"
        )


@contextmanager
def reading(path: Path, what: str, damage: tuple[type[Exception], ...]) -> Iterator[None]:
    """Errors name the file: bad input as it is, and `damage` as that of a file that is not whole."""
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty (0 bytes): it is not a whole {what}")
    try:
        yield
    except InputError as error:
        if str(path) in str(error):
            raise
        raise InputError(f"{path} cannot be read as a {what}: {error}") from error
    except damage as error:
        words = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{path} is not a whole {what}: {words}") from error
