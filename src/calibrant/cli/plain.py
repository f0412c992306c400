"""Text from files as a terminal may show it."""

from __future__ import annotations

import re
from typing import Any

import typer

CONTROL = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069]")
"""What can move the cursor, change colours or turn text around: everything of the kind but tab and newline."""


def plain(text: str) -> str:
    """Text from a file (names of classes, members, columns) as a terminal may show it, control characters spelled out.

    >>> plain("cat\\x1b[31m")
    'cat\\\\x1b[31m'
    """
    return CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def printable(text: Any) -> str:
    """One line of text from a file, with a question mark for everything that is no visible sign."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text that may hold something from a file."""
    typer.echo(plain(text), err=err, nl=nl)
