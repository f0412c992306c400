"""One BLAS thread while a fit runs: its products are small, and blocks of rows are already spread over the cores.

Two threads of BLAS wait for each other at every product; on a busy machine that costs ten times the work itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController

_lock = threading.Lock()
_state: dict[str, Any] = {"fits": 0, "limit": None}


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold BLAS to one thread; the first fit in sets the limit, the last one out lifts it."""
    with _lock:
        _state["fits"] += 1
        if _state["fits"] == 1:
            _state["limit"] = _controller().limit(limits=1, user_api="blas")
    try:
        yield
    finally:
        with _lock:
            _state["fits"] -= 1
            if _state["fits"] == 0:
                _state["limit"].restore_original_limits()


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()
