"""Chunks on the threads of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from calibrant.core.threads import map_ordered

Chunk = TypeVar("Chunk")
Result = TypeVar("Result")


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
        results = map_ordered(work, chunks)
        total = next(results)
        for result in results:
            total = merge(total, result)
        return total

    def close(self) -> None:
        """Nothing to give back: the threads belong to the process."""
