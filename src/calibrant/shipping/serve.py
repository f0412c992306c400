"""`serve`: the application in uvicorn, with a guard of its connections, a log of JSON lines and a graceful stop."""

from __future__ import annotations

import contextlib
import errno
import gc
import ipaddress
import logging
import math
import os
import re
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

from calibrant.core.arrays import Json
from calibrant.core.errors import InputError, MissingExtraError
from calibrant.shipping.artifact import Artifact, PathName
from calibrant.shipping.feed import FeedbackDesk
from calibrant.shipping.service import ACCESS, EVENTS, Limits, Service, create_app

try:
    import orjson
    import uvicorn
    from prometheus_client import Counter, Gauge
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ImportError as error:
    raise MissingExtraError("uvicorn and httptools", "serve") from error

MAX_OVERHEAD_BYTES = 64 << 10
"""Most bytes of a request beyond its body: headers, trailers, and the frames of chunks."""
MAX_WAITING = 10_000
"""Log lines that may wait for a slow reader; later ones are dropped and counted."""
LINGER_SECONDS = 5.0
"""A client that is refused while it sends has this time to read the response: a reset could destroy it."""
GATHER_SECONDS = 0.05
"""Lines are written together: waking the thread for each would cost more than the request itself."""


class _JsonLines(logging.Handler):
    """Records as lines of JSON; where too many wait to be written, the next one that fits says how many were lost."""

    def __init__(self) -> None:
        super().__init__()
        self.stopping, self.lines, self.n_dropped = threading.Event(), deque[bytes](), 0

    def emit(self, record: logging.LogRecord) -> None:
        """Time, level and event, then the fields of the record, as one JSON object."""
        if len(self.lines) >= MAX_WAITING:
            self.n_dropped += 1
            return
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        about: Json = {"time": stamp, "level": record.levelname.lower(), "event": record.getMessage()}
        about |= vars(record).get("fields", {})
        if self.n_dropped:
            about["lines_dropped"], self.n_dropped = self.n_dropped, 0
        self.lines.append(orjson.dumps(about, option=orjson.OPT_APPEND_NEWLINE))

    def write(self) -> None:
        """Write what waits, again and again until the end."""
        last = False
        while not last:
            last = self.stopping.wait(GATHER_SECONDS)
            text = b"".join(self.lines.popleft() for _ in range(len(self.lines)))
            with contextlib.suppress(OSError):  # without a reader the service goes on
                while text:  # past the buffer of sys.stderr, whose lock Python waits for at exit
                    text = text[os.write(sys.stderr.fileno(), text) :]


@contextlib.contextmanager
def json_log(*, access: bool = True) -> Iterator[None]:
    """Write the service's log as lines of JSON to standard error, in a thread of its own.

    A reader that stops reading costs log lines, never requests.
    """
    lines = _JsonLines()
    EVENTS.addHandler(lines)
    EVENTS.setLevel(logging.INFO)
    EVENTS.propagate = False
    ACCESS.setLevel(logging.INFO if access else logging.WARNING)
    writing = threading.Thread(target=lines.write, daemon=True)  # the reader may have stopped for good
    writing.start()
    try:
        yield
    finally:
        EVENTS.removeHandler(lines)
        EVENTS.propagate = True
        lines.stopping.set()
        writing.join(timeout=2)


class _Guard(HttpToolsProtocol):
    """uvicorn's HTTP connection with a deadline for whatever its client must do next; `serve` makes a class of it.

    Deadlines and room for new connections are what uvicorn has no setting for; a proxy in front does the same.
    """

    limits: ClassVar[Limits]
    closed: ClassVar[Counter]
    waiting: ClassVar[dict[_Guard, float]]
    """Connections that wait for their client, and since when: the longest wait comes first."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.overhead = self.body_bytes = self.unread = 0
        self.tail = b""
        if len(self.connections) > self.limits.connections and self.waiting:
            next(iter(self.waiting)).give_up("full")
        self._wait("headers", self.limits.header_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self.waiting.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.stage == "closing":
            return
        self.body_bytes = 0
        if self.stage in ("headers", "idle"):  # before the parser builds them
            text = self.tail + data
            end = text.find(b"\r\n\r\n")
            self.tail = text[-3:] if end < 0 else b""
            if (self.stage == "headers") * self.overhead + (len(text) if end < 0 else end) > MAX_OVERHEAD_BYTES:
                self.give_up("overhead", b"431 Request Header Fields Too Large")
                return
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
        self._wait("body", self.limits.body_seconds)
        super().on_headers_complete()
        self.cycle.transport = self  # type: ignore[assignment]  # for `close`

    def write(self, data: bytes) -> None:
        """Write a part of a response."""
        self.transport.write(data)

    def is_closing(self) -> bool:
        """Return whether the connection is being closed."""
        return self.transport.is_closing()

    def close(self) -> None:
        """Close after a response; if the client still sends, ignore the rest of the body for some seconds first."""
        if self.stage == "body":
            self._wait("closing", LINGER_SECONDS)
        else:
            self.transport.close()

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

    def _settle(self) -> None:
        """Who has to act after a whole request: its client, who must read or send another one, or the service."""
        if self.stage in ("headers", "body", "closing"):
            return
        if self.flow.write_paused:
            self.unread = self.transport.get_write_buffer_size()
            self._wait("read", self.limits.read_seconds)
        elif self.cycle.response_complete and not self.pipeline:
            self._wait("idle", self.limits.idle_seconds)
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
            if reason == "body":  # the application logs it
                self.scope["calibrant"] = {"error": "the body did not arrive in time"}  # type: ignore[typeddict-unknown-key]
            else:
                self._log(int(status[:3]), f"{reason}: {status[4:].decode()}")
            self._wait("closing", 1.0)

    def send_400_response(self, msg: str) -> None:
        self._log(400, msg)
        super().send_400_response(msg)

    def _log(self, status: int, error: str) -> None:
        """Log an answer that was given without the application."""
        fields = {"status": status, "error": error, "client": (self.client or [None])[0]}
        ACCESS.info("connection closed", extra={"fields": fields})

    @classmethod
    def sweep(cls) -> None:
        """Give up every connection whose deadline has passed; called ten times per second."""
        for one, since in [*cls.waiting.items()]:
            if one.stage == "read" and one.transport.get_write_buffer_size() < one.unread:
                one._settle()  # its client reads, or has read: the deadline begins anew
            elif one.stage == "body" and one.flow.read_paused:
                one._wait("body", one.limits.body_seconds)  # the service reads nothing: its client is not late
            elif one.loop.time() - since > one.seconds:
                late = one.stage == "headers" or (one.stage == "body" and not one.cycle.response_started)
                one.give_up(one.stage, b"408 Request Timeout" if late else b"")


class _Server(uvicorn.Server):
    """uvicorn, which says that it is about to stop before it does, and looks after slow connections."""

    service: Service
    guard: type[_Guard]
    stop_at = float("inf")

    async def on_tick(self, counter: int) -> bool:
        """Ten times per second."""
        self.guard.sweep()
        if time.monotonic() > self.stop_at:
            self.should_exit = True
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Stop at once, or `drain_seconds` after the first SIGTERM."""
        first, self.service.stopping = not self.service.stopping, True
        if first and sig == signal.SIGTERM:
            self.stop_at = time.monotonic() + self.service.limits.drain_seconds
            return
        super().handle_exit(sig, frame)
        # uvicorn raises the signal again after it has stopped; a service that stopped as asked exits with 0
        self._captured_signals.clear()


def serve(
    artifact: Artifact | PathName,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    limits: Limits | None = None,
    feedback: FeedbackDesk | None = None,
    access_log: bool = True,
    trusted_proxies: str | None = None,
    announce: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve until SIGINT or SIGTERM; requests in flight are finished first.

    A path is looked at every second, and a new artifact there takes over between two requests. The host "unix:PATH"
    is a socket in the file system. The header X-Forwarded-For is read only from `trusted_proxies`, addresses separated
    by commas, or "*".
    `announce` is told the address once the port is ours; port 0 takes any that is free. After SIGTERM `/readyz` says no
    for `limits.drain_seconds` before the service stops taking connections. `access_log=False` leaves out the lines of
    requests; errors, reloads and alarms are always logged. On a loopback address a request must name this machine in
    its header Host, so that no web page can reach the service by a name that was bound anew.
    """
    limits = _possible(limits or Limits())
    service = create_app(artifact, limits, feedback=feedback)
    closed = Counter("calibrant_connections_closed", "Connections given up.", ["reason"], registry=service.registry)
    guard = type("Guarded", (_Guard,), {"limits": limits, "closed": closed, "waiting": {}})
    config = uvicorn.Config(
        service,
        http=guard,
        ws="none",
        log_config=None,
        log_level="critical",  # the service's own log says what happened
        access_log=False,
        server_header=False,
        proxy_headers=trusted_proxies is not None,
        forwarded_allow_ips=trusted_proxies or "",
        limit_concurrency=limits.connections + 1,
        timeout_keep_alive=math.ceil(limits.idle_seconds),
        timeout_graceful_shutdown=int(limits.stop_seconds),
        lifespan="on",
    )
    server = _Server(config)
    server.service, server.guard = service, guard
    Gauge("calibrant_connections", "Open connections.", registry=service.registry).set_function(
        lambda: len(server.server_state.connections)
    )
    if sys.platform != "win32":
        # it asks for files to be read again, which is done every second
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    listener = _listen(host, port)
    address = listener.getsockname()
    if isinstance(address, str):
        url = host
    else:
        name = f"[{host}]" if ":" in host else host
        url = f"http://{name}:{address[1]}"
        if ipaddress.ip_address(address[0]).is_loopback:
            # a page whose name was bound anew to this machine says its own name
            own = rf"(localhost|127(\.\d+){{3}}|\[::1\]|{re.escape(name)})(:\d+)?"
            service.hosts = re.compile(own, re.IGNORECASE)
    gc.collect()
    gc.freeze()  # a full collection of all imported objects would stop requests for 50 ms
    with listener, json_log(access=access_log), contextlib.suppress(KeyboardInterrupt):
        announce(url)
        server.run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket at an address and a port, or at a path of the file system."""
    place, path = f"{host} port {port}", host.removeprefix("unix:")
    try:
        if path == host:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return socket.create_server((host, port), family=family, backlog=2048)
        place = path
        listener = socket.socket(socket.AF_UNIX)
        if os.path.exists(path) and listener.connect_ex(path) == errno.ECONNREFUSED:
            os.unlink(path)  # of a service that was killed
            listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(2048)
        return listener
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"cannot listen on {place}: {reason}; choose others with --host, --port") from error


def _possible(limits: Limits) -> Limits:
    """As many connections as asked for, or as this process may open; the soft limit of open files is raised."""
    if sys.platform == "win32":
        return limits
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = limits.connections + 128
    possible = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft < possible:
        resource.setrlimit(resource.RLIMIT_NOFILE, (possible, hard))
    return replace(limits, connections=max(16, possible - 128))
