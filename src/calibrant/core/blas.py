"""One BLAS thread while blocks of rows are spread over the cores, or while the products of a fit are small.

Two threads of BLAS wait for each other at every product; on a busy machine that costs ten times the work itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_lock = threading.Lock()
_state: dict[str, Any] = {"users": 0, "limit": None}


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold BLAS to one thread; the first one in sets the limit, the last one out lifts it."""
    with _lock:
        _state["users"] += 1
        if _state["users"] == 1:
            _state["limit"] = _controller().limit(limits=1, user_api="blas")
    try:
        yield
    finally:
        with _lock:
            _state["users"] -= 1
            if _state["users"] == 0:
                _state["limit"].restore_original_limits()


@cache
def _controller() -> Any:
    # looking the libraries up takes milliseconds, setting their threads microseconds
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
