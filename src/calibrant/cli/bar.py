"""A progress bar that appears only on a terminal and only when the work passes a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from calibrant.cli.plain import plain
from calibrant.core import progress

PATIENCE_SECONDS = 1.0


@contextmanager
def progress_bar(quiet: bool = False) -> Iterator[None]:
    """Show the steps of whatever runs inside the block on stderr."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    bar = _Bar()
    try:
        with progress.listen(bar.step):
            yield
    finally:
        bar.close()


class _Bar:
    def __init__(self) -> None:
        self._started = time.monotonic()
        self._display: Any = None
        self._tasks: dict[str, Any] = {}

    def step(self, stage: str, done: int, total: int | None, note: str) -> None:
        if time.monotonic() - self._started < PATIENCE_SECONDS:
            return
        if self._display is None:
            self._display = _display()
            self._display.start()
        stage, note = plain(stage), plain(note)
        kind = stage.rstrip("0123456789 ")  # "pass 7" takes the line of "pass 6"
        if kind not in self._tasks:
            self._tasks[kind] = self._display.add_task(stage, total=total, note="")
        self._display.update(self._tasks[kind], description=stage, completed=done, total=total, note=note)

    def close(self) -> None:
        if self._display is not None:
            self._display.stop()


def _display() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)
