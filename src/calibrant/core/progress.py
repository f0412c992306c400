"""Progress reporting: work calls `step`, and a listener or a bar shows it; silent where neither is there.

Bars need no library: they are HTML below a notebook's cell, and one line on standard error elsewhere.
"""

from __future__ import annotations

import atexit
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from html import escape
from typing import Any

Listener = Callable[[str, int, int | None, str], None]

_listener: ContextVar[Listener | None] = ContextVar("calibrant_progress", default=None)


class _Default:
    """The bar that is used without a listener: looked for once, at the first step."""

    known = False
    bar: Listener | None = None


@contextmanager
def listen(listener: Listener) -> Iterator[None]:
    """Send every step made inside the block to `listener(stage, done, total, note)`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def step(stage: str, done: int, total: int | None = None, note: str = "") -> None:
    """Say that `done` of `total` (None: unknown) of a stage is finished."""
    listener = _listener.get()
    if listener is None:
        if not _Default.known:
            show_progress(None)
        listener = _Default.bar
    if listener is not None:
        listener(stage, done, total, note)


def show_progress(on: bool | None = True) -> None:
    """Show a bar while long work runs: True everywhere, False nowhere, None in notebooks only (the default).

    A bar appears after one second of work and goes away when the work or the cell ends. In a notebook it stands below
    the cell, elsewhere on standard error.

    Examples
    --------
    >>> show_progress(False)
    >>> show_progress(None)
    """
    _Default.known = True
    _Default.bar = bar_for(on)


PATIENCE_SECONDS = 1.0
"""Work that is shorter shows nothing."""
PAUSE_SECONDS = 0.1
"""Time between two pictures."""
BAR = 30


def bar_for(on: bool | None) -> Listener | None:
    """The bar for this process, or None."""
    shell = _notebook()
    if on is False or (on is None and shell is None):
        return None
    bars = _Bars(_Line() if shell is None else _Cell())
    if shell is None:
        atexit.register(bars.clear)
    else:
        shell.events.register("post_run_cell", lambda *_: bars.clear())
    return bars.step


def _notebook() -> Any:
    """The shell of a Jupyter kernel; None in a script, a console or a test."""
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython

    shell = get_ipython()
    return shell if shell is not None and hasattr(shell, "kernel") else None


@contextmanager
def shown() -> Iterator[None]:
    """Show the steps made inside the block in a line on standard error, which is empty at its end."""
    bars = _Bars(_Line())
    try:
        with listen(bars.step):
            yield
    finally:
        bars.clear()


class _Bars:
    """Which stages run and how far they are; several can be nested."""

    def __init__(self, screen: Any) -> None:
        self._screen = screen
        self._stages: dict[str, tuple[int, int | None, str]] = {}
        self._started = self._shown = 0.0

    def step(self, stage: str, done: int, total: int | None, note: str) -> None:
        now = time.monotonic()
        if not self._stages:
            self._started, self._shown = now, 0.0
        kind = stage.rstrip("0123456789 ")  # "pass 7" takes the line of "pass 6"
        if total is not None and done >= total:
            self._stages.pop(kind, None)
            if not self._stages:
                self._screen.show([])
            return
        self._stages[kind] = (done, total, f"{stage} {note}".strip())
        if now - self._started >= PATIENCE_SECONDS and now - self._shown >= PAUSE_SECONDS:
            self._shown = now
            self._screen.show(list(self._stages.values()))

    def clear(self) -> None:
        self._stages.clear()
        self._screen.show([])


class _Cell:
    """HTML below the cell that runs; empty when the work or the cell has ended."""

    handle: Any = None

    def show(self, stages: list[tuple[int, int | None, str]]) -> None:
        from IPython.display import HTML, display

        picture = HTML("".join(_html(*stage) for stage in stages))
        if self.handle is not None:
            self.handle.update(picture)
        elif stages:
            self.handle = display(picture, display_id=True)
        if not stages:
            self.handle = None


class _Line:
    """One line on standard error that is written over."""

    width = 0

    def show(self, stages: list[tuple[int, int | None, str]]) -> None:
        # a line that a terminal breaks could not be written over; names of files may hold control characters
        words = "  ".join(_text(*stage) for stage in stages)[: shutil.get_terminal_size((121, 24)).columns - 1]
        text = "".join(sign if sign.isprintable() else "?" for sign in words)
        if text or self.width:
            sys.stderr.write("\r" + text.ljust(self.width) + ("" if text else "\r"))
            sys.stderr.flush()
        self.width = len(text)


def _html(done: int, total: int | None, words: str) -> str:
    share = "" if total is None else f' value="{done}" max="{total}"'
    count = f"{done:,}" if total is None else f"{done:,} of {total:,}"
    return f'<div><progress{share} aria-label="{escape(words)}"></progress> {escape(words)} ({count})</div>'


def _text(done: int, total: int | None, words: str) -> str:
    """A bar in characters.

    >>> _text(1, 2, "fitting")
    'fitting [###############...............] 1/2'
    """
    if not total:
        return f"{words} {done:,}"
    full = int(BAR * done / total)
    return f"{words} [{'#' * full}{'.' * (BAR - full)}] {done:,}/{total:,}"
