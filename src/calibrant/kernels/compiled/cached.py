"""`njit` whose cache on disk is a convenience: where there is none, or it is damaged, functions compile in memory.

numba raises where no folder can be written (a container with a read-only root and no HOME), where the disk is full and
where a file of the cache was cut short. None of these is a reason to refuse work.
"""

import logging
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import numba
import numpy as np

from calibrant.core.statistic import Kernel

REASSOCIATE = {"reassoc", "contract", "nsz"}
"""Sums may be reordered into vector lanes; NaN and Inf keep their meaning."""


def njit(function: Callable[..., Any], **options: Any) -> Any:
    """`numba.njit` that releases the GIL, with a cache on disk that cannot fail."""
    dispatcher = numba.njit(nogil=True, **options)(function)
    try:
        dispatcher.enable_caching()
        dispatcher._cache = _SafeCache(dispatcher._cache)
    except (RuntimeError, OSError) as error:
        _say_once(str(error))
    return dispatcher


fast = partial(njit, fastmath=REASSOCIATE, error_model="numpy")


def compiled_form(kernel: Kernel) -> Callable[[Callable[..., Any]], Any]:
    """Compile a loop and register it as the form of a kernel.

    Its arrays are contiguous and read-only, whatever came in (a strided view and a memory map are types of their own to
    the compiler: with one type it compiles once), and rows without weights weigh 1. Scratch memory is its own.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        loop = fast(function)

        @kernel.compiled
        @wraps(loop)
        def form(*arguments: Any) -> Any:
            n = len(arguments[0])
            return loop(*(frozen(np.ones(n) if one is None else one) for one in arguments))

        return form

    return decorate


def frozen(value: Any) -> Any:
    """A contiguous read-only view of an array, or a copy where it is not contiguous; a number as it is."""
    if not isinstance(value, np.ndarray):
        return value
    view = np.ascontiguousarray(value).view(np.ndarray)
    view.flags.writeable = False
    return view


class _SafeCache:
    """A cache of numba that answers "not there" where reading or writing fails."""

    def __init__(self, cache: Any) -> None:
        self._inner = cache

    def load_overload(self, *arguments: Any) -> Any:
        """The compiled function, or None to compile it."""
        return _tried(self._inner.load_overload, arguments)

    def save_overload(self, *arguments: Any) -> None:
        """Keep the compiled function, if that can be done."""
        _tried(self._inner.save_overload, arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _tried(work: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        return work(*arguments)
    except Exception as error:
        _say_once(f"{type(error).__name__}: {error}")
        return None


_said: list[str] = []


def _say_once(reason: str) -> None:
    if not _said:
        _said.append(reason)
        logging.getLogger("calibrant").warning(
            "compiled kernels cannot be kept on disk (%s): they are compiled in memory by each process; "
            "NUMBA_CACHE_DIR=DIR names a folder that can be written",
            " ".join(reason.split())[:200],
        )
