"""How the verbs speak: plain text from files, JSON for machines, a bar for long work."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from calibrant.core import progress

CHECK_FAILED = 1
"""Exit code where the work was done and its answer is no."""

PATIENCE_SECONDS = 1.0
"""Work that is shorter shows no bar."""

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


@contextmanager
def progress_bar(quiet: bool = False) -> Iterator[None]:
    """Show the steps of whatever runs inside the block on stderr: on a terminal, once the work passes a second."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    words, note = (TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[note]}"))
    columns = (words, BarColumn(), TextColumn("{task.percentage:>3.0f}%"), note, TimeElapsedColumn())
    display = Progress(*columns, console=Console(stderr=True), transient=True)
    tasks: dict[str, TaskID] = {}
    started = time.monotonic()

    def step(stage: str, done: int, total: int | None, note: str) -> None:
        if time.monotonic() - started < PATIENCE_SECONDS:
            return
        display.start()
        kind = stage.rstrip("0123456789 ")  # "pass 7" takes the line of "pass 6"
        if kind not in tasks:
            tasks[kind] = display.add_task(plain(stage), total=total, note="")
        display.update(tasks[kind], description=plain(stage), completed=done, total=total, note=plain(note))

    try:
        with progress.listen(step):
            yield
    finally:
        if tasks:
            display.stop()
