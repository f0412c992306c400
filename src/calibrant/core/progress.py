"""Progress reporting: work calls `step`, and a listener or a bar shows it; silent where neither is there.

Bars are HTML below a notebook's cell, where rich would need widgets, and lines of rich on a terminal.
"""

import atexit
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from html import escape
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

Listener = Callable[[str, int, int | None, str], None]

_listener: ContextVar[Listener | None] = ContextVar("calibrant_progress", default=None)


class _Chosen:
    """What `show_progress` was told."""

    on: bool | None = None


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
    listener = _listener.get() or _bar(_Chosen.on)
    if listener is not None:
        listener(stage, done, total, note)


def each(stage: str, named: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The items of a mapping, each a step of a stage that is noted by its name."""
    for done, (name, value) in enumerate(named.items()):
        step(stage, done, len(named), name)
        yield name, value
    step(stage, len(named), len(named))


def show_progress(on: bool | None = True) -> None:
    """Show a bar while long work runs: True everywhere, False nowhere, None in notebooks only (the default).

    A bar appears after one second of work and goes away when the work or the cell ends. In a notebook it stands below
    the cell, elsewhere on the terminal behind standard error.

    Examples
    --------
    >>> show_progress(False)
    >>> show_progress(None)
    """
    _Chosen.on = on


PATIENCE_SECONDS = 1.0
"""Work that is shorter shows nothing."""
PAUSE_SECONDS = 0.1
"""Time between two pictures."""
BAR = 30


@cache
def _bar(on: bool | None) -> Listener | None:
    """The bar for this process, or None; looked for once, at the first step."""
    ipython = sys.modules.get("IPython")
    shell: Any = ipython and ipython.get_ipython()
    notebook = hasattr(shell, "kernel")  # not a script, a console or a test
    if on is False or not (on or notebook):
        return None
    bars = _Cell() if notebook else _Line()
    if notebook:
        shell.events.register("post_run_cell", lambda *_: bars.clear())
    else:
        atexit.register(bars.clear)
    return bars.step


@contextmanager
def shown() -> Iterator[None]:
    """Show the steps made inside the block on the terminal, and leave nothing there."""
    bars = _Line()
    try:
        with listen(bars.step):
            yield
    finally:
        bars.clear()


class _Bars:
    """Which stages run and how far they are; several can be nested."""

    def __init__(self) -> None:
        self.stages: dict[str, tuple[int, int | None, str]] = {}
        self._started = self._shown = 0.0

    def step(self, stage: str, done: int, total: int | None, note: str) -> None:
        now = time.monotonic()
        if not self.stages:
            self._started = now
        kind = stage.rstrip("0123456789 ")  # "pass 7" takes the line of "pass 6"
        if total is not None and done >= total:
            self.stages.pop(kind, None)
            if not self.stages:
                self.show()
            return
        self.stages[kind] = (done, total, f"{stage} {note}".strip())
        if now - self._started >= PATIENCE_SECONDS and now - self._shown >= PAUSE_SECONDS:
            self._shown = now
            self.show()

    def clear(self) -> None:
        self.stages.clear()
        self.show()

    def show(self) -> None:
        """Draw the stages, or leave nothing behind where there are none."""
        raise NotImplementedError


class _Cell(_Bars):
    """HTML below the cell that runs; empty when the work or the cell has ended."""

    handle: Any = None

    def show(self) -> None:
        from IPython.display import HTML, display

        picture = HTML("".join(_html(*stage) for stage in self.stages.values()))
        if self.handle is not None:
            self.handle.update(picture)
        elif self.stages:
            self.handle = display(picture, display_id=True)
        if not self.stages:
            self.handle = None


class _Line(_Bars):
    """Bars of rich on the terminal behind standard error, which go away with the last stage."""

    live: Live | None = None

    def show(self) -> None:
        if self.live is not None and not self.stages:
            self.live.stop()
            self.live = None
        if not self.stages:
            return
        if self.live is None:
            self.live = Live(console=Console(stderr=True), transient=True, auto_refresh=False)
            self.live.start()
        picture = Table.grid("", "", "", padding=(0, 1))
        for done, total, words in self.stages.values():
            # names of files may hold control characters
            text = "".join(sign if sign.isprintable() else "?" for sign in words)
            bar = ProgressBar(total, done, BAR) if total else ""
            picture.add_row(Text(text, no_wrap=True, overflow="ellipsis"), bar, _count(done, total))
        self.live.update(picture, refresh=True)


def _html(done: int, total: int | None, words: str) -> str:
    share = "" if total is None else f' value="{done}" max="{total}"'
    return (
        f'<div><progress{share} aria-label="{escape(words)}"></progress> {escape(words)} ({_count(done, total)})</div>'
    )


def _count(done: int, total: int | None) -> str:
    return f"{done:,}" if total is None else f"{done:,} of {total:,}"
