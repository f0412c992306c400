"""Chunks on a Dask cluster: one made here from the cores of this machine, or one that is already running."""

import functools
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from calibrant.core.errors import InputError, MissingExtraError
from calibrant.core.threads import n_threads, serial

Chunk = TypeVar("Chunk")
Result = TypeVar("Result")

CONNECT_SECONDS = 4
"""How long a scheduler may take to answer."""

ANSWER_SECONDS = 5
"""How often a client that waits asks whether the scheduler is still there."""

RETRIES = 3
"""How often a chunk is tried again after its worker died or raised something other than bad input."""


class DaskEngine:
    """Runs chunks on the workers of a Dask cluster.

    A worker that dies costs only time: its chunks go to the others. Chunks are addresses of files, so workers on other
    machines must reach the same paths.

    Parameters
    ----------
    address : str, optional
        Of a running scheduler, such as "tcp://10.0.0.1:8786". Without one, a cluster of one process a core is started
        here and stopped by `close`; the script that does so needs the guard `if __name__ == "__main__"`.
    n_workers : int, optional
        Processes of a cluster started here.
    """

    def __init__(self, address: str | None = None, *, n_workers: int | None = None) -> None:
        try:
            from distributed import CancelledError, Client, LocalCluster
            from distributed.client import FutureCancelledError
            from distributed.comm import CommClosedError
        except ImportError as error:
            raise MissingExtraError("dask.distributed", "dask") from error
        # a dying worker fills the terminal with the scheduler's log; what matters comes back as an error
        for name in ("distributed", "distributed.client"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self.cluster: Any = None
        self.address = address or "this machine"
        if address is None:
            self.cluster = LocalCluster(
                n_workers=n_workers or n_threads(),
                threads_per_worker=1,
                dashboard_address="127.0.0.1:0",
                silence_logs=logging.CRITICAL,
            )
        self._gone = (CancelledError, FutureCancelledError, CommClosedError)
        try:
            self.client = Client(self.cluster or address, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            raise InputError(
                f"no Dask scheduler answers at {address} within {CONNECT_SECONDS} s: start one with `dask scheduler`, "
                "or let calibrant start a cluster here with the engine dask"
            ) from error

    def run(
        self,
        work: Callable[[Chunk], Result],
        chunks: Sequence[Chunk],
        merge: Callable[[Result, Result], Result],
    ) -> Result:
        """Fold `work(chunk)` of all chunks in order; a few chunks a worker are under way."""
        waiting: deque[Any] = deque()
        try:
            return functools.reduce(merge, self._results(functools.partial(_serial, work), chunks, waiting))
        except InputError:
            raise
        except self._gone as error:
            raise self._lost() from error
        except Exception as error:
            # what a closed client raises depends on what it was asked for
            if self.client.status == "running":
                raise
            raise self._lost() from error
        finally:
            if self.client.status == "running":
                self.client.cancel(list(waiting), force=True)

    def close(self) -> None:
        """Leave the cluster; stop it if it was started here."""
        self.client.close(timeout=CONNECT_SECONDS)
        if self.cluster is not None:
            self.cluster.close()

    def _results(self, task: Callable[[Any], Any], chunks: Sequence[Any], waiting: deque[Any]) -> Iterator[Any]:
        """Results in the order of the chunks; four chunks per thread of the cluster are under way."""
        for place, chunk in enumerate(chunks, 1):
            waiting.append(self.client.submit(task, chunk, pure=False, retries=RETRIES))
            room = 1 if place == len(chunks) else 4 * max(1, sum(self.client.nthreads().values()))
            while len(waiting) >= room:
                future = waiting.popleft()
                answer = self._answer(future)
                future.release()
                if isinstance(answer, InputError):
                    raise answer
                yield answer

    def _answer(self, future: Any) -> Any:
        """What a worker answers; without a scheduler nobody would ever answer, so that it is asked for regularly."""
        while True:
            try:
                return future.result(timeout=ANSWER_SECONDS)
            except TimeoutError as error:
                if self.client.status != "running":
                    raise self._lost() from error

    def _lost(self) -> InputError:
        return InputError(
            f"the Dask scheduler at {self.address} went away during the work: start it and the work again"
        )


def _serial(work: Callable[[Any], Any], chunk: Any) -> Any:
    """The result; bad input is the same on every worker and comes back as an answer, so that nobody tries again."""
    try:
        # the workers already keep every core busy
        with serial():
            return work(chunk)
    except InputError as error:
        return error
