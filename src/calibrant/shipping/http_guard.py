"""Connections that send or read slowly: deadlines for each stage, and room for others when all places are taken."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from calibrant.core.errors import MissingExtraError
from calibrant.shipping.service import Limits

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ImportError as error:
    raise MissingExtraError("uvicorn and httptools", "serve") from error

IDLE, HEADERS, BODY, BUSY = "idle", "headers", "body", "busy"
SWEEP_SECONDS = 0.5
MAX_HEADER_BYTES = 64 << 10


class Guard:
    """All connections of one server, those that wait for their client in the order in which they began to wait."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.n_open = 0
        self.n_closed: dict[str, int] = {"headers": 0, "body": 0, "read": 0, "full": 0}
        self._waiting: dict[Any, None] = {}
        self._busy: set[Any] = set()
        self._sweeping = False

    def protocol(self) -> type[HttpToolsProtocol]:
        """The protocol class for uvicorn: one connection under this guard."""
        return type("Guarded", (_GuardedProtocol,), {"guard": self})

    def admit(self, connection: _GuardedProtocol) -> bool:
        """Whether a new connection may stay; where all places are taken, the one that waits longest leaves."""
        self.n_open += 1
        if not self._sweeping:
            self._sweeping = True
            connection.loop.call_later(SWEEP_SECONDS, self._sweep, connection.loop)
        if self.n_open <= self.limits.connections:
            return True
        longest = next((other for other in self._waiting if not other.transport.is_closing()), None)
        self.n_closed["full"] += 1
        if longest is None:
            return False
        self._waiting.pop(longest)
        longest.transport.abort()
        return True

    def enter(self, connection: _GuardedProtocol, stage: str) -> None:
        """Note that a connection begins a stage now."""
        connection.stage, connection.since = stage, connection.loop.time()
        self._waiting.pop(connection, None)
        if stage == BUSY:
            self._busy.add(connection)
        else:
            self._busy.discard(connection)
            self._waiting[connection] = None  # at the end: the order is that of `since`

    def leave(self, connection: _GuardedProtocol) -> None:
        """Forget a connection that is gone."""
        self.n_open -= 1
        self._waiting.pop(connection, None)
        self._busy.discard(connection)

    def families(self) -> Iterator[Any]:
        """The connections for Prometheus."""
        yield GaugeMetricFamily("calibrant_connections", "Open connections.", self.n_open)
        closed = CounterMetricFamily("calibrant_connections_closed", "Connections given up on.", labels=["reason"])
        for reason, count in self.n_closed.items():
            closed.add_metric([reason], count)
        yield closed

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for connection in [*self._waiting, *self._busy]:
            self._check(connection, now)
        self._sweeping = self.n_open > 0
        if self._sweeping:
            loop.call_later(SWEEP_SECONDS, self._sweep, loop)

    def _check(self, connection: _GuardedProtocol, now: float) -> None:
        spent = 0.0 if connection.transport.is_closing() else now - connection.since
        if connection.stage == HEADERS and spent > self.limits.header_seconds:
            self.n_closed["headers"] += 1
            connection.dismiss(408, "Request Timeout")
        elif connection.stage == BODY and spent > self.limits.body_seconds + 2:  # the service itself says 408 before
            self.n_closed["body"] += 1
            connection.transport.abort()
        elif connection.is_stuck(now, self.limits.read_seconds):
            self.n_closed["read"] += 1
            connection.transport.abort()


class _GuardedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP connection, which tells the guard what it waits for."""

    guard: Guard

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.header_bytes = 0
        self.unread, self.unread_since = 0, self.loop.time()
        self.stage, self.since = HEADERS, self.loop.time()
        if self.guard.admit(self):
            self.guard.enter(self, HEADERS)
        else:
            self.dismiss(503, "Service Unavailable")

    def connection_lost(self, exc: Exception | None) -> None:
        self.guard.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self.stage == IDLE:
            self.guard.enter(self, HEADERS)
        if self.stage == HEADERS:
            self.header_bytes += len(data)
        super().data_received(data)
        if self.stage == HEADERS and self.header_bytes > MAX_HEADER_BYTES:
            self.dismiss(431, "Request Header Fields Too Large")

    def on_headers_complete(self) -> None:
        self.header_bytes = 0
        self.guard.enter(self, BODY)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        complete = self.cycle is None or self.cycle.response_complete
        self.guard.enter(self, IDLE if complete else BUSY)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        more = bool(self.pipeline)
        super().on_response_complete()
        if self.stage == BUSY and not more:
            self.guard.enter(self, IDLE)

    def is_stuck(self, now: float, seconds: float) -> bool:
        """Whether the client has read nothing of what waits for it for so long."""
        unread = self.transport.get_write_buffer_size()
        if not unread or unread != self.unread:
            self.unread, self.unread_since = unread, now
        return bool(unread) and now - self.unread_since > seconds

    def dismiss(self, status: int, reason: str) -> None:
        """Answer in one line and close."""
        if not self.transport.is_closing():
            self.transport.write(
                f"HTTP/1.1 {status} {reason}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode()
            )
            self.transport.close()


def most_connections(wanted: int) -> int:
    """The wanted number of connections, or as many as this process may open; the soft limit of files is raised."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + 128
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(16, min(wanted, soft - 128))
