"""One JSON object per request, written by a thread of its own so that a slow reader of the log slows no request."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from typing import Any, TextIO

from calibrant.core.errors import MissingExtraError

try:
    import orjson
except ImportError as error:
    raise MissingExtraError("orjson", "serve") from error

MAX_WAITING = 10_000
"""Lines that may wait for a slow reader; later ones are dropped and counted."""
GATHER_SECONDS = 0.05
"""Lines are written together: waking the thread for each would cost more than the request itself."""


class AccessLog:
    """Lines of JSON on a stream (standard error by default)."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._lines: deque[bytes] = deque()
        self._wake = threading.Event()
        self._closing = False
        self.n_dropped = 0
        self._thread = threading.Thread(target=self._write, name="calibrant-access-log", daemon=True)
        self._thread.start()

    def request(self, **fields: Any) -> None:
        """Log one answered request."""
        self._put({"time": _now(), "level": "info", "event": "request", **fields})

    def event(self, event: str, level: str = "info", **fields: Any) -> None:
        """Log anything else that happened: a reload, an alarm, an unexpected error."""
        self._put({"time": _now(), "level": level, "event": event, **fields})

    def close(self) -> None:
        """Write what waits, for at most 2 seconds."""
        self._closing = True
        self._wake.set()
        self._thread.join(timeout=2)

    def _put(self, record: dict[str, Any]) -> None:
        if len(self._lines) >= MAX_WAITING:
            self.n_dropped += 1
            return
        self._lines.append(_dumps(record))
        if not self._wake.is_set():
            self._wake.set()

    def _write(self) -> None:
        while True:
            self._wake.wait()
            if not self._closing:
                time.sleep(GATHER_SECONDS)
            self._wake.clear()
            lines = [self._lines.popleft() for _ in range(len(self._lines))]
            dropped, self.n_dropped = self.n_dropped, 0
            if dropped:
                record = {"time": _now(), "level": "warning", "event": "log lines dropped", "count": dropped}
                lines.insert(0, _dumps(record))
            try:
                self._stream.write(b"".join(lines).decode())
                self._stream.flush()
            except (OSError, ValueError):
                return  # the reader of the log is gone: the service goes on without one
            if self._closing and not self._lines:
                return


def _now() -> str:
    seconds = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}Z"


def _dumps(record: dict[str, Any]) -> bytes:
    return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
