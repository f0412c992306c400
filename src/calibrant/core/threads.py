"""Run one function over blocks of rows on all cores this process may use.

Blocks have a fixed size whatever the number of threads, and results come back in block order, so a sum over
them has the same bits on one core and on sixty-four. Kernels are serial and release the GIL; this is where
they become parallel.

BLAS has one thread while blocks are spread over the cores, or while the products of a fit are small: two threads of
BLAS wait for each other at every product, which costs ten times the work itself on a busy machine.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

BLOCK_ELEMENTS = 1 << 20
"""Elements of one block: a few milliseconds of work, small enough to balance two cores."""


class _Thread(threading.local):
    """What one thread is doing."""

    in_pool = False
    """Whether it belongs to the pool, or must not use it."""
    blas_users = 0
    """How often it holds BLAS to one thread."""


_thread = _Thread()


def n_threads() -> int:
    """Cores this process may run on, or CALIBRANT_THREADS."""
    asked = os.environ.get("CALIBRANT_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def row_blocks(n_rows: int, n_columns: int, block_elements: int = BLOCK_ELEMENTS) -> list[slice]:
    """Consecutive slices that cover the rows, each of about `block_elements` elements."""
    step = max(1, block_elements // max(1, n_columns))
    return [slice(start, min(start + step, n_rows)) for start in range(0, n_rows, step)]


def map_blocks(work: Callable[[Item], Result], blocks: Sequence[Item]) -> list[Result]:
    """[work(block) for block in blocks], on threads when there is more than one block and core."""
    if len(blocks) < 2 or n_threads() < 2 or _thread.in_pool:
        return [work(block) for block in blocks]
    with one_blas_thread():
        return list(_pool(n_threads()).map(work, blocks))


def map_ordered(work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Yield work(item) in order; at most two items per core are under way, which bounds the results held."""
    if len(items) < 2 or n_threads() < 2 or _thread.in_pool:
        yield from map(work, items)
        return
    waiting: deque[Future[Result]] = deque()
    pool = _pool(n_threads())
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) >= 2 * n_threads():
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


@contextmanager
def serial() -> Iterator[None]:
    """Inside the block this thread uses one core: something else already keeps the others busy."""
    before = _thread.in_pool
    _thread.in_pool = True
    try:
        yield
    finally:
        _thread.in_pool = before


@cache
def _pool(size: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(size, thread_name_prefix="calibrant", initializer=_mark_inside)


if hasattr(os, "register_at_fork"):
    # the threads of a pool do not live on in a forked child: there a new pool must be made, or the first map hangs
    os.register_at_fork(after_in_child=_pool.cache_clear)


def _mark_inside() -> None:
    # a block that itself maps over blocks must not wait for the pool it occupies
    _thread.in_pool = True


_lock = threading.Lock()
_state: dict[str, Any] = {"users": 0, "limit": None}


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold BLAS to one thread; the first one in sets the limit, the last one out lifts it."""
    with _lock:
        _state["users"] += 1
        _thread.blas_users += 1
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
            _thread.blas_users -= 1
            if _state["users"] == 0:
                limit, _state["limit"] = _state["limit"], None
                for library, threads in limit:
                    library.set_num_threads(threads)


def _in_child() -> None:
    """Only the thread that forked lives on; a limit that others had set is lifted after the next use."""
    _state["users"] = _thread.blas_users
    _lock.release()


if hasattr(os, "register_at_fork"):
    # the lock is free while the process forks, so that the child does not inherit it locked
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_in_child)


@cache
def _libraries() -> list[Any]:
    # looking the libraries up takes milliseconds, setting their threads microseconds
    from threadpoolctl import ThreadpoolController

    return list(ThreadpoolController().select(user_api="blas").lib_controllers)
