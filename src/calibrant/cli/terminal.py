"""How the verbs speak: plain text from files, JSON for machines, a bar for long work."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import typer

from calibrant.core import progress

CHECK_FAILED = 1
"""Exit code where the work was done and its answer is no."""

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


def warn(texts: Iterable[str], word: str = "warning") -> None:
    """Print warnings, one per line, where they do not mix with the result."""
    for text in texts:
        say(f"{word}: {text}", err=True)


def skipped_words(skipped: Sequence[str]) -> list[str]:
    """What to warn of where parts of a folder were left out."""
    return [f"{len(skipped)} bad part{'s' * (len(skipped) > 1)} left out: {'; '.join(skipped)}"] if skipped else []


def answer(as_json: bool, document: Mapping[str, Any], lines: Iterable[str]) -> None:
    """Print a result: one JSON document for machines, lines for people."""
    for line in [json.dumps(document)] if as_json else map(plain, lines):
        typer.echo(line)


def progress_bar(quiet: bool = False) -> AbstractContextManager[None]:
    """Show the steps of whatever runs inside the block on stderr: on a terminal, once the work passes a second."""
    return nullcontext() if quiet or not sys.stderr.isatty() else progress.shown()
