"""`njit` whose cache on disk is a convenience: where there is none, or it is damaged, functions compile in memory.

numba raises where no folder can be written (a container with a read-only root and no HOME), where the disk is full and
where a file of the cache was cut short. None of these is a reason to refuse work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import numba

_log = logging.getLogger("calibrant")


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit`, with a cache on disk (`cache=True`) that cannot fail."""
    cached = options.pop("cache", False)

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(**options)(function)
        if cached:
            try:
                dispatcher.enable_caching()
            except (RuntimeError, OSError) as error:
                _say_once(str(error))
            else:
                dispatcher._cache = _SafeCache(dispatcher._cache)
        return dispatcher

    return decorate


class _SafeCache:
    """A cache of numba that answers "not there" where reading or writing fails."""

    def __init__(self, cache: Any) -> None:
        self._inner = cache

    def load_overload(self, *arguments: Any) -> Any:
        """The compiled function, or None to compile it."""
        try:
            return self._inner.load_overload(*arguments)
        except Exception as error:
            _say_once(f"{type(error).__name__}: {error}")
            return None

    def save_overload(self, *arguments: Any) -> None:
        """Keep the compiled function, if that can be done."""
        try:
            self._inner.save_overload(*arguments)
        except Exception as error:
            _say_once(f"{type(error).__name__}: {error}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@cache
def _once() -> list[str]:
    return []


def _say_once(reason: str) -> None:
    if not _once():
        _once().append(reason)
        _log.warning(
            "compiled kernels cannot be kept on disk (%s): they are compiled in memory by each process; "
            "NUMBA_CACHE_DIR=DIR names a folder that can be written",
            " ".join(reason.split())[:200],
        )
