"""Where a pass over chunks runs: the contract of an engine, and the engines by name.

`run(work, chunks, merge)` computes `work(chunk)` for every chunk and folds the results in the order of the chunks,
merge(merge(r₀, r₁), r₂) …, whoever finished first; so an answer has the same bits on any number of workers. `merge`
runs in the caller's thread and may change and return its left argument.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import reduce
from typing import Protocol, TypeVar, runtime_checkable

from calibrant.core.errors import InputError
from calibrant.core.threads import map_ordered

Chunk = TypeVar("Chunk")
Result = TypeVar("Result")

ADDRESSES = ("tcp://", "tls://", "ws://", "wss://", "ucx://", "inproc://")
"""How the address of a running Dask scheduler begins."""


@runtime_checkable
class Engine(Protocol):
    """Runs one function over chunks."""

    def run(
        self,
        work: Callable[[Chunk], Result],
        chunks: Sequence[Chunk],
        merge: Callable[[Result, Result], Result],
    ) -> Result:
        """Fold `work(chunk)` of all chunks in order; there is at least one."""

    def close(self) -> None:
        """Give back what the engine holds: threads, processes, connections."""


@contextmanager
def opened(engine: str | Engine = "local") -> Iterator[Engine]:
    """The engine of a name, closed when the block ends; one that is handed in ready-made stays open.

    Parameters
    ----------
    engine : "local", "dask", the address of a Dask scheduler ("tcp://host:8786"), or an engine
    """
    if isinstance(engine, Engine):
        yield engine
    elif not isinstance(engine, str):
        raise InputError(f"engine must be a name or have run() and close(), got {type(engine).__name__}")
    elif engine == "local":
        yield LocalEngine()  # which holds nothing
    elif engine == "dask" or engine.startswith(ADDRESSES):
        from calibrant.engines.dask import DaskEngine  # loads dask, which only this engine needs

        with closing(DaskEngine() if engine == "dask" else DaskEngine(engine)) as made:
            yield made
    else:
        raise InputError(
            f"no engine is called {engine!r}: give local, dask or the address of a scheduler (tcp://host:8786)"
        )


class LocalEngine:
    """Runs chunks on all cores this process may use; at most two chunks a core are on their way.

    Examples
    --------
    >>> LocalEngine().run(lambda chunk: sum(chunk), [[1, 2], [3], [4, 5]], lambda left, right: left + right)
    15
    """

    def run(
        self,
        work: Callable[[Chunk], Result],
        chunks: Sequence[Chunk],
        merge: Callable[[Result, Result], Result],
    ) -> Result:
        """Fold `work(chunk)` of all chunks in order."""
        return reduce(merge, map_ordered(work, chunks))

    def close(self) -> None:
        """Nothing to give back: the threads belong to the process."""
