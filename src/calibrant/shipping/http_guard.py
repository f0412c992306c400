"""Deadlines of connections and room for new ones, for which uvicorn has no setting; a proxy in front does the same."""
# ruff: noqa: D102 (the methods are those of asyncio and uvicorn)

from __future__ import annotations

from typing import Any, ClassVar

from calibrant.core.errors import MissingExtraError
from calibrant.shipping.service import Limits

try:
    from prometheus_client import Counter
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ImportError as error:
    raise MissingExtraError("uvicorn and httptools", "serve") from error

MAX_OVERHEAD_BYTES = 64 << 10
"""Most bytes of a request beyond its body: headers, trailers, and the frames of chunks."""


class Guard(HttpToolsProtocol):
    """uvicorn's HTTP connection with a deadline for whatever its client must do next; `serve` makes a class of it."""

    limits: ClassVar[Limits]
    closed: ClassVar[Counter]
    waiting: ClassVar[dict[Guard, float]]
    """Connections that wait for their client, and since when: the longest wait comes first."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.overhead = self.body_bytes = self.unread = 0
        if len(self.connections) > self.limits.connections and self.waiting:
            next(iter(self.waiting)).give_up("full")
        self._wait("headers", self.limits.header_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self.waiting.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.body_bytes = 0
        super().data_received(data)
        # the frames of small chunks may take as many bytes as the body in them
        self.overhead = max(0, self.overhead + len(data) - 2 * self.body_bytes)
        if self.overhead > MAX_OVERHEAD_BYTES and self.stage in ("headers", "body"):
            self.give_up("overhead", b"431 Request Header Fields Too Large")

    def on_message_begin(self) -> None:
        self.overhead = 0
        self._wait("headers", self.limits.header_seconds)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._wait("body", self.limits.body_seconds + 2)  # the service itself answers 408 before
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.stage = "busy"
        self._settle()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._settle()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._settle()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._settle()

    def _settle(self) -> None:
        """Who has to act after a whole request: its client, who must read or send another one, or the service."""
        if self.stage in ("headers", "body"):
            return
        if self.flow.write_paused:
            self.unread = self.transport.get_write_buffer_size()
            self._wait("read", self.limits.read_seconds)
        elif self.cycle.response_complete and not self.pipeline:
            self._wait("idle", self.timeout_keep_alive)
        else:
            self.stage = "busy"
            self.waiting.pop(self, None)

    def _wait(self, stage: str, seconds: float) -> None:
        self.stage, self.seconds = stage, seconds
        self.waiting.pop(self, None)
        self.waiting[self] = self.loop.time()

    def give_up(self, reason: str, status: bytes = b"") -> None:
        """Close the connection, with an answer where one can still be given."""
        self.closed.labels(reason).inc()
        if not status or self.transport.is_closing():
            self.waiting.pop(self, None)
            self.connections.discard(self)  # now, so that uvicorn's limit does not count it
            self.transport.abort()
        else:
            self.transport.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            self.transport.close()
            self._wait("closing", 1.0)

    @classmethod
    def sweep(cls) -> None:
        """Give up every connection whose deadline has passed; called a few times per second."""
        for one, since in [*cls.waiting.items()]:
            if one.stage == "read" and one.transport.get_write_buffer_size() < one.unread:
                one._settle()  # its client reads slowly: the deadline begins anew
            elif one.loop.time() - since > one.seconds:
                one.give_up(one.stage, b"408 Request Timeout" if one.stage == "headers" else b"")
