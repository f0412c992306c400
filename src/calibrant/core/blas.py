"""One BLAS thread while blocks of rows are spread over the cores, or while the products of a fit are small.

Two threads of BLAS wait for each other at every product; on a busy machine that costs ten times the work itself.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_lock = threading.Lock()
_state: dict[str, Any] = {"users": 0, "limit": None}


class _Own(threading.local):
    """How often this thread holds the limit."""

    users = 0


_own = _Own()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold BLAS to one thread; the first one in sets the limit, the last one out lifts it."""
    with _lock:
        _state["users"] += 1
        _own.users += 1
        if _state["limit"] is None:
            before = [(library, library.get_num_threads()) for library in _libraries()]
            for library, _ in before:
                library.set_num_threads(1)
            _state["limit"] = before
    try:
        yield
    finally:
        with _lock:
            _state["users"] -= 1
            _own.users -= 1
            if _state["users"] == 0:
                limit, _state["limit"] = _state["limit"], None
                for library, threads in limit:
                    library.set_num_threads(threads)


def _in_child() -> None:
    """Only the thread that forked lives on; a limit that others had set is lifted after the next use."""
    _state["users"] = _own.users
    _lock.release()


if hasattr(os, "register_at_fork"):
    # the lock is free while the process forks, so that the child does not inherit it locked
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_in_child)


@cache
def _libraries() -> list[Any]:
    # looking the libraries up takes milliseconds, setting their threads microseconds
    from threadpoolctl import ThreadpoolController

    return list(ThreadpoolController().select(user_api="blas").lib_controllers)
