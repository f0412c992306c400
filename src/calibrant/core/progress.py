"""How long work tells whoever listens how far it is; silent when nobody does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, int, int | None, str], None]

_listener: ContextVar[Listener | None] = ContextVar("calibrant_progress", default=None)


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
    if listener is not None:
        listener(stage, done, total, note)
