"""Progress reporting: work calls `step`, and a listener or a bar shows it; silent where neither is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

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
    from calibrant.core.progress_bars import bar_for

    _Default.known = True
    _Default.bar = bar_for(on)
